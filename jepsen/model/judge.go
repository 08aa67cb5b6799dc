package model

import (
	"fmt"
	"math"
	"slices"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/policy"
)

// Invariant names what must hold.
type Invariant string

// The invariants.
const (
	// ExactCap: the costs in any (t-W, t] of true time stay within L.
	ExactCap Invariant = "exact-cap"
	// CapInStamps: the same by the partition's own time, to the nanosecond.
	CapInStamps Invariant = "cap-in-stamps"
	// UsageKept: every admission counts until its window has passed, across restarts, snapshots and moves.
	UsageKept Invariant = "usage-kept"
	// OncePerID: one id has one result until its horizon has passed.
	OncePerID Invariant = "once-per-id"
	// OneOwner: a slot is decided for by one partition, under its present epoch.
	OneOwner Invariant = "one-owner"
	// PolicyInOrder: a decision is made under the policy that is in force at its place in the log.
	PolicyInOrder Invariant = "policy-in-order"
	// EqualStates: replicas have equal answers and digests at equal entries.
	EqualStates Invariant = "equal-states"
	// SlowTime: partition time never gains on true time.
	SlowTime Invariant = "slow-time"
	// MonotoneTime: partition time never goes back along the log.
	MonotoneTime Invariant = "monotone-time"
	// JustifiedDenial: nothing is denied, or counted, for what was not admitted within the window.
	JustifiedDenial Invariant = "justified-denial"
	// RightWait: a denial names the first instant at which all limits have room.
	RightWait Invariant = "right-wait"
	// FrozenStill: what was frozen stays as it was.
	FrozenStill Invariant = "frozen-still"
	// AllExpires: after all windows and horizons nothing is left.
	AllExpires Invariant = "all-expires"
	// Lives: what was begun comes to an end when all is well again.
	Lives Invariant = "lives"
	// NoPanic: nothing panics, and what was written is read back.
	NoPanic Invariant = "no-panic"
)

// Invariants are all of them.
var Invariants = []Invariant{
	ExactCap, CapInStamps, UsageKept, OncePerID, OneOwner, PolicyInOrder, EqualStates, SlowTime, MonotoneTime,
	JustifiedDenial, RightWait, FrozenStill, AllExpires, Lives, NoPanic,
}

// Violation is a broken invariant.
type Violation struct {
	Invariant Invariant
	Text      string
}

func (v Violation) String() string { return string(v.Invariant) + ": " + v.Text }

// mostViolations is how many violations of a run are kept: the first of each invariant.
const mostViolations = 20

// grain is how far two stamps can be apart beyond the span between them, in nanoseconds: each is rounded down, and so
// is the base of a move.
const grain = 64

// admission is one charge of an allowed check.
type admission struct {
	class string
	cost  int64
	at    fsm.Time // in the time of the slot's present owner
	true  int64
}

// record is a decision that has to be repeated.
type record struct {
	check  fsm.Check
	reason fsm.Reason
	ends   fsm.Time // in the time of the slot's present owner
}

// holder is who decides for a principal's slot.
type holder struct {
	part   int
	epoch  fsm.Epoch
	frozen bool
}

// abort is a plan that was undone at one of its ends.
type abort struct {
	plan fsm.PlanID
	part int
}

// judge counts by itself what the partitions do.
type judge struct {
	w          *world
	found      []Violation
	holders    map[string]*holder
	admissions map[string][]admission // by principal, in order of their true instants
	records    map[string]*record
	parts      []*partTime
	bases      map[fsm.PlanID]fsm.Time
	frozen     map[fsm.PlanID]fsm.Manifest
	ended      map[fsm.PlanID]bool
	aborted    map[abort]bool
}

// partTime is what the judge knows of a partition.
type partTime struct {
	time     fsm.Time
	source   int64 // true instant of the stamp that became time
	offset   int64 // of partition time to true time, the least so far
	revision fsm.Revision
}

