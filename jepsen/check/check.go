package check

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/quorate/quorate/jepsen/history"
)

// maxViolations bounds how many violations are told in full.
const maxViolations = 20

// replayHorizon is for how long a decision is recorded at least.
const replayHorizon = 30 * time.Second

// What a history can show to be broken.
const (
	brokenCap       = "cap"       // more was admitted in a window than the limit
	brokenCarry     = "carry"     // more was admitted than an earlier rule allows that should still be enforced
	brokenClosed    = "closed"    // an admission to a class that is disabled or whose limit is 0
	brokenID        = "id"        // a decision id with two decisions
	brokenStale     = "stale"     // an old revision decided after it was said that none does
	brokenBackwards = "backwards" // a revision decided after a newer one had
	brokenRevision  = "revision"  // a revision that there was not, or not yet
	brokenAnswer    = "answer"    // an error that no fault excuses, or an answer that contradicts itself
	brokenRemaining = "remaining" // a room that is negative, or larger than it can be
	brokenSum       = "sum"       // a room that does not go with what was admitted
)

// Report is what a history shows.
type Report struct {
	Admitted, Denied, Replayed, Unknown int
	Errors                              map[string]int // by reason
	Reached                             int            // windows that were certainly full
	Carried                             int            // those of them by an earlier rule that was still enforced
	Sums                                int            // rooms that were compared with what was admitted
	Exact                               int            // those of them that could not have been different by one
	Slowest                             time.Duration  // the longest that a check was without a decision that got one
	ByRevision                          map[uint64]int // decisions
	Violations                          map[string]int // by kind
	Texts                               []string       // of the first violations

	texts map[string][]string // the same by kind
}

// String is one line.
func (r *Report) String() string {
	var reasons []string
	for _, reason := range slices.Sorted(maps.Keys(r.Errors)) {
		word := reason
		if word == "" {
			word = "no answer"
		}
		reasons = append(reasons, fmt.Sprintf("%s %d", word, r.Errors[reason]))
	}
	return fmt.Sprintf("admitted %d, denied %d, answered from records %d, outcome not known %d, full windows %d, "+
		"%d of them by earlier rules, sums %d, %d of them exact, longest wait %v, decisions by revision %v; "+
		"attempts refused: %s",
		r.Admitted, r.Denied, r.Replayed, r.Unknown, r.Reached, r.Carried, r.Sums, r.Exact,
		r.Slowest.Round(time.Millisecond), r.ByRevision, strings.Join(reasons, ", "))
}

// Err is what was broken; nil when nothing was.
func (r *Report) Err() error {
	if len(r.Violations) == 0 {
		return nil
	}
	return fmt.Errorf("broken: %v\n%s", r.Violations, strings.Join(r.Texts, "\n"))
}

// excused are the errors that faults excuse; the empty one is no answer. A cost can be above a limit that was lowered.
var excused = map[string]bool{
	"": true, "not_leader": true, "no_quorum": true, "outcome_unknown": true, "policy_lease_expired": true,
	"overloaded": true, "wrong_epoch": true, "cost_exceeds_limit": true, "frozen": true,
}

// checker goes through one history.
type checker struct {
	*Report
	history *history.History
	known   *knowledge
	ids     map[idName]int // checks that use one

	horizons map[string]time.Duration // by class, as far as they were asked for
}

// idName is what a decision is repeated by.
type idName struct{ principal, gateway, id string }

