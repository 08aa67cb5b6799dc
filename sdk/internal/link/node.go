package link

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

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

// Counters are shared by the links of a client.
type Counters struct {
	Frames, GivenUp atomic.Uint64
	// Sends are the checks that were sent, Retries those that were sent again; each counts when it has its result.
	Sends, Retries atomic.Uint64
}

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

	frames frames
	// suspectUntil is set with mu held.
	suspectUntil atomic.Int64

	mu       sync.Mutex // guards the rest
	queue    queue      // what is to be sent
	handing  int        // how many frames of answers are being handed out: who is woken asks again, and is waited for
	stream   *stream    // to send over; nil while there is none
	closed   bool
	watchdog *time.Timer // runs only while something of the node is due
	armed    bool

	// deadlines are of all that is under way. expiry ends what is over, next at expiresNanos; neverNanos while nothing is
	// to end.
	deadlines    deadlines
	expiry       *time.Timer
	expiresNanos int64
}

// stream is one CheckStream. n.mu guards it. Of several at a time, all but the newest have ended at the other end, and
// only what has come in is still to be handed out.
type stream struct {
	cancel   context.CancelFunc
	grpc     grpc.ClientStream // nil while it opens
	waiting  awaited
	answered bool
	over     []*Call // whom its receiver is about to wake

	// The clock's readings when: it began to open; the node began to owe an answer, 0 while it owes none; the frame that
	// is being sent was begun, 0 when none is; the node answered last.
	beganNanos, owedNanos, sendingNanos, heardNanos int64
}

// New makes a link over conn, which it owns from then on. now reads a monotonic clock.
func New(conn *grpc.ClientConn, now func() int64, retries *budget.Budget, counters *Counters) *Node {
	n := &Node{
		Retries: retries, conn: conn, client: quoratev1.NewQuotaClient(conn), now: now, counters: counters,
		wake: make(chan struct{}, 1), expiresNanos: neverNanos,
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
		for _, t := range []*time.Timer{n.watchdog, n.expiry} {
			if t != nil {
				t.Stop()
			}
		}
	}
	n.mu.Unlock()
	n.end()
	_ = n.conn.Close() // only ever errs when it is closed already
	n.work.Wait()
}

// Suspect reports whether the node was given up a moment ago, and has not answered since.
func (n *Node) Suspect() bool {
	until := n.suspectUntil.Load()
	return until != 0 && n.now() < until
}

// Ask sends a check and waits until it has a result, at the latest at deadlineNanos or when ctx is done. Until then the
// call is not to be touched.
func (n *Node) Ask(ctx context.Context, c *Call, deadlineNanos int64) {
	c.Result = Result{Decision: Decision{Limits: c.Result.Decision.Limits[:0]}}
	c.body = c.Check.append(c.body[:0])
	if !n.enqueue(c, deadlineNanos) {
		c.Result.Err, c.Result.Unsent = ErrClosed, true
		return
	}
	gone := ctx.Done()
	if gone == nil { // there is one thing to wait for, which is cheaper
		<-c.done
		return
	}
	select {
	case <-c.done:
	case <-gone:
		n.abandon(c, ctx.Err())
		<-c.done // now, or it had its result already
	}
}

func (n *Node) enqueue(c *Call, deadlineNanos int64) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		return false
	}
	c.deadlineNanos, c.sentNanos, c.stream = deadlineNanos, 0, nil
	n.deadlines.add(c)
	n.queue.push(c)
	n.expireBy(deadlineNanos)
	if n.handing == 0 {
		n.rouse()
	}
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
func (n *Node) abandon(c *Call, why error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.giveUp(c, why)
}

// giveUp gives a call a result without an answer, unless it has one. n.mu is held.
func (n *Node) giveUp(c *Call, why error) {
	n.finish(c, &Result{Err: why, Unsent: c.queued, Crowded: c.queued && n.takes(n.stream)})
}

