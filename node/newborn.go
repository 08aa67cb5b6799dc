package node

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quorate/quorate/control/bodies"
	"github.com/quorate/quorate/control/state"
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
	if plan := copyPlan(s, p); plan != nil {
		var err error
		if rev, err = r.copied.revisionFor(n, s, plan); err != nil {
			return nil, err
		}
	} else if v := n.view.Load(); v.Policy.GetRevision() != uint64(rev.Number) {
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

// copyPlan is the plan that a partition is made for out of what stands still: of one replica of a partition that lost
// its majority, or of a backup. nil: there is none. Such a source takes no other policy any more, so the partition
// keeps to the source's until it has what that has.
func copyPlan(s *state.State, p *state.Partition) *state.Plan {
	plan, ok := s.Plan(p.Plan)
	if !ok || !plan.Copies() || plan.Destination != p.ID {
		return nil
	}
	return plan
}

// keepsPolicy reports that a partition is not to install another policy yet.
func (n *Node) keepsPolicy(s *state.State, id string, p *partition.Partition) bool {
	known := partitionNamed(s, id)
	if known == nil {
		return false
	}
	plan := copyPlan(s, known)
	if plan == nil || plan.Phase == state.PlanAborted {
		return false
	}
	end, err := p.PlanEnd(plan.ID)
	return err != nil || end != fsm.PlanEnded
}

// copyRevision finds out which policy revision a source has that stands still.
type copyRevision struct {
	asking  atomic.Bool
	working sync.WaitGroup
	known   atomic.Uint64 // 0: not yet
}

// copyAskTimeout bounds one attempt to find out.
const copyAskTimeout = 10 * time.Second

// revisionFor is the revision that the destination of a plan is to be born with, once it is known and its policy is
// here. It does not wait.
func (c *copyRevision) revisionFor(n *Node, s *state.State, plan *state.Plan) (*state.Revision, error) {
	number := fsm.Revision(c.known.Load())
	if number == 0 {
		c.inBackground(n, func(ctx context.Context) error {
			manifest, err := n.manifestOfSource(ctx, plan)
			if err == nil {
				c.known.Store(uint64(manifest.Revision))
			}
			return err
		})
		return nil, fmt.Errorf("%w: the policy of what it is made of is not known yet", partition.ErrNotYet)
	}
	rev, ok := s.Revision(number)
	if !ok {
		return nil, fmt.Errorf("policy revision %d, which plan %d begins with, is in the history no more: abort the plan",
			number, plan.ID)
	}
	_, err := n.control().Policy(n.life, rev)
	switch {
	case errors.Is(err, bodies.ErrNotFound):
		c.inBackground(n, func(ctx context.Context) error {
			_, err := n.findPolicy(ctx, rev.Ref())
			return err
		})
		return nil, fmt.Errorf("%w: the policy is on its way to this node", partition.ErrNotYet)
	case err != nil:
		return nil, err
	}
	return rev, nil
}

// inBackground does something unless it is at something already.
func (c *copyRevision) inBackground(n *Node, what func(context.Context) error) {
	if !c.asking.CompareAndSwap(false, true) {
		return
	}
	c.working.Go(func() {
		defer c.asking.Store(false)
		ctx, cancel := context.WithTimeout(n.life, copyAskTimeout)
		defer cancel()
		if err := what(ctx); err != nil && ctx.Err() == nil {
			n.logger.Warn("what a partition is to be made of is not known yet", "error", err)
		}
	})
}