// Examine goes through a history.
func Examine(h *history.History) *Report {
	c := &checker{
		history: h, known: learn(h.Revisions), ids: map[idName]int{}, horizons: map[string]time.Duration{},
		Report: &Report{
			Errors: map[string]int{}, ByRevision: map[uint64]int{}, Violations: map[string]int{}, texts: map[string][]string{},
		},
	}
	principals, peeks := map[string][]*history.Check{}, map[string][]*history.Check{}
	for _, check := range h.Checks {
		principals[check.Principal] = append(principals[check.Principal], check)
		c.ids[idName{check.Principal, check.Gateway, check.ID}]++
	}
	for _, peek := range h.Peeks {
		peeks[peek.Principal] = append(peeks[peek.Principal], peek)
	}
	for _, name := range slices.Sorted(maps.Keys(principals)) {
		checks := principals[name]
		var admissions []admission
		for _, check := range checks {
			c.answers(check)
			for _, a := range admissionsOf(check) {
				if r := c.revision(a.revision); r != nil {
					a.class = r.Policy.Resolve(check.Class)
					admissions = append(admissions, a)
				}
			}
		}
		slices.SortFunc(admissions, func(a, b admission) int { return cmp.Compare(a.from, b.from) })
		c.order(checks)
		c.sums(checks, admissions, peeks[name])
		under := spans(admissions)
		for i := range h.Revisions {
			r := &h.Revisions[i]
			if s, ok := under[r.Number]; ok {
				c.caps(r, admissions, s)
				c.carried(r, admissions, s)
			}
		}
	}
	return c.Report
}

func (c *checker) violated(kind, format string, args ...any) {
	c.Violations[kind]++
	if len(c.Texts) >= maxViolations && len(c.texts[kind]) >= maxTold {
		return
	}
	text := fmt.Sprintf(format, args...)
	if len(c.Texts) < maxViolations {
		c.Texts = append(c.Texts, kind+": "+text)
	}
	if len(c.texts[kind]) < maxTold {
		c.texts[kind] = append(c.texts[kind], text)
	}
}

// revision is that with a number; nil when there was none.
func (c *checker) revision(number uint64) *history.Revision {
	i, ok := slices.BinarySearchFunc(c.history.Revisions, number, func(r history.Revision, n uint64) int {
		return cmp.Compare(r.Number, n)
	})
	if !ok {
		return nil
	}
	return &c.history.Revisions[i]
}

// answers looks at what was said to one check.
func (c *checker) answers(check *history.Check) {
	known, first := false, history.Never
	for i := range check.Attempts {
		a := &check.Attempts[i]
		if a.Answer.Decided() {
			first = min(first, a.Received)
		}
		switch {
		case !a.Answer.Decided():
			c.Errors[a.Answer.Reason]++
			conflict := a.Answer.Reason == "decision_id_conflict" && c.ids[idName{check.Principal, check.Gateway, check.ID}] > 1
			if !excused[a.Answer.Reason] && !conflict {
				c.violated(brokenAnswer, "%s of class %s: %+v", check.ID, check.Class, a)
			}
			continue
		case a.Answer.Replayed:
			c.Replayed++
		default:
			c.ByRevision[a.Answer.Revision]++
		}
		known = true
		c.room(check, a)
		c.decidedUnder(check, a)
	}
	if known {
		c.Slowest = max(c.Slowest, first-check.First())
	}
	_, admitted := admissionOf(check)
	switch {
	case admitted:
		c.Admitted++
	case known:
		c.Denied++
	default:
		c.Unknown++
	}
	c.sameAnswer(check)
}

// room checks what an answer says is left.
func (c *checker) room(check *history.Check, a *history.Attempt) {
	if a.Answer.Remaining < 0 {
		c.violated(brokenRemaining, "%s: %d remain: %+v", check.ID, a.Answer.Remaining, a.Answer)
	}
	for _, l := range a.Answer.Limits {
		spent := int64(0)
		if a.Answer.Allowed && !a.Answer.Replayed {
			spent = check.Cost
		}
		if l.Remaining < 0 || l.Remaining > l.Limit-spent {
			c.violated(brokenRemaining, "%s of cost %d: %d of %d remain of %s: %+v",
				check.ID, check.Cost, l.Remaining, l.Limit, l.Name, a.Answer)
		}
	}
}

