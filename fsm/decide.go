package fsm

import (
	"fmt"
	"math"
	"slices"
	"sort"

	"github.com/quorate/quorate/internal/guard"
	"github.com/quorate/quorate/policy"
)

// applied is one limit as it applies to a charge: whose admissions it counts, and since when.
type applied struct {
	limit    *policy.Limit
	revision Revision // that the limit is of
	// The limit counts the keys of caller whose class is in scope.
	caller  *caller
	scope   scope
	carried bool
	// exactAt is when the check's own rule is exact; of carried limits only.
	exactAt Time
}

// scope is the set of classes whose admissions a limit counts: one class, or the members of a group.
type scope struct {
	class string
	group *policy.Group
	in    *policy.Policy // whose group it is
}

func (s *scope) contains(class string) bool {
	if s.group == nil {
		return class == s.class
	}
	return s.in.GroupOf(class) == s.group
}

// charged is a charge of a check on its way to a decision.
type charged struct {
	classes []*class // whose logs an allow is appended to
	limits  []applied
	cost    int64
}

// refuse makes a refusal.
func (m *Machine) refuse(r Reason, detail string) Decision {
	return Decision{Reason: r, Detail: detail, AsOf: m.now, Revision: m.rev.number(), Version: m.rev.policy.Version}
}

// decide answers one check of p, and consumes from all of its limits or from none.
func (m *Machine) decide(p *caller, c *Check) Decision {
	if err := ValidateCheck(c); err != nil {
		return m.refuse(ReasonInvalidArgument, err.Error())
	}
	if r, epoch := m.serves(p.slot, c.RouteEpoch); r != ReasonUnspecified && guard.On(guard.CheckedAtApply) {
		d := m.refuse(r, "")
		d.Epoch = epoch
		return d
	}
	m.unpack(p.slot)
	p.find() // it may have come or gone since it was prepared
	p.findRecord()
	if d, ok := m.replay(p, c); ok {
		return d
	}
	switch at := c.PolicyRevision; {
	case !guard.On(guard.CheckedAtApply):
	case at != 0 && at < m.rev.number():
		return m.refuse(ReasonPolicyStale, "")
	case at > m.rev.number():
		return m.refuse(ReasonPolicyBehind, "")
	}
	d, charges := m.judge(p, c)
	switch d.Reason {
	case ReasonAllowed:
		return m.allow(p, c, charges)
	case ReasonQuotaExhausted:
		switch {
		case !guard.On(guard.AllOrNothing):
			m.consume(p, charges[:len(charges)-1])
		case !guard.On(guard.FreeDenial):
			m.consume(p, charges)
		}
		d.Recorded = m.recordDenial(p, c, &d, m.lookUp(c.Class).settings.ReplayHorizonNanos)
	}
	return d
}

// serves checks that the slot is owned, under this epoch, and not frozen.
func (m *Machine) serves(slot Slot, epoch Epoch) (Reason, Epoch) {
	r, owned := m.owned.find(slot)
	switch {
	case (!owned || r.Epoch != epoch) && guard.On(guard.OwnershipEpoch):
		return ReasonWrongEpoch, r.Epoch
	case r.FrozenBy != 0 && guard.On(guard.FreezeStops):
		return ReasonFrozen, r.Epoch
	}
	return ReasonUnspecified, r.Epoch
}

// sweptForRoom is how many ended things are forgotten at once to make room at a bound.
const sweptForRoom = 1024

// allow admits the charges, unless a bound of the partition is reached.
func (m *Machine) allow(p *caller, c *Check, charges []charged) Decision {
	if !m.roomForAllow(c.Gateway) {
		m.sweep(sweptForRoom)
		p.find()
		p.findRecord()
	}
	if !m.roomForAllow(c.Gateway) {
		return m.refuse(ReasonCapacity, "the partition holds as many replay records as it may")
	}
	if !m.roomForKeys(p, charges) {
		m.sweep(sweptForRoom)
		p.find()
		p.findRecord()
	}
	if !m.roomForKeys(p, charges) {
		return m.refuse(ReasonCapacity, "the partition holds as many keys as it may")
	}
	m.consume(p, charges)
	d := m.refuse(ReasonAllowed, "")
	d.Limits = m.stand(distinct(charges))
	d.Remaining = least(d.Limits)
	m.recordAllow(p, c, &d, m.lookUp(c.Class).settings.ReplayHorizonNanos)
	d.Recorded = true
	return d
}

