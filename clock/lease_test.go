package clock_test

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/quorate/quorate/clock"
)

// Shows that a lease never outlives its duration in true time, on clocks of which the raw one is slow
// by up to the bound, the others are slewed by up to 10 %, and the machine is suspended now and then;
// and that it does not end before the duration has passed on the fastest of these clocks.
func TestLeaseNeverOutlivesItsDuration(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ppm := rapid.Int64Range(1, clock.MaxMaxDriftPPM).Draw(t, "bound ppm")
		nanos := rapid.Int64Range(1, 1000*second).Draw(t, "lease")
		var f clock.Fake
		f.Advance(rapid.Int64Range(0, 1000*second).Draw(t, "uptime"))
		lease, err := clock.GrantLease(f.Read(), nanos, ppm)
		if err != nil {
			t.Fatal(err)
		}
		passed := int64(0)
		for range rapid.IntRange(1, 20).Draw(t, "pieces") {
			// One nanosecond a piece is what the fake's own rounding takes.
			span := rapid.Int64Range(0, nanos/4+1).Draw(t, "span")
			f.Rates(rapid.Int64Range(-100_000, 100_000).Draw(t, "mono ppm"),
				rapid.Int64Range(-ppm, ppm).Draw(t, "raw ppm"))
			if rapid.Bool().Draw(t, "suspend") {
				f.Suspend(span)
			} else {
				f.Advance(span)
			}
			passed += span
			if passed >= nanos && lease.Valid(f.Read()) {
				t.Fatalf("a lease of %d ns is valid after %d", nanos, passed)
			}
			if passed*11/10+40 < nanos-nanos/1_000_000*ppm-ppm && !lease.Valid(f.Read()) {
				t.Fatalf("a lease of %d ns ended after %d", nanos, passed)
			}
		}
	})
}

// Shows that a machine whose slewed clock is slow and which is suspended does not keep a lease too
// long: neither CLOCK_BOOTTIME nor CLOCK_MONOTONIC_RAW alone has counted all of it.
func TestLeaseCountsSuspendedTimeBesideASlowClock(t *testing.T) {
	var f clock.Fake
	f.Rates(-80_000, 0)
	lease, err := clock.GrantLease(f.Read(), 20*second, clock.DefaultMaxDriftPPM)
	if err != nil {
		t.Fatal(err)
	}
	f.Advance(10 * second)
	f.Suspend(9 * second)
	if !lease.Valid(f.Read()) {
		t.Fatal("the lease ended a second early")
	}
	f.Suspend(second)
	if lease.Valid(f.Read()) {
		t.Fatal("the lease outlived its 20 s")
	}
}

// Shows that a raw clock that is slow beyond the bound does not keep a lease while CLOCK_BOOTTIME is
// right: the larger of the two counts.
func TestLeaseRunsOnTheLargerClock(t *testing.T) {
	var f clock.Fake
	f.Rates(0, -500_000)
	lease, err := clock.GrantLease(f.Read(), 20*second, clock.DefaultMaxDriftPPM)
	if err != nil {
		t.Fatal(err)
	}
	f.Advance(20 * second)
	if lease.Valid(f.Read()) {
		t.Fatal("the lease outlived its 20 s")
	}
}

// Shows what remains of a lease on true clocks: its length less the drift bound, falling to 0 and no
// further.
func TestLeaseRemaining(t *testing.T) {
	var f clock.Fake
	lease, err := clock.GrantLease(f.Read(), 10*second, clock.DefaultMaxDriftPPM)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []int64{slowed(10 * second), slowed(10*second) - 6*second, 0, 0} {
		if got := lease.Remaining(f.Read()); got != want {
			t.Errorf("%d ns remain, want %d", got, want)
		}
		f.Advance(6 * second)
	}
}

// Shows that the zero lease never runs, and that a lease without a length or with a drift bound that
// means nothing is not granted.
func TestLeaseThatWasNotGranted(t *testing.T) {
	var none clock.Lease
	if none.Valid(clock.Reading{}) || none.Remaining(clock.Reading{}) != 0 {
		t.Error("the zero lease runs")
	}
	for _, c := range []struct{ nanos, ppm int64 }{
		{0, 500}, {-1, 500}, {second, 0}, {second, -1}, {second, clock.MaxMaxDriftPPM + 1},
	} {
		if l, err := clock.GrantLease(clock.Reading{}, c.nanos, c.ppm); err == nil || l.Valid(clock.Reading{}) {
			t.Errorf("a lease of %d ns at %d ppm is granted", c.nanos, c.ppm)
		}
	}
}
