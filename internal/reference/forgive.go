package reference

import (
	"slices"
	"strings"

	"github.com/quorate/quorate/fsm"
)

// Forgive drops the admissions of a principal, in an entry of its own. Amounts are what was admitted within
// the longest kept window of each class.
func (m *Model) Forgive(at fsm.Time, f fsm.Forgive) fsm.Forgiven {
	m.Tick(at)
	if reason, epoch := m.ownership(f.Principal, f.RouteEpoch); reason != fsm.ReasonUnspecified {
		return fsm.Forgiven{Reason: reason, Epoch: epoch}
	}
	classes := m.everListed(m.current().policy)
	if f.Class != "" {
		classes = m.countedBy(f.Class)
	}
	slices.SortFunc(classes, strings.Compare)
	out := fsm.Forgiven{Reason: fsm.ReasonAllowed}
	for _, class := range classes {
		window := limit{classes: []string{class}}
		window.WindowNanos = m.longestKept(class)
		if amount := m.used(window, f.Principal, m.now); amount > 0 {
			out.Amounts = append(out.Amounts, fsm.ClassAmount{Class: class, Amount: amount})
		}
	}
	m.admissions = slices.DeleteFunc(m.admissions, func(a admission) bool {
		return a.principal == f.Principal && slices.Contains(classes, a.class)
	})
	return out
}

// countedBy are the classes whose logs some allow for the name may be appended to now.
func (m *Model) countedBy(name string) []string {
	p := m.current().policy
	resolved, _ := resolve(p, name)
	classes := []string{resolved}
	for _, chosen := range allRules(p, resolved) {
		if latestExact(extend(p, m.known, name, chosen)) <= m.now {
			continue
		}
		for _, old := range m.lastExact(name) {
			if was, _ := resolve(old.policy, name); !slices.Contains(classes, was) {
				classes = append(classes, was)
			}
		}
	}
	return classes
}

// Admitted is the cost of all admissions of a principal in a class that were not forgiven.
func (m *Model) Admitted(principal, class string) (cost int64) {
	for _, a := range m.admissions {
		if a.principal == principal && a.class == class {
			cost = add(cost, a.cost)
		}
	}
	return cost
}
