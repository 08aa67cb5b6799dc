package state

import (
	"fmt"
	"slices"

	"github.com/quorate/quorate/fsm"
)

// startPlan numbers a plan and takes both of its ends.
func (ch *change) startPlan(c *Command, s *StartPlan) *Refusal {
	ch.difference = s.difference()
	if r := s.check(); r != nil {
		return r
	}
	if len(ch.Plans) >= MaxOpenPlans {
		return refuse(CodeBound, "%d plans are open already: wait until one is closed", MaxOpenPlans)
	}
	p := &Plan{
		ID: ch.LastPlan + 1, Kind: s.Kind, Source: s.Source, Destination: s.Destination, From: s.From,
		AcceptLoss: s.AcceptLoss, Phase: PlanOpen,
		Author: c.Actor, Comment: c.Comment, StartedWallNanos: c.WallNanos,
	}
	if p.Copies() {
		if n, ok := ch.Node(s.From); !ok || n.State == NodeRemoved {
			return refuse(CodeNotFound, "node %q is not known or was removed: see node list", s.From)
		}
	}
	var taken []Range
	var r *Refusal
	if s.Kind == PlanRestore {
		taken, r = ch.unowned(s)
	} else {
		taken, r = ch.owned(s)
	}
	if r != nil {
		return r
	}
	p.Ranges = taken
	if r := ch.destine(p, s.New); r != nil {
		return r
	}
	ch.LastPlan++
	ch.setPlan(p)
	ch.occupy(p)
	ch.message = fmt.Sprintf("plan %d, to %s", p.ID, p.Destination)
	ch.difference = p.moves()
	ch.result.Plan, ch.result.Partition = p.ID, p.Destination
	return nil
}

// owned are the slots that a plan takes from its source.
func (ch *change) owned(s *StartPlan) ([]Range, *Refusal) {
	source, ok := ch.Partition(s.Source)
	if !ok {
		return nil, refuse(CodeNotFound, "partition %s is not there: see partition list", s.Source)
	}
	if other, in := ch.Plan(source.Plan); in {
		switch recovery := ch.Recovery(source.ID); {
		case s.Kind != PlanRecover || other.Phase == PlanOpen:
			return nil, busy(source.ID, other.ID)
		case recovery != nil:
			return nil, busy(source.ID, recovery.ID)
		case s.AcceptLoss && other.Phase == PlanDecided && other.Destination == source.ID:
			return nil, refuse(CodeConflict, "plan %d has given %s slots that its replicas may not serve yet, so all of their "+
				"usage may be missing: recover it without accepting the loss", other.ID, source.ID)
		}
	}
	if s.Kind == PlanMerge || s.Kind == PlanRecover {
		if len(source.Ranges) == 0 {
			return nil, refuse(CodeConflict, "partition %s owns no slots: there is nothing to move", s.Source)
		}
		return source.Ranges, nil
	}
	taken, left, ok := carve(source.Ranges, s.Ranges)
	switch {
	case !ok:
		return nil, refuse(CodeConflict, "partition %s does not own all of these slots: see partition list", s.Source)
	case s.Kind == PlanSplit && len(left) == 0:
		return nil, refuse(CodeInvalid, "a split must leave some slots to %s: name fewer", s.Source)
	}
	return taken, nil
}

// unowned are the slots that a partition of a backup is to have. Nobody owns them, and no other plan restores them.
func (ch *change) unowned(s *StartPlan) ([]Range, *Refusal) {
	_, there := ch.Partition(s.Source)
	switch {
	case ch.RestoredFrom == Digest{}:
		return nil, refuse(CodeConflict, "this cluster was not made of a backup: restore one on blank nodes")
	case there || s.Source >= ch.NextPartition:
		return nil, refuse(CodeInvalid, "%s is no partition of the backup", s.Source)
	}
	if owner, r, ok := ch.owner(s.Ranges); ok {
		return nil, refuse(CodeConflict, "slots %d to %d are owned by %s: they are restored already", r.First, r.Last, owner)
	}
	for _, p := range ch.Plans {
		if p.Kind == PlanRestore && p.Phase == PlanOpen && overlap(p.Slots(), s.Ranges) {
			return nil, refuse(CodeBusy, "plan %d restores some of these slots: wait until that is closed", p.ID)
		}
	}
	return under(0, s.Ranges), nil
}

// destine finds the plan's destination, or makes it on the new nodes.
func (ch *change) destine(p *Plan, nodes []string) *Refusal {
	if len(nodes) > 0 {
		made, r := ch.found(nodes, nil)
		if r != nil {
			return r
		}
		p.Destination, p.Made = made.ID, true
		return nil
	}
	d, ok := ch.Partition(p.Destination)
	switch {
	case p.Destination == p.Source:
		return refuse(CodeInvalid, "source and destination are both %s: name two partitions", p.Source)
	case !ok:
		return refuse(CodeNotFound, "partition %s is not there: see partition list", p.Destination)
	case d.Plan != 0:
		return busy(d.ID, d.Plan)
	}
	return nil
}

