package link

import (
	"context"
	"errors"
	"io"
	"runtime"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	quoratev1 "github.com/quorate/quorate/proto/quorate/v1"
)

// send is the sender: while checks are queued it sends frame after frame.
func (n *Node) send() {
	for {
		select {
		case <-n.wake:
		case <-n.life.Done():
			return
		}
		// Who can run and is about to queue a check does so first: many are woken by one frame of answers.
		for runtime.Gosched(); n.sendFrame(); runtime.Gosched() {
		}
	}
}

// sendFrame sends what is queued, as far as it fits into a frame, and reports whether there was anything.
func (n *Node) sendFrame() bool {
	s, ok := n.open()
	if !ok {
		return false
	}
	frame := n.take(s)
	if frame == nil {
		return false
	}
	n.counters.Frames.Add(1)
	if err := s.grpc.Send(frame); err != nil {
		n.detach(s, err)
	}
	return true
}

// detach has the next frame sent over another stream. What has become of s, its receiver is told: io.EOF says that it
// has ended already. It may be that a part of the frame has left.
func (n *Node) detach(s *stream, err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.stream == s {
		n.stream = nil
	}
	if !errors.Is(err, io.EOF) {
		s.cancel()
	}
}

// open returns the stream, and opens one if there is none. If that fails, what is queued is told so.
func (n *Node) open() (*stream, bool) {
	n.mu.Lock()
	if n.closed || n.queue.Len() == 0 {
		n.mu.Unlock()
		return nil, false
	}
	if s := n.stream; s != nil {
		n.mu.Unlock()
		return s, true
	}
	ctx, cancel := context.WithCancel(n.life)
	s := &stream{cancel: cancel, waiting: map[uint64]*call{}}
	n.stream = s
	n.mu.Unlock()

	g, err := n.client.CheckStream(ctx) // waits while the connection is being made

	n.mu.Lock()
	defer n.mu.Unlock()
	switch {
	case n.stream != s: // given up or closed meanwhile
		cancel()
		return nil, n.queue.Len() > 0 && n.retryLater()
	case err != nil:
		n.failAll(err)
		return nil, false
	}
	s.grpc = g
	n.work.Go(func() { n.receive(s) })
	return s, true
}

// retryLater has the sender look again; the present round is over.
func (n *Node) retryLater() bool {
	n.rouse()
	return false
}

// take makes a frame of the oldest checks that are queued; nil when there are none, or the stream is over.
func (n *Node) take(s *stream) *quoratev1.CheckStreamRequest {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.stream != s || n.queue.Len() == 0 {
		if n.queue.Len() > 0 {
			n.rouse()
		}
		return nil
	}
	now := n.now()
	frame := &quoratev1.CheckStreamRequest{Checks: make([]*quoratev1.StreamedCheck, 0, min(n.queue.Len(), MaxFrameChecks))}
	for room := MaxFrameBytes; len(frame.Checks) < MaxFrameChecks; {
		e := n.queue.Front()
		if e == nil {
			break
		}
		c := e.Value.(*call)
		if c.deadlineNanos <= now {
			n.finish(c, Result{Err: ErrTimeout, Unsent: true})
			continue
		}
		if room -= c.bytes; room < 0 && len(frame.Checks) > 0 {
			break
		}
		n.queue.Remove(e)
		s.next++
		c.queued, c.stream, c.sequence, c.sentNanos = nil, s, s.next, now
		s.waiting[c.sequence] = c
		frame.Checks = append(frame.Checks, &quoratev1.StreamedCheck{
			Sequence: c.sequence, Check: c.check,
			TimeoutMicros: max(1, (c.deadlineNanos-now)/int64(time.Microsecond)),
		})
	}
	if len(frame.Checks) == 0 {
		return nil
	}
	return frame
}

// receive hands the answers of a stream out until it ends.
func (n *Node) receive(s *stream) {
	for {
		frame, err := s.grpc.Recv()
		if err != nil {
			n.broken(s, err)
			return
		}
		n.answered(s, frame)
	}
}

func (n *Node) answered(s *stream, frame *quoratev1.CheckStreamResponse) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.stream != s {
		return
	}
	s.answered = true
	n.waitingSince, n.suspectUntil = 0, 0
	for _, a := range frame.GetAnswers() {
		if c := s.waiting[a.GetSequence()]; c != nil {
			n.finish(c, Result{Decision: a.GetDecision(), Refusal: a.GetRefusal(), Leader: a.GetLeader()})
		}
	}
	if len(s.waiting) > 0 || n.queue.Len() > 0 {
		n.owe()
	}
}

// broken ends a stream that broke, with what waits on it. What is queued goes to the next one.
func (n *Node) broken(s *stream, err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.stream == s {
		n.stream = nil
	}
	s.end(n, s.ofStream(err))
	n.waitingSince = 0
	if n.queue.Len() > 0 {
		n.owe()
		n.rouse()
	}
}

func unimplemented(err error) bool { return status.Code(err) == codes.Unimplemented }
