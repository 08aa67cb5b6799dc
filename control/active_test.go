package control

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/quorate/quorate/clock"
	"github.com/quorate/quorate/control/state"
	"github.com/quorate/quorate/fsm"
)

const second = int64(1_000_000_000)

// counting is a Control that only counts: it has a clock and the states that it is given.
func counting(source clock.Source, ppm int64) *Control {
	c := &Control{arrivals: newArrivals(source, ppm)}
	c.view.init(state.New().State())
	return c
}

// at is a state with revisions up to n, and partitions that have installed the given ones and own slots.
func at(n fsm.Revision, installed ...fsm.Revision) *state.State {
	s := &state.State{}
	for i := range n {
		s.Revisions = append(s.Revisions, &state.Revision{Number: i + 1})
	}
	for i, r := range installed {
		s.Partitions = append(s.Partitions, &state.Partition{
			ID: state.PartitionID(i), Installed: r, Ranges: []state.Range{{Epoch: 1}},
		})
	}
	return s
}

// Shows that a revision is active everywhere at once when all partitions with slots, or in a plan, have installed
// it, that one without either does not count, and that none is before this node knows it.
func TestActiveOnceInstalled(t *testing.T) {
	var f clock.Fake
	c := counting(&f, 500)
	if !c.Active(0).Everywhere || c.Active(1).Everywhere {
		t.Error("before the first revision")
	}
	c.changed(at(3, 3, 3))
	if !c.Active(3).Everywhere || c.Active(4).Everywhere || c.Active(3).InNanos != 0 {
		t.Error("installed by all")
	}
	s := at(3, 3, 2)
	c.changed(s)
	if c.Active(3).Everywhere || !c.Active(2).Everywhere {
		t.Error("installed by one of two")
	}
	empty := at(3, 3, 2)
	empty.Partitions[1].Ranges = nil
	c.changed(empty)
	if !c.Active(3).Everywhere {
		t.Error("a partition without slots counts")
	}
	moving := at(3, 3, 2)
	moving.Partitions[1].Ranges, moving.Partitions[1].Plan = nil, 7
	c.changed(moving)
	if c.Active(3).Everywhere {
		t.Error("one that is about to own slots does not count")
	}
}

// Shows that, on clocks that drift within the bound, are slewed and suspended, a revision that is not installed is
// active everywhere never before a whole lease has truly passed since it arrived, so never while a lease from
// before may run; that it is in the end; and that InNanos is never too short by this machine's clocks.
func TestActiveAfterALease(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ppm := rapid.Int64Range(1, clock.MaxMaxDriftPPM).Draw(t, "bound ppm")
		var f clock.Fake
		f.Advance(rapid.Int64Range(0, 1000*second).Draw(t, "uptime"))
		c := counting(&f, ppm)
		c.changed(at(1, 1))
		f.Advance(rapid.Int64Range(0, 20*second).Draw(t, "before"))
		c.changed(at(2, 1))
		extreme := rapid.SampledFrom([]int64{-1, 0, 1, 1})
		for passed := int64(0); passed < int64(PolicyLease)-1; {
			f.Rates(extreme.Draw(t, "mono")*100_000, extreme.Draw(t, "raw")*ppm)
			// The last piece ends a nanosecond before a whole lease.
			span := min(rapid.SampledFrom([]int64{1, second / 3, 20 * second}).Draw(t, "span"), int64(PolicyLease)-1-passed)
			if rapid.IntRange(0, 4).Draw(t, "suspend") == 0 {
				f.Suspend(span)
			} else {
				f.Advance(span)
			}
			passed += span
			if a := c.Active(2); a.Everywhere || a.InNanos == 0 {
				t.Fatalf("%+v after %d ns", a, passed)
			}
		}
		f.Rates(0, 0)
		f.Advance(c.Active(2).InNanos)
		if !c.Active(2).Everywhere {
			t.Fatalf("not active when it should be at the latest: %+v", c.Active(2))
		}
	})
}

// Shows that revisions that came together, and those whose arrival was forgotten at the bound, count from an
// arrival that is not before their own, and that a later one does not make an earlier one wait again.
func TestArrivalsAreNotTooEarly(t *testing.T) {
	var f clock.Fake
	c := counting(&f, 500)
	f.Advance(5)
	c.changed(at(3, 0)) // as a snapshot brings them
	for r := range fsm.Revision(4) {
		if got, known := c.AppliedAt(r); !known || got.Raw != 5 {
			t.Errorf("revision %d: %+v %t", r, got, known)
		}
	}
	f.Advance(20 * second)
	c.changed(at(4, 0))
	if !c.Active(3).Everywhere || c.Active(4).Everywhere {
		t.Error("the arrival of 4 changed that of 3")
	}
	all := at(4+2*maxArrivals, 0)
	for n := range 2 * maxArrivals {
		f.Advance(1)
		s := *all
		s.Revisions = all.Revisions[:5+n]
		c.changed(&s)
		for _, r := range []int{1, 4, n / 2, n + 5} {
			// Revision r > 4 came r-4 nanoseconds after the twenty seconds.
			own := 5 + 20*second + int64(max(0, r-4))
			if r < 4 {
				own = 5
			}
			if got, known := c.AppliedAt(fsm.Revision(r)); !known || got.Raw < own {
				t.Fatalf("revision %d of %d: %+v %t, want at least %d", r, n+5, got, known, own)
			}
		}
		if len(c.arrivals.list) > maxArrivals {
			t.Fatalf("%d are remembered", len(c.arrivals.list))
		}
	}
}
