package check

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/quorate/quorate/jepsen/history"
)

// maxWindows is over how many windows at a time packing looks.
const maxWindows = 6

// judgeBlackBox is what the answers alone say of the cap: Examine, under whatever policies there were, and packing.
func judgeBlackBox(r *run, o *outcome) error {
	o.Counts["full_windows"] = int64(r.report.Reached)
	o.Counts["carried_windows"] = int64(r.report.Carried)
	o.took(r.report, brokenCap, brokenCarry, brokenClosed)
	by := map[string][]admission{}
	for _, c := range r.History.Checks {
		for _, a := range admissionsOf(c) {
			if under := r.known.under(a.revision); under != nil {
				a.class = under.Policy.Resolve(c.Class)
				by[c.Principal] = append(by[c.Principal], a)
			}
		}
	}
	limits := steadyLimits(r.History.Revisions)
	for _, name := range slices.Sorted(maps.Keys(by)) {
		for _, l := range limits {
			pack(o, l, by[name])
		}
	}
	return nil
}

// steady is a limit that was in force through some revisions: the same classes and window, and at most max.
type steady struct {
	history.Scoped
	first, last uint64
}

// steadyLimits are all that there were.
func steadyLimits(revisions []history.Revision) (out []steady) {
	type name struct {
		scope  string
		window history.Window
	}
	open := map[name]int{} // of out
	for i := range revisions {
		p := &revisions[i].Policy
		now := map[name]history.Scoped{}
		for _, class := range append([]string{history.DefaultClass}, slices.Sorted(maps.Keys(p.Classes))...) {
			for _, l := range p.Rule(class) {
				k := name{scope(l.Over), l.Window}
				if was, ok := now[k]; !ok || l.Max < was.Max {
					now[k] = l
				}
			}
		}
		for k := range open {
			if _, still := now[k]; !still {
				delete(open, k)
			}
		}
		for k, l := range now {
			at, ok := open[k]
			if !ok {
				open[k] = len(out)
				out = append(out, steady{l, revisions[i].Number, revisions[i].Number})
				continue
			}
			out[at].Max, out[at].last = max(out[at].Max, l.Max), revisions[i].Number
		}
	}
	slices.SortFunc(out, func(a, b steady) int {
		return cmp.Or(cmp.Compare(a.first, b.first), cmp.Compare(scope(a.Over), scope(b.Over)),
			cmp.Compare(a.Window, b.Window))
	})
	return out
}

// pack looks for m windows in a row that hold more than m times the limit, whatever the admissions' instants were
// between being asked for and answered.
func pack(o *outcome, l steady, all []admission) {
	var of []admission
	for _, a := range all {
		if a.revision >= l.first && a.revision <= l.last && slices.Contains(l.Over, a.class) {
			of = append(of, a)
		}
	}
	if len(of) == 0 {
		return
	}
	byTo := slices.Clone(of)
	slices.SortFunc(byTo, func(a, b admission) int { return cmp.Compare(a.to, b.to) })
	slices.SortFunc(of, func(a, b admission) int { return cmp.Compare(b.from, a.from) })
	for m := int64(1); m <= maxWindows; m++ {
		if i, end := overfull(of, byTo, m, l); i >= 0 {
			var proof []Item
			sum := int64(0)
			for _, a := range slices.Backward(of[:i+1]) {
				if a.to < end {
					sum += a.check.Cost
					proof = append(proof, a.item())
				}
			}
			o.violated(proof, "principal %s, class %s: %d admitted within %d windows of %v from %s, and limit %s admits %d in "+
				"each", of[i].check.Principal, of[i].class, sum, m, time.Duration(l.Window), once(of[i].from), l.Name, l.Max)
			return
		}
	}
}

// overfull finds an instant from which m windows hold too much: the index of its admission, and their end. It goes
// backwards through the instants, and keeps the sums by the order of the answers in a Fenwick tree.
func overfull(byFromDown, byTo []admission, m int64, l steady) (int, time.Duration) {
	tree := make([]int64, len(byTo)+1)
	before := func(end time.Duration) (n int) { // how many were answered before an instant
		n, _ = slices.BinarySearchFunc(byTo, end, func(a admission, end time.Duration) int { return cmp.Compare(a.to, end) })
		return n
	}
	for i := 0; i < len(byFromDown); {
		from := byFromDown[i].from
		for ; i < len(byFromDown) && byFromDown[i].from == from; i++ {
			for k := before(byFromDown[i].to) + 1; k < len(tree); k += k & -k {
				tree[k] += byFromDown[i].check.Cost
			}
		}
		end, sum := from+time.Duration(m)*time.Duration(l.Window), int64(0)
		for k := before(end); k > 0; k -= k & -k {
			sum += tree[k]
		}
		if sum > m*l.Max {
			return i - 1, end
		}
	}
	return -1, 0
}
