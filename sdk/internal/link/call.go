package link

import (
	"time"

	quoratev1 "github.com/quorate/quorate/proto/quorate/v1"
)

// Call is one check that is to be asked for: what is sent, and what has become of it. When it is over it may be asked
// for again, also with another check: who keeps calls for that allocates nothing for a check.
//
// With thousands under way each is out of the processor's caches when its answer comes. So what is read then is
// together, and first.
type Call struct {
	Result Result

	// Node.mu guards these, but for done, which has room for one.
	done           chan struct{}
	sequence       uint64
	stream         *stream // that it was sent over
	queued         bool
	sentNanos      int64
	slot           int64 // and the two that follow, where it is in deadlines
	earlier, later *Call
	before, after  *Call // in the queue
	deadlineNanos  int64

	Check Check
	body  []byte // the check as it is sent
}

// NewCall makes a call.
func NewCall() *Call { return &Call{done: make(chan struct{}, 1)} }

// wake tells the caller that the call is over. From then on it is his.
func (c *Call) wake() { c.done <- struct{}{} }

// answer gives the call its answer. Node.mu is held.
func (c *Call) answer(a *answer, nowNanos int64) {
	r := &c.Result
	limits := append(r.Decision.Limits[:0], a.decision.Limits...)
	r.Decided, r.Decision, r.Refusal, r.Leader = a.decided, a.decision, a.refusal, a.leader
	r.Decision.Limits = limits
	r.Decision.Ours = string(a.id) == c.Check.ID
	r.SentNanos, r.ReceivedNanos = c.sentNanos, nowNanos
}

// Result is what became of one check. Without Err it is an answer.
type Result struct {
	// Decided: there is a Decision.
	Decided bool
	// Unsent: the check has not left this process, or nobody has read it. Nothing was consumed.
	Unsent bool
	// Crowded: its time was over while it was still queued, although the node is there and takes what it is sent. There
	// is more to do than time, here or there; nothing was consumed.
	Crowded bool
	// Unsure: the refusal is that of a whole stream, and the check may have been decided before.
	Unsure bool

	Decision Decision
	// Leader is who leads, where it is not the node that was asked and is known.
	Leader string
	// SentNanos is the clock's reading before the check was sent, ReceivedNanos when the answer was there.
	SentNanos, ReceivedNanos int64

	// Refusal is why there is no decision; with neither, the answer is of a kind that is not known here.
	Refusal *quoratev1.Refusal
	// Err is why there was no answer.
	Err error
}

// Decision is a decision as it came in: quoratev1.Decision, without what is not needed.
type Decision struct {
	Outcome            quoratev1.Outcome
	Ours               bool // its id is that of the check
	Dated              bool // it has a retry_at
	Replayed, Recorded bool
	Reason, Limit      string
	Remaining          int64
	RetryAfterMillis   int64
	PolicyVersion      string
	PolicyRevision     uint64
	Limits             []Limit // overwritten by the call's next decision
}

// Limit is one limit of a decision.
type Limit struct {
	Name             string
	Limit, Remaining int64
	Window           time.Duration
	ResetMillis      int64
}

// queue is calls in order. The zero queue is empty.
type queue struct {
	first, last *Call
	count       int
}

func (q *queue) push(c *Call) {
	c.before, c.after, c.queued = q.last, nil, true
	if q.last != nil {
		q.last.after = c
	} else {
		q.first = c
	}
	q.last = c
	q.count++
}

// remove takes out a call that is in the queue.
func (q *queue) remove(c *Call) {
	if c.before != nil {
		c.before.after = c.after
	} else {
		q.first = c.after
	}
	if c.after != nil {
		c.after.before = c.before
	} else {
		q.last = c.before
	}
	c.before, c.after, c.queued = nil, nil, false
	q.count--
}

// awaited are the calls that wait for their answers over one stream, each in the slot that its sequence says. The zero
// awaited is empty.
type awaited struct {
	slots []*Call // twice as many as calls, at least; a power of two
	count int
	last  uint64 // the newest sequence
}

// leastSlots is how many slots there are to begin with.
const leastSlots = 64

// add gives a call a sequence that no other call on the stream has, or had.
func (a *awaited) add(c *Call) {
	if 2*(a.count+1) > len(a.slots) {
		a.grow()
	}
	mask := uint64(len(a.slots) - 1)
	for a.last++; a.slots[a.last&mask] != nil; a.last++ { // somebody who has waited for long
	}
	c.sequence = a.last
	a.slots[a.last&mask] = c
	a.count++
}

// grow doubles the slots: calls that had different ones have different ones again.
func (a *awaited) grow() {
	old := a.slots
	a.slots = make([]*Call, max(leastSlots, 2*len(old)))
	for _, c := range old {
		if c != nil {
			a.slots[c.sequence&uint64(len(a.slots)-1)] = c
		}
	}
}

// of is the call of a sequence; nil when none waits for it.
func (a *awaited) of(sequence uint64) *Call {
	if a.count == 0 {
		return nil
	}
	if c := a.slots[sequence&uint64(len(a.slots)-1)]; c != nil && c.sequence == sequence {
		return c
	}
	return nil
}

// remove takes out a call that waits.
func (a *awaited) remove(c *Call) {
	a.slots[c.sequence&uint64(len(a.slots)-1)] = nil
	a.count--
}

// all are the calls that wait, in no order.
func (a *awaited) all() []*Call {
	out := make([]*Call, 0, a.count)
	for _, c := range a.slots {
		if c != nil {
			out = append(out, c)
		}
	}
	return out
}
