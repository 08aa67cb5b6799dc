package reference

import (
	"math"
	"slices"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/policy"
)

// limit is a limit as it applies to one charge.
type limit struct {
	policy.Limit
	// classes are those whose admissions it counts.
	classes []string
	// exactFrom is the first instant at which it is exact.
	exactFrom fsm.Time
	carried   bool
}

// applicable is what one charge of a principal is measured against.
type applicable struct {
	class  *policy.Class
	limits []limit // the rule's, the group's, then carried ones
	// classes are those whose logs an allow is appended to.
	classes []string
	// exactFrom is the first instant at which the check's rule is exact.
	exactFrom fsm.Time
}

// rule returns the limits of p for a charge, its group's included.
func rule(p *policy.Policy, known knowledge, principal string, c fsm.Charge) []limit {
	resolved, class := resolve(p, c.Class)
	chosen := class.Limits
	if r, ok := p.Tiers[c.Tier][resolved]; ok {
		chosen = r
	}
	if r, ok := p.Principals[principal][resolved]; ok {
		chosen = r
	}
	return extend(p, known, c.Class, chosen)
}

// extend makes limits of a rule of the class that name resolves to, and appends its group's.
func extend(p *policy.Policy, known knowledge, name string, chosen []policy.Limit) []limit {
	resolved, _ := resolve(p, name)
	var limits []limit
	ruleKnown := max(known.name(name), known.class(resolved))
	for _, l := range chosen {
		limits = append(limits, limit{
			Limit:     l,
			classes:   []string{resolved},
			exactFrom: after(ruleKnown, l.WindowNanos),
		})
	}
	group := groupOf(p, resolved)
	if group == nil {
		return limits
	}
	groupKnown := always
	for _, member := range group.Classes {
		groupKnown = max(groupKnown, known.name(member), known.class(member))
	}
	for _, l := range group.Limits {
		limits = append(limits, limit{
			Limit:     l,
			classes:   group.Classes,
			exactFrom: after(groupKnown, l.WindowNanos),
		})
	}
	return limits
}

func after(known fsm.Time, windowNanos int64) fsm.Time {
	if known == always {
		return always
	}
	return known + fsm.Time(windowNanos)
}

func latestExact(limits []limit) fsm.Time {
	latest := always
	for _, l := range limits {
		latest = max(latest, l.exactFrom)
	}
	return latest
}

// wasExact reports whether every limit of every rule of the name's class was exact when r ended.
func (r *revision) wasExact(name string) bool {
	resolved, _ := resolve(r.policy, name)
	for _, chosen := range allRules(r.policy, resolved) {
		if latestExact(extend(r.policy, r.knownAtEnd, name, chosen)) > r.endedAt {
			return false
		}
	}
	return true
}

// lastExact is the last ended revision that was exact for the name when it ended; of before another partition was
// taken over, what was inherited. It is empty where there is none.
func (m *Model) lastExact(name string) []*revision {
	for i := len(m.revisions) - 2; i >= 0; i-- {
		if i+1 < m.taken {
			return m.inherited.of(name)
		}
		if m.revisions[i].wasExact(name) {
			return []*revision{m.revisions[i]}
		}
	}
	return m.inherited.of(name)
}

// applicable finds what a charge is measured against now.
func (m *Model) applicable(principal string, c fsm.Charge) applicable {
	p := m.current().policy
	resolved, class := resolve(p, c.Class)
	a := applicable{class: class, classes: []string{resolved}}
	a.limits = rule(p, m.known, principal, c)
	a.exactFrom = latestExact(a.limits)
	if m.now >= a.exactFrom {
		return a
	}
	for _, old := range m.lastExact(c.Class) {
		if was, _ := resolve(old.policy, c.Class); !slices.Contains(a.classes, was) {
			a.classes = append(a.classes, was)
		}
		for _, l := range rule(old.policy, m.known, principal, c) {
			if l.Max != 0 {
				l.carried = true
				a.limits = append(a.limits, l)
			}
		}
	}
	return a
}

// counted returns the admissions that the limit counts at the given instant.
func (m *Model) counted(l limit, principal string, at fsm.Time) []admission {
	var in []admission
	for _, a := range m.admissions {
		if a.principal == principal && slices.Contains(l.classes, a.class) &&
			a.at > at-fsm.Time(l.WindowNanos) && (l.carried || a.at > m.known.class(a.class)) {
			in = append(in, a)
		}
	}
	return in
}

// used is the cost that the limit counts at the given instant: all of it while what was lost may count.
func (m *Model) used(l limit, principal string, at fsm.Time) (cost int64) {
	for _, a := range m.counted(l, principal, at) {
		cost = add(cost, a.cost)
	}
	if at < m.lost+fsm.Time(l.WindowNanos) {
		return max(cost, l.Max)
	}
	return cost
}

// taking is the cost of the charges that the limit would count, of those that earlier members of the
// check would take at this instant.
func (m *Model) taking(l limit, taken []admission) (cost int64) {
	for _, a := range taken {
		if slices.Contains(l.classes, a.class) {
			cost = add(cost, a.cost)
		}
	}
	return cost
}

// add adds costs; it saturates.
func add(a, b int64) int64 {
	if a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}

// deadline is the first instant at which the limit holds so much more cost, if nothing is admitted.
// The cost must not exceed the limit.
func (m *Model) deadline(l limit, principal string, cost int64) fsm.Time {
	var expiries []fsm.Time
	for _, a := range m.counted(l, principal, m.now) {
		expiries = append(expiries, a.at+fsm.Time(l.WindowNanos))
	}
	if m.lost != always {
		expiries = append(expiries, m.lost+fsm.Time(l.WindowNanos))
	}
	slices.Sort(expiries)
	for _, t := range expiries {
		if add(m.used(l, principal, t), cost) <= l.Max {
			return t
		}
	}
	panic("reference: no room in an empty log")
}

// state is the limit as it stands.
func (m *Model) state(l limit, principal string) fsm.LimitState {
	s := fsm.LimitState{
		Name:        l.Name,
		Max:         l.Max,
		WindowNanos: l.WindowNanos,
		Used:        m.used(l, principal, m.now),
		Remaining:   max(0, l.Max-m.used(l, principal, m.now)),
		ResetAt:     m.now,
		Carried:     l.carried,
	}
	for i, a := range m.counted(l, principal, m.now) {
		if expiry := a.at + fsm.Time(l.WindowNanos); i == 0 || expiry < s.ResetAt {
			s.ResetAt = expiry
		}
	}
	s.ResetAt = max(s.ResetAt, m.lost+fsm.Time(l.WindowNanos))
	return s
}
