package link

import (
	"context"
	"errors"
	"io"
	"runtime"
	"time"

	quoratev1 "github.com/quorate/quorate/proto/quorate/v1"
	"github.com/quorate/quorate/sdk/internal/bound"
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
	err := s.grpc.Send(frame)
	n.sent(s, err)
	return true
}

// sent notes that a frame has left, or not.
func (n *Node) sent(s *stream, err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if s.sendingNanos = 0; err != nil {
		n.detach(s, err)
	}
}

// detach has the next frame sent over another stream. What has become of s, its receiver is told: io.EOF says that
// it has ended already, and answers may still be on their way to the receiver. It may be that a part of the frame
// has left. n.mu is held.
func (n *Node) detach(s *stream, err error) {
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
	s := &stream{cancel: cancel, waiting: map[uint64]*call{}, beganNanos: n.now()}
	n.stream = s
	n.arm(SilentAfter)
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
	frame := &quoratev1.CheckStreamRequest{}
	frame.Checks = make([]*quoratev1.StreamedCheck, 0, min(n.queue.Len(), bound.FrameChecks))
	for room := bound.FrameBytes; len(frame.Checks) < bound.FrameChecks; {
		e := n.queue.Front()
		if e == nil {
			break
		}
		c := e.Value.(*call)
		if c.deadlineNanos <= now {
			n.finish(c, Result{Err: ErrTimeout, Unsent: true, Crowded: n.takes(s)})
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
	if s.sendingNanos = now; s.owedNanos == 0 {
		s.owedNanos = now
	}
	n.arm(SilentAfter)
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
	s.answered = true
	s.owedNanos, s.heardNanos = 0, n.now()
	if n.stream == s {
		n.suspectUntil = 0
	}
	for _, a := range frame.GetAnswers() {
		if c := s.waiting[a.GetSequence()]; c != nil {
			n.finish(c, Result{Decision: a.GetDecision(), Refusal: a.GetRefusal(), Leader: a.GetLeader()})
		}
	}
	if len(s.waiting) > 0 {
		s.owedNanos = s.heardNanos
		n.arm(SilentAfter)
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
	if n.queue.Len() > 0 {
		n.rouse()
	}
}
