package group

import (
	"math/rand/v2"
	"time"

	"github.com/hashicorp/raft"
)

// patience is how long this replica goes on waiting for a leader of whom it hears nothing.
//
// Raft by itself looks when a timer of one to two Heartbeats has run out, and starts it anew if it heard of the leader
// within the last: three may pass. And a candidate that was refused, because another has not missed the leader yet or
// has the longer log, waits for one to two Election timeouts. So once it is due this replica shortens both, which makes
// Raft look at once, until there is a leader again. It only asks earlier: by a pre-vote, which those refuse who hear
// of a leader, and which gives nobody's term up.
type patience struct {
	group *RaftGroup
	// gone is a leader whose process has ended, as far as can be told. Raft waits for its return as for any other.
	gone     raft.ServerID
	goneFrom time.Time // when it was heard of last
	// extra keeps two followers from asking at the same instant, and then each voting for itself.
	extra     time.Duration
	shortened bool
}

// watchLeader shortens the wait for a leader that is not heard of.
func (g *RaftGroup) watchLeader() {
	p := &patience{group: g}
	p.draw()
	timer := time.NewTimer(g.config.Timing.Heartbeat)
	defer timer.Stop()
	for {
		select {
		case <-g.closing:
			return
		case id := <-g.transport.Hangups():
			p.hungUp(id)
		case <-timer.C:
		}
		timer.Reset(p.look())
	}
}

// hungUp finds out whether the leader has ended, when it is who hung up.
func (p *patience) hungUp(id raft.ServerID) {
	r := p.group.raft
	address, leader := r.LeaderWithID()
	contact := r.LastContact()
	if id == leader && r.State() == raft.Follower && p.group.transport.Absent(leader, address) {
		p.gone, p.goneFrom = leader, contact
	}
}

// draw draws the extra anew.
func (p *patience) draw() { p.extra = rand.N(p.group.config.Timing.Lease/2 + 1) }

// look shortens the wait when it is due, and ends that when there is a leader. It returns when to look again.
func (p *patience) look() time.Duration {
	r, t := p.group.raft, p.group.config.Timing
	_, leader := r.LeaderWithID()
	contact := r.LastContact()
	if leader != "" && leader != p.gone || contact.After(p.goneFrom) {
		p.gone = ""
	}
	limit := t.Heartbeat + p.extra
	if p.gone != "" {
		limit = t.Lease + p.extra
	}
	silent := time.Since(contact)
	switch leads := r.State() == raft.Leader; {
	case leads || silent < limit && leader != "":
		if p.shortened {
			p.set(t.Heartbeat, t.Election)
			p.draw()
		}
		if leads {
			return t.Heartbeat
		}
		return limit - silent
	case silent < limit: // a vote was given a moment ago
		return min(limit-silent, t.Lease)
	case contact.IsZero(): // it has just started, and Raft counts from then
		return t.Lease
	}
	if !p.shortened {
		p.set(t.Lease, t.Lease)
	}
	return t.Lease / 8
}

// set sets for how long Raft waits. It may not be below the lease.
func (p *patience) set(heartbeat, election time.Duration) {
	err := p.group.reconfigure(func(c *raft.ReloadableConfig) {
		c.HeartbeatTimeout, c.ElectionTimeout = heartbeat, election
	})
	if err != nil {
		p.group.config.Logger.Error("how long to wait for a leader was not changed", "error", err)
		return
	}
	p.shortened = heartbeat < p.group.config.Timing.Heartbeat
}
