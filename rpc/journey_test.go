package rpc

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/quorate/quorate/fsm"
	quoratev1 "github.com/quorate/quorate/proto/quorate/v1"
	"github.com/quorate/quorate/quotaerr"
)

// Shows in virtual time that a change of leadership ends a wait after a short rest, that without one
// the wait is bounded, and that it never outlasts the caller's patience.
func TestWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		changed := make(chan struct{})
		close(changed)
		ctx := t.Context()
		for name, c := range map[string]struct {
			changed  <-chan struct{}
			patience time.Duration
			min, max time.Duration
			again    bool
		}{
			"changed":       {changed, time.Hour, minPause, minPause, true},
			"nothing known": {nil, time.Hour, maxPause / 2, maxPause, true},
			"impatient":     {nil, time.Millisecond, time.Millisecond, time.Millisecond, false},
		} {
			p := pause(time.Hour)
			patience, cancel := context.WithTimeout(ctx, c.patience)
			start := time.Now()
			again := p.wait(patience, true, c.changed, nil)
			cancel()
			if d := time.Since(start); again != c.again || d < c.min || d > c.max {
				t.Errorf("%s: %v after %v, want %v after %v to %v", name, again, d, c.again, c.min, c.max)
			}
		}
	})
}

// Shows in virtual time that attempts after an unknown outcome stop at half the replay horizon,
// however much time the caller has left.
func TestRetriesEndAtHalfTheHorizon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, horizon := range []time.Duration{0, time.Second, 10 * time.Second} {
			start := time.Now()
			var last time.Duration
			attempts := 0
			backend := &fakeBackend{horizon: horizon}
			backend.check = func(context.Context, fsm.Check) (Answer, error) {
				attempts++
				last = time.Since(start)
				return Answer{}, quotaerr.New(quotaerr.OutcomeUnknown, "")
			}
			d := &desk{node: "n1", backend: backend, peers: newPeers(nil), metrics: newMetrics(),
				maxInFlight: 1, wall: time.Now}
			ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
			_, err := d.check(ctx, Identity{Name: "g"}, aCheck(), "grpc")
			cancel()
			if quotaerr.ReasonOf(err) != quotaerr.OutcomeUnknown {
				t.Errorf("horizon %v: %v", horizon, err)
			}
			if wait := time.Since(start); wait > horizon/2+maxPause {
				t.Errorf("horizon %v: answered after %v", horizon, wait)
			}
			if last > horizon/2 || (horizon == 0) != (attempts == 1) {
				t.Errorf("horizon %v: attempt %d began after %v", horizon, attempts, last)
			}
			if end := backend.lastContextEnd; !end.IsZero() && end.After(start.Add(horizon/2)) {
				t.Errorf("horizon %v: the last attempt could be proposed until %v", horizon, end.Sub(start))
			}
		}
	})
}

// Shows that the shortest horizon among a check's classes counts.
func TestShortestHorizonCounts(t *testing.T) {
	backend := answering(Answer{}, quotaerr.New(quotaerr.OutcomeUnknown, ""))
	backend.horizons = map[string]time.Duration{"short": 0}
	n := mustNode(t, "n1", backend)
	req := aCheck()
	req.Also = []*quoratev1.Charge{{ApiClass: "short"}}
	_, err := quoratev1.NewQuotaClient(n.conn).CheckAndConsume(within(t, 10*time.Second), req)
	if err == nil || len(backend.seen()) != 1 {
		t.Errorf("%v after %d attempts, want one", err, len(backend.seen()))
	}
}
