package partition

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/quorate/quorate/clock"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/quotaerr"
)

// ask queues first attempts of a principal with these ids.
func ask(t *testing.T, p *Partition, principal string, ids ...string) *outcomes {
	o := &outcomes{t: t, of: map[int]Outcome{}}
	var several []Asked
	for _, id := range ids {
		several = append(several, Asked{convert(principal, id), time.Now().Add(time.Minute), true})
	}
	p.Enqueue(t.Context(), several, o.done)
	synctest.Wait()
	return o
}

// exhaust has a principal denied, by an entry.
func exhaust(t *testing.T, p *Partition, s *script, principal string) {
	t.Helper()
	o := ask(t, p, principal, "a", "b", "c", "d")
	s.commit(5)
	for i, out := range o.mustCome(4, 1) {
		if out.Err != nil || out.Answer.Allowed() != (i < 3) || !out.Answer.Recorded {
			t.Fatalf("check %d: %+v", i, out)
		}
	}
}

// A first attempt of a principal that was denied takes no place in an entry: it is answered when the next entry commits,
// an empty one if need be, with the wait that an entry would have told, and without a record.
func TestDenialIsForeseen(t *testing.T) {
	scripted(t, func(t *testing.T, p *Partition, s *script, c *clock.Fake) {
		lead(t, p, s)
		exhaust(t, p, s, "p")
		o := ask(t, p, "p", "e", "f")
		o.mustCome(0, 0)
		if e := s.commit(5).entry; e.Kind != fsm.KindBatch || len(e.Checks) != 0 {
			t.Errorf("the entry holds %d checks", len(e.Checks))
		}
		want := start(t.Context(), p, convert("p", "alone"))
		if n := len(s.commit(5).entry.Checks); n != 1 {
			t.Errorf("an entry of a check that was asked alone holds %d", n)
		}
		alone := <-want
		for i, out := range o.mustCome(2, 1) {
			a := out.Answer
			if out.Err != nil || a.Reason != fsm.ReasonQuotaExhausted || a.Recorded || a.Limit != alone.answer.Limit ||
				a.RetryAt != alone.answer.RetryAt || a.RetryAfterNanos <= 0 || len(a.ResetAfterNanos) != 1 {
				t.Errorf("check %d: %+v, want as %+v", i, out, alone)
			}
		}
		c.Advance(int64(time.Hour))
		again := ask(t, p, "p", "g")
		s.commit(5)
		if out := again.mustCome(1, 1)[0]; out.Err != nil || !out.Answer.Allowed() {
			t.Errorf("after an hour: %+v", out)
		}
	})
}

// What may be the repetition of a check goes by the log: one that is not a first attempt, one whose id is recorded, and
// one whose id is in flight.
func TestRepetitionIsNotForeseen(t *testing.T) {
	scripted(t, func(t *testing.T, p *Partition, s *script, _ *clock.Fake) {
		lead(t, p, s)
		exhaust(t, p, s, "p")
		for name, again := range map[string]Asked{
			"a second attempt": {Check: convert("p", "new")},
			"a recorded id":    {Check: convert("p", "a"), First: true},
		} {
			o := &outcomes{t: t, of: map[int]Outcome{}}
			again.Deadline = time.Now().Add(time.Minute)
			p.Enqueue(t.Context(), []Asked{again}, o.done)
			synctest.Wait()
			if n := len(s.commit(5).entry.Checks); n != 1 {
				t.Errorf("%s: the entry holds %d checks", name, n)
			}
			if out := o.mustCome(1, 1)[0]; out.Err != nil || !out.Answer.Recorded {
				t.Errorf("%s: %+v", name, out)
			}
		}
		flying := start(t.Context(), p, convert("p", "flying"))
		o := ask(t, p, "p", "flying")
		s.commit(5)
		first := <-flying
		if n := len(s.commit(5).entry.Checks); n != 1 {
			t.Errorf("an entry behind its like holds %d checks", n)
		}
		if out := o.mustCome(1, 1)[0]; out.Err != nil || !out.Answer.Replayed || first.err != nil || first.answer.Allowed() {
			t.Errorf("%+v, and first %+v", out, first)
		}
	})
}

// What was foreseen is told only when an entry of that leadership has committed; when none does it is refused, for
// certain, whoever else it was queued with.
func TestForeseenByWhoLeadsNoMore(t *testing.T) {
	scripted(t, func(t *testing.T, p *Partition, s *script, _ *clock.Fake) {
		lead(t, p, s)
		exhaust(t, p, s, "p")
		o := &outcomes{t: t, of: map[int]Outcome{}}
		end := time.Now().Add(time.Minute)
		p.Enqueue(t.Context(), []Asked{{convert("p", "e"), end, true}, {convert("q", "e"), end, true}}, o.done)
		synctest.Wait()
		s.abandon(errors.New("the log is closed"))
		out := o.mustCome(2, 1)
		if e := quotaerr.As(out[0].Err); e == nil || e.Reason == quotaerr.OutcomeUnknown {
			t.Errorf("foreseen: %+v", out[0])
		}
		mustReason(t, out[1].Err, quotaerr.OutcomeUnknown)
	})
}

// The ids of entries in flight are known until they have landed, and no longer.
func TestFlights(t *testing.T) {
	f := newForeseer()
	checks := make([]fsm.Check, fsm.MaxChecksPerEntry)
	for i := range checks {
		checks[i] = convert(fmt.Sprint("p", i), "d")
	}
	landed := f.depart(checks)
	other := f.depart(nil)
	for i := range checks {
		if !f.flying(&checks[i]) {
			t.Fatalf("check %d is not in flight", i)
		}
	}
	wrong := 0
	for i := range 1000 {
		c := convert(fmt.Sprint("q", i), "d")
		if f.flying(&c) {
			wrong++
		}
	}
	if wrong > 100 {
		t.Errorf("%d of 1000 others are taken for being in flight", wrong)
	}
	landed()
	if f.flying(&checks[0]) {
		t.Error("in flight after it has landed")
	}
	other()
}
