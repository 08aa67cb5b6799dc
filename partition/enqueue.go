package partition

import (
	"context"
	"time"

	"github.com/quorate/quorate/fsm"
)

// Asked is one of several checks that are queued together.
type Asked struct {
	Check    fsm.Check
	Deadline time.Time // until when its caller waits
	// First says that nobody has been asked for it before, so that no earlier attempt can have been admitted.
	First bool
}

// Outcome is what one of several checks came to: Err, or an answer.
type Outcome struct {
	Index  int // of the check among those that were queued together
	Answer Answer
	Err    error
}

// Enqueued are checks that were queued together.
type Enqueued struct {
	partition *Partition
	requests  []request
	done      func([]Outcome)
}

// Enqueue has several checks decided, each as Check does, and waits for none: done gets one outcome of each, those
// that come together in one call, from any goroutine, also before Enqueue has returned. It must not block, and may keep
// what it gets. Once ctx has ended nothing is proposed any more. A deadline that passes keeps a check from being
// proposed, but nothing tells of it: the caller watches deadlines and ctx, and calls GiveUp.
func (p *Partition) Enqueue(ctx context.Context, asked []Asked, done func([]Outcome)) *Enqueued {
	e := &Enqueued{partition: p, requests: make([]request, len(asked)), done: done}
	waiting := make([]*request, len(asked))
	for i := range asked {
		r := &e.requests[i]
		r.ctx, r.check, r.gateway, r.deadline = ctx, &asked[i].Check, asked[i].Check.Gateway, asked[i].Deadline
		r.several, r.index, r.first = e, i, asked[i].First
		waiting[i] = r
	}
	if err := p.owner.accepts(true); err != nil {
		answer(waiting, outcome{err: err})
		return e
	}
	refused, why := p.owner.queue.pushAll(waiting)
	handOut(refused, func(*request) outcome {
		err := why[0]
		why = why[1:]
		return outcome{err: err}
	})
	return e
}

// GiveUp ends the wait for one of the checks, if it has no outcome yet: done gets it, before GiveUp returns.
func (e *Enqueued) GiveUp(index int, cause error) {
	r := &e.requests[index]
	var err error
	if r.take() {
		err = e.partition.owner.gaveUp(cause)
	} else {
		err = lost(cause) // or its outcome comes at the same moment, and is in time
	}
	e.take([]*request{r}, func(*request) outcome { return outcome{err: err} })
}

// take hands out the outcomes of some of the checks, as far as nobody else has.
func (e *Enqueued) take(some []*request, of func(r *request) outcome) {
	outcomes := make([]Outcome, 0, len(some))
	for _, r := range some {
		out := of(r)
		if !r.answered.CompareAndSwap(false, true) {
			continue
		}
		o := Outcome{Index: r.index}
		o.Answer, o.Err = e.partition.answerTo(out)
		outcomes = append(outcomes, o)
	}
	if len(outcomes) > 0 {
		e.done(outcomes)
	}
}
