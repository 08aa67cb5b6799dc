package rpc

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/quorate/quorate/fsm"
	quoratev1 "github.com/quorate/quorate/proto/quorate/v1"
	"github.com/quorate/quorate/quotaerr"
)

// moved is a backend of a node whose own partition has a principal's slot, which is moved to another of its
// partitions while a test goes on in virtual time.
type moved struct {
	*fakeBackend
	start time.Time
	// frozen is when the slot stops being decided for, decided when the map says that it is the other's, active when
	// that decides; back, when it is not 0, when the move is undone instead.
	frozen, decided, active, back time.Duration

	mu  sync.Mutex // guards ids
	ids map[string]int
}

// mapped is the ownership epoch by the map.
func (m *moved) mapped() fsm.Epoch {
	if m.back == 0 && time.Since(m.start) >= m.decided {
		return 8
	}
	return 7
}

// answer is the state machines' answer to who has routed by an epoch.
func (m *moved) answer(epoch fsm.Epoch) fsm.Reason {
	now := time.Since(m.start)
	switch {
	case m.back != 0 && now >= m.back, now < m.frozen:
		if epoch != 7 {
			return fsm.ReasonWrongEpoch
		}
		return fsm.ReasonAllowed
	case m.back != 0, now < m.decided:
		return fsm.ReasonFrozen
	case now < m.active, epoch != 8:
		return fsm.ReasonWrongEpoch
	}
	return fsm.ReasonAllowed
}

// newMoved makes the node, and has it told of the new map when that is decided.
func newMoved(t *testing.T, m *moved) *desk {
	t.Helper()
	m.start, m.ids = time.Now(), map[string]int{}
	m.fakeBackend = &fakeBackend{
		horizon: time.Minute,
		leader:  func() Leadership { return Leadership{Node: "n1", Local: true, Epoch: m.mapped()} },
		check: func(_ context.Context, c fsm.Check) (Answer, error) {
			m.mu.Lock()
			m.ids[c.DecisionID]++
			m.mu.Unlock()
			a := Answer{Decision: fsm.Decision{Reason: m.answer(c.RouteEpoch)}}
			if time.Since(m.start) >= m.active {
				a.Epoch = 8
			}
			return a, nil
		},
		peek: func(_ context.Context, p fsm.Peek) (UsageAnswer, error) {
			return UsageAnswer{Usage: fsm.Usage{Reason: m.answer(p.RouteEpoch)}}, nil
		},
	}
	if m.decided > 0 {
		publish := time.AfterFunc(m.decided, func() { m.publish(nil) })
		t.Cleanup(func() { publish.Stop() })
	}
	return &desk{node: "n1", backend: m, peers: newPeers(nil), metrics: newMetrics(), maxInFlight: 100, wall: time.Now}
}

// Shows in virtual time that a check and a peek that meet a move are answered within a moment of its end, however long
// it lasts, whether it is done or undone, by attempts with the same decision id; also for a caller that has routed
// itself, as far as its map stays right.
func TestAMoveCostsAMoment(t *testing.T) {
	const moment = 60 * time.Millisecond
	ms := time.Millisecond
	for name, m := range map[string]*moved{
		"short":       {frozen: 0, decided: 30 * ms, active: 35 * ms},
		"half second": {frozen: 0, decided: 500 * ms, active: 520 * ms},
		"slow":        {frozen: 0, decided: 3 * time.Second, active: 3100 * ms},
		"undone":      {frozen: 0, active: time.Hour, back: 300 * ms},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := newMoved(t, m)
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				end, within := m.active, moment
				if m.back != 0 {
					end, within = m.back, maxPause // nothing tells of it but the next attempt
				}
				var wg sync.WaitGroup
				for _, epoch := range []uint64{0, 7} {
					wg.Go(func() {
						req := aCheck()
						req.RouteEpoch = epoch
						_, err := d.check(ctx, Identity{Name: "g"}, req, "grpc")
						took := time.Since(m.start)
						switch e := quotaerr.As(err); {
						case epoch != 0 && m.back == 0: // its map is the old one
							if e == nil || e.Reason != quotaerr.WrongEpoch || took > m.active+moment {
								t.Errorf("routed by the old map: %v after %s", err, took)
							}
						case err != nil || took < end || took > end+within:
							t.Errorf("epoch %d: %v after %s, want an allow after %s", epoch, err, took, end)
						}
					})
				}
				wg.Go(func() {
					_, err := d.peek(ctx, Identity{Name: "g"}, &quoratev1.PeekRequest{Principal: "acme", ApiClass: "convert"})
					if took := time.Since(m.start); err != nil || took < end || took > end+within {
						t.Errorf("peek: %v after %s", err, took)
					}
				})
				wg.Wait()
				if len(m.ids) != 1 || m.ids["d1"] < 3 {
					t.Errorf("sent as %v", m.ids)
				}
			})
		})
	}
}

