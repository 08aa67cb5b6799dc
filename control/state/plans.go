package state

import (
	"cmp"
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
	ch.message = fmt.Sprintf("plan %d, to %s", p.ID, p.Destination) + ch.occupy(p)
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
		switch {
		case s.Kind != PlanRecover || other.Phase == PlanOpen:
			return nil, busy(source)
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
	out := make([]Range, len(s.Ranges))
	for i, r := range s.Ranges {
		out[i] = Range{SlotRange: r}
	}
	return out, nil
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
		return busy(d)
	}
	return nil
}

func busy(p *Partition) *Refusal {
	return refuse(CodeBusy, "partition %s is in plan %d: wait until that is closed, or abort it", p.ID, p.Plan)
}

// occupy puts both ends into the plan. A recovery takes its source out of a plan that has been decided or aborted,
// and waits for that partition in vain: what that plan gives up is told in words.
func (ch *change) occupy(p *Plan) (givenUp string) {
	for _, id := range []PartitionID{p.Source, p.Destination} {
		end, ok := ch.Partition(id)
		if !ok {
			continue
		}
		if end.Plan != 0 {
			givenUp = fmt.Sprintf("; plan %d waits for %s no longer", end.Plan, id)
		}
		next := *end
		next.Plan = p.ID
		ch.setPartition(&next)
	}
	return givenUp
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
	wanted := p.Slots()
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
		from.Ranges = left
		ch.setPartition(&from)
	}
	epoch, r := ch.nextEpoch()
	if r != nil {
		return r
	}
	to, next := *destination, *p
	to.Ranges = slices.Clone(to.Ranges)
	for _, r := range wanted {
		to.Ranges = append(to.Ranges, Range{r, epoch})
	}
	to.Ranges = join(to.Ranges)
	next.Phase, next.Epoch, next.Proof = PlanDecided, epoch, d.Exported
	ch.setPartition(&to)
	ch.setPlan(&next)
	ch.message = fmt.Sprintf("%s owns them under epoch %d.%d, on equal digests %x",
		p.Destination, epoch.Incarnation(), epoch.Counter(), d.Exported)
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

// closePlan frees the ends of a plan, once both have done what follows the decision or the abort. An end that owns
// no slots has served its time, and goes.
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

// carve takes the wanted slots out of what is owned: what was taken, and what is left. ok is false when
// some of them are not owned. Both lists must be sorted.
func carve(owned []Range, wanted []fsm.SlotRange) (taken, left []Range, ok bool) {
	missing := 0
	for _, w := range wanted {
		missing += int(w.Last) - int(w.First) + 1
	}
	for _, o := range owned {
		first := int(o.First)
		for _, w := range wanted {
			from, to := max(first, int(w.First)), min(int(o.Last), int(w.Last))
			if from > to {
				continue
			}
			if first < from {
				left = append(left, slots(first, from-1, o.Epoch))
			}
			taken = append(taken, slots(from, to, o.Epoch))
			missing -= to - from + 1
			first = to + 1
		}
		if first <= int(o.Last) {
			left = append(left, slots(first, int(o.Last), o.Epoch))
		}
	}
	return taken, left, missing == 0
}

func slots(first, last int, epoch fsm.Epoch) Range {
	return Range{fsm.SlotRange{First: fsm.Slot(first), Last: fsm.Slot(last)}, epoch}
}

// join sorts ranges and joins neighbours of one epoch.
func join(ranges []Range) []Range {
	slices.SortFunc(ranges, func(a, b Range) int { return cmp.Compare(a.First, b.First) })
	var out []Range
	for _, r := range ranges {
		if n := len(out); n > 0 && out[n-1].Epoch == r.Epoch && out[n-1].Last+1 == r.First {
			out[n-1].Last = r.Last
			continue
		}
		out = append(out, r)
	}
	return out
}

// overlap reports whether two sorted lists of ranges have a slot in common.
func overlap(a, b []fsm.SlotRange) bool {
	for i, j := 0, 0; i < len(a) && j < len(b); {
		switch {
		case a[i].Last < b[j].First:
			i++
		case b[j].Last < a[i].First:
			j++
		default:
			return true
		}
	}
	return false
}
