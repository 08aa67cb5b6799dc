package rpc

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"sync"
	"time"

	"google.golang.org/grpc"

	"github.com/quorate/quorate/fsm"
	quoratev1 "github.com/quorate/quorate/proto/quorate/v1"
	"github.com/quorate/quorate/quotaerr"
)

// The bounds of streams of checks.
const (
	// MaxFrameChecks and MaxFrameBytes bound a frame: of checks, and of answers, but for a lone larger one.
	MaxFrameChecks = fsm.MaxChecksPerEntry
	MaxFrameBytes  = fsm.MaxEntryBytes
	// MaxStreamedChecks bounds the checks of one stream whose answers have not left yet. Further ones get overloaded.
	MaxStreamedChecks = 8192
	// maxUnsentBytes is how much of answers may wait for their reader before no further checks are read.
	maxUnsentBytes = 1 << 20
	// maxCheckStreams bounds the streams: one for each connection, if every one had to have one.
	maxCheckStreams, maxCheckStreamsEach = maxConnections, maxConnectionsPerIdentity
)

// streamedShare is how many of a node's unanswered checks the streams of one gateway may have: three quarters.
func streamedShare(maxInFlight int) int { return max(1, maxInFlight-maxInFlight/4) }

// CheckStream has many checks decided, each as CheckAndConsume does it.
func (s *quotaService) CheckStream(
	stream grpc.BidiStreamingServer[quoratev1.CheckStreamRequest, quoratev1.CheckStreamResponse],
) error {
	ctx := stream.Context()
	id := identityOf(ctx)
	done, err := s.desk.checkStreams.take(id.String())
	if err != nil {
		return err
	}
	defer done()
	c := newCheckStream(s.desk, s.log, id)
	c.recv = func() (*checkFrame, error) {
		f := &checkFrame{}
		return f, stream.RecvMsg(f)
	}
	c.send = func(e encoded) error { return stream.SendMsg(passing(e)) }
	return c.run(ctx)
}

// checkStream is one caller's. A check that was taken in gets exactly one answer, in some frame, unless the stream
// breaks. When this node ends it, the status comes after the answers to all that was taken in.
type checkStream struct {
	desk *desk
	log  *slog.Logger
	id   Identity
	who  string // id in words: whose share it is
	recv func() (*checkFrame, error)
	send func(encoded) error // makes the message its own

	// wake tells the writer that there is something to do, room the reader that answers have left. One signal
	// stands for any number of them.
	wake, room chan struct{}
	deciding   sync.WaitGroup
	// patience ends when a frame of answers has been on its way for too long.
	patience *time.Timer

	mu      sync.Mutex                // guards the rest
	open    map[uint64]struct{}       // the sequences of checks without an answer
	queued  map[*queuedFrame]struct{} // those with checks that an owner of this node was asked for and has not settled
	ready   []answerFrame             // to be sent
	unsent  int                       // bytes of ready, and of what is being sent
	sending bool                      // a frame is on its way
	granted int                       // checks of the gateway's share whose answers have not left
	over    bool                      // the stream has ended, and what was granted is given back
	closed  bool                      // no further checks are taken in
	why     error                     // what the stream ends with, once closed; nil: well
	alarm   *time.Timer               // tells that the deadline of a queued check may have passed; nil before the first
	due     time.Time                 // when it does; zero: it does not
}

func newCheckStream(d *desk, log *slog.Logger, id Identity) *checkStream {
	patience := time.NewTimer(streamPatience)
	patience.Stop()
	return &checkStream{patience: patience, desk: d, log: log, id: id, who: id.String(), open: map[uint64]struct{}{},
		queued: map[*queuedFrame]struct{}{}, wake: make(chan struct{}, 1), room: make(chan struct{}, 1)}
}

// run serves the stream until its caller has sent everything and got all answers, this node stops, or it breaks.
func (c *checkStream) run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer func() {
		c.close(nil)
		cancel() // nobody waits for what is still being decided
		c.abandon(ctx.Err())
		c.deciding.Wait()
		c.giveBack()
	}()
	go c.read(ctx) // ends with the stream: Recv does when the caller of run has returned
	written := make(chan error, 1)
	go func() { written <- c.write(ctx) }() // the same: Send does
	ending := c.desk.ending
	for {
		select {
		case <-ending:
			ending = nil
			c.close(quotaerr.New(quotaerr.NotLeader, "this node is stopping: ask another"))
		case err := <-written:
			return err
		case <-c.patience.C:
			return lost(quotaerr.New(quotaerr.Overloaded, "nothing was read for %s: the stream is ended", streamPatience))
		case <-ctx.Done():
			return c.interrupted(ctx.Err())
		}
	}
}