// decidedUnder checks the revision of an answer: that there was one, and not a newer one for sure.
func (c *checker) decidedUnder(check *history.Check, a *history.Attempt) {
	r := c.revision(a.Answer.Revision)
	switch {
	case r == nil || r.Policy.Version != a.Answer.Version:
		c.violated(brokenRevision, "%s was decided under revision %d, %q, which there was not: %+v",
			check.ID, a.Answer.Revision, a.Answer.Version, a)
		return
	case r.Began > a.Received:
		c.violated(brokenRevision, "%s was decided under revision %d before it was made: %+v", check.ID, r.Number, a)
	}
	closed := r.Policy.ClassOf(r.Policy.Resolve(check.Class)).Disabled
	if closed && a.Answer.Allowed {
		c.violated(brokenClosed, "%s: class %s is disabled in revision %d: %+v", check.ID, check.Class, r.Number, a)
	}
	if !closed && a.Answer.Reason == "endpoint_disabled" {
		c.violated(brokenClosed, "%s: class %s is not disabled in revision %d: %+v", check.ID, check.Class, r.Number, a)
	}
	sent := a.Sent
	if a.Answer.Replayed {
		sent = check.First()
	}
	for i := range c.history.Revisions {
		newer := &c.history.Revisions[i]
		if newer.Number > r.Number && newer.Active < sent {
			c.violated(brokenStale, "%s was sent at %v and decided under revision %d, after %d was said to be active "+
				"everywhere at %v: %+v", check.ID, sent, r.Number, newer.Number, newer.Active, a)
			return
		}
	}
}

// horizon is for how long a decision on a class is recorded at least, whatever revision decides.
func (c *checker) horizon(class string) time.Duration {
	if horizon, ok := c.horizons[class]; ok {
		return horizon
	}
	horizon := history.Never
	for i := range c.history.Revisions {
		p := &c.history.Revisions[i].Policy
		of := time.Duration(p.ClassOf(p.Resolve(class)).ReplayHorizon)
		if of == 0 {
			of = replayHorizon
		}
		horizon = min(horizon, of)
	}
	if len(c.horizons) < maxNames {
		c.horizons[class] = horizon
	}
	return horizon
}

// sameAnswer checks that a decision id has one decision.
func (c *checker) sameAnswer(check *history.Check) {
	horizon := c.horizon(check.Class)
	for i := range check.Attempts {
		a := &check.Attempts[i]
		if !a.Answer.Decided() || !a.Answer.Recorded {
			continue
		}
		for j := range check.Attempts {
			b := &check.Attempts[j]
			if i == j || !b.Answer.Decided() || max(a.Received, b.Received)-check.First() >= horizon {
				continue
			}
			// b was decided after a, or both were recorded: then they are the same record.
			if b.Sent <= a.Received && !b.Answer.Recorded {
				continue
			}
			fresh := !b.Answer.Replayed && (!a.Answer.Replayed || b.Sent > a.Received)
			if fresh || a.Answer.Allowed != b.Answer.Allowed || a.Answer.Revision != b.Answer.Revision ||
				a.Answer.Remaining != b.Answer.Remaining {
				c.violated(brokenID, "%s has two decisions: %+v and %+v", check.ID, a, b)
				return
			}
		}
	}
}

// order checks that a principal's revisions never go back: one answered before another check was sent.
func (c *checker) order(checks []*history.Check) {
	type decision struct {
		*history.Attempt
		id string
	}
	var bySent []decision
	for _, check := range checks {
		for i := range check.Attempts {
			if a := &check.Attempts[i]; a.Answer.Decided() && !a.Answer.Replayed {
				bySent = append(bySent, decision{a, check.ID})
			}
		}
	}
	byReceived := slices.Clone(bySent)
	slices.SortFunc(bySent, func(a, b decision) int { return cmp.Compare(a.Sent, b.Sent) })
	slices.SortFunc(byReceived, func(a, b decision) int { return cmp.Compare(a.Received, b.Received) })
	newest, next := decision{}, 0
	for _, d := range bySent {
		for ; next < len(byReceived) && byReceived[next].Received < d.Sent; next++ {
			if r := byReceived[next]; newest.Attempt == nil || r.Answer.Revision > newest.Answer.Revision {
				newest = r
			}
		}
		if newest.Attempt != nil && newest.Answer.Revision > d.Answer.Revision {
			c.violated(brokenBackwards, "%s was decided under revision %d, after %s under %d: %+v, %+v",
				d.id, d.Answer.Revision, newest.id, newest.Answer.Revision, *d.Attempt, *newest.Attempt)
		}
	}
}
