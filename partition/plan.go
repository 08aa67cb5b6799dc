package partition

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"time"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/quotaerr"
)

// ErrPlanEnded is wrapped by the error of a step whose plan has ended at this partition: it changes nothing any more.
var ErrPlanEnded = errors.New("the plan has ended")

// A step of a plan is an entry of the log, and is asked of the partition's leader. One that was made already is made
// again without effect, and answered alike. Errors are of type *quotaerr.Error: invalid_argument and capacity are
// refusals for good, policy_stale and policy_behind refusals until the partition has the revision that the step is
// for, outcome_unknown says that the step may have been made, and all others that it was not.

// PlanEnd tells how this partition stands in a plan, if this node leads it.
func (p *Partition) PlanEnd(plan fsm.PlanID) (end fsm.PlanEnd, err error) {
	if err := p.owner.silent(); err != nil {
		return fsm.PlanNone, err
	}
	born := false
	// The leadership is looked at in between: what was committed before it began has been applied.
	ready := p.group.Leadership().Ready
	p.replica.view(func(m *fsm.Machine, _ uint64) {
		if born = m.Born(); born {
			end = m.PlanEnd(plan)
		}
	})
	if !ready || !born {
		return fsm.PlanNone, quotaerr.New(quotaerr.NoQuorum, "the partition is not ready: ask again")
	}
	return end, nil
}

// Clearing reports that this replica has not cleared up yet after an earlier plan. The first step of the next one would
// do all that is left of it at once, and have every check wait, so it is to come after that.
func (p *Partition) Clearing() (clearing bool) {
	p.replica.view(func(m *fsm.Machine, _ uint64) { clearing = m.Clearing() })
	return clearing
}

// Freeze has a source stop deciding for slots, and have nothing of them expire, if it has the policy revision. It
// tells what there is to export.
func (p *Partition) Freeze(
	ctx context.Context, plan fsm.PlanID, slots []fsm.SlotRange, revision fsm.Revision,
) (fsm.Manifest, error) {
	return p.proveBy(ctx, &fsm.Entry{Kind: fsm.KindFreeze, Plan: plan, Ranges: slots, Revision: revision})
}

// OpenImport sets the time that ages are counted back from, at a destination. It is to be asked for after the
// freeze was answered.
func (p *Partition) OpenImport(
	ctx context.Context, plan fsm.PlanID, slots []fsm.SlotRange, frozen fsm.Manifest,
) error {
	return p.step(ctx, &fsm.Entry{Kind: fsm.KindOpen, Plan: plan, Ranges: slots, Manifest: frozen})
}

// Seal completes an import, and tells what the destination has. The policies that the imported history carries are
// found before the entry is proposed, so the log does not wait for them on this node.
func (p *Partition) Seal(ctx context.Context, plan fsm.PlanID) (fsm.Manifest, error) {
	refs, err := p.FindCarried(ctx, plan)
	if err != nil {
		return fsm.Manifest{}, err
	}
	e := &fsm.Entry{Kind: fsm.KindSeal, Plan: plan}
	for _, ref := range refs {
		e.Policies = append(e.Policies, fsm.Install{PolicyRef: ref})
	}
	return p.proveBy(ctx, e)
}

// FindCarried waits until the policies are here that the history carries which was staged for a plan, and names them.
func (p *Partition) FindCarried(ctx context.Context, plan fsm.PlanID) (refs []fsm.PolicyRef, err error) {
	end, err := p.PlanEnd(plan)
	if err != nil {
		return nil, err
	}
	if end == fsm.PlanSealed || end == fsm.PlanEnded {
		return nil, nil // they were in the entry that sealed it
	}
	p.replica.view(func(m *fsm.Machine, _ uint64) { refs, err = m.StagedPolicies(plan) })
	if err != nil {
		return nil, quotaerr.Wrap(quotaerr.NoQuorum, err, "plan %d: the policy history is not here yet: ask again", plan)
	}
	for _, ref := range refs {
		found, err := p.cfg.Policy(ctx, ref)
		if err == nil {
			err = ref.Check(found)
		}
		if err != nil {
			return nil, quotaerr.Wrap(quotaerr.NoQuorum, err,
				"policy revision %d, which is carried, is not found on this node: see that a node has its body", ref.Revision)
		}
	}
	return refs, nil
}

// Activate has a destination decide for the slots that it has imported, under an epoch; lost says that admissions may
// be missing. It is to be asked for after the decision for it.
func (p *Partition) Activate(ctx context.Context, plan fsm.PlanID, epoch fsm.Epoch, lost bool) error {
	return p.step(ctx, &fsm.Entry{Kind: fsm.KindActivate, Plan: plan, Epoch: epoch, Lost: lost})
}

// Release has a source drop what it has exported. It is to be asked for after the destination was activated.
func (p *Partition) Release(ctx context.Context, plan fsm.PlanID) error {
	return p.step(ctx, &fsm.Entry{Kind: fsm.KindRelease, Plan: plan})
}

// AbortPlan undoes what a partition has done for a plan, and has it refuse what still comes. It is to be asked for
// after the decision against the plan.
func (p *Partition) AbortPlan(ctx context.Context, plan fsm.PlanID) error {
	return p.step(ctx, &fsm.Entry{Kind: fsm.KindAbort, Plan: plan})
}

