package node

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/quorate/quorate/partition/group"
)

// keeperInterval is between two looks at the members of a group that this node leads.
const keeperInterval = 200 * time.Millisecond

// keepMembers makes the members of each group that this node leads those that the cluster's state asks for, one
// change at a time, until ctx ends.
func (n *Node) keepMembers(ctx context.Context) {
	var steps sync.WaitGroup
	defer steps.Wait()
	tick := time.NewTicker(keeperInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		for _, r := range n.hosted.all() {
			if r.leads() && r.keeping.CompareAndSwap(false, true) {
				steps.Go(func() {
					defer r.keeping.Store(false)
					r.keep(ctx)
				})
			}
		}
	}
}

// keep makes one change at most.
func (r *replica) keep(ctx context.Context) {
	n, g := r.node, r.group.Load()
	if g == nil || n.control() == nil {
		return
	}
	s := n.control().State()
	if r.id != controlID && !n.lease.covers(n.source.Read(), s.Version) {
		return // what this node knows of the cluster may be old
	}
	step := r.membership(g).step(s, r.id, n.placementNodes(s), n.cfg.Placement.ReplaceAfter)
	if step.kind == 0 {
		return
	}
	if err := r.carryOut(ctx, g, step); err != nil {
		n.logger.Warn("a change of members failed", "group", r.id, "step", step.kind.String(), "member", step.member.ID,
			"instance", short(step.member.Instance), "error", err)
		return
	}
	n.logger.Info("members changed", "group", r.id, "step", step.kind.String(), "member", step.member.ID,
		"instance", short(step.member.Instance))
}

// membership is a group as its leader has it.
func (r *replica) membership(g *group.RaftGroup) *membership {
	self := r.node.cfg.ID
	return &membership{
		self: self, members: g.Members(), acked: g.Acknowledged,
		last: group.Position{Term: g.Leadership().Term, Index: g.Status().LastIndex},
		up:   func(m group.Member) bool { return m.ID == self || time.Since(g.Heard(m)) < recently },
	}
}

// recently is how long ago a follower must have answered its leader at most to count as up. A leader asks several
// times a second.
const recently = 2 * time.Second

func (r *replica) carryOut(ctx context.Context, g *group.RaftGroup, step memberStep) error {
	m := step.member
	switch step.kind {
	case stepAdd:
		return g.AddLearner(m)
	case stepPromote:
		// What it acknowledged was some time ago, and its node may have another directory since.
		a, err := r.node.askNode(ctx, m.ID, question{Kind: askWho})
		switch {
		case err != nil:
			return err
		case a.Self.Instance != m.Instance || a.Groups[r.id] == nil:
			return errors.New("its node has another data directory, or has not opened it")
		case a.Groups[r.id].Stopped != "":
			return errors.New("it has stopped for good")
		}
		return g.Promote(m.ID)
	case stepDemote:
		return g.Demote(m.ID)
	case stepRemove:
		return g.Remove(m.ID)
	case stepTransfer:
		return g.Transfer(m.ID)
	case stepReaddress:
		return g.Readdress(m.ID, m.Addr)
	}
	return nil
}