// read takes frames in until there are no more.
func (c *checkStream) read(ctx context.Context) {
	defer func() {
		if p := recover(); p != nil {
			c.close(caught(ctx, c.desk.metrics, c.log, p))
		}
	}()
	for c.hasRoom(ctx) {
		frame, err := c.recv()
		if err == nil {
			err = c.take(ctx, frame)
		}
		switch {
		case errors.Is(err, io.EOF):
			c.close(nil)
			return
		case err != nil:
			c.close(brokenOff(err))
			return
		}
	}
}

// hasRoom waits until few enough answers wait for their reader. It is false when the stream has ended.
func (c *checkStream) hasRoom(ctx context.Context) bool {
	for {
		c.mu.Lock()
		unsent, closed := c.unsent, c.closed
		c.mu.Unlock()
		if closed || unsent < maxUnsentBytes {
			return !closed
		}
		select {
		case <-c.room:
		case <-ctx.Done():
			return false
		}
	}
}

// take begins the checks of a frame: all of them, or none and says why the stream has to end.
func (c *checkStream) take(ctx context.Context, frame *checkFrame) error {
	arrived := time.Now()
	granted, err := c.enter(frame)
	if err != nil {
		return err
	}
	c.desk.metrics.frames.WithLabelValues("in").Inc()
	refused := frame.checks[granted:]
	for _, s := range c.enqueue(ctx, frame.checks[:granted], frame.asked[:granted], arrived) {
		go func() {
			defer c.deciding.Done()
			c.put(c.decide(ctx, &s, arrived), true)
		}()
	}
	for i := range refused {
		c.put(c.refuse(ctx, refused[i].sequence, arrived, quotaerr.New(quotaerr.Overloaded,
			"too many checks of this stream or gateway are unanswered at this node: back off")), false)
	}
	return nil
}

// enter notes the checks of a frame as open, and says how many of them, the first ones, are to be decided. With an
// error none is.
func (c *checkStream) enter(frame *checkFrame) (granted int, err error) {
	if frame.count > MaxFrameChecks {
		return 0, quotaerr.New(quotaerr.InvalidArgument, "the frame has %d checks: send at most %d", frame.count,
			MaxFrameChecks)
	}
	checks := frame.checks
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return 0, c.why // it is not taken in, as the status says
	}
	before := len(c.open)
	for i := range checks {
		if c.open[checks[i].sequence] = struct{}{}; len(c.open) == before+i+1 {
			continue
		}
		for _, s := range checks[:i] {
			delete(c.open, s.sequence)
		}
		return 0, quotaerr.New(quotaerr.InvalidArgument, "sequence %d is that of a check which has no answer yet: "+
			"give each check of a stream its own", checks[i].sequence)
	}
	granted = c.desk.streamed.grab(c.who, min(len(checks), MaxStreamedChecks-c.granted))
	c.granted += granted
	c.deciding.Add(granted)
	return granted, nil
}

// decide gets one check answered.
func (c *checkStream) decide(
	ctx context.Context, s *framedCheck, arrived time.Time,
) (out *quoratev1.StreamedAnswer) {
	defer func() {
		if p := recover(); p != nil {
			out = refusalTo(s.sequence, caught(ctx, c.desk.metrics, c.log, p), "")
		}
	}()
	timeout, err := s.timeout()
	if err != nil {
		return c.refuse(ctx, s.sequence, arrived, err)
	}
	req, err := s.request()
	if err != nil {
		return c.refuse(ctx, s.sequence, arrived, err)
	}
	ctx, cancel := context.WithDeadline(ctx, arrived.Add(timeout))
	defer cancel()
	d, leader, err := c.desk.routed(ctx, c.id, req, protocolStream, arrived)
	return c.answerTo(ctx, s.sequence, arrived, d, leader, err)
}

// answerTo is the answer to a check that was asked for.
func (c *checkStream) answerTo(
	ctx context.Context, sequence uint64, arrived time.Time, d *quoratev1.Decision, leader string, err error,
) *quoratev1.StreamedAnswer {
	if err != nil {
		logFailure(ctx, c.log, quoratev1.Quota_CheckStream_FullMethodName, arrived, err)
		return refusalTo(sequence, err, leader)
	}
	return decisionTo(sequence, d, leader)
}

// refuse answers a check that is not asked of anybody.
func (c *checkStream) refuse(
	ctx context.Context, sequence uint64, arrived time.Time, err error,
) *quoratev1.StreamedAnswer {
	c.desk.metrics.observe(protocolStream, arrived, nil, err)
	logFailure(ctx, c.log, quoratev1.Quota_CheckStream_FullMethodName, arrived, err)
	return refusalTo(sequence, err, "")
}

// close ends the taking in of checks. The first call says what the stream ends with.
func (c *checkStream) close(why error) {
	c.mu.Lock()
	if !c.closed {
		c.closed, c.why = true, why
	}
	c.mu.Unlock()
	signal(c.wake)
	signal(c.room)
}

// signal leaves a signal, if there is none yet.
func signal(to chan struct{}) {
	select {
	case to <- struct{}{}:
	default:
	}
}