// consume appends charges to the logs of p. The caller has checked the bounds.
func (m *Machine) consume(p *caller, charges []charged) {
	m.keepPrincipal(p.shard, p.name, p.ref)
	for i := range charges {
		for _, of := range charges[i].classes {
			k := p.key(of.name)
			if k == nil {
				k = m.makeKey(p, of)
			}
			m.admit(p.shard.principals.at(p.ref), k, charges[i].cost)
		}
	}
}

// roomForKeys reports whether the keys that charges would make are within the bounds.
func (m *Machine) roomForKeys(p *caller, charges []charged) bool {
	made := m.made[:0]
	for i := range charges {
		for _, of := range charges[i].classes {
			if p.key(of.name) == nil && !slices.Contains(made, of) {
				made = append(made, of)
			}
		}
	}
	m.made = made
	if m.keys+m.waiting().keys+int64(len(made)) > m.bounds.MaxKeys {
		return false
	}
	unreserved := m.unreserved
	for _, c := range made {
		if c.keys >= c.reserve {
			unreserved++
		}
	}
	return unreserved == m.unreserved || unreserved <= m.bounds.MaxKeys-m.reserved
}

// distinct are the limits of all charges, each once. Policies of two revisions may
// share their limits in memory, and do not after a restore, so the revision tells them apart. A limit of the
// revision in force that is carried as well counts more than itself.
func distinct(charges []charged) []applied {
	if len(charges) == 1 {
		return charges[0].limits
	}
	var out []applied
	for i := range charges {
		for _, l := range charges[i].limits {
			if !slices.ContainsFunc(out, func(o applied) bool {
				return o.limit == l.limit && o.revision == l.revision && o.carried == l.carried
			}) {
				out = append(out, l)
			}
		}
	}
	return out
}

// judge decides the charges of c in order, each counting what the earlier ones would take. The answer
// is the first that is not an allow; the charges are those up to it, and valid until the next check.
func (m *Machine) judge(p *caller, c *Check) (Decision, []charged) {
	m.charges, m.limits = m.charges[:0], m.limits[:0]
	for i := -1; i < len(c.Also); i++ {
		charge := &c.Charge
		if i >= 0 {
			charge = &c.Also[i]
		}
		rule := m.lookUp(charge.Class)
		if rule.settings.Disabled {
			return m.refuse(ReasonEndpointDisabled, ""), nil
		}
		limits, carried := m.applicable(p, rule, charge)
		classes := rule.counts[:]
		if len(carried) > 0 {
			classes = m.countedBy(charge.Class, carried)
		}
		d, ok := m.fits(limits, m.charges, charge.Cost)
		m.charges = append(m.charges, charged{classes, limits, charge.Cost})
		if !ok {
			return d, m.charges
		}
	}
	return m.refuse(ReasonAllowed, ""), m.charges
}

// ruling is what the policy in force says of an apiClass, and what is known of it here.
type ruling struct {
	resolved string
	settings *policy.Class
	group    *policy.Group
	name     *name
	counts   [1]*class // whose log takes an allow
}

// lookUp is the ruling on an apiClass. Those on listed ones are looked up once: they are kept until an entry comes that
// is no batch, since nothing else changes what they say.
func (m *Machine) lookUp(apiClass string) *ruling {
	if r := m.rulings[apiClass]; r != nil {
		return r
	}
	resolved, settings := m.rev.policy.ClassOf(apiClass)
	of := m.classes[resolved]
	r := &ruling{
		resolved: of.name, settings: settings, group: m.rev.policy.GroupOf(resolved), name: m.nameOf(apiClass),
		counts: [1]*class{of},
	}
	if r.resolved == apiClass {
		m.rulings[r.resolved] = r
	}
	return r
}

// applicable are the limits that apply to a charge of a principal, in order: those of its rule, those
// of its class's group, and those of the carried revisions, which are returned as well.
func (m *Machine) applicable(p *caller, rule *ruling, charge *Charge) ([]applied, []*revision) {
	begin := len(m.limits)
	m.appendLimits(m.rev, rule.resolved, rule.group, p, charge)
	limits := m.limits[begin:]
	nm := rule.name
	if nm.settled <= m.now || !guard.On(guard.CarriedRules) {
		return limits, nil
	}
	exactAt := always
	for i := range limits {
		known := m.ruleKnown(nm, rule.resolved)
		if g := limits[i].scope.group; g != nil {
			known = m.groupKnown(g)
		}
		exactAt = max(exactAt, exactFrom(known, limits[i].limit.WindowNanos))
	}
	if exactAt <= m.now {
		return limits, nil
	}
	for _, of := range nm.exact {
		resolved, _ := of.policy.ClassOf(charge.Class)
		first := len(m.limits)
		m.appendLimits(of, resolved, of.policy.GroupOf(resolved), p, charge)
		kept := m.limits[:first]
		for _, l := range m.limits[first:] {
			if l.limit.Max != 0 {
				l.carried, l.exactAt = true, exactAt
				kept = append(kept, l)
			}
		}
		m.limits = kept
	}
	return m.limits[begin:], nm.exact
}

