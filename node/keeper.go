package node

import (
	"context"
	"time"

	"github.com/quorate/quorate/partition/group"
)

const (
	// keeperInterval is between two looks at the members.
	keeperInterval = 500 * time.Millisecond
	// caughtUpEntries is how far behind the leader's last entry a learner may be to get its vote: an entry is
	// a batch, and there are always some on their way.
	caughtUpEntries = 2
)

// keepMembers adds this cluster's nodes to the group while this node leads it: a configured node that says
// it waits becomes a learner, and a learner that has caught up gets its vote. It never removes anything:
// only an operator can know that a replica is lost.
func (n *Node) keepMembers(ctx context.Context) {
	tick := time.NewTicker(keeperInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		g := n.group.Load()
		if l := g.Leadership(); l.Ready {
			n.keepStep(ctx, g, l.Term)
		}
	}
}

// keepStep makes one change at most. What a node said is some seconds old, and it may have been replaced
// since: so it is asked again before its word counts.
func (n *Node) keepStep(ctx context.Context, g *group.RaftGroup, term uint64) {
	step := n.nextStep(g.Members(), g.Acknowledged, group.Position{Term: term, Index: g.Status().LastIndex})
	who := step.member()
	if who == nil {
		return
	}
	peer, _ := n.cfg.peer(who.ID)
	a, err := n.ask(ctx, peer, question{Kind: askWho})
	if err != nil || a.Instance != who.Instance || step.add != nil && !a.waits() {
		n.neighbours.forget(who.ID)
		return
	}
	switch {
	case step.add != nil:
		n.kept("add a node that waits as a learner", *step.add, g.AddLearner(*step.add))
	case step.promote != nil:
		n.kept("give a learner that has caught up its vote", *step.promote, g.Promote(step.promote.ID))
	}
}

func (n *Node) kept(what string, m group.Member, err error) {
	if err != nil {
		n.logger.Warn("failed to "+what, "member", m.ID, "instance", short(m.Instance), "error", err)
		return
	}
	n.logger.Info(what, "member", m.ID, "instance", short(m.Instance))
}

// memberStep is one change of the members; both nil for none.
type memberStep struct {
	add, promote *group.Member
}

// member is who is added or promoted; nil when nobody is.
func (s memberStep) member() *group.Member {
	if s.add != nil {
		return s.add
	}
	return s.promote
}

// nextStep is the change that is due, given the members, how far each has acknowledged, and where this
// leader's log ends.
func (n *Node) nextStep(
	members []group.Member, acknowledged func(group.Member) group.Position, last group.Position,
) memberStep {
	now := time.Now()
	there := map[string]bool{}
	for _, m := range members {
		there[m.ID] = true
		if !m.Learner {
			continue
		}
		a := n.neighbours.of(m.ID, now)
		if a == nil || a.Instance != m.Instance || a.Replica == nil || a.Replica.Stopped != "" {
			continue // it is not there to vote
		}
		// Only an acknowledgement of this term says that its log is a part of this leader's.
		if p := acknowledged(m); p.Term == last.Term && p.Index+caughtUpEntries >= last.Index {
			return memberStep{promote: &m}
		}
	}
	for _, p := range n.cfg.others() {
		if a := n.neighbours.of(p.ID, now); a != nil && !there[p.ID] && a.waits() {
			return memberStep{add: &group.Member{ID: p.ID, Instance: a.Instance, Addr: p.Raft}}
		}
	}
	return memberStep{}
}
