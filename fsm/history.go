package fsm

import (
	"math"
	"slices"
	"strings"

	"github.com/quorate/quorate/policy"
)

// always is the known_since of a history that is complete: nothing was admitted before it.
const always = Time(math.MinInt64)

// hold keeps a window's worth of history until an instant.
type hold struct {
	windowNanos int64
	until       Time // exclusive
}

// class is what a partition knows of one class's admissions: a listed class, default, or one that was
// listed and still has history.
type class struct {
	name       string
	windows    policy.Windows // of the policy in force; zero when it does not list the class
	knownSince Time           // admissions at or before it count for carried limits only
	// removed are windows that were shortened or removed: they count as kept history until as much time
	// has passed, so that a rollback hands nothing out again.
	removed []hold
	// carried are windows of rules that are still carried. They keep history, but a longer window does
	// not become exact by them.
	carried []hold

	keys    int64 // keys of this class
	reserve int64 // keys that no other class can take from it
}

func longest(w policy.Windows) int64 { return max(w.Rule, w.Group, w.Retention) }

func longestHold(holds []hold, now Time) int64 {
	var w int64
	for _, h := range holds {
		if now < h.until {
			w = max(w, h.windowNanos)
		}
	}
	return w
}

// kept is the longest window that any rule of the class has now, or had until less than its length
// ago: the R of known_since.
func (c *class) kept(now Time) int64 {
	return max(longest(c.windows), longestHold(c.removed, now))
}

// keep is how long admissions are kept.
func (c *class) keep(now Time) Time {
	return Time(max(c.kept(now), longestHold(c.carried, now)))
}

// horizon is the time before which no admission can ever count again. One that is exactly keep old has
// expired, but is held: where it is as old as the partition, a longer window may count it.
func (c *class) horizon(now Time) Time {
	known := max(now-Time(c.kept(now)), c.knownSince+1)
	return min(known, now-Time(longestHold(c.carried, now)))
}

// listed reports that p has a rule for the class itself.
func (c *class) listed(p *policy.Policy) bool {
	return c.name == policy.DefaultClass || p.Classes[c.name] != nil
}

// change puts the windows of a new policy in force at now.
func (c *class) change(w policy.Windows, now, birth Time) {
	before, kept := longest(c.windows), c.kept(now)
	c.removed = slices.DeleteFunc(c.removed, func(h hold) bool { return now >= h.until })
	if after := longest(w); before > after {
		h := hold{windowNanos: before, until: now + Time(before)}
		c.removed = slices.DeleteFunc(c.removed, func(o hold) bool {
			return o.windowNanos <= h.windowNanos && o.until <= h.until
		})
		c.removed = append(c.removed, h)
	}
	c.windows = w
	if known := now - Time(kept); longest(w) > kept && known > birth {
		c.knownSince = max(c.knownSince, known)
	}
}

// idle reports that nothing refers to the class any more.
func (c *class) idle(now Time) bool {
	return c.keys == 0 && c.keep(now) == 0
}

// revision is one policy in force. It is never changed, so names can share it.
type revision struct {
	ref    PolicyRef
	policy *policy.Policy
}

func (r *revision) number() Revision { return r.ref.Revision }

// maxExact bounds the revisions that are carried for one name.
const maxExact = 32

// name is what a partition knows of an apiClass as callers write it: since when it is decided under the
// class it has now, and which rules stay enforced until the present one is exact.
type name struct {
	since Time
	// exact is the last revision that was exact for the name when it ended; none while the first is in
	// force. Where the histories of several partitions met it may be several, in order, at most maxExact.
	// The slice is never changed, so names can share it.
	exact []*revision
	// settled is when every limit of every rule of the name's class is exact under the present policy.
	settled Time
}

// exactFrom is when a limit of windowNanos becomes exact over a history known since then.
func exactFrom(known Time, windowNanos int64) Time {
	if known == always {
		return always
	}
	return known + Time(windowNanos)
}

// ruleKnown is since when the history is known that the limits of nm's own rule count.
func (m *Machine) ruleKnown(nm *name, resolved string) Time {
	return max(nm.since, m.classes[resolved].knownSince)
}

// groupKnown is since when the history of all members of g is known, under the policy in force.
func (m *Machine) groupKnown(g *policy.Group) Time {
	known := always
	for _, member := range g.Classes {
		known = max(known, m.names[member].since, m.classes[member].knownSince)
	}
	return known
}

// settledAt computes name.settled.
func (m *Machine) settledAt(nm *name, apiClass string) Time {
	resolved, _ := m.rev.policy.ClassOf(apiClass)
	w := m.classes[resolved].windows
	at := exactFrom(m.ruleKnown(nm, resolved), w.Rule)
	if g := m.rev.policy.GroupOf(resolved); g != nil {
		at = max(at, exactFrom(m.groupKnown(g), w.Group))
	}
	return at
}

// Carried is a rule of an earlier revision that is enforced beside the present one.
type Carried struct {
	// Class is the apiClass as callers write it; DefaultClass for all that were never listed.
	Class string
	// Revision and Version are those of the rule, its group included.
	Revision Revision
	Version  string
	// Until is when every limit of the present rules of the class is exact.
	Until Time
}

