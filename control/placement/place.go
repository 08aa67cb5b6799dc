package placement

import (
	"cmp"
	"slices"
)

// Place says which nodes a new partition is to have its replicas on: as many as are wanted, or as there are nodes that
// can take one; over zones as evenly as can be, then where there are the fewest. The first is to found it, and so to
// lead it at first. There is none where no node can take one. Of partitions that are being made say where they are to
// be, or they do not count.
func Place(in Input) []string {
	c := newCluster(in)
	fit := c.candidates(&Partition{})
	var out []string
	for len(out) < c.Replicas && len(fit) > 0 {
		to := slices.MinFunc(fit, func(a, b string) int {
			return cmp.Or(
				cmp.Compare(c.crowding(with(out, a)), c.crowding(with(out, b))),
				cmp.Compare(c.load[a], c.load[b]),
				cmp.Compare(c.leads[a], c.leads[b]),
				cmp.Compare(a, b))
		})
		out = append(out, to)
		fit = slices.DeleteFunc(fit, func(id string) bool { return id == to })
	}
	slices.SortFunc(out, func(a, b string) int {
		return cmp.Or(cmp.Compare(c.leads[a], c.leads[b]), cmp.Compare(a, b))
	})
	return out
}

// Load is a partition with what it has to do, as its leader says.
type Load struct {
	Partition
	// Splittable says that it could be split: it owns more than one slot, and nothing has just failed to.
	Splittable bool
	// Keys are those that it has, DecisionsPerSecond those that it has made lately.
	Keys, DecisionsPerSecond int64
}

// NextSplit is the partition that should be split next, by what it has to do: its keys or its decisions have reached a
// mark. A mark of 0 is none. It waits until nothing else is moved, since what is under way changes the loads.
func NextSplit(loads []Load, keysMark, rateMark int64) (Load, bool) {
	if slices.ContainsFunc(loads, func(l Load) bool { return l.Busy || l.Leader == "" }) {
		return Load{}, false
	}
	over := slices.DeleteFunc(slices.Clone(loads), func(l Load) bool {
		return !l.Splittable || l.above(keysMark, rateMark) < 1
	})
	if len(over) == 0 {
		return Load{}, false
	}
	return slices.MaxFunc(over, func(a, b Load) int {
		return cmp.Or(cmp.Compare(a.above(keysMark, rateMark), b.above(keysMark, rateMark)), cmp.Compare(b.ID, a.ID))
	}), true
}

// above is how many times the load is the mark that it is nearest to, or beyond the furthest.
func (l Load) above(keysMark, rateMark int64) (times float64) {
	if keysMark > 0 {
		times = float64(l.Keys) / float64(keysMark)
	}
	if rateMark > 0 {
		times = max(times, float64(l.DecisionsPerSecond)/float64(rateMark))
	}
	return times
}
