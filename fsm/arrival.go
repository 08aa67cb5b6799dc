package fsm

import (
	"slices"

	"github.com/quorate/quorate/internal/guard"
)

// shift is what the times of an import are moved by: ages travel, not timestamps.
func (in *inbound) shift() Time {
	if !guard.On(guard.AgesTravel) {
		return 0
	}
	return in.base - in.manifest.FrozenAt
}

// open fixes what the import has to become, and the instant that its ages are counted back from. If the source
// could move on, as one that nobody froze, it can be opened anew until it is sealed. A source that can install no
// policy any more may have an older one than a partition that holds nothing yet.
func (m *Machine) open(e *Entry) (Reason, string) {
	if m.frozenBy != 0 {
		return conflict("this partition is the source of plan %d", e.Plan)
	}
	if err := validRanges(e.Ranges); err != nil {
		return conflict("%v", err)
	}
	if s, owned := m.owned.meets(e.Ranges); owned {
		return conflict("slot %d is owned here already", s)
	}
	if at := e.Manifest.FrozenAt; at < 0 || at > MaxTime {
		return conflict("the time %d of the freeze is out of range", at)
	}
	r, detail := m.needRevision(e.Manifest.Revision)
	if r != ReasonUnspecified && (r != ReasonPolicyStale || !m.vacant()) {
		return r, detail
	}
	m.begin(e.Plan)
	in := m.inbound
	switch {
	case in.phase >= PlanOpen && in.manifest == e.Manifest && slices.Equal(in.ranges, e.Ranges):
		return ReasonUnspecified, ""
	case in.phase == PlanSealed:
		return conflict("the import is sealed with another manifest")
	}
	in.phase, in.ranges, in.manifest, in.base = PlanOpen, slices.Clone(e.Ranges), e.Manifest, m.now
	for s := range Slot(NumSlots) {
		if (in.images[s] != nil || in.parts[s] != nil) && !contains(in.ranges, s) {
			m.unstage(s)
		}
	}
	m.config = nil
	return ReasonUnspecified, ""
}

// seal closes the import if it is what the manifest says, and answers what it is.
func (m *Machine) seal(e *Entry) (*Manifest, Reason, string) {
	refused := func(r Reason, detail string) (*Manifest, Reason, string) { return nil, r, detail }
	in := m.inbound
	if in == nil || in.phase < PlanOpen {
		return refused(conflict("the import of plan %d is not open", e.Plan))
	}
	got := in.manifest
	if got.Digest = m.hashSlots(in.staged()); in.phase == PlanSealed || got.Digest != in.manifest.Digest {
		return &got, ReasonUnspecified, ""
	}
	for _, img := range present(in.images[:NumSlots]) {
		if !img.span.possible(in.manifest.FrozenAt, in.shift()) {
			return refused(conflict("slot %d has times that cannot be", img.Slot))
		}
	}
	carried, r, detail := m.takePolicies(in, e.Policies)
	if r != ReasonUnspecified {
		return refused(r, detail)
	}
	if r, detail := m.checkHistory(in, carried); r != ReasonUnspecified {
		return refused(r, detail)
	}
	for s := range in.parts {
		if in.parts[s] != nil {
			m.unstagePart(Slot(s))
		}
	}
	in.phase, in.carried, m.config = PlanSealed, carried, nil
	return &got, ReasonUnspecified, ""
}

// activate takes the import over: from this entry on its slots are decided here.
func (m *Machine) activate(e *Entry) (Reason, string) {
	in := m.inbound
	if in == nil || in.phase != PlanSealed && (guard.On(guard.SealedImport) || in.images[HistorySlot] == nil) {
		return conflict("the import of plan %d is not sealed", e.Plan)
	}
	if e.Epoch == 0 {
		return conflict("an epoch is missing")
	}
	l, err := m.inherited(in)
	if err != nil {
		panic("fsm: a sealed history is not read back: " + err.Error())
	}
	own := m.rev
	m.inherit(l) // where that brings an older policy, the own one follows it below
	m.inbound = nil
	m.packAll(in)
	m.owned = m.owned.with(in.ranges, e.Epoch)
	if e.Lost {
		m.lost = m.now
	}
	m.forgetNames()
	m.forgetClasses()
	m.shareKeys()
	if own != m.rev {
		m.install(own)
	}
	m.endPlan(e)
	return ReasonUnspecified, ""
}
