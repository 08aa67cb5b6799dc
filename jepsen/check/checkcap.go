package check

import (
	"slices"
	"sort"
	"time"

	"github.com/quorate/quorate/jepsen/history"
)

// caps checks the limits of a revision against everything that they count. The last admission of a set that holds
// one under this revision and none under a newer one was decided under this revision: a policy comes into force at
// one point of a log. So it had to find room beside all others of the set, whatever revision decided those.
func (c *checker) caps(r *history.Revision, admissions []admission, under span) {
	classes := []string{history.DefaultClass}
	for name := range r.Policy.Classes {
		classes = append(classes, name)
	}
	slices.Sort(classes)
	for _, class := range classes {
		for _, l := range c.ruleOf(r, class) {
			since := c.known.since(r.Number, l.Over)
			counted := func(a admission) bool {
				return a.revision <= r.Number && a.from > since && slices.Contains(l.Over, a.class)
			}
			judged := func(a admission) bool { return a.revision == r.Number && a.class == class }
			c.windows(brokenCap, r, l.Limit, admissions, under, counted, judged)
		}
	}
}

// ruleOf is what a check for a name has to meet under a revision.
func (c *checker) ruleOf(r *history.Revision, name string) []history.Scoped {
	_, known := c.known.of(r.Number)
	return known.rule(name)
}

// span is the first and the last of the admissions under a revision.
type span struct{ first, last int }

// spans are where the admissions under each revision are.
func spans(admissions []admission) map[uint64]span {
	spans := map[uint64]span{}
	for i, a := range admissions {
		s, ok := spans[a.revision]
		if !ok {
			s.first = i
		}
		s.last = i
		spans[a.revision] = s
	}
	return spans
}

// carried checks the rules of earlier revisions that are enforced until the present one is exact, name by name.
func (c *checker) carried(r *history.Revision, admissions []admission, under span) {
	names := map[string]bool{}
	for _, a := range admissions[under.first : under.last+1] {
		names[a.check.Class] = true
	}
	for name := range names {
		earlier, until := c.known.carried(r.Number, name)
		if earlier == nil {
			continue
		}
		for _, l := range c.ruleOf(earlier, name) {
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
				return slices.Contains(l.Over, a.class) || a.check.Class == name && a.revision > earlier.Number
			}
			c.windows(brokenCarry, r, l.Limit, admissions, under, counted, judged)
		}
	}
}

// windows looks for a window with more than a limit admits. admissions are in the order of their from. Only windows
// that hold a judged admission matter; under says where those are.
func (c *checker) windows(
	kind string, r *history.Revision, l history.Limit, admissions []admission, under span,
	counted, judged func(admission) bool,
) {
	window := time.Duration(l.Window)
	first, last := -1, -1
	for i := under.first; i <= under.last; i++ {
		if judged(admissions[i]) {
			last = i
			if first < 0 {
				first = i
			}
		}
	}
	if first < 0 {
		return
	}
	begin := sort.Search(first, func(i int) bool { return admissions[i].from+window > admissions[first].from })
	for i := begin; i <= last; i++ {
		if oldest := admissions[i]; counted(oldest) {
			c.window(kind, r, l, admissions[i:], oldest, counted, judged)
		}
	}
}

// window looks at the window that begins with the oldest of admissions.
func (c *checker) window(
	kind string, r *history.Revision, l history.Limit, admissions []admission, oldest admission,
	counted, judged func(admission) bool,
) {
	window := time.Duration(l.Window)
	sum, matters := int64(0), false
	each := func(f func(admission)) {
		for _, a := range admissions {
			if a.from >= oldest.from+window {
				break
			}
			if a.to-oldest.from < window && counted(a) {
				f(a)
			}
		}
	}
	each(func(a admission) {
		sum += a.check.Cost
		matters = matters || judged(a)
	})
	switch {
	case !matters:
	case sum == l.Max:
		c.Reached++
		if kind == brokenCarry {
			c.Carried++
		}
	case sum > l.Max:
		var ids []string
		each(func(a admission) { ids = append(ids, a.check.ID) })
		c.violated(kind, "%s: %d admitted within %v from %v, limit %s of revision %d is %d: %v",
			oldest.check.Principal, sum, window, oldest.from, l.Name, r.Number, l.Max, ids)
	}
}
