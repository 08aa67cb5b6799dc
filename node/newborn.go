package node

import (
	"fmt"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/partition"
)

// birth is what the partition is made with: what the cluster's state says of it, and the policy in force. The
// destination of a plan is born owning nothing.
func (r *replica) birth() (*fsm.Birth, error) {
	n := r.node
	if !n.controlOpen() {
		return nil, fmt.Errorf("%w: the control group is not open", partition.ErrNotYet)
	}
	s := n.control().State()
	if !n.lease.covers(n.source.Read(), s.Version) {
		return nil, fmt.Errorf("%w: what this node knows of the cluster may be old", partition.ErrNotYet)
	}
	p, rev := partitionNamed(s, r.id), s.InForce()
	switch {
	case p == nil:
		return nil, fmt.Errorf("%w: the cluster has no such partition", partition.ErrNotYet)
	case rev == nil:
		return nil, fmt.Errorf("%w: the cluster has no policy yet, run policy apply", partition.ErrNotYet)
	}
	if v := n.view.Load(); v.Policy.GetRevision() != uint64(rev.Number) {
		return nil, fmt.Errorf("%w: the policy is on its way to this node", partition.ErrNotYet)
	}
	b := &fsm.Birth{
		Cluster: s.Cluster, Partition: r.id, Seed: s.Seed, Install: fsm.Install{PolicyRef: rev.Ref()},
		Bounds: fsm.Bounds{MaxKeys: n.cfg.Partition.MaxKeys, MaxReplayRecords: n.cfg.Partition.MaxReplayRecords},
	}
	for _, o := range p.Ranges {
		b.Owned = append(b.Owned, fsm.OwnedRange{SlotRange: o.SlotRange, Epoch: o.Epoch})
	}
	return b, nil
}
