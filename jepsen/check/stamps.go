package check

import (
	"time"
)

// tooFast is by how much partition time may seem to be ahead of real time: what the reading of two clocks one after the
// other costs.
const tooFast = time.Millisecond

// judgeStamps checks that partition time never runs backwards, and never faster than real time. When a stamp was drawn
// is known to be after its entry's checks were asked for, and before any replica had applied it.
func judgeStamps(r *run, o *outcome) error {
	for _, g := range r.log.sorted {
		var before, anchor *entry
		for _, e := range g.entries {
			o.Counts["stamps"]++
			if before != nil && e.time < before.time {
				o.violated([]Item{before.item(""), e.item("")}, "partition %s: partition time goes back by %v at index %d",
					g.id, time.Duration(before.time-e.time), e.index)
			}
			if e.refused != reasonStaleTerm && e.time < e.stamp {
				o.violated([]Item{e.item("")}, "partition %s: the stamp at index %d is later than the partition time after it",
					g.id, e.index)
			}
			if anchor != nil {
				passed, most := time.Duration(e.time-anchor.time), e.hi-anchor.lo
				if passed > most+tooFast {
					o.violated([]Item{
						anchor.item("its stamp was not drawn before %s", once(anchor.lo)),
						e.item("its stamp was not drawn after %s", once(e.hi)),
					}, "partition %s: %v of partition time pass from index %d to %d, within %v of real time",
						g.id, passed, anchor.index, e.index, most)
					anchor = nil // to find the next, and not the same again
				}
			}
			if e.lo > always && (anchor == nil || time.Duration(e.time)-e.lo < time.Duration(anchor.time)-anchor.lo) {
				anchor = e
			}
			before = e
		}
	}
	return nil
}

const reasonStaleTerm = "stale_term"
