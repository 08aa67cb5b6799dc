package group

import (
	"errors"
	"fmt"

	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/internal/guard"
)

// Leader is the leader as this node knows it.
func (g *RaftGroup) Leader() (Member, bool) {
	address, id := g.raft.LeaderWithID()
	if id == "" {
		return Member{}, false
	}
	return memberOf(id, address), true
}

// Members are the replicas of the latest configuration, committed or not.
func (g *RaftGroup) Members() []Member { return membersOf(g.raft.GetConfiguration().Configuration()) }

func membersOf(c raft.Configuration) (out []Member) {
	for _, s := range c.Servers {
		m := memberOf(s.ID, s.Address)
		m.Learner = s.Suffrage != raft.Voter
		out = append(out, m)
	}
	return out
}

// member looks id up.
func (g *RaftGroup) member(id string) (Member, error) {
	for _, m := range g.Members() {
		if m.ID == id {
			return m, nil
		}
	}
	return Member{}, fmt.Errorf("group %s: node %q is not a member", g.config.Group, id)
}

// change runs one change of the replica set at a time. f gives Raft's future of a step.
func (g *RaftGroup) change(what, id string, f func() raft.Future) error {
	if err := outcome(g.await(f(), g.config.Timing.Proposal)); err != nil {
		return fmt.Errorf("group %s: %s node %q: %w", g.config.Group, what, id, err)
	}
	return nil
}

// AddLearner adds a replica without a vote. Adding one that is there changes its address.
func (g *RaftGroup) AddLearner(m Member) error {
	g.admin.Lock()
	defer g.admin.Unlock()
	if err := m.validate(); err != nil {
		return fmt.Errorf("group %s: %w", g.config.Group, err)
	}
	known, err := g.member(m.ID)
	switch {
	case err == nil && known.Instance != m.Instance:
		return fmt.Errorf("group %s: node %q is a member with another data directory: remove that replica first",
			g.config.Group, m.ID)
	case err == nil && !known.Learner:
		return fmt.Errorf("group %s: node %q is a voter already", g.config.Group, m.ID)
	}
	return g.change("add", m.ID, func() raft.Future {
		return g.raft.AddNonvoter(m.replicaID(), raft.ServerAddress(m.Addr), 0, g.config.Timing.Enqueue)
	})
}

// Promote gives a learner its vote. The caller has seen that the learner has caught up: until then the
// group could need it for a majority that it cannot give.
func (g *RaftGroup) Promote(id string) error {
	g.admin.Lock()
	defer g.admin.Unlock()
	m, err := g.member(id)
	if err != nil || !m.Learner {
		return err
	}
	return g.change("promote", id, func() raft.Future {
		return g.raft.AddVoter(m.replicaID(), raft.ServerAddress(m.Addr), 0, g.config.Timing.Enqueue)
	})
}

// Readdress changes the address that the group's configuration has for a member, which keeps or lacks its vote
// as before.
func (g *RaftGroup) Readdress(id, addr string) error {
	g.admin.Lock()
	defer g.admin.Unlock()
	m, err := g.member(id)
	if err != nil || m.Addr == addr {
		return err
	}
	return g.change("move", id, func() raft.Future {
		if m.Learner {
			return g.raft.AddNonvoter(m.replicaID(), raft.ServerAddress(addr), 0, g.config.Timing.Enqueue)
		}
		return g.raft.AddVoter(m.replicaID(), raft.ServerAddress(addr), 0, g.config.Timing.Enqueue)
	})
}

// Demote takes a voter's vote; it goes on as a learner. A leader does not demote itself.
func (g *RaftGroup) Demote(id string) error {
	g.admin.Lock()
	defer g.admin.Unlock()
	m, err := g.member(id)
	if err != nil || m.Learner {
		return err
	}
	if id == g.config.Self.ID {
		return fmt.Errorf("group %s: node %q does not demote itself: transfer leadership, then ask the new leader",
			g.config.Group, id)
	}
	return g.change("demote", id, func() raft.Future {
		return g.raft.DemoteVoter(m.replicaID(), 0, g.config.Timing.Enqueue)
	})
}

// Remove takes a replica out of the group, its vote first. A leader does not remove itself: transfer
// leadership, then ask the new leader.
func (g *RaftGroup) Remove(id string) error {
	g.admin.Lock()
	defer g.admin.Unlock()
	m, err := g.member(id)
	if err != nil {
		return err
	}
	if id == g.config.Self.ID {
		return fmt.Errorf("group %s: node %q does not remove itself: transfer leadership, then ask the new leader",
			g.config.Group, id)
	}
	if !m.Learner {
		err := g.change("demote", id, func() raft.Future {
			return g.raft.DemoteVoter(m.replicaID(), 0, g.config.Timing.Enqueue)
		})
		if err != nil {
			return err
		}
	}
	err = g.change("remove", id, func() raft.Future {
		return g.raft.RemoveServer(m.replicaID(), 0, g.config.Timing.Enqueue)
	})
	if err == nil {
		g.transport.acked.forget(m.replicaID())
	}
	return err
}

// Transfer hands leadership to another voter; to the one that has acknowledged most, when id is empty. It is for
// draining and balance, and only to a replica that answers: while Raft waits for one that does not, it takes no
// entry, and it can get stuck (hashicorp/raft#696), and the guard against that ends the process.
func (g *RaftGroup) Transfer(id string) error {
	g.admin.Lock()
	defer g.admin.Unlock()
	if g.raft.State() != raft.Leader {
		return fmt.Errorf("group %s: %w", g.config.Group, ErrNotLeader)
	}
	if id == g.config.Self.ID {
		return nil
	}
	to, err := g.heir(id)
	if err != nil {
		return err
	}
	err = g.change("transfer leadership to", to.ID, func() raft.Future {
		return g.raft.LeadershipTransferToServer(to.replicaID(), raft.ServerAddress(to.Addr))
	})
	if !errors.Is(err, raft.ErrLeadershipTransferInProgress) {
		g.lead.transferSince.Store(0) // it has ended: one that comes after it is another
	}
	return err
}

// heir is the voter that is to lead: the one with this id, or, when that is empty, the furthest of those that answer.
func (g *RaftGroup) heir(id string) (best Member, err error) {
	if id != "" {
		m, err := g.member(id)
		switch {
		case err != nil:
			return m, err
		case m.Learner:
			return m, fmt.Errorf("group %s: node %q is a learner and cannot lead: promote it first", g.config.Group, id)
		case !g.follows(m):
			return m, fmt.Errorf("group %s: node %q does not follow the log at present, and cannot lead", g.config.Group, id)
		}
		return m, nil
	}
	found := false
	for _, m := range g.Members() {
		if m.Learner || m.ID == g.config.Self.ID || !g.follows(m) {
			continue
		}
		if !found || g.Acknowledged(best).Before(g.Acknowledged(m)) {
			best, found = m, true
		}
	}
	if !found {
		return best, fmt.Errorf("group %s: no other voter follows the log at present: nobody else can lead", g.config.Group)
	}
	return best, nil
}

// follows reports that a transfer to m would not have to wait for it: it answers, and lacks no more than is on its way.
func (g *RaftGroup) follows(m Member) bool {
	if !guard.On(guard.StuckTransfer) {
		return true
	}
	return g.transport.acked.follows(m.replicaID(), g.config.Timing.Heartbeat) &&
		g.Acknowledged(m).Index+maxAppendEntries >= g.raft.LastIndex()
}