// Shows in virtual time that a caller who has routed by the new map before the owner has got the slots waits for it,
// and that one with an older map than the owner is told so at once.
func TestWhoIsBehindTheMap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &moved{active: 200 * time.Millisecond}
		d := newMoved(t, m)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		req := aCheck()
		req.RouteEpoch = 8
		if _, err := d.check(ctx, Identity{Name: "g"}, req, "grpc"); err != nil || time.Since(m.start) > 2*m.active {
			t.Errorf("the newer map: %v after %s", err, time.Since(m.start))
		}
		before := time.Now()
		req.RouteEpoch = 7
		_, err := d.check(ctx, Identity{Name: "g"}, req, "grpc")
		if e := quotaerr.As(err); e == nil || e.Reason != quotaerr.WrongEpoch || e.Epoch != 8 || time.Since(before) > 0 {
			t.Errorf("the older map: %v after %s", err, time.Since(before))
		}
	})
}

// Shows in virtual time that a caller whose time ends during a move is told frozen or wrong_epoch, never what a failure
// mode is for, also when the last attempt found no time to be made; but no_quorum when it was lost meanwhile.
func TestAMoveIsNoFailure(t *testing.T) {
	late := quotaerr.New(quotaerr.NoQuorum, "not proposed in time")
	frozen, wrong := quotaerr.New(quotaerr.Frozen, ""), quotaerr.New(quotaerr.WrongEpoch, "")
	leader := &quotaerr.Error{Reason: quotaerr.NotLeader, Leader: "n1"}
	for _, c := range []struct {
		first []error // then the last one for ever
		hangs bool    // the last attempt lasts to the end
		want  quotaerr.Reason
	}{
		{[]error{frozen}, false, quotaerr.Frozen},
		{[]error{frozen, wrong}, false, quotaerr.WrongEpoch},
		{[]error{frozen, late}, true, quotaerr.Frozen},
		{[]error{wrong, leader, late}, true, quotaerr.WrongEpoch},
		{[]error{frozen, late}, false, quotaerr.NoQuorum},
		{[]error{late}, true, quotaerr.NoQuorum},
		{[]error{frozen, quotaerr.New(quotaerr.OutcomeUnknown, ""), frozen}, false, quotaerr.OutcomeUnknown},
	} {
		synctest.Test(t, func(t *testing.T) {
			attempts := 0
			backend := &fakeBackend{horizon: time.Hour}
			backend.check = func(ctx context.Context, _ fsm.Check) (Answer, error) {
				attempts++
				if c.hangs && attempts >= len(c.first) {
					<-ctx.Done()
				}
				return Answer{}, c.first[min(attempts, len(c.first))-1]
			}
			d := &desk{node: "n1", backend: backend, peers: newPeers(nil), metrics: newMetrics(), maxInFlight: 1, wall: time.Now}
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			_, err := d.check(ctx, Identity{Name: "g"}, aCheck(), "grpc")
			if got := quotaerr.ReasonOf(err); got != c.want {
				t.Errorf("%v, hangs %v: %v, want %s", c.first, c.hangs, err, c.want)
			}
		})
	}
}

// Shows in virtual time that a move which is decided while an attempt is under way is followed at once, however long
// the pauses have become.
func TestAMoveDuringAnAttempt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var epoch fsm.Epoch = 7
		var decided time.Time
		attempts := 0
		b := &fakeBackend{horizon: time.Hour}
		b.leader = func() Leadership { return Leadership{Node: "n1", Local: true, Epoch: epoch} }
		b.check = func(_ context.Context, c fsm.Check) (Answer, error) {
			if c.RouteEpoch == 8 {
				return Answer{Decision: fsm.Decision{Reason: fsm.ReasonAllowed}}, nil
			}
			if attempts++; attempts == 20 {
				epoch, decided = 8, time.Now()
				b.publish(nil)
			}
			return Answer{Decision: fsm.Decision{Reason: fsm.ReasonFrozen}}, nil
		}
		d := &desk{node: "n1", backend: b, peers: newPeers(nil), metrics: newMetrics(), maxInFlight: 1, wall: time.Now}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if _, err := d.check(ctx, Identity{Name: "g"}, aCheck(), "grpc"); err != nil || time.Since(decided) > minPause {
			t.Errorf("%v, %s after it was decided", err, time.Since(decided))
		}
	})
}

// Shows in virtual time that a check which names an epoch that no map has is refused after a second, and is never put
// to the owner, who would write it into its log again and again.
func TestAnEpochThatNobodyKnows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newMoved(t, &moved{frozen: time.Hour, decided: time.Hour, active: time.Hour})
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		req := aCheck()
		req.RouteEpoch = 8
		begun := time.Now()
		_, err := d.check(ctx, Identity{Name: "g"}, req, "grpc")
		e := quotaerr.As(err)
		if e == nil || e.Reason != quotaerr.WrongEpoch || e.Epoch != 7 {
			t.Errorf("%v, want wrong_epoch with epoch 7", err)
		}
		if took := time.Since(begun); took < behindPatience || took > behindPatience+maxMovePause {
			t.Errorf("after %s, want %s", took, behindPatience)
		}
		m, ok := d.backend.(*moved)
		if !ok || len(m.ids) > 0 {
			t.Errorf("the owner was asked: %v", m.ids)
		}
	})
}
