package state

import (
	"cmp"
	"slices"

	"github.com/quorate/quorate/fsm"
)

// startPlan numbers a plan and takes both of its ends.
func (ch *change) startPlan(s *StartPlan) *Refusal {
	if r := checkRanges(s.Ranges); r != nil {
		return r
	}
	if len(ch.Plans) >= MaxOpenPlans {
		return refuse(CodeBound, "%d plans are open already: wait until one is closed", MaxOpenPlans)
	}
	if s.Source == s.Destination {
		return refuse(CodeInvalid, "source and destination are both %s: name two partitions", s.Source)
	}
	for _, id := range []PartitionID{s.Source, s.Destination} {
		p, ok := ch.Partition(id)
		switch {
		case !ok:
			return refuse(CodeNotFound, "partition %s is not there: see partition list", id)
		case p.Plan != 0:
			return refuse(CodeBusy, "partition %s is in plan %d: wait until that is closed", id, p.Plan)
		}
	}
	source, _ := ch.Partition(s.Source)
	taken, _, ok := carve(source.Ranges, s.Ranges)
	if !ok {
		return refuse(CodeConflict, "partition %s does not own all of these slots: see partition list", s.Source)
	}
	ch.LastPlan++
	p := &Plan{ID: ch.LastPlan, Source: s.Source, Destination: s.Destination, Ranges: taken, Phase: PlanOpen}
	ch.setPlan(p)
	ch.occupy(p, p.ID)
	ch.result.Plan = p.ID
	return nil
}

// occupy sets the plan that both ends are in.
func (ch *change) occupy(p *Plan, plan fsm.PlanID) {
	for _, id := range []PartitionID{p.Source, p.Destination} {
		end, ok := ch.Partition(id)
		if !ok {
			continue
		}
		next := *end
		next.Plan = plan
		ch.setPartition(&next)
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
	if d.Exported != d.Imported || d.Exported == (Digest{}) {
		return refuse(CodeConflict, "the ends of plan %d hold different states: abort the plan", id)
	}
	source, ok := ch.Partition(p.Source)
	destination, there := ch.Partition(p.Destination)
	if !ok || !there {
		return refuse(CodeConflict, "an end of plan %d is gone: abort the plan", id)
	}
	wanted := make([]fsm.SlotRange, len(p.Ranges))
	for i, r := range p.Ranges {
		wanted[i] = r.SlotRange
	}
	taken, left, ok := carve(source.Ranges, wanted)
	if !ok || !slices.Equal(taken, p.Ranges) {
		return refuse(CodeConflict, "what partition %s owns has changed since plan %d began: abort the plan", p.Source, id)
	}
	epoch, r := ch.nextEpoch()
	if r != nil {
		return r
	}
	from, to, next := *source, *destination, *p
	from.Ranges = left
	to.Ranges = slices.Clone(to.Ranges)
	for _, r := range wanted {
		to.Ranges = append(to.Ranges, Range{r, epoch})
	}
	to.Ranges = join(to.Ranges)
	next.Phase, next.Epoch, next.Proof = PlanDecided, epoch, d.Exported
	ch.setPartition(&from)
	ch.setPartition(&to)
	ch.setPlan(&next)
	ch.remap()
	return nil
}

// abortPlan ends a plan that has not been decided; its slots stay where they are.
func (ch *change) abortPlan(id fsm.PlanID) *Refusal {
	p, r := ch.plan(id, PlanOpen, "aborted")
	if r != nil {
		return r
	}
	next := *p
	next.Phase = PlanAborted
	ch.setPlan(&next)
	return nil
}

// closePlan frees the ends of a plan, once both have done what follows the decision or the abort.
func (ch *change) closePlan(id fsm.PlanID) *Refusal {
	p, r := ch.plan(id, 0, "")
	if r != nil {
		return r
	}
	if p.Phase == PlanOpen {
		return refuse(CodeConflict, "plan %d is open: decide or abort it first", id)
	}
	next := *p
	next.Closed = true
	ch.endPlan(&next)
	ch.occupy(&next, 0)
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