func newJudge(w *world) *judge {
	return &judge{
		w: w, holders: map[string]*holder{}, admissions: map[string][]admission{}, records: map[string]*record{},
		bases: map[fsm.PlanID]fsm.Time{}, frozen: map[fsm.PlanID]fsm.Manifest{}, ended: map[fsm.PlanID]bool{},
		aborted: map[abort]bool{},
	}
}

func (j *judge) breaks(i Invariant, format string, args ...any) {
	known := slices.ContainsFunc(j.found, func(v Violation) bool { return v.Invariant == i })
	if !known && len(j.found) < mostViolations {
		j.found = append(j.found, Violation{i, fmt.Sprintf("at %.3f s: ", seconds(j.w.now)) + fmt.Sprintf(format, args...)})
	}
}

func seconds(nanos int64) float64 { return float64(nanos) / float64(second) }

// applied takes an entry that was applied for the first time.
func (j *judge) applied(p *part, index int, e *entry) {
	a, t := e.answers, j.timeOf(p)
	if a.Refused == fsm.ReasonStaleTerm {
		if e.command.Term == e.term {
			j.breaks(SlowTime, "%v, entry %d is refused and was stamped in its own term", p, index)
		}
		return
	}
	if a.Time < t.time {
		j.breaks(MonotoneTime, "%v, entry %d: from %d to %d", p, index, t.time, a.Time)
	}
	if stamp := e.command.Stamp; stamp >= t.time {
		o := int64(stamp) - e.drawn
		if o-1 > t.offset {
			j.breaks(SlowTime, "%v, entry %d: it gains %.4f s", p, index, seconds(o-t.offset))
		}
		t.offset, t.source = min(t.offset, o), e.drawn
	}
	t.time = a.Time
	j.planStep(p, e)
	if e.command.Kind == fsm.KindInstall && a.Refused == fsm.ReasonUnspecified {
		t.revision = max(t.revision, e.command.Install.Revision)
	}
	if a.Forgiven != nil {
		j.forgiven(p, e.command.Forgive, a.Forgiven)
	}
	for i := range a.Decisions {
		j.decided(p, e, &e.checks[i], &a.Decisions[i])
	}
	for i := range a.Usages {
		if u := &a.Usages[i]; u.Reason == fsm.ReasonAllowed {
			j.counted(p, e.command.Peeks[i].Principal, u.AsOf, u.Limits)
		}
	}
}

func (j *judge) timeOf(p *part) *partTime {
	for len(j.parts) <= p.id {
		j.parts = append(j.parts, &partTime{offset: math.MaxInt64 - 1, revision: 1})
	}
	return j.parts[p.id]
}

// decided judges one decision.
func (j *judge) decided(p *part, e *entry, c *request, d *fsm.Decision) {
	h := j.holders[c.Principal]
	mine := h.part == p.id && h.epoch == c.RouteEpoch && !h.frozen
	switch d.Reason {
	case fsm.ReasonInvalidArgument, fsm.ReasonStaleTerm, fsm.ReasonUnborn, fsm.ReasonCapacity:
		j.breaks(NoPanic, "%v answers a good check with %v %s", p, d.Reason, d.Detail)
		return
	case fsm.ReasonWrongEpoch, fsm.ReasonFrozen:
		if mine {
			j.breaks(JustifiedDenial, "%v owns the slot of %s and answers %v", p, c.Principal, d.Reason)
		}
		return
	}
	if !mine {
		j.breaks(OneOwner, "%v answers %v for %s under epoch %d: partition %d has it under epoch %d, frozen %t",
			p, d.Reason, c.Principal, c.RouteEpoch, h.part, h.epoch, h.frozen)
		if h.part != p.id {
			j.trueCap(p, e, c, d) // the admission is one, whoever let it in
			return
		}
	}
	if j.replayed(p, c, d) || !j.governed(p, c, d) {
		return
	}
	switch d.Reason {
	case fsm.ReasonAllowed:
		j.w.counts.Allows++
		j.admit(p, e, c, d.AsOf)
	case fsm.ReasonQuotaExhausted:
		j.w.counts.Denials++
		j.denied(p, c, d)
	}
	j.counted(p, c.Principal, d.AsOf, d.Limits)
	j.record(p, c, d)
}

