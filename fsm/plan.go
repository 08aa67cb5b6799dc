package fsm

import (
	"fmt"
	"slices"
)

// A plan moves slots from one partition, its source, to another, its destination. Each end makes its steps as
// entries of its own log, and a step that was made is made again without effect. Nothing here acts on a timeout:
// an end that was frozen or opened waits for the plan's next step.
//
//	source       freeze ─────────────────────────────────────────► release
//	destination  stage, stage, …  open, stage, …  seal ──► activate
//	either                                      abort

// PlanEnd is how one end of a plan stands.
type PlanEnd uint8

// How an end can stand. A source is frozen; a destination stages, is open and is sealed, in this order.
const (
	// PlanNone: nothing was done for the plan here.
	PlanNone PlanEnd = iota
	// PlanFrozen: the source decides nothing for the slots, and nothing in them ends.
	PlanFrozen
	// PlanStaging: the destination has some of the slots' state, or may have.
	PlanStaging
	// PlanOpen: the destination knows the manifest, and ages are counted back from a fixed time.
	PlanOpen
	// PlanSealed: the destination has what the manifest names, and takes nothing more.
	PlanSealed
	// PlanEnded: no further step of the plan changes anything here.
	PlanEnded
)

var planEndNames = [...]string{"none", "frozen", "staging", "open", "sealed", "ended"}

// String names p.
func (p PlanEnd) String() string {
	if int(p) < len(planEndNames) {
		return planEndNames[p]
	}
	return "unknown"
}

// Manifest is what an export amounts to.
type Manifest struct {
	// FrozenAt is the source's partition time as of which the state is exported.
	FrozenAt Time
	// Revision is the source's policy revision.
	Revision Revision
	// Digest is over the digests of the slots and of the policy history.
	Digest [16]byte
}

// PlanEnd tells how this end of a plan stands.
func (m *Machine) PlanEnd(plan PlanID) PlanEnd {
	switch {
	case plan == 0:
		return PlanNone
	case plan <= m.endedPlan:
		return PlanEnded
	case plan == m.frozenBy:
		return PlanFrozen
	case m.inbound != nil && plan == m.inbound.plan:
		return m.inbound.phase
	}
	return PlanNone
}

// planHere is the plan that is under way here; 0 without.
func (m *Machine) planHere() PlanID {
	if m.inbound != nil {
		return m.inbound.plan
	}
	return m.frozenBy
}

// holdsPolicy reports that a plan needs the policy in force to stay: both ends of it are on one revision.
func (m *Machine) holdsPolicy() bool {
	return m.frozenBy != 0 || m.inbound != nil && m.inbound.phase >= PlanOpen
}

// planStep makes a step of a plan. Of an ended plan only the step that ended it is answered as made.
func (m *Machine) planStep(e *Entry, a *Answers) {
	here := m.planHere()
	switch {
	case e.Plan == 0 || e.Plan < m.endedPlan || e.Plan == m.endedPlan && e.Kind != m.endedBy:
		a.Refused, a.Detail = ReasonPlanEnded, fmt.Sprintf("plan %d has ended here", e.Plan)
		return
	case e.Plan == m.endedPlan:
		return
	case here != 0 && here != e.Plan:
		a.Refused, a.Detail = conflict("plan %d is under way here: wait until it has ended", here)
		return
	}
	switch e.Kind {
	case KindFreeze:
		a.Manifest, a.Refused, a.Detail = m.freeze(e)
	case KindStage:
		a.Refused, a.Detail = m.stage(e)
	case KindOpen:
		a.Refused, a.Detail = m.open(e)
	case KindSeal:
		a.Manifest, a.Refused, a.Detail = m.seal(e)
	case KindActivate:
		a.Refused, a.Detail = m.activate(e)
	case KindRelease:
		a.Refused, a.Detail = m.release(e)
	default:
		m.abort(e.Plan)
	}
}

func conflict(format string, args ...any) (Reason, string) {
	return ReasonPlanConflict, fmt.Sprintf(format, args...)
}

// needRevision refuses a step that must be made under another revision than the one in force.
func (m *Machine) needRevision(want Revision) (Reason, string) {
	detail := fmt.Sprintf("revision %d is in force and revision %d must be", m.rev.number(), want)
	switch {
	case want < m.rev.number():
		return ReasonPolicyStale, detail
	case want > m.rev.number():
		return ReasonPolicyBehind, detail
	}
	return ReasonUnspecified, ""
}

// freeze stops all decisions for slots, from this entry on.
func (m *Machine) freeze(e *Entry) (*Manifest, Reason, string) {
	refused := func(r Reason, detail string) (*Manifest, Reason, string) { return nil, r, detail }
	if m.inbound != nil {
		return refused(conflict("this partition is the destination of plan %d", e.Plan))
	}
	if err := validRanges(e.Ranges); err != nil {
		return refused(conflict("%v", err))
	}
	if s, ok := m.owned.covers(e.Ranges); !ok {
		return refused(conflict("slot %d is not owned here", s))
	}
	if m.frozenBy == 0 {
		if r, detail := m.needRevision(e.Revision); r != ReasonUnspecified {
			return refused(r, detail)
		}
		m.unpackAll(e.Ranges)
		m.owned = m.owned.freeze(e.Ranges, e.Plan)
		m.frozenBy, m.frozenAt, m.config = e.Plan, m.now, nil
	} else if !slices.Equal(m.owned.frozen(), joinedRanges(e.Ranges)) {
		return refused(conflict("plan %d has frozen other slots", e.Plan))
	}
	manifest := m.Manifest(e.Ranges)
	return &manifest, ReasonUnspecified, ""
}

// release drops what a plan has frozen: the destination owns it.
func (m *Machine) release(e *Entry) (Reason, string) {
	if m.frozenBy != e.Plan {
		return conflict("plan %d has frozen nothing here", e.Plan)
	}
	m.leave()
	m.owned = m.owned.without(e.Plan)
	m.frozenBy, m.frozenAt = 0, 0
	m.endPlan(e)
	return ReasonUnspecified, ""
}

// abort undoes a plan, at either of its ends and also where nothing of it has arrived: no later step of it does
// anything.
func (m *Machine) abort(plan PlanID) {
	m.inbound = nil
	m.owned = m.owned.thaw(plan)
	m.frozenBy, m.frozenAt = 0, 0
	m.unpark()
	m.endPlan(&Entry{Kind: KindAbort, Plan: plan})
}

func (m *Machine) endPlan(e *Entry) {
	m.endedPlan, m.endedBy = e.Plan, e.Kind
	m.config = nil
}
