package quotatest

import (
	"context"
	"errors"
	"io"
	"slices"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/quorate/quorate/internal/errtable"
	quoratev1 "github.com/quorate/quorate/proto/quorate/v1"
	"github.com/quorate/quorate/quotaerr"
	"github.com/quorate/quorate/sdk/internal/bound"
)

// maxOpen bounds the checks of a stream that are not answered yet, as the real one does.
const maxOpen = 4096

// checkStream is one stream of checks.
type checkStream struct {
	node    *Node
	stream  grpc.BidiStreamingServer[quoratev1.CheckStreamRequest, quoratev1.CheckStreamResponse]
	late    sync.WaitGroup // answers that wait for their time
	pending chan struct{}  // has room for one: there are answers
	ended   chan struct{}  // closed when there will be no more

	mu      sync.Mutex // guards the fields below
	open    map[uint64]bool
	answers []*quoratev1.StreamedAnswer
}

// CheckStream decides checks by the frame.
func (s *service) CheckStream(
	stream grpc.BidiStreamingServer[quoratev1.CheckStreamRequest, quoratev1.CheckStreamResponse],
) error {
	s.node.locked(func() { s.node.count(func(c *Counts) { c.Streams++ }) })
	ctx, end := context.WithCancel(stream.Context())
	defer end()
	c := &checkStream{
		node: s.node, stream: stream, pending: make(chan struct{}, 1), ended: make(chan struct{}), open: map[uint64]bool{},
	}
	var writing sync.WaitGroup
	writing.Go(c.write)
	err := c.read(ctx)
	c.late.Wait() // answers come before the status; nothing is waited for once the stream is broken
	close(c.ended)
	writing.Wait()
	return err
}

// read takes frames until there are no more.
func (c *checkStream) read(ctx context.Context) error {
	for {
		frame, err := c.stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := c.frame(ctx, frame); err != nil {
			return errtable.ToStatus(ctx, err).Err()
		}
	}
}

// frame decides the checks of a frame. An error ends the stream.
func (c *checkStream) frame(ctx context.Context, frame *quoratev1.CheckStreamRequest) error {
	n := len(frame.GetChecks())
	c.node.locked(func() {
		c.node.count(func(of *Counts) { of.Frames, of.Largest = of.Frames+1, max(of.Largest, n) })
	})
	if size := proto.Size(frame); n > bound.FrameChecks || size > bound.FrameBytes {
		return quotaerr.New(quotaerr.InvalidArgument, "the frame has %d checks and %d bytes: send at most %d and %d",
			n, size, bound.FrameChecks, bound.FrameBytes)
	}
	for _, check := range frame.GetChecks() {
		if !c.enter(check.GetSequence()) {
			return quotaerr.New(quotaerr.InvalidArgument, "sequence %d is still unanswered: use another",
				check.GetSequence())
		}
	}
	for _, check := range frame.GetChecks() {
		req := check.GetCheck()
		if req == nil {
			req = &quoratev1.CheckRequest{} // which is malformed
		}
		v := verdict{refusal: quotaerr.New(quotaerr.Overloaded, "the stream has %d unanswered checks", maxOpen)}
		switch {
		case check.GetTimeoutMicros() < 0:
			v.refusal = quotaerr.New(quotaerr.InvalidArgument, "timeout_micros is negative: leave it out for none")
		case c.room():
			v = c.node.check(req)
		}
		switch {
		case v.lost:
		case v.delay > 0:
			c.late.Go(func() {
				if passed(ctx, v.delay) {
					c.answer(check.GetSequence(), v)
				}
			})
		default:
			c.answer(check.GetSequence(), v)
		}
	}
	return nil
}

func (c *checkStream) enter(sequence uint64) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.open[sequence] {
		return false
	}
	c.open[sequence] = true
	return true
}

func (c *checkStream) room() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.open) <= maxOpen
}

// answer has a check answered.
func (c *checkStream) answer(sequence uint64, v verdict) {
	a := &quoratev1.StreamedAnswer{Sequence: sequence, Leader: v.leader}
	switch {
	case v.refusal != nil:
		a.Answer = &quoratev1.StreamedAnswer_Refusal{Refusal: errtable.ToRefusal(v.refusal)}
	case v.decision != nil:
		a.Answer = &quoratev1.StreamedAnswer_Decision{Decision: v.decision}
	}
	c.mu.Lock()
	c.answers = append(c.answers, a)
	c.mu.Unlock()
	select {
	case c.pending <- struct{}{}:
	default:
	}
}

// write sends what is to be answered, all that there is as one frame, until no more can come. What cannot be sent is
// dropped: the stream is broken, which the reader sees.
func (c *checkStream) write() {
	for {
		select {
		case <-c.pending:
			c.send()
		case <-c.ended:
			c.send()
			return
		}
	}
}

// send sends the answers that there are, in frames of a bounded size.
func (c *checkStream) send() {
	c.mu.Lock()
	answers := c.answers
	c.answers = nil
	for _, a := range answers {
		delete(c.open, a.GetSequence())
	}
	c.mu.Unlock()
	for frame := range slices.Chunk(answers, bound.FrameChecks) {
		if c.stream.Send(&quoratev1.CheckStreamResponse{Answers: frame}) != nil {
			return
		}
	}
}
