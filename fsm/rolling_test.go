package fsm

import (
	"testing"

	"pgregory.net/rapid"
)

// stamped is one admission as a naive log keeps it.
type stamped struct {
	at     Time
	weight uint64
}

// Shows that a log within its bound counts exactly what a list of all admissions counts, for any left
// edge, through appends at equal times and drops of the oldest.
func TestRollingCountsLikeAList(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var log rolling
		var list []stamped
		now := Time(1000)
		for range rapid.IntRange(1, 200).Draw(t, "steps") {
			now += Time(rapid.IntRange(0, 3).Draw(t, "dt"))
			w := rapid.Uint64Range(1, 5).Draw(t, "weight")
			log.append(now, w)
			list = append(list, stamped{now, w})
			edge := now - Time(rapid.IntRange(0, 300).Draw(t, "edge"))
			if rapid.IntRange(0, 9).Draw(t, "drop") == 0 {
				log.drop(log.after(edge) - int(log.head))
				for len(list) > 0 && list[0].at <= edge {
					list = list[1:]
				}
			}
			var want uint64
			oldest := Time(-1)
			for _, s := range list {
				if s.at > edge {
					want += s.weight
					if oldest < 0 {
						oldest = s.at
					}
				}
			}
			if got := log.weightAfter(edge); got != want {
				t.Fatalf("weight after %d is %d, want %d", edge, got, want)
			}
			if got, ok := log.oldestAfter(edge); ok != (oldest >= 0) || ok && got != oldest {
				t.Fatalf("oldest after %d is %d %v, want %d", edge, got, ok, oldest)
			}
		}
	})
}

// Shows that a log that was rounded holds each admission at least as long as it should and less than
// a 64th of its age longer, keeps the weight, stays within its bound, and is exact where it is recent.
func TestRoundingHoldsLongerByLessThanA64th(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var log rolling
		var list []stamped
		now := Time(1)
		scale := rapid.SampledFrom([]int64{1, 1000, 1e6, 1e9, 600e9}).Draw(t, "scale")
		step := rapid.Int64Range(1, 3*scale)
		for range 3 * maxPairs {
			now += Time(step.Draw(t, "dt"))
			if log.len() >= maxPairs {
				log.round(now)
				if log.len() > maxPairs-freedByRounding {
					t.Fatalf("only %d of %d pairs were freed", maxPairs-log.len(), maxPairs)
				}
				checkRounded(t, &log, list, now)
			}
			log.append(now, 1)
			list = append(list, stamped{now, 1})
		}
	})
}

// checkRounded compares, for the i-th admission, where the log has it with where it was.
func checkRounded(t *rapid.T, log *rolling, list []stamped, now Time) {
	if got := log.total(); got != uint64(len(list)) {
		t.Fatalf("the log weighs %d, want %d", got, len(list))
	}
	i := int(log.head)
	for n, s := range list {
		for log.pairs[i].sum-log.base <= uint64(n) {
			i++
		}
		moved, age := log.pairs[i].at-s.at, now-s.at
		if moved < 0 || moved > 0 && moved*64 >= age {
			t.Fatalf("an admission of age %d moved by %d", age, moved)
		}
		if n >= len(list)-maxPairs/8 && moved != 0 {
			t.Fatalf("the %d-th newest admission moved by %d", len(list)-n, moved)
		}
	}
}

// Shows that what superfluous names can be dropped without any limit seeing it: for each limit and
// left edge, room and the first fitting instant stay the same.
func TestSuperfluousWeightDecidesNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var full, pruned rolling
		now := Time(0)
		weight := rapid.OneOf(rapid.Uint64Range(1, 3), rapid.Uint64Range(uint64(MaxCost)/3, uint64(MaxCost)))
		for range rapid.IntRange(1, 40).Draw(t, "admissions") {
			now += Time(rapid.IntRange(1, 9).Draw(t, "dt"))
			w := weight.Draw(t, "weight")
			full.append(now, w)
			pruned.append(now, w)
			pruned.drop(pruned.superfluous())
		}
		limit := rapid.OneOf(rapid.Uint64Range(0, 9), rapid.Just(uint64(MaxCost))).Draw(t, "limit")
		for edge := Time(0); edge <= now; edge++ {
			a, b := full.weightAfter(edge), pruned.weightAfter(edge)
			if min(a, limit) != min(b, limit) {
				t.Fatalf("after %d: %d of %d without pruning, %d with", edge, a, limit, b)
			}
		}
	})
}