func busy(p PartitionID, plan fsm.PlanID) *Refusal {
	return refuse(CodeBusy, "partition %s is in plan %d: wait until that is closed, or abort it", p, plan)
}

// occupy puts both ends into the plan. The source of a recovery stays in a plan that has been decided or aborted: that
// goes on there should the partition answer again, until the recovery is decided.
func (ch *change) occupy(p *Plan) {
	for _, id := range []PartitionID{p.Source, p.Destination} {
		if end, ok := ch.Partition(id); ok && end.Plan == 0 {
			next := *end
			next.Plan = p.ID
			ch.setPartition(&next)
		}
	}
}

func (ch *change) plan(id fsm.PlanID, phase PlanPhase, verb string) (*Plan, *Refusal) {
	p, ok := ch.Plan(id)
	switch {
	case !ok && id != 0 && id <= ch.LastPlan:
		return nil, refuse(CodeConflict, "plan %d has ended", id)
	case !ok:
		return nil, refuse(CodeNotFound, "there is no plan %d", id)
	case phase != 0 && p.Phase != phase:
		return nil, refuse(CodeConflict, "plan %d is %s: it cannot be %s any more", id, p.Phase, verb)
	}
	return p, nil
}

// decidePlan moves the slots, on the proof that both ends hold the same. This is the one point at which
// they change their owner.
func (ch *change) decidePlan(id fsm.PlanID, d *Decide) *Refusal {
	p, r := ch.plan(id, PlanOpen, "decided")
	if r != nil {
		return r
	}
	ch.difference = p.moves()
	if d.Exported != d.Imported || d.Exported == ([16]byte{}) {
		return refuse(CodeConflict, "the ends of plan %d hold different states: abort the plan", id)
	}
	source, destination := ch.Ends(p)
	if source == nil && p.Kind != PlanRestore || destination == nil {
		return refuse(CodeConflict, "an end of plan %d is gone: abort the plan", id)
	}
	wanted, givenUp := p.Slots(), ""
	if source == nil {
		if owner, r, ok := ch.owner(wanted); ok {
			return refuse(CodeConflict, "slots %d to %d are owned by %s: abort plan %d", r.First, r.Last, owner, id)
		}
	} else {
		taken, left, ok := carve(source.Ranges, wanted)
		if !ok || !slices.Equal(taken, p.Ranges) {
			return refuse(CodeConflict, "what partition %s owns has changed since plan %d began: abort the plan", p.Source, id)
		}
		from := *source
		if from.Plan != p.ID { // only what is recovered is in another plan, which waits for it in vain from now on
			givenUp = fmt.Sprintf("; plan %d waits for %s no longer", from.Plan, from.ID)
		}
		from.Ranges, from.Plan = left, p.ID
		ch.setPartition(&from)
	}
	epoch, r := ch.nextEpoch()
	if r != nil {
		return r
	}
	to, next := *destination, *p
	to.Ranges = join(slices.Concat(to.Ranges, under(epoch, wanted)))
	next.Phase, next.Epoch, next.Proof = PlanDecided, epoch, d.Exported
	ch.setPartition(&to)
	ch.setPlan(&next)
	ch.message = fmt.Sprintf("%s owns them under epoch %d.%d, on equal digests %x%s",
		p.Destination, epoch.Incarnation(), epoch.Counter(), d.Exported, givenUp)
	ch.remap()
	return nil
}

// abortPlan ends a plan that has not been decided; its slots stay where they are.
func (ch *change) abortPlan(c *Command) *Refusal {
	p, r := ch.plan(c.Plan, PlanOpen, "aborted")
	if r != nil {
		return r
	}
	next := *p
	next.Phase, next.Message = PlanAborted, c.Comment
	ch.setPlan(&next)
	ch.difference = "not moved: " + p.moves()
	return nil
}

// closePlan frees the ends of a plan, once both have done what follows the decision or the abort: for the recovery that
// one of them may be the source of. An end that owns no slots has served its time, and goes.
func (ch *change) closePlan(c *Command) *Refusal {
	p, r := ch.plan(c.Plan, 0, "")
	if r != nil {
		return r
	}
	if p.Phase == PlanOpen {
		return refuse(CodeConflict, "plan %d is open: decide or abort it first", p.ID)
	}
	next := *p
	next.Closed, next.EndedWallNanos = true, c.WallNanos
	ch.message = next.Standing()
	source, destination := ch.Ends(p)
	for _, end := range []*Partition{source, destination} {
		switch {
		case end == nil:
		case len(end.Ranges) == 0:
			ch.remove(end)
			ch.message += fmt.Sprintf("; %s owns no slots and is retired", end.ID)
		default:
			free := *end
			free.Plan = 0
			if recovery := ch.Recovery(end.ID); recovery != nil {
				free.Plan = recovery.ID
			}
			ch.setPartition(&free)
		}
	}
	ch.endPlan(&next)
	ch.difference = p.moves()
	if p.Phase == PlanAborted {
		ch.difference = "not moved: " + ch.difference
	}
	return nil
}
