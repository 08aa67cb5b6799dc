package node

import (
	"context"
	"fmt"
	"time"

	"github.com/quorate/quorate/partition/group"
)

const (
	// newestTimeout bounds how long a start asks whether its directory is the newest. After a loss of power
	// machines come back seconds apart, and the one that knows may be the last.
	newestTimeout = 10 * time.Second
)

// mustBeNewest refuses a data directory whose log ends before what it was seen to have: an older copy of
// it, put back. Positions are compared by term first, so a suffix that was acknowledged, never committed
// and rightly replaced in a later term does not count as lost.
//
// What it cannot find: when no other node answers in time, the start goes on, since it commits nothing
// alone; the others may then have been the only ones to know better. Nor does it find a copy that is older
// by no more than what the others had not yet noted when they were killed (memoryInterval), or when those
// who answer are not those who know. And there is one false alarm: a replica that was killed after it had
// cut such a suffix off and before the new entries were on its disk is taken for an older copy, and is to be
// replaced.
func (n *Node) mustBeNewest(ctx context.Context, last group.Position) error {
	others := n.cfg.others()
	if len(others) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, newestTimeout)
	defer cancel()
	n.wait("asking the other nodes whether the data directory is the newest")
	heard := map[string]bool{}
	for {
		answers, _ := n.survey(ctx)
		for id, a := range answers {
			heard[id] = true
			if err := n.compare(last, a); err != nil {
				return err
			}
		}
		if len(heard) == len(others) {
			return nil
		}
		select {
		case <-ctx.Done():
			n.logger.Warn("not all nodes tell whether this data directory is the newest; going on: if it is an older copy, "+
				"what was allowed since may be forgotten", "answered", len(heard), "of", len(others))
			return nil
		case <-time.After(formationInterval):
		}
	}
}

// compare holds the end of the log against what another node knows of it.
func (n *Node) compare(last group.Position, a *answer) error {
	if acked := group.Position(a.Acknowledged); last.Before(acked) {
		return fmt.Errorf("%w: the data directory %s is an older copy: its log of partition %s ends at entry %d of term %d, "+
			"but node %s saw it with entry %d of term %d: put the newest one back, or %s", errLost, n.cfg.DataDir,
			n.cfg.Partition.ID, last.Index, last.Term, a.Node, acked.Index, acked.Term,
			n.remedy("start this node with an empty data directory"))
	}
	if last.Index == 0 || a.Replica == nil || !a.Replica.Leads {
		return nil // with an empty log it may well be waiting to be added
	}
	m, listed := a.Replica.lists(n.cfg.ID)
	if listed && m.Instance == n.claim.Instance() {
		return nil
	}
	if listed {
		return fmt.Errorf("%w: partition %s counts on another data directory of node %s (instance %s), not on %s, "+
			"says its leader %s: put the right one back, or %s", errLost, n.cfg.Partition.ID, n.cfg.ID,
			short(m.Instance), n.cfg.DataDir, a.Node, n.remedy("start this node with an empty data directory"))
	}
	return fmt.Errorf("the replica in %s was taken out of partition %s, says its leader %s: "+
		"start this node with an empty data directory, and it is added again", n.cfg.DataDir, n.cfg.Partition.ID, a.Node)
}
