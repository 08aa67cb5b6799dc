package gateways

import (
	"cmp"
	"slices"
	"time"
)

// Passed is one request that a reference gateway has let through: it was decided between when it was sent and when it
// was received, be that by the upstream or, answered, by the caller.
type Passed struct {
	Caller         int
	Sent, Received time.Duration
}

// PassedCaps finds callers of whom more than most was let through within less than the window, whenever each was
// decided. full is how many windows were used up for sure.
func PassedCaps(all []Passed, most int, window time.Duration) (full int, err error) {
	var f faults
	for caller, let := range byCaller(all) {
		slices.SortFunc(let, func(a, b Passed) int { return cmp.Compare(a.Sent, b.Sent) })
		for i, first := range let {
			n := 0
			for _, r := range let[i:] {
				if r.Received-first.Sent < window {
					n++
				}
			}
			switch {
			case n > most:
				f.add("caller %d was let through %d times in less than %v, from %v on", caller, n, window, first.Sent)
			case n == most:
				full++
			}
		}
	}
	return full, f.err()
}

// Bunched is how often one more than most came within less than the window, and within how long at the least, or the
// window. What was decided early and came late makes such, and nobody promises that there are none: it is for telling,
// not for blame.
func Bunched(all []Passed, most int, window time.Duration) (n int, shortest time.Duration) {
	shortest = window
	for _, let := range byCaller(all) {
		slices.SortFunc(let, func(a, b Passed) int { return cmp.Compare(a.Received, b.Received) })
		for i := range let {
			if i+most < len(let) && let[i+most].Received-let[i].Received < window {
				n++
				shortest = min(shortest, let[i+most].Received-let[i].Received)
			}
		}
	}
	return n, shortest
}

func byCaller(all []Passed) map[int][]Passed {
	of := map[int][]Passed{}
	for _, r := range all {
		of[r.Caller] = append(of[r.Caller], r)
	}
	return of
}