// proveBy makes a step that tells what the partition has.
func (p *Partition) proveBy(ctx context.Context, e *fsm.Entry) (fsm.Manifest, error) {
	answers, err := p.order(ctx, e)
	switch {
	case err != nil:
		return fsm.Manifest{}, err
	case answers.Manifest == nil:
		return fsm.Manifest{}, quotaerr.New(quotaerr.Internal, "the state machine does not say what a %s came to", e.Kind)
	}
	return *answers.Manifest, nil
}

// step makes a step.
func (p *Partition) step(ctx context.Context, e *fsm.Entry) error {
	_, err := p.order(ctx, e)
	return err
}

func (p *Partition) order(ctx context.Context, e *fsm.Entry) (*fsm.Answers, error) {
	if err := p.owner.silent(); err != nil {
		return nil, err
	}
	return p.owner.order(ctx, e)
}

// Staged tells which images a destination has of a plan's slots, whole.
func (p *Partition) Staged(plan fsm.PlanID) (have []fsm.SlotDigest) {
	p.replica.view(func(m *fsm.Machine, _ uint64) {
		if m.Born() {
			have = m.Staged(plan)
		}
	})
	return have
}

// gentleBytes is what an entry holds of pieces at most, where others are not to wait for it.
const gentleBytes = 128 << 10

// Stage puts pieces of slots' images into the log of a destination, an entry for each batch, at most maxInFlight of
// them on their way at a time. It ends at the first error, also one of batches; what was staged before stays. Gently it
// leaves time and room to others: the entries are smaller, go one by one, and have pauses between them.
func (p *Partition) Stage(
	ctx context.Context, plan fsm.PlanID, gently bool, batches iter.Seq2[[]fsm.Piece, error],
) error {
	if err := p.owner.silent(); err != nil {
		return err
	}
	most := maxInFlight
	if gently {
		most, batches = 1, inSmallBatches(batches)
	}
	var flying []*order
	// Not only for as long as the caller waits: what comes after this must not be overtaken by what is on its way.
	land := func() error {
		out := <-flying[0].done
		flying = flying[1:]
		return out.err
	}
	var failed error
	for pieces, err := range batches {
		if failed = err; failed != nil {
			break
		}
		if len(flying) == most {
			if failed = land(); failed != nil {
				break
			}
		}
		// Handed in one after the other, so they reach the log in this order.
		began, r := time.Now(), newOrder(ctx, &fsm.Entry{Kind: fsm.KindStage, Plan: plan, Pieces: pieces})
		if failed = p.owner.handIn(r); failed != nil {
			break
		}
		flying = append(flying, r)
		if !gently {
			continue
		}
		if failed = land(); failed == nil {
			failed = restFor(ctx, time.Since(began)/2)
		}
		if failed != nil {
			break
		}
	}
	for len(flying) > 0 {
		if err := land(); failed == nil {
			failed = err
		}
	}
	return failed
}

// inSmallBatches cuts batches where they hold more than gentleBytes. A piece stays whole.
func inSmallBatches(batches iter.Seq2[[]fsm.Piece, error]) iter.Seq2[[]fsm.Piece, error] {
	return func(yield func([]fsm.Piece, error) bool) {
		for pieces, err := range batches {
			if err != nil {
				yield(nil, err)
				return
			}
			for len(pieces) > 0 {
				n, weight := 1, len(pieces[0].Data)
				for n < len(pieces) && weight+len(pieces[n].Data) <= gentleBytes {
					weight += pieceBytes + len(pieces[n].Data)
					n++
				}
				if !yield(pieces[:n], nil) {
					return
				}
				pieces = pieces[n:]
			}
		}
	}
}

// restFor lets as much time pass, unless ctx ends before.
func restFor(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return quotaerr.Wrap(quotaerr.Overloaded, ctx.Err(), "the copy was broken off")
	}
}

// Barrier returns when an entry has been committed and applied that was proposed after the call.
func (p *Partition) Barrier(ctx context.Context) error {
	return p.step(ctx, &fsm.Entry{Kind: fsm.KindBatch})
}

// refusedEntry is the error of an entry that the state machine refused whole.
func refusedEntry(a *fsm.Answers) error {
	detail := a.Detail
	if detail == "" {
		detail = a.Refused.String()
	}
	switch a.Refused {
	case fsm.ReasonPlanEnded:
		return quotaerr.Wrap(quotaerr.InvalidArgument, ErrPlanEnded, "%s", detail)
	case fsm.ReasonPlanConflict:
		return quotaerr.New(quotaerr.InvalidArgument, "%s", detail)
	case fsm.ReasonCapacity:
		return quotaerr.New(quotaerr.Capacity, "%s", detail)
	case fsm.ReasonFrozen:
		return quotaerr.New(quotaerr.Frozen, "slots are being moved, which holds the policy: try again")
	case fsm.ReasonPolicyStale:
		return quotaerr.New(quotaerr.PolicyStale, "%s", detail)
	case fsm.ReasonPolicyBehind:
		return quotaerr.New(quotaerr.PolicyBehind, "%s", detail)
	default:
		return quotaerr.New(quotaerr.Internal, "%s", fmt.Sprintf("an entry was refused: %s", detail))
	}
}
