package group

import (
	"testing"
	"time"
)

// impatient has Raft wait for a minute for a leader of whom it hears nothing.
func impatient(c *Config) {
	c.Timing = quick
	c.Timing.Heartbeat, c.Timing.Election, c.Timing.Lease = time.Minute, time.Minute, 200*time.Millisecond
}

// The others elect a leader at once when the process of the one before has ended: they do not wait for Raft's timers,
// which have a minute here.
func TestLeaderGone(t *testing.T) {
	c := newCluster(t, 3, 3, impatient)
	c[0].transport.campaign()
	c.mustPropose(t, "first", 3, 0)
	old := c.leader(t)
	must(t, old.listener.Close())
	must(t, old.Close())
	rest := c.without(old)
	rest.mustPropose(t, "second", 3, 0)
	for _, r := range rest {
		eventually(t, "Raft waits as long as it is told again", func() bool {
			return r.raft.ReloadableConfig().HeartbeatTimeout == time.Minute
		})
	}
}

// A leader that only closes its connections is not taken for gone: it leads on, in the same term.
func TestLeaderHangsUp(t *testing.T) {
	c := newCluster(t, 3, 3, impatient)
	c[0].transport.campaign()
	c.mustPropose(t, "first", 3, 0)
	l := c.leader(t)
	term := l.Leadership().Term
	for _, r := range c.without(l) {
		p := &patience{group: r.RaftGroup}
		eventually(t, "the leader is known", func() bool { _, id := r.raft.LeaderWithID(); return id == l.self.replicaID() })
		p.hungUp(l.self.replicaID())
		if p.gone != "" {
			t.Errorf("%s takes the leader for gone, which runs", r.self.ID)
		}
	}
	c.mustPropose(t, "second", 3, 0)
	if now := c.leader(t).Leadership().Term; now != term {
		t.Errorf("the leader hung up in term %d, and there is another in term %d", term, now)
	}
}