// finish gives a call its result, unless it has one. n.mu is held.
func (n *Node) finish(c *Call, r *Result) {
	if n.part(c) {
		if !r.Unsent {
			var t tally
			t.add(c)
			n.count(t)
		}
		limits := c.Result.Decision.Limits
		c.Result = *r
		c.Result.Decision.Limits = limits
		c.Result.SentNanos, c.Result.ReceivedNanos = c.sentNanos, n.now()
		c.wake()
	}
}

// tally is how many calls were sent for the first time, and how many again.
type tally struct{ first, again int }

func (t *tally) add(c *Call) {
	if c.Check.Attempt <= 1 {
		t.first++
	} else {
		t.again++
	}
}

// count counts calls that were sent, and what they earn for retries.
func (n *Node) count(t tally) {
	if t.first > 0 {
		n.counters.Sends.Add(uint64(t.first))
		n.Retries.Earn(n.now(), t.first)
	}
	if t.again > 0 {
		n.counters.Retries.Add(uint64(t.again))
	}
}

// part takes a call out of what is under way, and reports whether it still was. n.mu is held.
func (n *Node) part(c *Call) bool {
	switch {
	case c.queued:
		n.queue.remove(c)
	case c.stream != nil:
		c.stream.waiting.remove(c)
		c.stream = nil
	default:
		return false
	}
	n.deadlines.remove(c)
	return true
}

// failAll gives every call a result without an answer, and ends the stream. n.mu is held.
func (n *Node) failAll(why error) {
	for c := n.queue.first; c != nil; c = n.queue.first {
		n.finish(c, &Result{Err: why, Unsent: true})
	}
	if s := n.stream; s != nil {
		n.stream = nil
		s.end(n, &Result{Err: why})
	}
}

// end ends a stream: what waits on it gets r. n.mu is held.
func (s *stream) end(n *Node, r *Result) {
	s.cancel()
	for _, c := range s.waiting.all() {
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
	return now >= n.suspectUntil.Load() && s != nil && s.grpc != nil &&
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
	n.suspectUntil.Store(n.now() + int64(suspectFor))
	n.counters.GivenUp.Add(1)
	n.failAll(errSilent)
}

// expireBy has what is over at nanos ended then. n.mu is held.
func (n *Node) expireBy(nanos int64) {
	if n.expiresNanos <= nanos {
		return // that is looked at before
	}
	n.expiresNanos = nanos
	after := time.Duration(nanos - n.now())
	if n.expiry == nil {
		n.expiry = time.AfterFunc(after, n.expire)
	} else {
		n.expiry.Reset(after)
	}
}

// expire ends the calls whose time is over, and comes back for the next one.
func (n *Node) expire() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.expiresNanos = neverNanos
	n.deadlines.expire(n.now(), func(c *Call) { n.giveUp(c, ErrTimeout) })
	if next := n.deadlines.next(); next != neverNanos && !n.closed {
		n.expireBy(next)
	}
}

// doorReasons are the reasons with which a node refuses a whole stream, and not for want of a leader.
var doorReasons = map[quotaerr.Reason]bool{
	quotaerr.Unauthenticated: true, quotaerr.PermissionDenied: true, quotaerr.Overloaded: true,
}

// ofStream is what the end of a stream says to the checks that wait on it.
func (s *stream) ofStream(err error) *Result {
	e := errtable.FromStatus(err)
	switch {
	case s.answered:
	case status.Code(err) == codes.Unimplemented: // whoever it is, he has not read what was sent
		return &Result{Err: fmt.Errorf("%w: %w", ErrUnknownCall, err), Unsent: true}
	case doorReasons[e.Reason]:
		return &Result{Unsure: true, Refusal: &quoratev1.Refusal{
			Reason: string(e.Reason), Message: errtable.PublicMessage(e),
			RetryAfterMs: errtable.Wait(e).Milliseconds(),
		}}
	}
	return &Result{Err: err}
}