// Carried tells which rules of earlier revisions are enforced beside the present ones, by class, and where a
// class has several by revision.
func (m *Machine) Carried() []Carried {
	if m.rev == nil {
		return nil
	}
	var out []Carried
	carries := func(apiClass string, nm *name) {
		if nm.settled <= m.now {
			return
		}
		for _, r := range nm.exact {
			out = append(out, Carried{apiClass, r.number(), r.policy.Version, nm.settled})
		}
	}
	for _, apiClass := range m.sortedNames() {
		carries(apiClass, m.names[apiClass])
	}
	carries(policy.DefaultClass, &m.unlisted)
	slices.SortStableFunc(out, func(a, b Carried) int { return strings.Compare(a.Class, b.Class) })
	return out
}

// nameOf is what is known of an apiClass. Names that were never listed share one.
func (m *Machine) nameOf(apiClass string) *name {
	if nm := m.names[apiClass]; nm != nil {
		return nm
	}
	return &m.unlisted
}

// install puts a revision in force at the present time. It is linear in the two policies, and in
// nothing else.
func (m *Machine) install(next *revision) {
	now := m.now
	if m.rev != nil {
		exact := []*revision{m.rev}
		for _, nm := range m.allNames() {
			if now >= nm.settled {
				nm.exact = exact
			}
		}
		m.labels = append(m.labels, label{m.rev.number(), m.rev.policy.Version, now})
	}
	m.labels = slices.DeleteFunc(m.labels, func(l label) bool { return l.ended+maxReplayHorizon < now })
	m.relist(next.policy)
	for _, c := range m.sortedClasses() {
		var w policy.Windows
		if c.listed(next.policy) {
			w = next.policy.Windows(c.name)
		}
		c.change(w, now, m.birth)
		c.carried = nil
	}
	m.rev = next
	m.settle()
	m.forgetNames()
	m.forgetClasses()
	m.shareKeys()
	m.config = nil
}

// relist makes the classes that next lists and notes which names change their class by it.
func (m *Machine) relist(next *policy.Policy) {
	for _, apiClass := range next.ClassNames() {
		m.classFor(apiClass)
		if m.rev == nil {
			m.names[apiClass] = &name{since: always}
		} else if nm := m.names[apiClass]; nm == nil {
			m.names[apiClass] = &name{since: m.now, exact: m.unlisted.exact}
		} else if m.rev.policy.Classes[apiClass] == nil {
			nm.since = m.now
		}
	}
	if m.rev == nil {
		return
	}
	for _, apiClass := range m.rev.policy.ClassNames() {
		if next.Classes[apiClass] == nil {
			m.names[apiClass].since = m.now
		}
	}
}

// settle works out for each name when the present policy is exact, and keeps the history that the
// rules carried until then still count.
func (m *Machine) settle() {
	for _, apiClass := range m.sortedNames() {
		m.settleName(m.names[apiClass], apiClass)
	}
	m.settleName(&m.unlisted, policy.DefaultClass)
	m.measureCarried()
}

func (m *Machine) measureCarried() {
	m.mostCarried = 0
	for _, nm := range m.allNames() {
		m.mostCarried = max(m.mostCarried, len(nm.exact))
	}
}

func (m *Machine) settleName(nm *name, apiClass string) {
	nm.settled = m.settledAt(nm, apiClass)
	if nm.settled <= m.now {
		return
	}
	for _, carried := range nm.exact {
		resolved, _ := carried.policy.ClassOf(apiClass)
		w := carried.policy.Windows(resolved)
		m.classFor(resolved).carry(w.Rule, nm.settled)
		if g := carried.policy.GroupOf(resolved); g != nil {
			for _, member := range g.Classes {
				m.classFor(member).carry(w.Group, nm.settled)
			}
		}
	}
}

// carry keeps a window's worth of history until then.
func (c *class) carry(windowNanos int64, until Time) {
	for i := range c.carried {
		if c.carried[i].windowNanos == windowNanos {
			c.carried[i].until = max(c.carried[i].until, until)
			return
		}
	}
	c.carried = append(c.carried, hold{windowNanos, until})
}

// forgetNames lets go of unlisted names that are known for longer than any window can be.
func (m *Machine) forgetNames() {
	if m.unlisted.settled > m.now {
		return
	}
	for apiClass, nm := range m.names {
		if m.rev.policy.Classes[apiClass] == nil && slices.Equal(nm.exact, m.unlisted.exact) &&
			nm.since+Time(policy.MaxWindowNanos) <= m.now {
			delete(m.names, apiClass)
		}
	}
}

// forgetClasses lets go of classes that nothing refers to. What is packed may.
func (m *Machine) forgetClasses() {
	if m.packed != nil {
		return
	}
	for n, c := range m.classes {
		if !c.listed(m.rev.policy) && c.idle(m.now) {
			delete(m.classes, n)
		}
	}
}

// classFor is the class of this name, made when there is none yet.
func (m *Machine) classFor(n string) *class {
	c := m.classes[n]
	if c == nil {
		c = &class{name: n, knownSince: always}
		m.classes[n] = c
	}
	return c
}
