package node

import (
	"context"
	"errors"

	"github.com/quorate/quorate/backup"
	"github.com/quorate/quorate/control"
	"github.com/quorate/quorate/control/state"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/node/admin"
	"github.com/quorate/quorate/quotaerr"
)

// restore makes a partition of the k-th one of the backup, unless that is done already.
func (r *restoring) restore(
	ctx context.Context, c *control.Control, k int, p backup.Partition, nodes []string, q *admin.Restore,
) error {
	number, ranges := partitionOf(p)
	name := state.BackupPrefix + p.ID
	for {
		s := c.State()
		plan := restoreOf(s, number)
		switch {
		case plan == nil && ownedAll(s, ranges):
			return nil
		case plan != nil && plan.From != r.cfg.ID && plan.Phase == state.PlanOpen:
			// It waits for a node that has not got the file any more.
			if err := r.abort(ctx, c, plan.ID); err != nil {
				return err
			}
			continue
		}
		loaded, err := r.load(p)
		if err != nil {
			return err
		}
		r.backups.put(name, loaded)
		if plan == nil {
			plan, err = r.start(ctx, c, number, ranges, r.replicasOf(k, nodes), q)
		}
		if err == nil {
			err = r.await(ctx, c, plan.ID)
		}
		r.backups.drop(name)
		if err != nil {
			return err
		}
		r.logger.Info("a partition was restored", "backup", p.ID, "partition", plan.Destination.String(), "plan", plan.ID)
	}
}

// partitionOf is the number and the slots of a partition in the backup.
func partitionOf(p backup.Partition) (number state.PartitionID, ranges []fsm.SlotRange) {
	number, _ = partitionNumber(p.ID) // the manifest was verified
	for _, o := range p.Ranges {
		ranges = append(ranges, fsm.SlotRange{First: fsm.Slot(o.First), Last: fsm.Slot(o.Last)})
	}
	return number, joinSlots(ranges)
}

// joinSlots joins neighbours, which in the backup differ in their epochs only.
func joinSlots(ranges []fsm.SlotRange) (out []fsm.SlotRange) {
	for _, next := range ranges {
		if last := len(out) - 1; last >= 0 && out[last].Last+1 == next.First {
			out[last].Last = next.Last
			continue
		}
		out = append(out, next)
	}
	return out
}

// restoreOf is the plan under way that makes a partition of this one of the backup; nil when there is none.
func restoreOf(s *state.State, number state.PartitionID) *state.Plan {
	for _, p := range openRestores(s) {
		if p.Source == number {
			return p
		}
	}
	return nil
}

// ownedAll reports that each of these slots has an owner.
func ownedAll(s *state.State, ranges []fsm.SlotRange) bool {
	var owned, wanted owns
	for _, p := range s.Partitions {
		for _, o := range p.Ranges {
			owned.add(o.SlotRange, o.Epoch)
		}
	}
	for _, w := range ranges {
		wanted.add(w, 1)
	}
	for slot, w := range wanted {
		if w != 0 && owned[slot] == 0 {
			return false
		}
	}
	return true
}

// replicasOf are the nodes of the k-th partition, the first its founder.
func (r *restoring) replicasOf(k int, nodes []string) (out []string) {
	for i := range min(len(nodes), r.cfg.Placement.Replicas) {
		out = append(out, nodes[(k+i)%len(nodes)])
	}
	return out
}

// start begins the plan.
func (r *restoring) start(
	ctx context.Context, c *control.Control, number state.PartitionID, ranges []fsm.SlotRange, replicas []string,
	q *admin.Restore,
) (*state.Plan, error) {
	done, err := c.Propose(ctx, &state.Command{
		Kind: state.KindStartPlan, Actor: q.Actor, Comment: q.Comment, Start: &state.StartPlan{
			Kind: state.PlanRestore, Source: number, New: replicas, Ranges: ranges, From: r.cfg.ID, AcceptLoss: q.AcceptLoss,
		},
	})
	if err != nil {
		return nil, err
	}
	plan, ok := c.State().AnyPlan(done.Plan)
	if !ok {
		return nil, quotaerr.New(quotaerr.Internal, "plan %d was begun and is not there", done.Plan)
	}
	return plan, nil
}

// abort undoes a plan that cannot go on.
func (r *restoring) abort(ctx context.Context, c *control.Control, id fsm.PlanID) error {
	_, err := c.Propose(ctx, &state.Command{
		Kind: state.KindAbortPlan, Actor: admin.ItselfName, Comment: "the restore goes on at node " + r.cfg.ID, Plan: id,
	})
	var refused *state.Refusal
	if err != nil && !errors.As(err, &refused) { // else it has been decided, or has ended, meanwhile
		return err
	}
	return awaitState(ctx, c, func(s *state.State) bool {
		p, there := s.Plan(id)
		return !there || p.Phase == state.PlanDecided
	})
}

// await waits until a plan has ended, and fails where that was undone.
func (r *restoring) await(ctx context.Context, c *control.Control, id fsm.PlanID) error {
	err := awaitState(ctx, c, func(s *state.State) bool {
		_, there := s.Plan(id)
		return !there
	})
	if err != nil {
		return err
	}
	if p, known := c.State().AnyPlan(id); known && p.Phase == state.PlanAborted {
		return quotaerr.New(quotaerr.NoQuorum, "partition %s of the backup was not restored: plan %d was undone: %s; repeat "+
			"with the same file", p.Source, id, p.Message)
	}
	return nil
}