func recordKey(c *request) string { return c.Principal + "|" + c.Gateway + "|" + c.DecisionID }

// replayed judges whether a decision repeats an earlier one, as it has to, and reports whether it does.
func (j *judge) replayed(p *part, c *request, d *fsm.Decision) bool {
	rec := j.records[recordKey(c)]
	if rec == nil || d.AsOf >= rec.ends {
		if d.Replayed || d.Reason == fsm.ReasonDecisionIDConflict {
			j.breaks(OncePerID, "%v answers %s by a record that there is none of: %v", p, recordKey(c), d.Reason)
		}
		return d.Replayed
	}
	same := rec.check.Charge == c.Charge && slices.Equal(rec.check.Also, c.Also)
	switch {
	case same && (!d.Replayed || d.Reason != rec.reason):
		j.breaks(OncePerID, "%v answers %s with %v, %v was recorded until %.6f s later",
			p, recordKey(c), d.Reason, rec.reason, seconds(int64(rec.ends-d.AsOf)))
		return d.Replayed
	case !same && d.Reason != fsm.ReasonDecisionIDConflict:
		j.breaks(OncePerID, "%v answers another payload under %s with %v", p, recordKey(c), d.Reason)
		return d.Replayed
	}
	j.w.counts.Replays++
	return true
}

func (j *judge) record(p *part, c *request, d *fsm.Decision) {
	if !d.Recorded || d.Replayed {
		return
	}
	_, settings := j.policyOf(p).ClassOf(c.Class)
	j.records[recordKey(c)] = &record{
		check: c.Check, reason: d.Reason, ends: d.AsOf + fsm.Time(settings.ReplayHorizonNanos),
	}
}

func (j *judge) policyOf(p *part) *policy.Policy { return j.w.installs[j.timeOf(p).revision].Policy }

// governed judges the policy of a decision, and reports whether it was decided.
func (j *judge) governed(p *part, c *request, d *fsm.Decision) bool {
	inForce := j.timeOf(p).revision
	want := fsm.ReasonUnspecified
	switch {
	case c.PolicyRevision == 0 || c.PolicyRevision == inForce:
	case c.PolicyRevision < inForce:
		want = fsm.ReasonPolicyStale
	default:
		want = fsm.ReasonPolicyBehind
	}
	refused := d.Reason == fsm.ReasonPolicyStale || d.Reason == fsm.ReasonPolicyBehind
	if refused && d.Reason != want || !refused && want != fsm.ReasonUnspecified {
		j.breaks(PolicyInOrder, "%v answers a check of revision %d with %v, revision %d is in force",
			p, c.PolicyRevision, d.Reason, inForce)
	}
	if d.Revision != inForce {
		j.breaks(PolicyInOrder, "%v decides under revision %d, revision %d is in force", p, d.Revision, inForce)
	}
	return !refused
}

// charges are all that a check asks for.
func charges(c *request) []fsm.Charge { return append([]fsm.Charge{c.Charge}, c.Also...) }

func (j *judge) admit(p *part, e *entry, c *request, at fsm.Time) {
	instant := max(e.drawn, j.timeOf(p).source, c.arrived)
	for _, x := range charges(c) {
		j.admissions[c.Principal] = append(j.admissions[c.Principal], admission{x.Class, x.Cost, at, instant})
	}
	all := j.admissions[c.Principal]
	slices.SortStableFunc(all, func(a, b admission) int { return int(a.true - b.true) })
	for i := range caps {
		l := &caps[i]
		j.window(ExactCap, p, c.Principal, l, func(a *admission) int64 { return a.true }, l.window-grain)
		j.window(CapInStamps, p, c.Principal, l, func(a *admission) int64 { return int64(a.at) }, l.window)
	}
}

