package state

import (
	"fmt"
	"strings"

	"github.com/quorate/quorate/fsm"
)

// check refuses words that do not make a plan of this kind, whatever the state.
func (s *StartPlan) check() *Refusal {
	if s.Kind < PlanSplit || s.Kind > PlanRestore {
		return refuse(CodeInvalid, "plan kind %d is unknown", s.Kind)
	}
	copies := s.Kind == PlanRecover || s.Kind == PlanRestore
	makes := copies || s.Kind == PlanSplit
	all := s.Kind == PlanMerge || s.Kind == PlanRecover
	switch {
	case makes && len(s.New) == 0:
		return refuse(CodeInvalid, "a plan to %s makes its destination: name the nodes for it", s.Kind)
	case !makes && len(s.New) > 0:
		return refuse(CodeInvalid, "a plan to %s has a destination that is there: name no nodes for a new one", s.Kind)
	case all && len(s.Ranges) > 0:
		return refuse(CodeInvalid, "a plan to %s moves all that the source owns: name no slots", s.Kind)
	case !copies && (s.From != "" || s.AcceptLoss):
		return refuse(CodeInvalid, "a plan to %s takes what the source's leader has, and loses nothing: name no node", s.Kind)
	}
	if copies {
		if r := checkID("node", s.From, false); r != nil {
			return r
		}
	}
	if all {
		return nil
	}
	return checkRanges(s.Ranges)
}

// object is what the plan is about.
func (s *StartPlan) object() string {
	source := "partition " + s.Source.String()
	switch {
	case s.Kind == PlanRestore:
		return BackupPrefix + s.Source.String()
	case len(s.New) > 0:
		return source
	}
	return source + " to " + s.Destination.String()
}

// difference is what is asked for, in words.
func (s *StartPlan) difference() string {
	what, to := "slots "+inWords(s.Ranges), s.Destination.String()
	if len(s.Ranges) == 0 {
		what = "all slots"
	}
	if len(s.New) > 0 {
		to = "a new partition on " + strings.Join(s.New, ", ")
	}
	return s.Kind.String() + ": " + what + origin(s.Kind, s.Source, s.From, s.AcceptLoss) + " to " + to
}

// moves is what moves where, in words.
func (p *Plan) moves() string {
	to := p.Destination.String()
	if p.Made {
		to = "the new " + to
	}
	return p.Kind.String() + ": slots " + inWords(p.Slots()) + origin(p.Kind, p.Source, p.From, p.AcceptLoss) + " to " + to
}

func origin(kind PlanKind, source PartitionID, from string, acceptLoss bool) string {
	loss := ", nothing is admitted before every window has passed,"
	if acceptLoss {
		loss = ", what was admitted later is given up (--accept-loss),"
	}
	switch kind {
	case PlanRecover:
		return fmt.Sprintf(" from the replica of %s on %s%s", source, from, loss)
	case PlanRestore:
		return fmt.Sprintf(" from %s of the backup on %s%s", source, from, loss)
	case PlanSplit, PlanMerge, PlanMove:
	}
	return " from " + source.String()
}

// wordedRanges bounds the ranges that are written out.
const wordedRanges = 32

func inWords(ranges []fsm.SlotRange) string {
	var words []string
	for _, r := range ranges[:min(len(ranges), wordedRanges)] {
		words = append(words, fmt.Sprintf("%d-%d", r.First, r.Last))
	}
	if more := len(ranges) - len(words); more > 0 {
		words = append(words, fmt.Sprintf("and %d ranges more", more))
	}
	return strings.Join(words, ", ")
}

// UpperHalf is the upper half of the slots that the partition owns, by their number; none of a single one.
func (p *Partition) UpperHalf() []fsm.SlotRange {
	owned := 0
	for _, r := range p.Ranges {
		owned += int(r.Last-r.First) + 1
	}
	return p.last(owned / 2)
}

// last is the last n slots that the partition owns.
func (p *Partition) last(n int) (out []fsm.SlotRange) {
	for i := len(p.Ranges) - 1; i >= 0 && n > 0; i-- {
		r := p.Ranges[i].SlotRange
		if have := int(r.Last-r.First) + 1; have > n {
			r.First += fsm.Slot(have - n)
		}
		n -= int(r.Last-r.First) + 1
		out = append(out, r)
	}
	return joinSlots(out)
}

// From is the slots from one on that the partition owns.
func (p *Partition) From(first fsm.Slot) (out []fsm.SlotRange) {
	for i := len(p.Ranges) - 1; i >= 0 && p.Ranges[i].Last >= first; i-- {
		r := p.Ranges[i].SlotRange
		r.First = max(r.First, first)
		out = append(out, r)
	}
	return joinSlots(out)
}

// joinSlots sorts ranges that are in falling order, and joins neighbours.
func joinSlots(falling []fsm.SlotRange) (out []fsm.SlotRange) {
	for i := len(falling) - 1; i >= 0; i-- {
		if n := len(out); n > 0 && out[n-1].Last+1 == falling[i].First {
			out[n-1].Last = falling[i].Last
			continue
		}
		out = append(out, falling[i])
	}
	return out
}
