package check

import (
	"slices"
	"time"

	"github.com/quorate/quorate/jepsen/history"
)

// caps checks the limits of a revision against everything that they count. The last admission of a set that holds
// one under this revision and none under a newer one was decided under this revision: a policy comes into force at
// one point of a log. So it had to find room beside all others of the set, whatever revision decided those.
func (c *checker) caps(r *history.Revision, admissions []admission) {
	classes := []string{history.DefaultClass}
	for name := range r.Policy.Classes {
		classes = append(classes, name)
	}
	slices.Sort(classes)
	for _, class := range classes {
		for _, l := range r.Policy.Rule(class) {
			since := c.known.since(r.Number, l.Over)
			counted := func(a admission) bool {
				return a.revision <= r.Number && a.from > since && slices.Contains(l.Over, c.countedIn(a))
			}
			judged := func(a admission) bool { return a.revision == r.Number && c.countedIn(a) == class }
			c.windows(brokenCap, r, l.Limit, admissions, counted, judged)
		}
	}
}

// countedIn is the class in which an admission was counted when it was made.
func (c *checker) countedIn(a admission) string {
	return c.revision(a.revision).Policy.Resolve(a.check.Class)
}

// carried checks the rules of earlier revisions that are enforced until the present one is exact, name by name.
func (c *checker) carried(r *history.Revision, admissions []admission) {
	names := map[string]bool{}
	for _, a := range admissions {
		names[a.check.Class] = true
	}
	for name := range names {
		earlier, until := c.known.carried(r.Number, name)
		if earlier == nil {
			continue
		}
		for _, l := range earlier.Policy.Rule(name) {
			if l.Max == 0 {
				continue
			}
			since := c.known.since(earlier.Number, l.Over)
			judged := func(a admission) bool {
				return a.revision == r.Number && a.check.Class == name && a.to < until
			}
			counted := func(a admission) bool {
				if a.from <= since || a.revision > r.Number || a.revision == r.Number && !judged(a) {
					return false
				}
				return slices.Contains(l.Over, c.countedIn(a)) || a.check.Class == name && a.revision > earlier.Number
			}
			c.windows(brokenCarry, r, l.Limit, admissions, counted, judged)
		}
	}
}

// windows looks for a window with more than a limit admits. admissions are in the order of their from. Only windows
// that hold a judged admission matter.
func (c *checker) windows(
	kind string, r *history.Revision, l history.Limit, admissions []admission, counted, judged func(admission) bool,
) {
	window := time.Duration(l.Window)
	for i, oldest := range admissions {
		if !counted(oldest) {
			continue
		}
		sum, matters := int64(0), false
		var ids []string
		for _, a := range admissions[i:] {
			if a.from >= oldest.from+window {
				break
			}
			if counted(a) && a.to-oldest.from < window {
				sum += a.check.Cost
				matters = matters || judged(a)
				ids = append(ids, a.check.ID)
			}
		}
		switch {
		case !matters:
		case sum == l.Max:
			c.Reached++
			if kind == brokenCarry {
				c.Carried++
			}
		case sum > l.Max:
			c.violated(kind, "%s: %d admitted within %v from %v, limit %s of revision %d is %d: %v",
				oldest.check.Principal, sum, window, oldest.from, l.Name, r.Number, l.Max, ids)
		}
	}
}
