package check

import (
	"slices"
	"sort"
	"time"

	"github.com/quorate/quorate/jepsen/history"
)

// sums compares the room that each decision told, limit by limit, with what had been admitted by then. What was
// certainly admitted before and within the window is missing from the room: else usage was lost. Where the window is
// longer than the history, nothing else than what may have been admitted by then is missing: else usage was made up.
// Only limits count under which everything is known, so that no earlier rule is enforced beside them.
func (c *checker) sums(checks []*history.Check, admissions []admission, peeks []*history.Check) {
	for _, check := range slices.Concat(checks, peeks) {
		for i := range check.Attempts {
			a := &check.Attempts[i]
			if len(a.Answer.Limits) == 0 || a.Answer.Replayed {
				continue
			}
			if r := c.revision(a.Answer.Revision); r != nil {
				c.sumsOf(check, a, r, checks, admissions)
			}
		}
	}
}

func (c *checker) sumsOf(
	check *history.Check, a *history.Attempt, r *history.Revision, checks []*history.Check, admissions []admission,
) {
	_, known := c.known.of(r.Number)
	if known.exact(check.Class).most > a.Sent {
		return
	}
	for _, l := range known.rule(check.Class) {
		told := slices.IndexFunc(a.Answer.Limits, func(t history.LimitAnswer) bool {
			return t.Name == l.Name && t.Limit == l.Max
		})
		if told < 0 {
			continue
		}
		room := a.Answer.Limits[told].Remaining
		if room < 0 || a.Answer.Allowed && room > l.Max-check.Cost {
			continue // which is wrong already
		}
		least := c.least(check, a, r, l, admissions)
		c.Sums++
		if room > max(0, l.Max-least) {
			c.violated(brokenSum, "%s of %s, class %s: at least %d of %d are used of %s, and %d remain: %+v",
				check.ID, check.Principal, check.Class, least, l.Max, l.Name, room, a)
			continue
		}
		if time.Duration(l.Window) < a.Received || len(c.history.Revisions) > 1 && !c.unchanged(check.Class, l) {
			continue
		}
		most := c.most(check, a, l, checks)
		if room < max(0, l.Max-most) {
			c.violated(brokenSum, "%s of %s, class %s: at most %d of %d are used of %s, and only %d remain: %+v",
				check.ID, check.Principal, check.Class, most, l.Max, l.Name, room, a)
		}
		if least == most {
			c.Exact++
		}
	}
}

// least is what was used of a limit for sure when an answer was given: what was admitted before it was asked for, and
// within the window.
func (c *checker) least(
	check *history.Check, a *history.Attempt, r *history.Revision, l history.Scoped, admissions []admission,
) (sum int64) {
	since := max(c.known.since(r.Number, l.Over), a.Received-time.Duration(l.Window))
	first := sort.Search(len(admissions), func(i int) bool { return admissions[i].from > since })
	for _, other := range admissions[first:] {
		if other.from >= a.Sent {
			break // they are in this order
		}
		if other.check != check && other.to < a.Sent && other.from > since && slices.Contains(l.Over, other.class) {
			sum += other.check.Cost
		}
	}
	if a.Answer.Allowed {
		sum += check.Cost
	}
	return sum
}

// most is what can have been used at most: what was admitted, or may have been, when the answer came.
func (c *checker) most(
	check *history.Check, a *history.Attempt, l history.Scoped, checks []*history.Check,
) (sum int64) {
	for _, other := range checks {
		if other != check && c.mayBeIn(other, l) && mayCount(other, a.Received) {
			sum += other.Cost
		}
	}
	if a.Answer.Allowed {
		sum += check.Cost
	}
	return sum
}

// mayBeIn reports whether a limit counts a check, in any revision.
func (c *checker) mayBeIn(check *history.Check, l history.Scoped) bool {
	return slices.ContainsFunc(c.history.Revisions, func(r history.Revision) bool {
		return slices.Contains(l.Over, r.Policy.Resolve(check.Class))
	})
}

// mayCount reports whether a check can have been admitted by an instant.
func mayCount(c *history.Check, by time.Duration) bool {
	if _, admitted := admissionOf(c); admitted {
		return c.First() < by
	}
	for i := range c.Attempts {
		if a := &c.Attempts[i]; !a.Answer.Decided() && a.Sent < by {
			return true
		}
	}
	return false
}

// unchanged reports whether a limit and the classes that it counts have been the same in all revisions.
func (c *checker) unchanged(class string, l history.Scoped) bool {
	for i := range c.history.Revisions {
		rule := c.history.Revisions[i].Policy.Rule(class)
		if !slices.ContainsFunc(rule, func(s history.Scoped) bool {
			return s.Limit == l.Limit && slices.Equal(s.Over, l.Over)
		}) {
			return false
		}
	}
	return true
}
