package bench

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"
)

// Shows that instants and counts of a schedule agree, at any rate: check n is due at At(n), not a nanosecond before,
// and due instants are in order and never early.
func TestScheduleAgreesWithItself(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := Schedule{PerSecond: rapid.Float64Range(0.01, 1e6).Draw(t, "rate")}
		n := rapid.Int64Range(0, 1_000_000).Draw(t, "n")
		at := s.At(n)
		if due := s.Due(at); due < n+1 {
			t.Errorf("check %d is due at %v, and %d are due then", n, at, due)
		}
		if due := s.Due(at - 1); due > n {
			t.Errorf("check %d is due at %v, and %d are due a nanosecond before", n, at, due)
		}
		if s.At(n+1) < at {
			t.Errorf("check %d is due before check %d", n+1, n)
		}
		if early := float64(n)/s.PerSecond*1e9 - float64(at); early > 1 {
			t.Errorf("check %d is due %v ns early", n, early)
		}
	})
}

// stalling answers within a millisecond, except that what is asked from one instant to another, from the start, is
// answered at the second of them.
type stalling struct {
	start    time.Time
	from, to time.Duration
	asked    atomic.Int64
}

func (s *stalling) Do(context.Context, int, string) (Outcome, error) {
	s.asked.Add(1)
	wait := time.Millisecond
	if at := time.Since(s.start); at >= s.from && at < s.to {
		wait = s.to - at
	}
	<-time.After(wait)
	return Allowed, nil
}

// mustStall runs a load in virtual time, of 5 s after 1 s, during which the target stands still for one second.
func mustStall(t *testing.T, l Load) *Report {
	t.Helper()
	target := &stalling{start: time.Now(), from: 3 * time.Second, to: 4 * time.Second}
	l.Target, l.Keys, l.until = target, Keys{N: 10}, sleepUntil
	l.WarmUp, l.Duration = time.Second, 5*time.Second
	r, err := l.Run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// Shows, in virtual time, that an open loop omits nothing when its target stands still for a second: what was due in
// that second is late by what was left of it, however few clients there are to send it. The closed loop, by
// contrast, has a single late check to tell of: without the schedule the test would fail.
func TestNoCoordinatedOmission(t *testing.T) {
	near := func(us int64, want time.Duration) bool {
		got := time.Duration(us) * time.Microsecond
		return got >= want-want/50 && got <= want+want/50+15*time.Millisecond
	}
	for _, clients := range []int{1, 10, 1000} {
		synctest.Test(t, func(t *testing.T) {
			r := mustStall(t, Load{Clients: clients, RatePerS: 100})
			// 500 were due, 100 of them in that second: one in ten waited half of it or more, and for its turn afterwards.
			half := 500*time.Millisecond + 50*time.Millisecond/time.Duration(clients)
			if r.Allowed != 500 || !near(r.P50Us, time.Millisecond) || !near(r.P90Us, half) ||
				!near(r.P99Us, 950*time.Millisecond) || !near(r.MaxUs, time.Second) {
				t.Errorf("%d clients: %+v", clients, r)
			}
			if late := r.SendLagP99Us > 500_000; late != (clients < 100) {
				t.Errorf("%d clients: sent late by %d µs", clients, r.SendLagP99Us)
			}
		})
	}
	synctest.Test(t, func(t *testing.T) {
		r := mustStall(t, Load{Clients: 1})
		if r.Allowed < 3900 || r.Allowed > 4001 || r.P999Us > 2000 || !near(r.MaxUs, time.Second) {
			t.Errorf("closed: %+v", r)
		}
	})
}

// Shows, in virtual time, that a backlog is no throughput: with one client and a target that takes 1 ms, 2,000
// checks a second are due and the rate that is reported is that at which they were answered, all of them.
func TestBacklogIsNoThroughput(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		target := &stalling{}
		l := Load{
			Target: target, Keys: Keys{N: 10}, until: sleepUntil, Clients: 1, RatePerS: 2000, Duration: 2 * time.Second,
		}
		r, err := l.Run(t.Context())
		if err != nil || r.Allowed != 4000 || r.ElapsedS != 4 || r.DecisionsPerS != 1000 || r.Interrupted {
			t.Fatalf("%+v %v", r, err)
		}
		if advice := r.Advice(); len(advice) != 1 {
			t.Errorf("advice: %q", advice)
		}
	})
}

// Shows, in virtual time, what a load that is ended early reports: the part that was measured, and that it was
// interrupted; nothing when the warm-up was not over; and that it sends nothing afterwards.
func TestInterruption(t *testing.T) {
	for _, rate := range []float64{0, 100} {
		for _, after := range []time.Duration{500 * time.Millisecond, 3 * time.Second} {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), after)
				defer cancel()
				target := &stalling{}
				l := Load{
					Target: target, Keys: Keys{N: 10}, until: sleepUntil, Clients: 2, RatePerS: rate,
					WarmUp: time.Second, Duration: time.Minute,
				}
				r, err := l.Run(ctx)
				asked := target.asked.Load()
				<-time.After(time.Minute)
				if target.asked.Load() != asked {
					t.Errorf("it went on: %d, then %d", asked, target.asked.Load())
				}
				if after < l.WarmUp {
					if r != nil || !errors.Is(err, ErrNothingMeasured) {
						t.Errorf("during the warm-up: %+v %v", r, err)
					}
					return
				}
				want := map[float64]uint64{0: 4000, 100: 200}[rate]
				if err != nil || !r.Interrupted || r.ElapsedS < 2 || r.ElapsedS > 2.02 || r.Allowed < want-2 || r.Allowed > want+4 {
					t.Errorf("rate %v: %+v %v", rate, r, err)
				}
			})
		}
	}
}
