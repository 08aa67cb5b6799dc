package clock_test

import (
	"testing"

	"github.com/quorate/quorate/clock"
)

// restarted is a machine whose wall clock stands at wallNanos with an error that the kernel states, and
// a timeline that has replayed one entry: partition time 50 s, stamped when it was at most 1,000 s by
// the wall clocks.
func restarted(
	t *testing.T, trust clock.TrustWall, wallNanos, errorNanos int64, bounded bool,
) (*clock.Fake, *clock.Timeline) {
	t.Helper()
	f := new(clock.Fake)
	f.StepWall(wallNanos)
	f.Synchronise(errorNanos, bounded)
	tl, err := clock.NewTimeline(f, clock.DefaultMaxDriftPPM, trust)
	if err != nil {
		t.Fatal(err)
	}
	tl.Applied(50*second, 3, 1000*second)
	return f, tl
}

// Shows that with bounded trust a start adds what the wall clocks prove: from the last entry's bound to
// the earliest that it can be now, with at least 5 s of error, and slowed as any span is.
func TestBridgeAddsWhatWallClocksProve(t *testing.T) {
	for _, c := range []struct{ errorNanos, want int64 }{
		{1, 50*second + slowed(195*second)},           // at least 5 s
		{5 * second, 50*second + slowed(195*second)},  // as the kernel states
		{60 * second, 50*second + slowed(140*second)}, // more than 5 s
		{200 * second, 50 * second},                   // nothing is proven
		{900 * second, 50 * second},
	} {
		f, tl := restarted(t, clock.TrustBounded, 1200*second, c.errorNanos, true)
		tl.Lead(4)
		wantStamp(t, tl, 4, c.want)
		f.Advance(10 * second)
		wantStamp(t, tl, 4, c.want+slowed(10*second))
	}
}

// Shows that the bound which an entry carries has at least 5 s of error on it, more if the kernel says
// so, and that there is none while the kernel gives none.
func TestWallBound(t *testing.T) {
	var f clock.Fake
	f.StepWall(1000 * second)
	tl := mustTimeline(t, &f)
	for _, c := range []struct {
		errorNanos int64
		bounded    bool
		want       int64
	}{{1, true, 1005 * second}, {8 * second, true, 1008 * second}, {1, false, 0}, {0, false, 0}} {
		f.Synchronise(c.errorNanos, c.bounded)
		if got := tl.WallBound(); got != c.want {
			t.Errorf("error %d, bounded %v: bound %d, want %d", c.errorNanos, c.bounded, got, c.want)
		}
	}
}

// Shows that no time is bridged without trust, with a clock that the kernel calls unsynchronised, from
// an entry without a bound, or when the wall clock has gone back.
func TestBridgeNeedsTrustAndBounds(t *testing.T) {
	_, never := restarted(t, clock.TrustNever, 1200*second, 1, true)
	_, unsynchronised := restarted(t, clock.TrustBounded, 1200*second, 1, false)
	_, unbound := restarted(t, clock.TrustBounded, 1200*second, 1, true)
	unbound.Applied(50*second, 3, 0)
	_, back := restarted(t, clock.TrustBounded, 900*second, 1, true)
	for name, tl := range map[string]*clock.Timeline{
		"never": never, "unsynchronised": unsynchronised, "unbound": unbound, "back": back,
	} {
		tl.Lead(4)
		if got := mustStamp(t, tl, 4); got != 50*second {
			t.Errorf("%s: stamp %d, want 50 s", name, got)
		}
	}
}

// Shows that a snapshot which the start restored carries a bound to bridge from as an entry does.
func TestBridgeFromASnapshot(t *testing.T) {
	_, tl := restarted(t, clock.TrustBounded, 1200*second, 1, true)
	tl.Restored(60*second, 1100*second)
	tl.Lead(4)
	wantStamp(t, tl, 4, 60*second+slowed(95*second))
}

// Shows that only the first leadership after a start bridges: a wall clock that jumps ahead later, with
// or without entries of this node between, moves nothing.
func TestOnlyTheFirstLeadershipBridges(t *testing.T) {
	for _, own := range []bool{false, true} {
		f, tl := restarted(t, clock.TrustBounded, 1200*second, 1, true)
		tl.Lead(4)
		at := mustStamp(t, tl, 4)
		if own {
			tl.Applied(at, 4, tl.WallBound())
		}
		tl.Resign()
		f.StepWall(5000 * second)
		tl.Lead(6)
		wantStamp(t, tl, 6, at)
	}
}

// Shows that a bridge ends at the start: what the wall clock does afterwards moves nothing, although this
// node has not led before, whether it follows a leader by then or applied nothing more. The time since
// the start is that of the node's own clocks.
func TestBridgeEndsAtTheStart(t *testing.T) {
	f, tl := restarted(t, clock.TrustBounded, 1200*second, 1, true)
	f.StepWall(3600 * second)
	f.Advance(10 * second)
	tl.Lead(4)
	wantStamp(t, tl, 4, 50*second+slowed(195*second)+slowed(10*second))

	for _, follow := range []func(*clock.Timeline, int64, int64){
		func(tl *clock.Timeline, at, bound int64) { tl.Applied(at, 3, bound) }, (*clock.Timeline).Restored,
	} {
		f, tl = restarted(t, clock.TrustBounded, 1200*second, 1, true)
		f.Advance(86400 * second)
		follow(tl, 80_000*second, 87_605*second)
		f.StepWall(3600 * second)
		tl.Lead(4)
		wantStamp(t, tl, 4, 80_000*second)
	}
}

// Shows that an entry of after the start ends the bridge for good, as does a leadership of this node: a
// wall clock that was put back, so that its bounds look like those of before the start, opens none again.
func TestBridgeIsNotOpenedAgain(t *testing.T) {
	f, tl := restarted(t, clock.TrustBounded, 1200*second, 1, true)
	f.Advance(10 * second)
	tl.Applied(60*second, 3, 1215*second)
	tl.Applied(61*second, 3, 500*second)
	tl.Lead(4)
	wantStamp(t, tl, 4, 61*second)

	_, tl = restarted(t, clock.TrustBounded, 1200*second, 1, true)
	tl.Lead(4)
	own := mustStamp(t, tl, 4)
	tl.Applied(own, 4, 500*second)
	tl.Resign()
	tl.Lead(6)
	wantStamp(t, tl, 6, own)
}

// Shows that a clock which the kernel calls synchronised only after the start bridges nothing, and that a
// bound that means nothing is none.
func TestBridgeNeedsABoundAtTheStart(t *testing.T) {
	f, tl := restarted(t, clock.TrustBounded, 1200*second, 1, false)
	f.Synchronise(1, true)
	tl.Lead(4)
	wantStamp(t, tl, 4, 50*second)

	_, tl = restarted(t, clock.TrustBounded, 1200*second, 1, true)
	tl.Applied(50*second, 3, -1)
	tl.Lead(4)
	wantStamp(t, tl, 4, 50*second)
}

// Shows that a bridge never takes time away: where the node's own clock proves more since the entry
// than the wall clocks do, its own clock counts.
func TestBridgeNeverShortens(t *testing.T) {
	f, tl := restarted(t, clock.TrustBounded, 1000*second, 1, true)
	f.Advance(30 * second) // the wall clocks prove 25 s of it
	tl.Lead(4)
	wantStamp(t, tl, 4, 50*second+slowed(30*second))
}