// trueCap takes an admission by a partition that does not own the slot.
func (j *judge) trueCap(p *part, e *entry, c *request, d *fsm.Decision) {
	if d.Reason == fsm.ReasonAllowed && !d.Replayed {
		j.admit(p, e, c, d.AsOf)
	}
}

// window judges a limit over all windows that end with one of the last admissions, by one of the clocks. Both order
// them alike.
func (j *judge) window(i Invariant, p *part, principal string, l *capped, of func(*admission) int64, span int64) {
	all := j.admissions[principal]
	for last := max(0, len(all)-8); last < len(all); last++ {
		end, sum := of(&all[last]), int64(0)
		for k := last; k >= 0 && len(all)-k < 200; k-- {
			if of(&all[k]) > end-span && of(&all[k]) <= end && slices.Contains(l.classes, all[k].class) {
				sum += all[k].cost
			}
		}
		if sum > l.max {
			j.breaks(i, "%v: %d of %s in a window of %s (%d, %.0f s) up to %.6f s",
				p, sum, principal, l.name, l.max, seconds(l.window), seconds(end))
		}
	}
}

// sum is what was admitted to classes later than after, by the owner's time.
func (j *judge) sum(principal string, classes []string, after fsm.Time) (sum int64) {
	for _, a := range j.admissions[principal] {
		if a.at > after && slices.Contains(classes, a.class) {
			sum += a.cost
		}
	}
	return sum
}

// scopes are the classes that a limit can count, by the beginning of its name.
var scopes = map[byte][]string{'a': {"a"}, 'b': {"b"}, 'd': {"x", "c"}}

func scopeOf(limit string) []string {
	if limit == "both" {
		return []string{"a", "b"}
	}
	return scopes[limit[0]]
}

// counted compares what limits count with what was admitted: no limit counts more, and those that were always there
// count all of it.
func (j *judge) counted(p *part, principal string, asOf fsm.Time, limits []fsm.LimitState) {
	for i := range limits {
		l := &limits[i]
		want := j.sum(principal, scopeOf(l.Name), asOf-fsm.Time(l.WindowNanos))
		if l.Used > want {
			j.breaks(JustifiedDenial, "%v counts %d of %s in %s, %d were admitted", p, l.Used, principal, l.Name, want)
		}
		if exactly(l) && l.Used < want {
			j.breaks(UsageKept, "%v counts %d of %s in %s, %d were admitted", p, l.Used, principal, l.Name, want)
		}
	}
}

// denied judges a denial: the limit that it names has no room.
func (j *judge) denied(p *part, c *request, d *fsm.Decision) {
	asked := int64(0)
	for _, x := range charges(c) {
		if slices.Contains(scopeOf(d.Limit), x.Class) {
			asked += x.Cost
		}
	}
	full := false
	for i := range d.Limits {
		l := &d.Limits[i]
		left := j.sum(c.Principal, scopeOf(l.Name), d.AsOf-fsm.Time(l.WindowNanos))
		full = full || l.Name == d.Limit && left+asked > l.Max
		if exactly(l) && len(c.Also) == 0 {
			j.waited(p, c, d, l)
		}
	}
	if !full {
		j.breaks(JustifiedDenial, "%v denies %s by %s, which has room for %d", p, c.Principal, d.Limit, asked)
	}
}

// waited judges the wait that a denial names, by one of its limits.
func (j *judge) waited(p *part, c *request, d *fsm.Decision, l *fsm.LimitState) {
	lacks := func(at fsm.Time) bool {
		return j.sum(c.Principal, scopeOf(l.Name), at-fsm.Time(l.WindowNanos))+c.Cost > l.Max
	}
	if lacks(d.RetryAt) {
		j.breaks(RightWait, "%v has %s come back at %d, and %s has no room then", p, c.Principal, d.RetryAt, l.Name)
	}
	if l.Name == d.Limit && !lacks(d.RetryAt-1) {
		j.breaks(RightWait, "%v has %s come back at %d, and %s has room before", p, c.Principal, d.RetryAt, l.Name)
	}
}

