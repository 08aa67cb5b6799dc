package state

import (
	"slices"

	"github.com/quorate/quorate/fsm"
)

// PlanKind is what a plan is for. The numbers are durable.
type PlanKind uint8

// The kinds of plans.
const (
	PlanSplit   PlanKind = 1 // moves slots to a partition that is made for them
	PlanMerge   PlanKind = 2 // moves all slots of a partition to another, and ends the first
	PlanMove    PlanKind = 3 // moves slots to another partition
	PlanRecover PlanKind = 4 // makes a partition anew, of one replica of it, that has lost its majority for good
	PlanRestore PlanKind = 5 // makes a partition of a backup
)

// String is the kind in a word.
func (k PlanKind) String() string {
	switch k {
	case PlanSplit:
		return "split"
	case PlanMerge:
		return "merge"
	case PlanMove:
		return "move"
	case PlanRecover:
		return "recover"
	case PlanRestore:
		return "restore"
	}
	return "unknown"
}

// PlanPhase is how far a plan is. The numbers are durable.
type PlanPhase uint8

// The phases of a plan. Decided and aborted exclude each other.
const (
	PlanOpen    PlanPhase = 1 // may be decided or aborted
	PlanDecided PlanPhase = 2 // the destination owns the slots; what is left is to activate and to release
	PlanAborted PlanPhase = 3 // the source owns the slots; what is left is to thaw and to drop
)

// String is the phase in a word.
func (p PlanPhase) String() string {
	switch p {
	case PlanOpen:
		return "open"
	case PlanDecided:
		return "decided"
	case PlanAborted:
		return "aborted"
	}
	return "unknown"
}

// Plan moves slots to a partition: from another, from one replica of another, or from a backup.
type Plan struct {
	ID   fsm.PlanID
	Kind PlanKind
	// Source is the partition that has the slots. For a restore it is no partition of this cluster, but the number
	// that the partition has in the backup.
	Source      PartitionID
	Destination PartitionID
	Made        bool // the destination was made for the plan
	// From is the node whose replica, or whose open backup, the state is taken from; empty for what the leader of the
	// source has.
	From string
	// AcceptLoss gives up, for a recovery or a restore, what was admitted after what that replica has applied, or after
	// the backup. A replica that was started again without a majority has applied its last snapshot: only a leader
	// tells it which of the entries after that were committed.
	AcceptLoss bool
	Ranges     []Range   // under the epochs at its start; 0 for a restore
	Phase      PlanPhase // of a plan that is closed: the last one
	Epoch      fsm.Epoch // of the slots at the destination, once decided
	Proof      [16]byte  // the digest that both ends reported, once decided
	Closed     bool
	// Author began it, for the reason in Comment; Message is why it was undone.
	Author, Comment, Message string
	// StartedWallNanos and EndedWallNanos are wall times in nanoseconds since 1970 by the proposers' clocks, for
	// people; the latter is 0 while it is not closed.
	StartedWallNanos, EndedWallNanos int64
}

// Copies reports that the state is taken from a replica or a backup, as it stands, and not from a source that is
// frozen for it.
func (p *Plan) Copies() bool { return p.Kind == PlanRecover || p.Kind == PlanRestore }

// Lost reports that admissions may be missing from the state that is moved, and nobody has given them up: nothing is
// to be admitted before they have expired.
func (p *Plan) Lost() bool { return p.Copies() && !p.AcceptLoss }

// SourceName is what the state is fetched under: the source's id, or its name in the backup that the node holds open.
func (p *Plan) SourceName() string {
	if p.Kind == PlanRestore {
		return BackupPrefix + p.Source.String()
	}
	return p.Source.String()
}

// BackupPrefix begins the names of the partitions of a backup that a node holds open.
const BackupPrefix = "backup/"

// Slots are the slots that move, without epochs.
func (p *Plan) Slots() []fsm.SlotRange { return bare(p.Ranges) }

// Standing is how it stands in a word: open, decided, aborted, or once it is closed done or undone.
func (p *Plan) Standing() string {
	switch {
	case p.Closed && p.Phase == PlanDecided:
		return "done"
	case p.Closed:
		return "undone"
	}
	return p.Phase.String()
}

// Ends are the partitions that still are ends of a plan; nil for one that is none: a restore has no source, and a
// partition whose recovery was decided meanwhile has been given up. The source of an open recovery is only read, so it
// is one whatever plan it is in; that of an aborted one is not, if it is in another.
func (s *State) Ends(p *Plan) (source, destination *Partition) {
	end := func(id PartitionID) *Partition {
		if e, ok := s.Partition(id); ok && e.Plan == p.ID {
			return e
		}
		return nil
	}
	switch {
	case p.Kind == PlanRecover && p.Phase == PlanOpen:
		source, _ = s.Partition(p.Source)
	case p.Kind != PlanRestore:
		source = end(p.Source)
	}
	return source, end(p.Destination)
}

// Recovery is the open plan that recovers a partition; nil when there is none.
func (s *State) Recovery(id PartitionID) *Plan {
	for _, p := range s.Plans {
		if p.Kind == PlanRecover && p.Phase == PlanOpen && p.Source == id {
			return p
		}
	}
	return nil
}

// AnyPlan is the plan with this id, closed or not, if it is still remembered.
func (s *State) AnyPlan(id fsm.PlanID) (*Plan, bool) {
	if p, ok := s.Plan(id); ok {
		return p, true
	}
	if i := slices.IndexFunc(s.Ended, func(p *Plan) bool { return p.ID == id }); i >= 0 {
		return s.Ended[i], true
	}
	return nil, false
}
