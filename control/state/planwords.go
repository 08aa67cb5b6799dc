package state

import (
	"fmt"
	"strings"
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
	what, to := "slots "+InWords(s.Ranges), s.Destination.String()
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
	what := InWords(Join(p.Slots())) // whatever their epochs
	return p.Kind.String() + ": slots " + what + origin(p.Kind, p.Source, p.From, p.AcceptLoss) + " to " + to
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
