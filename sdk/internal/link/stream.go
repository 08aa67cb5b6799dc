package link

import (
	"context"
	"errors"
	"io"
	"runtime"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/mem"

	quoratev1 "github.com/quorate/quorate/proto/quorate/v1"
	"github.com/quorate/quorate/sdk/internal/bound"
)

// checkStream describes the streams.
var checkStream = grpc.StreamDesc{StreamName: "CheckStream", ServerStreams: true, ClientStreams: true}

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
	err := s.grpc.SendMsg(frame)
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
	if n.closed || n.queue.count == 0 {
		n.mu.Unlock()
		return nil, false
	}
	if s := n.stream; s != nil {
		n.mu.Unlock()
		return s, true
	}
	ctx, cancel := context.WithCancel(n.life)
	s := &stream{cancel: cancel, beganNanos: n.now()}
	n.stream = s
	n.arm(SilentAfter)
	n.mu.Unlock()

	// waits while the connection is being made
	g, err := n.conn.NewStream(ctx, &checkStream, quoratev1.Quota_CheckStream_FullMethodName, grpc.StaticMethod(),
		grpc.ForceCodecV2(codec{}))

	n.mu.Lock()
	defer n.mu.Unlock()
	switch {
	case n.stream != s: // given up or closed meanwhile
		cancel()
		return nil, n.queue.count > 0 && n.retryLater()
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
func (n *Node) take(s *stream) mem.Buffer {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.stream != s || n.queue.count == 0 {
		if n.queue.count > 0 {
			n.rouse()
		}
		return nil
	}
	now, checks := n.now(), 0
	buffer := n.frames.Get(0)
	frame := *buffer
	for room := bound.FrameBytes; checks < bound.FrameChecks; {
		c := n.queue.first
		if c == nil {
			break
		}
		if c.deadlineNanos <= now {
			n.giveUp(c, ErrTimeout)
			continue
		}
		if room -= len(c.body) + envelopeBytes; room < 0 && checks > 0 {
			break
		}
		n.queue.remove(c)
		c.stream, c.sentNanos = s, now
		s.waiting.add(c)
		frame = appendStreamed(frame, c.sequence, c.body, max(1, (c.deadlineNanos-now)/int64(time.Microsecond)))
		checks++
	}
	*buffer = frame
	if checks == 0 {
		n.frames.Put(buffer)
		return nil
	}
	if s.sendingNanos = now; s.owedNanos == 0 {
		s.owedNanos = now
	}
	n.arm(SilentAfter)
	return mem.NewBuffer(buffer, &n.frames)
}

// receive hands the answers of a stream out until it ends.
func (n *Node) receive(s *stream) {
	in := &inbox{}
	defer in.free()
	for {
		if err := s.grpc.RecvMsg(in); err != nil {
			n.broken(s, err)
			return
		}
		n.answered(s, in.answers)
		in.free()
	}
}

// answered gives calls their answers. It is called by the stream's receiver alone.
func (n *Node) answered(s *stream, answers []answer) {
	n.settle(s, answers)
	for _, c := range s.over { // who is woken asks again soon: nothing is held that he needs for that
		c.wake()
	}
	s.over = s.over[:0]
	n.handedOut()
}

// handedOut has what was queued meanwhile sent, together.
func (n *Node) handedOut() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.handing--; n.queue.count > 0 {
		n.rouse()
	}
}

// settle gives calls their answers, and notes whom to wake.
func (n *Node) settle(s *stream, answers []answer) {
	n.mu.Lock()
	defer n.mu.Unlock()
	now := n.now()
	n.handing++
	s.answered = true
	s.owedNanos, s.heardNanos = 0, now
	if n.stream == s && n.suspectUntil.Load() != 0 {
		n.suspectUntil.Store(0)
	}
	var sent tally
	for i := range answers {
		a := &answers[i]
		if c := s.waiting.of(a.sequence); c != nil && n.part(c) {
			sent.add(c)
			c.answer(a, now)
			s.over = append(s.over, c)
		}
	}
	n.count(sent)
	if s.waiting.count > 0 {
		s.owedNanos = now
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
	if n.queue.count > 0 {
		n.rouse()
	}
}
