package partition

import (
	"context"
	"fmt"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/quorate/quorate/clock"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/partition/group"
	"github.com/quorate/quorate/quotaerr"
)

// An entry that was stamped in one leadership and reaches the log in a later one of the same node is
// refused whole, time included; its caller is told that this node did not lead, and nothing was consumed.
func TestStaleTerm(t *testing.T) {
	scripted(t, func(t *testing.T, p *Partition, s *script, c *clock.Fake) {
		lead(t, p, s)
		was := p.Status()
		c.Advance(int64(time.Minute))
		out := start(t.Context(), p, convert("acme", "1"))
		s.elect(group.Leadership{Term: 7, Ready: true}, "n1", true)
		c.Advance(int64(10 * time.Second))
		if e := s.commit(7); e.entry.Term != 5 || e.entry.Stamp == 0 {
			t.Errorf("the entry was stamped %d in term %d", e.entry.Stamp, e.entry.Term)
		}
		mustReason(t, (<-out).err, quotaerr.NotLeader)
		if now := p.Status(); now.Digest != was.Digest || now.Time != was.Time {
			t.Errorf("a stale entry changed\n%+v to\n%+v", was.Status, now.Status)
		}
		if d, ok := p.replica.DigestAt(p.Status().AppliedIndex); !ok || d != was.Digest {
			t.Errorf("DigestAt: %x, %v", d, ok)
		}
		again := start(t.Context(), p, convert("acme", "1"))
		// The new leadership counts from its beginning, and the stale entry is no anchor.
		if e := s.commit(7); e.entry.Term != 7 || e.entry.Stamp != was.Time+slowed(10*time.Second) {
			t.Errorf("the next entry was stamped %d in term %d", e.entry.Stamp, e.entry.Term)
		}
		if a := <-again; a.err != nil || !a.answer.Allowed() || a.answer.Replayed || a.answer.Remaining != 2 {
			t.Errorf("the retry: %+v", a)
		}
	})
}

// A leadership that was lost and won again without the owner's notice is still another: what it stamps
// in the meantime carries the old term and is refused, and the next check carries the new one.
func TestTermChangesUnnoticed(t *testing.T) {
	scripted(t, func(t *testing.T, p *Partition, s *script, c *clock.Fake) {
		lead(t, p, s)
		for i := range 2 {
			start(t.Context(), p, convert("busy", fmt.Sprint(i)))
		}
		out := start(t.Context(), p, convert("acme", "1"))
		c.Advance(int64(time.Second))
		s.elect(group.Leadership{Term: 9, Ready: true}, "n1", false)
		for range 2 {
			s.abandon(group.ErrUnknown)
		}
		if e := s.commit(9); e.entry.Term != 9 {
			t.Errorf("the batch was stamped in term %d", e.entry.Term)
		}
		if a := <-out; a.err != nil || !a.answer.Allowed() {
			t.Errorf("%+v", a)
		}
	})
}

// Nothing is stamped before the leadership is ready (the script sees to it); what waits meanwhile is
// decided as soon as it is, and refused when the leadership ends before.
func TestReady(t *testing.T) {
	scripted(t, func(t *testing.T, p *Partition, s *script, _ *clock.Fake) {
		s.elect(group.Leadership{Term: 3}, "n1", true)
		out := start(t.Context(), p, convert("acme", "1"))
		time.Sleep(10 * time.Second)
		if n := s.total(); n != 0 {
			t.Fatalf("%d entries before the leadership was ready", n)
		}
		s.elect(group.Leadership{}, "n2", true)
		if e := mustReason(t, (<-out).err, quotaerr.NotLeader); e.Leader != "n2" {
			t.Errorf("the leader is %q", e.Leader)
		}
		s.elect(group.Leadership{Term: 5}, "n1", true)
		out = start(t.Context(), p, convert("acme", "1"))
		began := time.Now()
		lead(t, p, s)
		s.commit(5)
		if a := <-out; a.err != nil || !a.answer.Allowed() {
			t.Errorf("%+v", a)
		}
		if took := time.Since(began); took != 0 {
			t.Errorf("it took %v after the leadership was ready", took)
		}
	})
}

// slowed is how far partition time gets while d passes on a machine's clocks.
func slowed(d time.Duration) fsm.Time { return fsm.Time(d / 1_000_000 * (1_000_000 - testDriftPPM)) }

