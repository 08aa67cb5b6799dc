package partition

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/quotaerr"
)

// The bounds of a queue. A gateway may fill half of it, so that one alone cannot shut out the others.
const (
	maxQueued      = 16384
	maxQueuedBytes = 16 << 20
)

// request is a check or a peek on its way to an answer.
type request struct {
	ctx      context.Context
	check    *fsm.Check
	peek     *fsm.Peek
	gateway  string
	numBytes int
	// taken is set once, by whoever comes first: the owner, which will propose the request, or its
	// caller, who gives up.
	taken atomic.Bool
	done  chan outcome // holds one; nil where the request is one of several
	// foreseen is the denial that a check has without a place in an entry; nil for none.
	foreseen *fsm.Decision

	// The rest is of one of several, see Enqueue: ctx may be theirs, and says nothing of the deadline.
	several  *Enqueued
	first    bool // see Asked
	index    int
	deadline time.Time
	answered atomic.Bool // its outcome was handed out
}

// outcome is what a request came to.
type outcome struct {
	decision *fsm.Decision
	usage    *fsm.Usage
	err      error
}

func newRequest(ctx context.Context, gateway string) *request {
	return &request{ctx: ctx, gateway: gateway, done: make(chan outcome, 1)}
}

// size is about the bytes that the request adds to an entry.
func (r *request) size() int {
	if r.peek != nil {
		return len(r.peek.Principal) + len(r.peek.Class) + len(r.peek.Tier) + 16
	}
	c := r.check
	n := len(c.Principal) + len(c.Gateway) + len(c.DecisionID) + len(c.Class) + len(c.Tier) + 40
	for i := range c.Also {
		n += len(c.Also[i].Class) + len(c.Also[i].Tier) + 16
	}
	return n
}

// waits reports that the request's caller still waits for it.
func (r *request) waits() bool {
	return r.ctx.Err() == nil && (r.deadline.IsZero() || time.Until(r.deadline) > 0)
}

// take claims the request; it is false when the other side was first.
func (r *request) take() bool { return r.taken.CompareAndSwap(false, true) }

// share is what waits of one gateway.
type share struct{ requests, numBytes int }

// queue holds what waits to be proposed, in order of arrival.
type queue struct {
	mu       sync.Mutex // guards the fields below
	requests []*request
	numBytes int
	per      map[string]share // by gateway
	closed   bool

	filled chan struct{} // holds a signal while there may be something to take
}

func newQueue() *queue {
	return &queue{per: map[string]share{}, filled: make(chan struct{}, 1)}
}

// push adds r, or says which bound it would pass.
func (q *queue) push(r *request) error {
	r.numBytes = r.size()
	q.mu.Lock()
	defer q.mu.Unlock()
	err := q.add(r)
	if err == nil {
		q.signal()
	}
	return err
}

// pushAll is push for several, in their order, which wakes the owner once. It returns those that would pass a bound,
// and which.
func (q *queue) pushAll(requests []*request) (refused []*request, why []error) {
	for _, r := range requests {
		r.numBytes = r.size()
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, r := range requests {
		if err := q.add(r); err != nil {
			refused, why = append(refused, r), append(why, err)
		}
	}
	if len(refused) < len(requests) {
		q.signal()
	}
	return refused, why
}

// add is push without waking the owner. It needs mu.
func (q *queue) add(r *request) error {
	s := q.per[r.gateway]
	switch {
	case q.closed:
		return quotaerr.New(quotaerr.NotLeader, "this node is stopping: ask another")
	case len(q.requests) >= maxQueued || q.numBytes+r.numBytes > maxQueuedBytes:
		return quotaerr.New(quotaerr.Overloaded, "the owner's queue is full: back off")
	case s.requests >= maxQueued/2 || s.numBytes+r.numBytes > maxQueuedBytes/2:
		return quotaerr.New(quotaerr.Overloaded, "this gateway's share of the owner's queue is full: back off")
	}
	q.requests = append(q.requests, r)
	q.numBytes += r.numBytes
	q.per[r.gateway] = share{s.requests + 1, s.numBytes + r.numBytes}
	return nil
}

// pop takes what fits into one entry, and leaves out what nobody waits for any more.
func (q *queue) pop() (batch []*request) {
	q.mu.Lock()
	defer q.mu.Unlock()
	n, numBytes := 0, 0
	for n < len(q.requests) && len(batch) < fsm.MaxChecksPerEntry {
		r := q.requests[n]
		if numBytes+r.numBytes > fsm.MaxEntryBytes && len(batch) > 0 {
			break
		}
		n++
		// One whose deadline has passed is left to its caller, who may not have noticed yet.
		if r.waits() && r.take() {
			batch = append(batch, r)
			numBytes += r.numBytes
		}
	}
	q.remove(n)
	if len(q.requests) > 0 {
		q.signal()
	}
	return batch
}

// remove drops the first n requests.
func (q *queue) remove(n int) {
	for _, r := range q.requests[:n] {
		q.numBytes -= r.numBytes
		s := q.per[r.gateway]
		s = share{s.requests - 1, s.numBytes - r.numBytes}
		q.per[r.gateway] = s
		if s.requests == 0 {
			delete(q.per, r.gateway)
		}
	}
	rest := copy(q.requests, q.requests[n:])
	clear(q.requests[rest:])
	q.requests = q.requests[:rest]
}

// fail answers everything that waits.
func (q *queue) fail(err error) {
	q.mu.Lock()
	waiting := append([]*request(nil), q.requests...)
	q.remove(len(q.requests))
	q.mu.Unlock()
	answer(slices.DeleteFunc(waiting, func(r *request) bool { return !r.take() }), outcome{err: err})
}

// close refuses what comes and answers what waits.
func (q *queue) close(err error) {
	q.mu.Lock()
	q.closed = true
	q.mu.Unlock()
	q.fail(err)
}

func (q *queue) len() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.requests)
}

func (q *queue) signal() {
	select {
	case q.filled <- struct{}{}:
	default:
	}
}
