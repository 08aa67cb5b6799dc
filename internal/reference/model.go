package reference

import (
	"maps"
	"math"
	"slices"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/policy"
)

// always is the known_since of what has been known since before anything was admitted.
const always = fsm.Time(math.MinInt64)

// Model is a partition as the rules describe it.
type Model struct {
	// Slots answers for the ownership of a principal's slot; nil when every slot is owned under any
	// epoch. It returns the slot's epoch, 0 when it is not owned.
	Slots func(principal string) (epoch fsm.Epoch, frozen bool)

	birth      fsm.Time
	now        fsm.Time
	lost       fsm.Time    // always when nothing was lost
	revisions  []*revision // as installed; the last is in force
	others     []*revision // ended ones of the partitions that were taken over
	taken      int         // how many revisions there were when the last one was
	inherited  inheritance // of that time
	known      knowledge
	admissions []admission
	records    []record
}

// revision is a policy and the time it was in force.
type revision struct {
	number fsm.Revision
	policy *policy.Policy
	// endedAt and knownAtEnd are set when the next revision is installed.
	endedAt    fsm.Time
	knownAtEnd knowledge
}

// knowledge says since when classes and names are known; what it does not hold is known always.
type knowledge struct {
	classes map[string]fsm.Time
	names   map[string]fsm.Time
}

func (k knowledge) class(class string) fsm.Time { return since(k.classes, class) }
func (k knowledge) name(name string) fsm.Time   { return since(k.names, name) }

func since(m map[string]fsm.Time, name string) fsm.Time {
	if t, ok := m[name]; ok {
		return t
	}
	return always
}

// admission is one entry of the log of (principal, class).
type admission struct {
	at        fsm.Time
	principal string
	class     string // resolved
	cost      int64
}

// record is a decision that is repeated for its id while partition time is before end.
type record struct {
	principal, gateway, id string
	charges                []fsm.Charge
	decision               fsm.Decision
	end                    fsm.Time
}

// New makes a partition that is born at the given time.
func New(birth fsm.Birth, at fsm.Time) *Model {
	return &Model{
		birth:     at,
		now:       at,
		lost:      always,
		revisions: []*revision{{number: birth.Revision, policy: birth.Policy}},
		known:     knowledge{classes: map[string]fsm.Time{}, names: map[string]fsm.Time{}},
	}
}

// Now is the partition time.
func (m *Model) Now() fsm.Time { return m.now }

// Tick is an entry without checks: it only advances time.
func (m *Model) Tick(at fsm.Time) { m.now = max(m.now, at) }

func (m *Model) current() *revision { return m.revisions[len(m.revisions)-1] }

// Install puts the policy in force.
func (m *Model) Install(at fsm.Time, number fsm.Revision, next *policy.Policy) {
	m.Tick(at)
	old := m.current()
	old.endedAt = m.now
	old.knownAtEnd = m.known.clone()

	for _, class := range m.everListed(next) {
		kept := m.longestKept(class)
		if longestWindow(next, class) <= kept {
			continue
		}
		if from := m.now - fsm.Time(kept); from > m.birth {
			m.known.classes[class] = max(m.known.class(class), from)
		}
	}
	for _, name := range m.everListed(next) {
		if listed(old.policy, name) != listed(next, name) {
			m.known.names[name] = m.now
		}
	}
	m.revisions = append(m.revisions, &revision{number: number, policy: next})
}

func listed(p *policy.Policy, name string) bool { return p.Classes[name] != nil }

// everListed returns the classes of next and of all revisions before it, and default, sorted.
func (m *Model) everListed(next *policy.Policy) []string {
	names := map[string]bool{policy.DefaultClass: true}
	for name := range next.Classes {
		names[name] = true
	}
	for _, r := range slices.Concat(m.revisions, m.others) {
		for name := range r.policy.Classes {
			names[name] = true
		}
	}
	return slices.Sorted(maps.Keys(names))
}

// longestKept is R of the class just before an install at the present time: the longest window now,
// or in an earlier revision that ended less than that window ago.
func (m *Model) longestKept(class string) (windowNanos int64) {
	windowNanos = longestWindow(m.current().policy, class)
	for _, r := range slices.Concat(m.revisions[:len(m.revisions)-1], m.others) {
		w := longestWindow(r.policy, class)
		if m.now < r.endedAt+fsm.Time(w) {
			windowNanos = max(windowNanos, w)
		}
	}
	return windowNanos
}

// longestWindow is the longest window of any rule of the class in p, its group and retention
// included; 0 when p does not list it.
func longestWindow(p *policy.Policy, class string) (windowNanos int64) {
	if class != policy.DefaultClass && !listed(p, class) {
		return 0
	}
	for _, rule := range allRules(p, class) {
		for _, l := range rule {
			windowNanos = max(windowNanos, l.WindowNanos)
		}
	}
	if g := groupOf(p, class); g != nil {
		for _, l := range g.Limits {
			windowNanos = max(windowNanos, l.WindowNanos)
		}
	}
	_, c := resolve(p, class)
	return max(windowNanos, c.RetentionNanos)
}

// resolve returns the class that name is counted as.
func resolve(p *policy.Policy, name string) (string, *policy.Class) {
	if c := p.Classes[name]; c != nil {
		return name, c
	}
	return policy.DefaultClass, &p.Default
}

// allRules returns the rules of a resolved class: its own, the tiers' and the principals'.
func allRules(p *policy.Policy, class string) [][]policy.Limit {
	_, c := resolve(p, class)
	rules := [][]policy.Limit{c.Limits}
	for _, tier := range p.Tiers {
		rules = append(rules, tier[class])
	}
	for _, override := range p.Principals {
		rules = append(rules, override[class])
	}
	return rules
}

func groupOf(p *policy.Policy, class string) *policy.Group {
	for _, g := range p.Groups {
		if slices.Contains(g.Classes, class) {
			return g
		}
	}
	return nil
}
