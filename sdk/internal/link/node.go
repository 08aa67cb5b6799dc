package link

import (
	"container/list"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/quorate/quorate/internal/errtable"
	quoratev1 "github.com/quorate/quorate/proto/quorate/v1"
	"github.com/quorate/quorate/quotaerr"
	"github.com/quorate/quorate/sdk/internal/budget"
)

const (
	// SilentAfter is how long a node may answer nothing although checks wait.
	SilentAfter = time.Second
	// suspectFor is how long a node that was given up counts as suspect, unless it answers.
	suspectFor = 5 * time.Second
	// envelopeBytes is more than what a frame needs for a check besides the check: tags, lengths, sequence, timeout.
	envelopeBytes = 40
)

// Why a check has no answer.
var (
	ErrTimeout = errors.New("no answer came in time")
	ErrClosed  = errors.New("the connection was closed")
	// ErrUnknownCall: who was asked does not know CheckStream.
	ErrUnknownCall = errors.New("there is no CheckStream (is it a node, and as new as this client?)")
	errSilent      = errors.New("the node has answered nothing for a second, and was given up")
)

// Result is what became of one check. Without Err it is an answer.
type Result struct {
	Decision *quoratev1.Decision
	// Refusal is why there is no decision; with neither, the answer is of a kind that is not known here.
	Refusal *quoratev1.Refusal
	// Unsure: the refusal is that of a whole stream, and the check may have been decided before.
	Unsure bool
	// Leader is who leads, where it is not the node that was asked and is known.
	Leader string
	// Err is why there was no answer.
	Err error
	// Unsent: the check has not left this process, or nobody has read it. Nothing was consumed.
	Unsent bool
	// Crowded: its time was over while it was still queued, although the node is there and takes what it is sent. There
	// is more to do than time, here or there; nothing was consumed.
	Crowded bool
	// SentNanos is the clock's reading before the check was sent, ReceivedNanos when the answer was there.
	SentNanos, ReceivedNanos int64
}

// Counters are shared by the links of a client.
type Counters struct{ Frames, GivenUp atomic.Uint64 }

// Node is the connection to one node. It is for concurrent use.
type Node struct {
	// Retries bounds the retries that are sent to this node.
	Retries *budget.Budget

	conn     *grpc.ClientConn
	client   quoratev1.QuotaClient
	now      func() int64 // monotonic nanoseconds
	counters *Counters
	life     context.Context //nolint:containedctx // ends with Close; streams are made in it
	end      context.CancelFunc
	wake     chan struct{} // for the sender, which sleeps while nothing is queued
	work     sync.WaitGroup

	mu           sync.Mutex // guards the rest
	queue        list.List  // of *call, in order
	stream       *stream    // to send over; nil while there is none
	closed       bool
	suspectUntil int64
	watchdog     *time.Timer // runs only while something of the node is due
	armed        bool
}

// stream is one CheckStream. n.mu guards it. Of several at a time, all but the newest have ended at the other end, and
// only what has come in is still to be handed out.
type stream struct {
	cancel   context.CancelFunc
	grpc     grpc.BidiStreamingClient[quoratev1.CheckStreamRequest, quoratev1.CheckStreamResponse] // nil while it opens
	next     uint64
	waiting  map[uint64]*call
	answered bool

	// The clock's readings when: it began to open; the node began to owe an answer, 0 while it owes none; the frame that
	// is being sent was begun, 0 when none is; the node answered last.
	beganNanos, owedNanos, sendingNanos, heardNanos int64
}

// call is one check on its way. n.mu guards it, but for done.
type call struct {
	check         *quoratev1.CheckRequest
	bytes         int
	deadlineNanos int64
	done          chan Result // has room for one
	queued        *list.Element
	stream        *stream
	sequence      uint64
	sentNanos     int64
}

// New makes a link over conn, which it owns from then on. now reads a monotonic clock.
func New(conn *grpc.ClientConn, now func() int64, retries *budget.Budget, counters *Counters) *Node {
	n := &Node{
		Retries: retries, conn: conn, client: quoratev1.NewQuotaClient(conn), now: now, counters: counters,
		wake: make(chan struct{}, 1),
	}
	n.life, n.end = context.WithCancel(context.Background())
	n.work.Go(n.send)
	return n
}

// Client asks over the same connection.
func (n *Node) Client() quoratev1.QuotaClient { return n.client }

// Close ends the link. What waits gets ErrClosed.
func (n *Node) Close() {
	n.mu.Lock()
	if !n.closed {
		n.closed = true
		n.failAll(ErrClosed)
		if n.watchdog != nil {
			n.watchdog.Stop()
		}
	}
	n.mu.Unlock()
	n.end()
	_ = n.conn.Close() // only ever errs when it is closed already
	n.work.Wait()
}

// Suspect reports whether the node was given up a moment ago, and has not answered since.
func (n *Node) Suspect() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.suspectUntil != 0 && n.now() < n.suspectUntil
}