// exactly reports that a limit counts all that was admitted in its window.
func exactly(l *fsm.LimitState) bool {
	return !l.Carried && slices.ContainsFunc(caps, func(c capped) bool { return c.name == l.Name && !c.shared })
}

// forgiven takes a forgive, after which what was admitted counts for nothing.
func (j *judge) forgiven(p *part, f *fsm.Forgive, out *fsm.Forgiven) {
	h := j.holders[f.Principal]
	mine := h.part == p.id && h.epoch == f.RouteEpoch && !h.frozen
	if mine != (out.Reason == fsm.ReasonAllowed) {
		j.breaks(OneOwner, "%v forgives %s under epoch %d: %v, and partition %d has it under epoch %d, frozen %t",
			p, f.Principal, f.RouteEpoch, out.Reason, h.part, h.epoch, h.frozen)
	}
	if out.Reason != fsm.ReasonAllowed {
		return
	}
	dropped := map[string]int64{}
	for _, a := range out.Amounts {
		dropped[a.Class] = a.Amount
	}
	for _, class := range []string{"a", "b"} {
		least := j.sum(f.Principal, []string{class}, j.timeOf(p).time-fsm.Time(3*second))
		if (f.Class == "" || f.Class == class) && dropped[class] < least {
			j.breaks(UsageKept, "%v forgives %s %d of class %s, at least %d counted",
				p, f.Principal, dropped[class], class, least)
		}
	}
	j.admissions[f.Principal] = slices.DeleteFunc(j.admissions[f.Principal], func(a admission) bool {
		return f.Class == "" || f.Class == a.class
	})
	j.w.counts.Forgiven++
}

// planStep notes what the steps of plans come to.
func (j *judge) planStep(p *part, e *entry) {
	plan, a := e.command.Plan, e.answers
	if plan == 0 || a.Refused != fsm.ReasonUnspecified || j.ended[plan] {
		return
	}
	switch e.command.Kind {
	case fsm.KindFreeze:
		if _, known := j.frozen[plan]; !known {
			j.frozen[plan] = *a.Manifest
			j.eachOf(e.command.Ranges, func(_ string, h *holder) { h.frozen = true })
		}
	case fsm.KindOpen:
		if _, known := j.bases[plan]; !known {
			j.bases[plan] = a.Time
		}
	case fsm.KindActivate:
		j.ended[plan] = true
		shift := j.bases[plan] - j.frozen[plan].FrozenAt
		j.eachOf(j.w.ranges[plan], func(principal string, h *holder) {
			*h = holder{part: p.id, epoch: e.command.Epoch}
			j.move(principal, shift)
		})
	case fsm.KindAbort:
		if j.aborted[abort{plan, p.id}] {
			return // made again, when another plan may have frozen the same
		}
		j.aborted[abort{plan, p.id}] = true
		j.eachOf(j.w.ranges[plan], func(_ string, h *holder) {
			if h.part == p.id {
				h.frozen = false
			}
		})
	}
}

// move moves the times of a principal to those of another partition.
func (j *judge) move(principal string, shift fsm.Time) {
	for i := range j.admissions[principal] {
		j.admissions[principal][i].at += shift
	}
	for _, rec := range j.records {
		if rec.check.Principal == principal {
			rec.ends += shift
		}
	}
}

func (j *judge) eachOf(ranges []fsm.SlotRange, f func(principal string, h *holder)) {
	for _, principal := range principals {
		s := slotOf(principal)
		if slices.ContainsFunc(ranges, func(r fsm.SlotRange) bool { return r.First <= s && s <= r.Last }) {
			f(principal, j.holders[principal])
		}
	}
}