// An entry of a leadership that has ended, applied after its end, is the anchor like that of any other
// node: what passes after it counts for the next leadership.
func TestOwnEntryAfterTheEnd(t *testing.T) {
	scripted(t, func(t *testing.T, p *Partition, s *script, c *clock.Fake) {
		lead(t, p, s)
		c.Advance(int64(time.Hour))
		start(t.Context(), p, convert("acme", "1"))
		s.elect(group.Leadership{}, "n2", true)
		at := s.commit(5).entry.Stamp
		c.Advance(int64(10 * time.Second))
		s.elect(group.Leadership{Term: 7, Ready: true}, "n1", true)
		start(t.Context(), p, convert("acme", "2"))
		if e := s.commit(7); e.entry.Stamp != at+slowed(10*time.Second) {
			t.Errorf("stamps %d and, 10 s later, %d", at, e.entry.Stamp)
		}
	})
}

// A check that is queued while nobody leads and found when a leadership has begun is decided once that
// is ready, without another one to wake the owner.
func TestQueuedAtTheBeginning(t *testing.T) {
	scripted(t, func(t *testing.T, p *Partition, s *script, _ *clock.Fake) {
		lead(t, p, s)
		s.elect(group.Leadership{}, "", true)
		s.elect(group.Leadership{Term: 9}, "n1", false)
		r := mustPush(t, p, checkRequest(t.Context(), convert("acme", "1")))
		synctest.Wait()
		s.elect(group.Leadership{Term: 9, Ready: true}, "n1", true)
		s.commit(9)
		if out := <-r.done; out.err != nil || !out.decision.Allowed() {
			t.Errorf("%+v", out)
		}
	})
}

// A check that is queued just after the end of the leadership was handled is refused at once, and not
// left to wait for its deadline.
func TestQueuedAfterTheEnd(t *testing.T) {
	scripted(t, func(t *testing.T, p *Partition, s *script, _ *clock.Fake) {
		lead(t, p, s)
		s.elect(group.Leadership{}, "n2", true)
		began := time.Now()
		r := mustPush(t, p, checkRequest(t.Context(), convert("acme", "1")))
		mustReason(t, (<-r.done).err, quotaerr.NotLeader)
		if took := time.Since(began); took != 0 {
			t.Errorf("it took %v", took)
		}
	})
}

// While a leader cannot apply an entry of its own term it has no authority, and a check that waited for
// it in vain says so: no quorum, not an overload.
func TestNotReadyIsNoQuorum(t *testing.T) {
	scripted(t, func(t *testing.T, p *Partition, s *script, _ *clock.Fake) {
		s.elect(group.Leadership{Term: 3}, "n1", true)
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		mustReason(t, (<-start(ctx, p, convert("acme", "1"))).err, quotaerr.NoQuorum)
	})
}

// Stamps follow the clock within a leadership and never go back in it; the next leadership goes on from
// the partition time that was applied; the slower of the machine's clocks counts.
func TestStamps(t *testing.T) {
	scripted(t, func(t *testing.T, p *Partition, s *script, c *clock.Fake) {
		lead(t, p, s)
		last := fsm.Time(0)
		c.Rates(-100_000, 0)
		for term := uint64(5); term < 8; term++ {
			s.elect(group.Leadership{Term: term, Ready: true}, "n1", true)
			for i, step := range []time.Duration{0, time.Second, 0, time.Hour} {
				c.Advance(int64(step))
				out := start(t.Context(), p, convert("acme", fmt.Sprint(term, i)))
				e := s.commit(term)
				<-out
				now := p.Status().Time
				if now != max(last, e.entry.Stamp) || now-last > fsm.Time(step/10*9) {
					t.Errorf("term %d: partition time went from %d to %d in %v", term, last, now, step)
				}
				last = now
			}
		}
		if least := fsm.Time(3 * time.Hour / 100 * 89); last < least {
			t.Errorf("partition time is %d, want at least %d", last, least)
		}
	})
}