// Ask sends a check and waits for its result: until deadlineNanos, when expired is to fire, and until ctx is done. The
// check must not be changed any more.
func (n *Node) Ask(
	ctx context.Context, check *quoratev1.CheckRequest, deadlineNanos int64, expired <-chan time.Time,
) Result {
	c := &call{
		check: check, bytes: proto.Size(check) + envelopeBytes, deadlineNanos: deadlineNanos, done: make(chan Result, 1),
	}
	if !n.enqueue(c) {
		return Result{Err: ErrClosed, Unsent: true}
	}
	select {
	case r := <-c.done:
		return r
	case <-expired:
		return n.abandon(c, ErrTimeout)
	case <-ctx.Done():
		return n.abandon(c, ctx.Err())
	}
}

func (n *Node) enqueue(c *call) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		return false
	}
	c.queued = n.queue.PushBack(c)
	n.rouse()
	return true
}

// rouse wakes the sender.
func (n *Node) rouse() {
	select {
	case n.wake <- struct{}{}:
	default:
	}
}

// abandon ends a call that nobody waits for any more. An answer that is there already counts.
func (n *Node) abandon(c *call, why error) Result {
	n.mu.Lock()
	defer n.mu.Unlock()
	unsent := c.queued != nil
	n.finish(c, Result{Err: why, Unsent: unsent, Crowded: unsent && n.takes(n.stream)})
	return <-c.done
}

// finish gives a call its result, unless it has one. n.mu is held.
func (n *Node) finish(c *call, r Result) {
	switch {
	case c.queued != nil:
		n.queue.Remove(c.queued)
		c.queued = nil
	case c.stream != nil:
		delete(c.stream.waiting, c.sequence)
		c.stream = nil
	default:
		return
	}
	r.SentNanos, r.ReceivedNanos = c.sentNanos, n.now()
	c.done <- r
}

// failAll gives every call a result without an answer, and ends the stream. n.mu is held.
func (n *Node) failAll(why error) {
	for e := n.queue.Front(); e != nil; e = n.queue.Front() {
		n.finish(e.Value.(*call), Result{Err: why, Unsent: true})
	}
	if s := n.stream; s != nil {
		n.stream = nil
		s.end(n, Result{Err: why})
	}
}

// end ends a stream: what waits on it gets r. n.mu is held.
func (s *stream) end(n *Node, r Result) {
	s.cancel()
	for _, c := range s.waiting {
		n.finish(c, r)
	}
}

// dueSince is since when the node should have done something: have opened the stream, answered, or taken a frame in. 0
// when nothing is due. What is only queued is not the node's to answer. n.mu is held.
func (s *stream) dueSince() int64 {
	if s.grpc == nil {
		return s.beganNanos
	}
	since := s.owedNanos
	if s.sendingNanos != 0 {
		if stuck := max(s.sendingNanos, s.heardNanos); since == 0 || stuck < since {
			since = stuck
		}
	}
	return since
}

// takes reports whether the node takes what it is sent over a stream: it was not given up a moment ago, the stream is
// open, and either no frame is stuck in it or the node has answered within SilentAfter. What is queued then waits for
// its turn in this process. n.mu is held.
func (n *Node) takes(s *stream) bool {
	now := n.now()
	return now >= n.suspectUntil && s != nil && s.grpc != nil &&
		(s.sendingNanos == 0 || s.heardNanos != 0 && now-s.heardNanos < int64(SilentAfter))
}

// arm has the node looked at after a while, unless that is to happen already. n.mu is held.
func (n *Node) arm(after time.Duration) {
	switch {
	case n.armed || n.closed:
		return
	case n.watchdog == nil:
		n.watchdog = time.AfterFunc(after, n.look)
	default:
		n.watchdog.Reset(after)
	}
	n.armed = true
}

// look gives the node up if something was due for too long.
func (n *Node) look() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.armed = false
	if n.closed || n.stream == nil {
		return
	}
	since := n.stream.dueSince()
	if since == 0 {
		return
	}
	if left := SilentAfter - time.Duration(n.now()-since); left > 0 {
		n.arm(left)
		return
	}
	n.suspectUntil = n.now() + int64(suspectFor)
	n.counters.GivenUp.Add(1)
	n.failAll(errSilent)
}

// doorReasons are the reasons with which a node refuses a whole stream, and not for want of a leader.
var doorReasons = map[quotaerr.Reason]bool{
	quotaerr.Unauthenticated: true, quotaerr.PermissionDenied: true, quotaerr.Overloaded: true,
}

// ofStream is what the end of a stream says to the checks that wait on it.
func (s *stream) ofStream(err error) Result {
	e := errtable.FromStatus(err)
	switch {
	case s.answered:
	case status.Code(err) == codes.Unimplemented: // whoever it is, he has not read what was sent
		return Result{Err: fmt.Errorf("%w: %w", ErrUnknownCall, err), Unsent: true}
	case doorReasons[e.Reason]:
		return Result{Unsure: true, Refusal: &quoratev1.Refusal{
			Reason: string(e.Reason), Message: errtable.PublicMessage(e),
			RetryAfterMs: errtable.Wait(e).Milliseconds(),
		}}
	}
	return Result{Err: err}
}
