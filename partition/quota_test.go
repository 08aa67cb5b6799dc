package partition

import (
	"math/big"
	"testing"
	"time"

	"github.com/quorate/quorate/clock"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/quotaerr"
)

// realWait is how long partition time takes to advance by nanos, worked out apart from the product.
func realWait(nanos fsm.Time) int64 {
	n := new(big.Int).Mul(big.NewInt(int64(nanos)), big.NewInt(1_000_000))
	n.Add(n, big.NewInt(1_000_000-testDriftPPM-1))
	return n.Div(n, big.NewInt(1_000_000-testDriftPPM)).Int64()
}

// Three allows use the limit up; the fourth check is denied with the real wait until the first of them
// expires; a peek consumes nothing; and each id gets its answer again, from the next leader too.
func TestLimit(t *testing.T) {
	c := newCluster(t, nil)
	c.leader()
	if u := c.mustPeek("acme", "convert"); u.Remaining != 3 {
		t.Errorf("a principal without usage has %d left", u.Remaining)
	}
	first := c.mustDecide(convert("acme", "a"))
	c.advance(10 * time.Second)
	all := map[string]Answer{"a": first, "b": c.mustDecide(convert("acme", "b")), "c": c.mustDecide(convert("acme", "c"))}
	for id, left := range map[string]int64{"a": 2, "b": 1, "c": 0} {
		if a := all[id]; !a.Allowed() || a.Remaining != left || a.Replayed || !a.Recorded {
			t.Errorf("%s: %+v", id, a)
		}
	}
	denied := c.mustDecide(convert("acme", "d"))
	if denied.Reason != fsm.ReasonQuotaExhausted || denied.RetryAt != first.AsOf+fsm.Time(time.Minute) {
		t.Errorf("the fourth check: %+v", denied)
	}
	wait := denied.RetryAt - denied.AsOf
	if want := realWait(wait); denied.RetryAfterNanos != want || wait < fsm.Time(50*time.Second) {
		t.Errorf("retry after %d, want %d for %d of partition time", denied.RetryAfterNanos, want, wait)
	}
	if got := denied.ResetAfterNanos; len(got) != 1 || got[0] != denied.RetryAfterNanos {
		t.Errorf("reset after %v", got)
	}
	for range 2 {
		if u := c.mustPeek("acme", "convert"); u.Remaining != 0 || u.ResetAfterNanos[0] != denied.RetryAfterNanos {
			t.Errorf("peek: %+v", u)
		}
	}
	if u := c.mustPeek("other", "convert"); u.Remaining != 3 {
		t.Errorf("another principal has %d left", u.Remaining)
	}

	all["d"] = denied
	down := c.leader()
	c.mustClose(down)
	for id, was := range all {
		a := c.mustDecide(convert("acme", id))
		if a.Reason != was.Reason || !a.Replayed || a.RetryAt != was.RetryAt {
			t.Errorf("%s was %+v, the next leader says %+v", id, was, a)
		}
	}
	if u := c.mustPeek("acme", "convert"); u.Remaining != 0 {
		t.Errorf("after the replays %d are left", u.Remaining)
	}
	c.mustOpen(down)
}

// A replica that does not lead refuses and names the leader, whom Status and Role name too; without a
// majority nobody leads, and the refusal says so.
func TestNotLeader(t *testing.T) {
	c := newCluster(t, nil)
	for _, m := range c.machines {
		eventually(t, m.id+" names the leader or is it", func() bool {
			leader := c.leader()
			_, err := m.partition().Check(t.Context(), convert("acme", "x"))
			if m == leader {
				return err == nil
			}
			_, peeked := m.partition().Peek(t.Context(), usageOf("acme", "convert"))
			who, leading, _, _ := m.partition().Role("acme")
			e := quotaerr.As(err)
			return e != nil && e.Reason == quotaerr.NotLeader && e.Leader == leader.id &&
				quotaerr.ReasonOf(peeked) == quotaerr.NotLeader && who == leader.id && !leading &&
				m.partition().Status().Leader == leader.id
		})
	}
	alone := c.machines[0]
	for _, m := range c.machines[1:] {
		c.mustClose(m)
	}
	eventually(t, "no leader is known", func() bool {
		_, err := alone.partition().Check(t.Context(), convert("acme", "y"))
		return quotaerr.ReasonOf(err) == quotaerr.NoQuorum
	})
	for _, m := range c.machines[1:] {
		c.mustOpen(m)
	}
	if u := c.mustPeek("acme", "convert"); u.Remaining > 2 || u.Remaining < 1 {
		t.Errorf("%d are left after x and at most y", u.Remaining)
	}
}

// Refusals of the state machine come back as errors that name what to do, and consume nothing.
func TestRefusals(t *testing.T) {
	scripted(t, func(t *testing.T, p *Partition, s *script, _ *clock.Fake) {
		lead(t, p, s)
		ask := func(change func(*fsm.Check)) error {
			check := convert("acme", "r")
			change(&check)
			out := make(chan error, 1)
			go func() {
				_, err := p.Check(t.Context(), check)
				out <- err
			}()
			s.commit(5)
			return <-out
		}
		for want, change := range map[quotaerr.Reason]func(*fsm.Check){
			quotaerr.InvalidArgument:  func(c *fsm.Check) { c.Cost = 0 },
			quotaerr.CostExceedsLimit: func(c *fsm.Check) { c.Cost = 4 },
			quotaerr.WrongEpoch:       func(c *fsm.Check) { c.RouteEpoch++ },
			quotaerr.PolicyBehind:     func(c *fsm.Check) { c.PolicyRevision = 2 },
		} {
			mustReason(t, ask(change), want)
		}
		if e := quotaerr.As(ask(func(c *fsm.Check) { c.RouteEpoch = 1 })); e.Epoch != uint64(testEpoch) {
			t.Errorf("the refusal names epoch %d, want %d", e.Epoch, testEpoch)
		}
		if keys := p.Status().Keys; keys != 0 {
			t.Errorf("%d keys after refusals", keys)
		}
		must(t, ask(func(*fsm.Check) {}))
		mustReason(t, ask(func(c *fsm.Check) { c.Cost = 2 }), quotaerr.DecisionIDConflict)
	})
}