// appendLimits adds the limits of the rule and of the group under one revision.
func (m *Machine) appendLimits(of *revision, resolved string, g *policy.Group, p *caller, charge *Charge) {
	rule := of.policy.RuleFor(p.name, resolved, charge.Tier)
	for i := range rule {
		m.limits = append(m.limits, applied{
			limit: &rule[i], revision: of.number(), caller: p, scope: scope{class: resolved},
		})
	}
	if g == nil {
		return
	}
	for i := range g.Limits {
		m.limits = append(m.limits, applied{
			limit: &g.Limits[i], revision: of.number(), caller: p, scope: scope{resolved, g, of.policy},
		})
	}
}

// countedBy are the classes whose logs take an allow for apiClass: its class, and those of the carried
// revisions.
func (m *Machine) countedBy(apiClass string, carried []*revision) []*class {
	resolved, _ := m.rev.policy.ClassOf(apiClass)
	out := []*class{m.classes[resolved]}
	for _, of := range carried {
		was, _ := of.policy.ClassOf(apiClass)
		if c := m.classes[was]; !slices.Contains(out, c) {
			out = append(out, c)
		}
	}
	return out
}

// fits reports whether cost has room in all limits beside what the earlier charges would take; if not,
// the decision that says so.
func (m *Machine) fits(limits []applied, earlier []charged, cost int64) (Decision, bool) {
	for i := range limits {
		if limits[i].limit.Max == 0 {
			return m.refuse(ReasonBlocked, ""), false
		}
	}
	denied := -1
	var retryAt Time
	for i := range limits {
		l := &limits[i]
		most := saturatingAdd(uint64(cost), l.taken(earlier))
		if most > uint64(l.limit.Max) && !l.carried {
			return m.refuse(ReasonCostExceedsLimit,
				fmt.Sprintf("the cost is above limit %q of %d: it can never be allowed", l.limit.Name, l.limit.Max)), false
		}
		if used := saturatingAdd(m.usage(l), most); used <= uint64(l.limit.Max) ||
			!guard.On(guard.ExactLimit) && used == uint64(l.limit.Max)+1 {
			continue
		}
		if at := m.deadline(l, most); denied < 0 || at > retryAt && guard.On(guard.LatestDeadline) {
			denied, retryAt = i, at
		}
	}
	if denied < 0 {
		return Decision{}, true
	}
	d := m.refuse(ReasonQuotaExhausted, "")
	d.Limit, d.RetryAt = limits[denied].limit.Name, retryAt
	d.Limits = m.stand(limits)
	d.Remaining = least(d.Limits)
	return d, false
}

// taken is what the earlier charges of the same check would take from l.
func (l *applied) taken(earlier []charged) uint64 {
	var sum uint64
	for i := range earlier {
		for _, c := range earlier[i].classes {
			if l.scope.contains(c.name) {
				sum = saturatingAdd(sum, uint64(earlier[i].cost))
			}
		}
	}
	return sum
}

// each calls f with each log that l counts and the time after which its admissions count.
func (m *Machine) each(l *applied, f func(log *rolling, after Time)) {
	if l.scope.group == nil {
		if k := l.caller.key(l.scope.class); k != nil {
			f(&k.log, m.countsAfter(l, k.class))
		}
		return
	}
	for k := l.caller.firstKey(); k != nil; k = l.caller.nextKey(k) {
		if l.scope.contains(k.class.name) {
			f(&k.log, m.countsAfter(l, k.class))
		}
	}
}

// countsAfter is the time after which the admissions of a class count for l. A carried limit counts all that
// is held for it: it was exact, and a class that is listed again begins to be known only now.
func (m *Machine) countsAfter(l *applied, of *class) Time {
	since := m.now - Time(l.limit.WindowNanos)
	switch {
	case !guard.On(guard.WholeWindow):
		since += Time(l.limit.WindowNanos / 100)
	case !guard.On(guard.WindowEdge):
		since++
	case !guard.On(guard.EndsInTime):
		since = min(since, m.birth)
	}
	if l.carried {
		return since
	}
	return max(since, of.knownSince)
}