// The partition is made once: a first entry whose fate is unknown is proposed again, by the next
// leadership as well, and only the one that comes first in the log counts.
func TestBirthOnce(t *testing.T) {
	scripted(t, func(t *testing.T, p *Partition, s *script, _ *clock.Fake) {
		s.elect(group.Leadership{Term: 2, Ready: true}, "n1", true)
		first := s.abandon(group.ErrUnknown)
		s.elect(group.Leadership{Term: 4, Ready: true}, "n1", true)
		for s.inFlight() == 0 {
			time.Sleep(tickInterval)
		}
		s.apply(first.data, 2)
		was := p.Status()
		second := s.commit(4)
		if first.entry.Birth.Seed == second.entry.Birth.Seed {
			t.Fatal("both births are the same")
		}
		if now := p.Status(); !was.Born || now.Digest != was.Digest {
			t.Errorf("the second birth changed\n%+v to\n%+v", was.Status, now.Status)
		}
		if seed := first.entry.Birth.Seed; slotOf(p, "acme") != fsm.SlotOf(seed, "acme") {
			t.Error("the seed is not the first birth's")
		}
		out := start(t.Context(), p, convert("acme", "1"))
		s.commit(4)
		if a := <-out; a.err != nil || !a.answer.Allowed() {
			t.Errorf("%+v", a)
		}
		births := 0
		for _, e := range s.sent {
			if e.entry.Kind == fsm.KindBirth {
				births++
			}
		}
		if births != 2 {
			t.Errorf("%d births were proposed", births)
		}
	})
}

func slotOf(p *Partition, principal string) (s fsm.Slot) {
	p.replica.view(func(m *fsm.Machine, _ uint64) { s = m.SlotOf(principal) })
	return s
}

// A group may apply entries before Open has come back from it, as one does that finds its leader at
// once; they count, and raise no alarm.
func TestAppliedWhileOpening(t *testing.T) {
	r, err := Open(Config{
		Policy: newShelf(mustBirth(t, "").Policy).find, Lease: always(t),
		ID: "p0", NodeID: "n1", Source: &clock.Fake{}, MaxDriftPPM: testDriftPPM, TrustWall: clock.TrustNever,
		Open: func(a group.Applier) (group.Group, error) {
			for i := uint64(1); i <= 3; i++ {
				e := &fsm.Entry{Kind: fsm.KindBatch, Term: 1, Stamp: fsm.Time(i) * fsm.Time(time.Hour)}
				if i == 1 {
					e.Kind, e.Birth = fsm.KindBirth, mustBirth(t, "n2")
				}
				a.Apply(i, 1, fsm.AppendEntry(nil, e), true)
			}
			return &script{t: t, applier: a, index: 3}, nil
		},
		Ahead:   func(a Ahead) { t.Errorf("unexpected: %+v", a) },
		Metrics: prometheus.NewRegistry(), Logger: slog.New(slog.DiscardHandler),
	})
	must(t, err)
	if s := r.Status(); !s.Born || s.AppliedIndex != 3 || s.Time != fsm.Time(3*time.Hour) {
		t.Errorf("%+v", s)
	}
	must(t, r.Close())
}

// With live state and nothing to decide, time is written into the log every few seconds, until all has
// ended; then nothing is written any more.
func TestTicks(t *testing.T) {
	scripted(t, func(t *testing.T, p *Partition, s *script, c *clock.Fake) {
		lead(t, p, s)
		quiet := func() {
			t.Helper()
			before := s.total()
			time.Sleep(time.Hour)
			if n := s.total() - before; n != 0 {
				t.Errorf("%d entries without live state", n)
			}
		}
		quiet()
		out := start(t.Context(), p, convert("acme", "1"))
		s.commit(5)
		<-out
		ticks := 0
		for range 1000 {
			if s.Idle(p) {
				break
			}
			time.Sleep(500 * time.Millisecond)
			c.Advance(int64(500 * time.Millisecond))
			for s.inFlight() > 0 {
				if e := s.commit(5); len(e.entry.Checks)+len(e.entry.Peeks) > 0 {
					t.Error("a tick decides something")
				}
				ticks++
			}
		}
		if st := p.Status(); st.Keys != 0 || st.Allows != 0 || ticks < 20 || ticks > 40 {
			t.Errorf("after %d ticks: %d keys, %d records", ticks, st.Keys, st.Allows)
		}
		quiet()
	})
}

// Idle reports that the partition has no live state.
func (s *script) Idle(p *Partition) (idle bool) {
	synctest.Wait()
	p.replica.view(func(m *fsm.Machine, _ uint64) { idle = m.Idle() })
	return idle
}
