package sdk

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	quoratev1 "github.com/quorate/quorate/proto/quorate/v1"
	"github.com/quorate/quorate/router"
)

// watched is the node that is watched.
func (c *cluster) watched(t *testing.T) *node {
	t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, n := range c.nodes {
		if n.watch.Load() > 0 {
			return n
		}
	}
	t.Fatal("no node is watched")
	return nil
}

// forget has a node go on telling what holds now, whatever is published.
func (c *cluster) forget(n *node) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n.stale.Store(c.config)
}

// Shows that a node which tells on what is no longer so is left for another one, once answers show it to be behind: those
// of a newer policy, or of an owner of a newer epoch.
func TestNodeThatIsBehindIsLeft(t *testing.T) {
	newPolicy := func() reply { r := allow(); r.decision.PolicyRevision = 2; return r }
	newEpoch := func() reply { r := refuse("wrong_epoch"); r.refusal.Epoch = 9; return r }
	for name, answers := range map[string][]func() reply{"policy": {newPolicy}, "map": {newEpoch, allow}} {
		t.Run(name, func(t *testing.T) {
			world(t, 3, inOrder(answers...), func(t *testing.T, c *cluster, client *Client) {
				c.forget(c.watched(t))
				c.publish(func(m *quoratev1.WatchConfigResponse) {
					m.Policy = settingsOf(2, append(modes(), disabled("off", modeAllow))...)
					m.Map.Version, m.Map.Ranges[0].Slots.Epoch = 2, 9
				})
				elapse(time.Minute)
				if d, err := client.Check(bg(), "acme", "off"); endingOf(t, d, err) != endsAllowed {
					t.Errorf("before anything shows it: %+v, %v", d, err)
				}
				elapse(15 * time.Second)
				d, err := client.Check(bg(), "acme", "off")
				if s := client.Stats(); endingOf(t, d, err) != endsDisabled || !s.WatchLive || s.MapVersion != 2 {
					t.Errorf("%+v, %v; map %d, live %t", d, err, s.MapVersion, s.WatchLive)
				}
			})
		})
	}
}

// Shows that nodes which are behind what another has told confirm nothing, so that the watch is not live with them
// alone, and that it is again soon after one that is not behind is back.
func TestNodesThatAreBehindConfirmNothing(t *testing.T) {
	world(t, 3, alwaysAllow, func(t *testing.T, c *cluster, client *Client) {
		first := c.watched(t)
		for _, id := range []string{"a", "b", "c"} {
			if n := c.node(id); n != first {
				c.forget(n)
			}
		}
		c.publish(func(m *quoratev1.WatchConfigResponse) { m.Policy = settingsOf(2, modes()...) })
		synctest.Wait()
		c.stop(first.id)
		elapse(30 * time.Second)
		if s := client.Stats(); s.WatchLive || s.PolicyRevision != 2 {
			t.Errorf("live %t, revision %d", s.WatchLive, s.PolicyRevision)
		}
		c.start(first.id)
		elapse(30 * time.Second)
		if s := client.Stats(); !s.WatchLive || s.PolicyRevision != 2 {
			t.Errorf("live %t, revision %d", s.WatchLive, s.PolicyRevision)
		}
	})
}

// Shows that an answer of before a restore does not make the revisions after it look old.
func TestAnswerOfBeforeARestore(t *testing.T) {
	world(t, 1, alwaysAllow, func(t *testing.T, c *cluster, client *Client) {
		before := client.era.Load()
		client.seenRevision(before, 900)
		c.publish(func(m *quoratev1.WatchConfigResponse) {
			m.Map.Version, m.Policy = 1<<28+1, settingsOf(2, modes()...)
		})
		synctest.Wait()
		client.seenRevision(before, 901)
		elapse(time.Minute)
		if s := client.Stats(); s.PolicyRevision != 2 || !s.WatchLive {
			t.Errorf("revision %d, live %t", s.PolicyRevision, s.WatchLive)
		}
	})
}

// dated is a context with a deadline that is only told.
type dated struct {
	context.Context //nolint:containedctx // it is one itself
	end             time.Time
}

func (d dated) Deadline() (time.Time, bool) { return d.end, true }

// Shows that a context's deadline that was made from a wall clock reading alone is measured by what the wall clock says
// now, and bounds the time for a decision.
func TestDeadlineWithoutMonotonicReading(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const now = int64(time.Hour) // by the client's clock, which began elsewhere
		for _, left := range []time.Duration{50 * time.Millisecond, 10 * time.Second} {
			r := &run{startNanos: now, contextNanos: contextNanos(dated{bg(), time.Now().Round(0).Add(left)}, now)}
			r.limit(100*time.Millisecond, 30*time.Second)
			if got, want := r.deadlineNanos-now, int64(min(left, 100*time.Millisecond)); got != want {
				t.Errorf("%s left: %d ns, and not %d", left, got, want)
			}
		}
	})
}

// Shows that a look at a route without replicas goes nowhere, and does not panic.
func TestFollowingNobody(t *testing.T) {
	if n := following(router.Route{Node: router.Node{ID: "a"}}, router.Node{ID: "a"}); n.ID != "" {
		t.Errorf("%+v", n)
	}
}
