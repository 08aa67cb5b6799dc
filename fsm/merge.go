package fsm

import (
	"fmt"
	"slices"

	"github.com/quorate/quorate/policy"
)

// StagedPolicies names the policies that the staged history of plan needs beside the one in force here, in order,
// for the entry that seals it. The error says what is missing.
func (m *Machine) StagedPolicies(plan PlanID) ([]PolicyRef, error) {
	if m.inbound == nil || m.inbound.plan != plan || m.inbound.images[HistorySlot] == nil {
		return nil, fmt.Errorf("the policy history of plan %d is not staged: pull it first", plan)
	}
	l, err := readHistory(m.inbound.images[HistorySlot].data)
	if err != nil {
		return nil, fmt.Errorf("the policy history of plan %d: %w", plan, err)
	}
	if l.present.Revision == m.rev.number() {
		return l.policies, nil
	}
	return metPolicies(l.policies, []PolicyRef{l.present}), nil
}

// windowsOf is the longest window that the policy in force has for a class; 0 when it does not list it.
func (m *Machine) windowsOf(class string) int64 {
	if class != policy.DefaultClass && m.rev.policy.Classes[class] == nil {
		return 0
	}
	return longest(m.rev.policy.Windows(class))
}

// inherited is the history that this partition has with what is staged. One that holds nothing takes that of
// the source as it is, with the policy that was in force there.
func (m *Machine) inherited(in *inbound) (*lineage, error) {
	theirs, err := readHistory(in.images[HistorySlot].data)
	if err != nil {
		return nil, err
	}
	theirs.asOf = in.manifest.FrozenAt
	if m.vacant() {
		theirs.shift(in.shift())
		return theirs, nil
	}
	theirs.held(m.windowsOf)
	theirs.shift(in.shift())
	ours := m.lineage(m.now)
	ours.held(m.windowsOf)
	return met(ours, theirs, m.now, m.windowsOf), nil
}

// vacant reports that nothing here depends on the history.
func (m *Machine) vacant() bool {
	return len(m.owned) == 0 && m.keys == 0 && m.allows == 0 && m.denials == 0
}

// inherit takes a history over, and the policy that was in force in it. Of the keys that are here all classes are in
// it.
func (m *Machine) inherit(l *lineage) {
	revisions := map[Revision]*revision{}
	for _, r := range m.liveRevisions() {
		revisions[r.number()] = r
	}
	m.rev = revisions[l.present.Revision]
	take := func(p pastName) name {
		nm := name{since: p.since}
		for _, number := range p.exact {
			nm.exact = append(nm.exact, revisions[number])
		}
		return nm
	}
	m.birth, m.lost, m.labels = l.birth, l.lost, l.labels
	classes := map[string]*class{}
	for n, past := range l.classes {
		c := m.classFor(n)
		c.knownSince, c.removed, c.carried, c.windows = past.knownSince, past.removed, nil, policy.Windows{}
		if c.listed(m.rev.policy) {
			c.windows = m.rev.policy.Windows(n)
		}
		classes[n] = c
	}
	m.classes, m.names, m.unlisted = classes, map[string]*name{}, take(l.unlisted)
	for n, past := range l.names {
		nm := take(past)
		m.names[n] = &nm
	}
	m.settle()
	for _, nm := range m.allNames() {
		if nm.settled <= m.now {
			nm.exact = nil
		}
	}
	m.measureCarried()
}

// checkHistory refuses an import whose history does not hold, or cannot be taken over. carried are the policies that
// it needs beside the one in force here.
func (m *Machine) checkHistory(in *inbound, carried []*revision) (Reason, string) {
	l, err := m.inherited(in)
	if err != nil {
		return conflict("the policy history: %v", err)
	}
	inForce := m.rev
	if l.present.Revision != m.rev.number() {
		i := slices.IndexFunc(carried, func(r *revision) bool { return r.number() == l.present.Revision })
		inForce = carried[i] // it is one of those that were asked for
	}
	if l.present.Revision != in.manifest.Revision || !l.present.equal(&inForce.ref) {
		return conflict("the policy history is not that of revision %d", in.manifest.Revision)
	}
	for _, n := range append(inForce.policy.ClassNames(), policy.DefaultClass) {
		if _, ok := l.classes[n]; !ok {
			return conflict("the history of class %q is missing", n)
		}
		if _, ok := l.names[n]; !ok && n != policy.DefaultClass {
			return conflict("the history of class %q is missing", n)
		}
	}
	for _, img := range present(in.images) {
		if i := slices.IndexFunc(img.classes, func(n string) bool { _, ok := l.classes[n]; return !ok }); i >= 0 {
			return conflict("slot %d has a key of class %q, which has no history", img.Slot, img.classes[i])
		}
	}
	most := len(l.unlisted.exact)
	for _, p := range l.names {
		most = max(most, len(p.exact))
	}
	if most > maxExact {
		return ReasonCapacity, fmt.Sprintf(
			"%d revisions would be carried for one name, at most %d can be: wait until fewer are", most, maxExact)
	}
	return ReasonUnspecified, ""
}

// takePolicies finds the carried policies of an import among those of the entry that seals it.
func (m *Machine) takePolicies(in *inbound, given []Install) ([]*revision, Reason, string) {
	wanted, err := m.StagedPolicies(in.plan)
	if err != nil {
		r, detail := conflict("%v", err)
		return nil, r, detail
	}
	same := slices.EqualFunc(given, wanted, func(i Install, ref PolicyRef) bool { return i.PolicyRef.equal(&ref) })
	if !same {
		r, detail := conflict("the policies are not those that the history carries")
		return nil, r, detail
	}
	var out []*revision
	for i := range given {
		r := given[i].revision()
		for _, own := range m.liveRevisions() {
			if own.number() != r.number() {
				continue
			}
			if !own.ref.equal(&r.ref) {
				reason, detail := conflict("revision %d is another policy here", r.number())
				return nil, reason, detail
			}
			r = own
		}
		out = append(out, r)
	}
	return out, ReasonUnspecified, ""
}
