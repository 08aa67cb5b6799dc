package node

import (
	"context"
	"fmt"
	"time"

	"github.com/quorate/quorate/partition/group"
	"github.com/quorate/quorate/quotaerr"
	"github.com/quorate/quorate/rpc"
)

// ReplaceNode takes the replica of a node whose data is lost out of the group.
func (b *backend) ReplaceNode(ctx context.Context, node string) (rpc.Replacement, error) {
	n := (*Node)(b)
	var none rpc.Replacement
	peer, ok := n.cfg.peer(node)
	if !ok {
		return none, quotaerr.New(quotaerr.InvalidArgument,
			"node %.63q is not configured: name one of those that `quorate cluster status` lists", node)
	}
	g := n.group.Load()
	if g == nil || !g.Leadership().Ready {
		e := quotaerr.New(quotaerr.NotLeader, "this node does not lead partition %s", n.cfg.Partition.ID)
		if p := n.partition.Load(); p != nil {
			e.Leader = p.Status().Leader
		}
		if e.Leader == n.cfg.ID {
			e.Leader = "" // not yet ready, or not any more
		}
		return none, e
	}
	if node == n.cfg.ID {
		return none, quotaerr.New(quotaerr.InvalidArgument,
			"%s leads partition %s and is up and well: stop it first, another node then leads", node, n.cfg.Partition.ID)
	}
	out := rpc.Replacement{Next: fmt.Sprintf(
		"start %s with an empty data directory: it is added as a learner, and gets its vote when it has caught up", node)}
	member, ok := memberOf(g.Members(), node)
	if !ok {
		return out, nil // it was removed before
	}
	answers, _ := n.survey(ctx)
	if a := answers[peer.ID]; a != nil && a.Instance == member.Instance && (a.Replica == nil || a.Replica.Stopped == "") {
		return none, quotaerr.New(quotaerr.InvalidArgument, "%s is up and well: stop it first", node)
	}
	if err := n.mustKeepMajority(g.Members(), node, answers); err != nil {
		return none, err
	}
	if err := n.mustBeSilent(ctx, g, member); err != nil {
		return none, err
	}
	n.logger.Warn("a replica is taken out, as an operator asked", "replica", node, "instance", short(member.Instance))
	if err := g.Remove(node); err != nil {
		return none, quotaerr.Wrap(quotaerr.OutcomeUnknown, err,
			"the removal of %s did not come through: see `quorate cluster status`, then ask again", node)
	}
	n.neighbours.forget(node)
	out.Removed = []rpc.RemovedReplica{{Partition: n.cfg.Partition.ID, Instance: member.Instance}}
	return out, nil
}

const (
	// silence is how long a replica must not have answered this leader before it counts as stopped. A leader
	// asks several times a second.
	silence = 2 * time.Second
	// silenceInterval is between two looks.
	silenceInterval = 100 * time.Millisecond
)

// mustBeSilent refuses the removal of a replica that goes on answering this leader, whatever its process
// says. One that was stopped a moment ago is waited for.
func (n *Node) mustBeSilent(ctx context.Context, g *group.RaftGroup, m group.Member) error {
	began := time.Now()
	for {
		heard := g.Heard(m)
		switch {
		case heard.IsZero() || time.Since(heard) >= silence:
			return nil
		case heard.Sub(began) > silence:
			return quotaerr.New(quotaerr.InvalidArgument, "%s goes on acknowledging entries: stop it first", m.ID)
		}
		select {
		case <-ctx.Done():
			return quotaerr.New(quotaerr.InvalidArgument,
				"%s acknowledged an entry %s ago: stop it first, then ask again", m.ID, time.Since(heard).Round(time.Millisecond))
		case <-time.After(silenceInterval):
		}
	}
}

// mustKeepMajority refuses a removal after which the group could not commit: it would be stuck between its
// old members and its new.
func (n *Node) mustKeepMajority(members []group.Member, without string, answers map[string]*answer) error {
	voters, up := 0, 0
	for _, m := range members {
		if m.Learner || m.ID == without {
			continue
		}
		voters++
		a := answers[m.ID]
		if m.ID == n.cfg.ID || a != nil && a.Instance == m.Instance && a.Replica != nil && a.Replica.Stopped == "" {
			up++
		}
	}
	if 2*up <= voters {
		return quotaerr.New(quotaerr.NoQuorum, "without %s partition %s has %d voters, of which %d are up: "+
			"start the others first", without, n.cfg.Partition.ID, voters, up)
	}
	return nil
}

func memberOf(members []group.Member, node string) (group.Member, bool) {
	for _, m := range members {
		if m.ID == node {
			return m, true
		}
	}
	return group.Member{}, false
}