// usage is what l counts now.
func (m *Machine) usage(l *applied) uint64 {
	var sum uint64
	m.each(l, func(log *rolling, after Time) { sum = saturatingAdd(sum, log.weightAfter(after)) })
	if m.now < m.fullUntil(l.limit) {
		return max(sum, uint64(l.limit.Max))
	}
	return sum
}

// fullUntil is until when l counts as full because what it should count may have been lost.
func (m *Machine) fullUntil(l *policy.Limit) Time { return m.lost + Time(l.WindowNanos) }

// deadline is when most fits into l, what may have been lost included.
func (m *Machine) deadline(l *applied, most uint64) Time {
	at := l.exactAt // of a carried limit that could never hold it
	if most <= uint64(l.limit.Max) {
		at = m.roomAt(l, most)
	}
	return max(at, m.fullUntil(l.limit))
}

// roomAt is when so much of what l counts has expired that most fits: the expiry of the latest
// admission that must go. The sum falls with time, so it is found by bisecting the window.
func (m *Machine) roomAt(l *applied, most uint64) Time {
	room := uint64(l.limit.Max) - most
	window := l.limit.WindowNanos
	oldest := m.now - Time(window)
	var counted []*rolling
	var since []Time
	m.each(l, func(log *rolling, after Time) {
		if log.weightAfter(after) > 0 {
			counted, since = append(counted, log), append(since, after)
		}
	})
	if len(counted) == 1 {
		gone := Time(0) // from oldest
		if t := counted[0].timeLeaving(room, max(since[0], oldest)); t > max(since[0], oldest) {
			gone = t - oldest
		}
		return l.unlessExact(oldest + gone + Time(window))
	}
	gone := sort.Search(int(window), func(i int) bool {
		var left uint64
		for j, log := range counted {
			left = saturatingAdd(left, log.weightAfter(max(since[j], oldest+Time(i))))
		}
		return left <= room
	})
	return l.unlessExact(oldest + Time(gone) + Time(window))
}

// unlessExact is at, or for a carried limit the earlier instant at which it is not enforced any more.
func (l *applied) unlessExact(at Time) Time {
	if l.carried {
		return min(at, l.exactAt)
	}
	return at
}

// stand are the limits as they stand.
func (m *Machine) stand(limits []applied) []LimitState {
	out := m.newStates(len(limits))
	for i := range limits {
		l := &limits[i]
		used := m.usage(l)
		out[i] = LimitState{
			Name: l.limit.Name, Max: l.limit.Max, WindowNanos: l.limit.WindowNanos,
			Used: int64(min(used, math.MaxInt64)), Remaining: room(l.limit.Max, used), ResetAt: m.resetAt(l), Carried: l.carried,
		}
	}
	return out
}

// statesAtOnce is for how many states of limits room is made at once, since each answer has few.
const statesAtOnce = 128

// newStates is room for n states, which nobody else gets.
func (m *Machine) newStates(n int) []LimitState {
	if n > len(m.states) {
		m.states = make([]LimitState, max(n, statesAtOnce))
	}
	out := m.states[:n:n]
	m.states = m.states[n:]
	return out
}

// standing are the limits that apply to the charges of a check, each once, as they stand.
func (m *Machine) standing(p *caller, c *Check) []LimitState {
	charges := make([]charged, 1+len(c.Also))
	m.limits = m.limits[:0]
	charges[0].limits, _ = m.applicable(p, m.lookUp(c.Class), &c.Charge)
	for i := range c.Also {
		charges[i+1].limits, _ = m.applicable(p, m.lookUp(c.Also[i].Class), &c.Also[i])
	}
	return m.stand(distinct(charges))
}

// resetAt is when the oldest admission that l counts expires, and not before what may have been lost has.
func (m *Machine) resetAt(l *applied) Time {
	return max(m.oldestExpires(l), m.fullUntil(l.limit))
}

func (m *Machine) oldestExpires(l *applied) Time {
	oldest := Time(math.MaxInt64)
	m.each(l, func(log *rolling, after Time) {
		if t, ok := log.oldestAfter(after); ok {
			oldest = min(oldest, t)
		}
	})
	if oldest == math.MaxInt64 {
		return m.now
	}
	return oldest + Time(l.limit.WindowNanos)
}

func least(limits []LimitState) int64 {
	remaining := int64(math.MaxInt64)
	for i := range limits {
		remaining = min(remaining, limits[i].Remaining)
	}
	return remaining
}

func room(limit int64, used uint64) int64 {
	if used >= uint64(limit) {
		return 0
	}
	return limit - int64(used)
}

func saturatingAdd(a, b uint64) uint64 {
	if s := a + b; s >= a {
		return s
	}
	return math.MaxUint64
}
