package partition

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/quorate/quorate/clock"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/partition/group"
	"github.com/quorate/quorate/quotaerr"
)

// outcomes are what checks that were queued together came to.
type outcomes struct {
	t     *testing.T
	mu    sync.Mutex // guards the rest
	of    map[int]Outcome
	calls int
}

func (o *outcomes) done(some []Outcome) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.calls++
	for _, out := range some {
		if _, twice := o.of[out.Index]; twice {
			o.t.Errorf("check %d has a second outcome, %+v", out.Index, out)
		}
		o.of[out.Index] = out
	}
}

// mustCome wants n outcomes in all, in so many calls, and returns them.
func (o *outcomes) mustCome(n, calls int) map[int]Outcome {
	o.t.Helper()
	synctest.Wait()
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.of) != n || o.calls != calls {
		o.t.Fatalf("%d outcomes in %d calls, want %d in %d", len(o.of), o.calls, n, calls)
	}
	return o.of
}

// enqueue queues n checks of a principal of their own each, whose callers wait for a second.
func enqueue(ctx context.Context, t *testing.T, p *Partition, n int) (*Enqueued, *outcomes) {
	o := &outcomes{t: t, of: map[int]Outcome{}}
	var several []Asked
	for i := range n {
		several = append(several, Asked{
			Check: convert(fmt.Sprint("p", i), fmt.Sprint("d", i)), Deadline: time.Now().Add(time.Second),
		})
	}
	e := p.Enqueue(ctx, several, o.done)
	synctest.Wait()
	return e, o
}

// occupy puts entries in flight until no further one may be.
func occupy(t *testing.T, p *Partition) {
	for i := range maxInFlight {
		start(t.Context(), p, convert("other", fmt.Sprint("o", i)))
	}
}

// Checks that are queued together are one entry and come to their outcomes in one call, each to what Check answers.
func TestEnqueue(t *testing.T) {
	scripted(t, func(t *testing.T, p *Partition, s *script, _ *clock.Fake) {
		lead(t, p, s)
		_, o := enqueue(t.Context(), t, p, 300)
		if n := len(s.commit(5).entry.Checks); n != 300 {
			t.Errorf("the entry holds %d checks", n)
		}
		for i, out := range o.mustCome(300, 1) {
			if out.Err != nil || !out.Answer.Allowed() || len(out.Answer.ResetAfterNanos) != len(out.Answer.Limits) {
				t.Errorf("check %d: %+v", i, out)
			}
		}
		again := start(t.Context(), p, convert("p7", "d7"))
		s.commit(5)
		if a := <-again; a.err != nil || !a.answer.Replayed {
			t.Errorf("the same check, asked alone: %+v", a)
		}
	})
}

// A check whose caller gives up while it is queued is never proposed, one whose caller gives up later is of unknown
// fate, and neither gets a second outcome from the owner; a passed deadline alone keeps a check from being proposed.
func TestEnqueuedDeadline(t *testing.T) {
	scripted(t, func(t *testing.T, p *Partition, s *script, _ *clock.Fake) {
		lead(t, p, s)
		proposed, early := enqueue(t.Context(), t, p, 2)
		start(t.Context(), p, convert("other", "o"))
		queued, late := enqueue(t.Context(), t, p, 3)
		proposed.GiveUp(1, context.DeadlineExceeded)
		proposed.GiveUp(1, context.DeadlineExceeded)
		mustReason(t, early.mustCome(1, 1)[1].Err, quotaerr.OutcomeUnknown)
		queued.GiveUp(0, context.DeadlineExceeded)
		mustReason(t, late.mustCome(1, 1)[0].Err, quotaerr.Overloaded)
		time.Sleep(time.Second)
		s.commit(5)
		if out := early.mustCome(2, 2)[0]; out.Err != nil || !out.Answer.Allowed() {
			t.Errorf("%+v", out)
		}
		s.commit(5)
		if n := s.inFlight(); n != 0 {
			t.Errorf("%d entries of checks whose deadline has passed", n)
		}
		late.mustCome(1, 1)
		for i := range 3 {
			queued.GiveUp(i, context.DeadlineExceeded)
		}
		mustReason(t, late.mustCome(3, 3)[2].Err, quotaerr.Overloaded)
	})
}

// When the leadership ends, what is queued is refused with the leader's name, and what was proposed when its entry is;
// nothing can be queued then.
func TestEnqueuedLeadershipLost(t *testing.T) {
	scripted(t, func(t *testing.T, p *Partition, s *script, _ *clock.Fake) {
		lead(t, p, s)
		_, proposed := enqueue(t.Context(), t, p, 10)
		start(t.Context(), p, convert("other", "o"))
		_, queued := enqueue(t.Context(), t, p, 20)
		s.elect(group.Leadership{}, "n2", true)
		queued.mustCome(0, 0)
		proposed.mustCome(0, 0)
		s.abandon(errors.New("the log is closed"))
		mustReason(t, proposed.mustCome(10, 1)[3].Err, quotaerr.OutcomeUnknown)
		for _, out := range queued.mustCome(20, 1) {
			mustReason(t, out.Err, quotaerr.NotLeader)
			if e := quotaerr.As(out.Err); e.Leader != "n2" {
				t.Fatalf("the leader is %q", e.Leader)
			}
		}
		_, refused := enqueue(t.Context(), t, p, 5)
		mustReason(t, refused.mustCome(5, 1)[4].Err, quotaerr.NotLeader)
		s.abandon(errors.New("the log is closed"))
	})
}

// Of a caller who has gone nothing is proposed.
func TestEnqueuedCallerGone(t *testing.T) {
	scripted(t, func(t *testing.T, p *Partition, s *script, _ *clock.Fake) {
		lead(t, p, s)
		occupy(t, p)
		ctx, cancel := context.WithCancel(t.Context())
		e, o := enqueue(ctx, t, p, 2)
		cancel()
		for range maxInFlight {
			s.commit(5)
		}
		if n := s.inFlight(); n != 0 {
			t.Errorf("%d entries in flight", n)
		}
		e.GiveUp(0, ctx.Err())
		e.GiveUp(1, ctx.Err())
		mustReason(t, o.mustCome(2, 2)[1].Err, quotaerr.Overloaded)
	})
}

// One gateway's checks have no more of the queue when they are queued together: those beyond its share are refused at
// once, and the others decided.
func TestEnqueuedBound(t *testing.T) {
	scripted(t, func(t *testing.T, p *Partition, s *script, _ *clock.Fake) {
		lead(t, p, s)
		occupy(t, p)
		_, o := enqueue(t.Context(), t, p, maxQueued/2+3)
		for _, out := range o.mustCome(3, 1) {
			mustReason(t, out.Err, quotaerr.Overloaded)
		}
		for s.inFlight() > 0 {
			s.commit(5)
		}
		o.mustCome(maxQueued/2+3, 1+maxQueued/2/fsm.MaxChecksPerEntry)
	})
}

// A partition that is closed answers what is queued.
func TestEnqueuedClose(t *testing.T) {
	scripted(t, func(t *testing.T, p *Partition, s *script, _ *clock.Fake) {
		lead(t, p, s)
		occupy(t, p)
		_, o := enqueue(t.Context(), t, p, 7)
		p.stop()
		for range maxInFlight {
			s.abandon(errors.New("the log is closed"))
		}
		<-p.owner.ended
		mustReason(t, o.mustCome(7, 1)[6].Err, quotaerr.NotLeader)
		_, late := enqueue(t.Context(), t, p, 1)
		mustReason(t, late.mustCome(1, 1)[0].Err, quotaerr.NotLeader)
	})
}
