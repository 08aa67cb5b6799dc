package sim

import (
	"slices"
	"time"

	"github.com/quorate/quorate/fsm"
)

// limit is a limit that the checker holds the cluster to.
type limit struct {
	max    int64
	window time.Duration
}

// check is the end of a run: what can only be told of the whole history.
func (h *history) check(limits []limit) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.checkCap(limits)
	h.checkOnce()
	h.checkKept()
}

// checkCap: the costs in any interval (t-W, t] of true time never sum to more than L. It is enough to look
// at the intervals that end with an admission.
func (h *history) checkCap(limits []limit) {
	by := map[string][]admission{}
	for _, a := range h.admissions {
		by[a.principal] = append(by[a.principal], a)
	}
	for principal, of := range by {
		slices.SortStableFunc(of, func(a, b admission) int { return a.at.Compare(b.at) })
		for _, l := range limits {
			sum, from := int64(0), 0
			for i := range of {
				sum += of[i].cost
				for !of[from].at.After(of[i].at.Add(-l.window)) {
					sum -= of[from].cost
					from++
				}
				if sum > l.max {
					h.violateLocked(capHolds, "%s: %d in the %v up to log index %d (from index %d), %d are allowed",
						principal, sum, l.window, of[i].index, of[from].index, l.max)
					break
				}
			}
		}
	}
}

// checkOnce: whoever asks again under the same id is told the same, once it was recorded.
func (h *history) checkOnce() {
	first := map[string]result{}
	for _, r := range h.results {
		was, ok := first[r.id]
		switch {
		case !ok || !was.recorded:
			first[r.id] = r
		case was.reason != r.reason:
			h.violateLocked(onceHolds, "decision %s was %v on %s and then %v on %s", r.id, was.reason, was.node,
				r.reason, r.node)
		}
	}
}

// checkKept: an allow that a client was told of is in the committed history, and a denial is not there.
func (h *history) checkKept() {
	for _, r := range h.results {
		_, there := h.allowed[r.id]
		if r.reason == fsm.ReasonAllowed && !there {
			h.violateLocked(durableHolds, "decision %s was allowed by %s and is not in the committed history", r.id, r.node)
		}
		if r.reason != fsm.ReasonAllowed && r.recorded && there {
			h.violateLocked(onceHolds, "decision %s was denied by %s, and is an admission at log index %d",
				r.id, r.node, h.allowed[r.id])
		}
	}
}
