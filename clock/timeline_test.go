package clock_test

import (
	"errors"
	"math"
	"testing"

	"pgregory.net/rapid"

	"github.com/quorate/quorate/clock"
)

const second = int64(1_000_000_000)

// mustTimeline makes a timeline with the default drift bound and no trust in wall clocks.
func mustTimeline(t testing.TB, source clock.Source) *clock.Timeline {
	t.Helper()
	tl, err := clock.NewTimeline(source, clock.DefaultMaxDriftPPM, clock.TrustNever)
	if err != nil {
		t.Fatal(err)
	}
	return tl
}

func mustStamp(t testing.TB, tl *clock.Timeline, term uint64) int64 {
	t.Helper()
	at, err := tl.Stamp(term)
	if err != nil {
		t.Fatal(err)
	}
	return at
}

// slowed is what a span of a machine's clock is worth in partition time, by the default bound. It is
// for spans that cannot overflow.
func slowed(span int64) int64 {
	return span * (1_000_000 - clock.DefaultMaxDriftPPM) / 1_000_000
}

func wantStamp(t testing.TB, tl *clock.Timeline, term uint64, want int64) {
	t.Helper()
	if got := mustStamp(t, tl, term); got != want {
		t.Fatalf("stamp %d, want %d (%+d ns)", got, want, got-want)
	}
}

// Shows that the entries of the present leadership do not replace its anchor, so that a leader under
// load, whose entries each take 40 ms to be applied, loses none of that time.
func TestOwnCommitsLoseNoTime(t *testing.T) {
	var f clock.Fake
	tl := mustTimeline(t, &f)
	tl.Applied(7*second, 1, 0)
	tl.Lead(2)
	for i := range int64(1000) {
		stamp := mustStamp(t, tl, 2)
		f.Advance(40e6)
		tl.Applied(stamp, 2, 0)
		wantStamp(t, tl, 2, 7*second+slowed((i+1)*40e6))
	}
}

// Shows that a stamp can be had only by the leadership that was begun: not before it, not by another
// term, and not after it ended.
func TestStampNeedsItsOwnLeadership(t *testing.T) {
	var f clock.Fake
	tl := mustTimeline(t, &f)
	refused := func(term uint64) {
		t.Helper()
		if at, err := tl.Stamp(term); !errors.Is(err, clock.ErrNotLeading) {
			t.Fatalf("term %d drew %d, %v", term, at, err)
		}
	}
	refused(0)
	refused(5)
	tl.Lead(5)
	mustStamp(t, tl, 5)
	refused(4)
	refused(6)
	refused(0)
	tl.Resign()
	refused(5)
	refused(0)
	tl.Lead(7)
	refused(5)
	mustStamp(t, tl, 7)
}

// Shows that the stamps that a node drew in an earlier leadership, and which never reached the log, do
// not lift those of its next leadership above the timeline that replaced it.
func TestEarlierLeadershipIsDiscarded(t *testing.T) {
	for _, resigns := range []bool{true, false} {
		var f clock.Fake
		tl := mustTimeline(t, &f)
		tl.Applied(100*second, 1, 0)
		tl.Lead(2)
		f.Advance(60 * second)
		mustStamp(t, tl, 2) // near 160 s; it is lost
		if resigns {
			tl.Resign()
		}
		tl.Applied(110*second, 3, 0) // of a slower leader
		f.Advance(second)
		tl.Lead(4)
		wantStamp(t, tl, 4, 110*second+slowed(second))
	}
}

// Shows that stamps do not go back within one leadership, even when a later entry of another one
// replaces the anchor by a lower one.
func TestStampsNeverGoBackWithinALeadership(t *testing.T) {
	var f clock.Fake
	tl := mustTimeline(t, &f)
	tl.Applied(100*second, 1, 0)
	tl.Lead(2)
	f.Advance(60 * second)
	high := mustStamp(t, tl, 2)
	tl.Applied(110*second, 3, 0)
	wantStamp(t, tl, 2, high)
}

// Shows that the anchor is the last foreign entry and not the one that gives the most: an older anchor
// may be of a faster timeline.
func TestAnchorIsTheLastAndNotTheBest(t *testing.T) {
	var f clock.Fake
	tl := mustTimeline(t, &f)
	tl.Applied(100*second, 1, 0)
	f.Advance(50 * second)
	tl.Applied(101*second, 2, 0)
	tl.Lead(3)
	f.Advance(2 * second)
	wantStamp(t, tl, 3, 101*second+slowed(2*second))
}

// Shows that a node which wins again, with nothing but its own entries applied since, goes on from the
// last of them as of now: what passed between the leaderships does not count.
func TestWinningAgainAnchorsAtTheLastOwnEntry(t *testing.T) {
	for name, leave := range map[string]func(*clock.Timeline){
		"noticed": (*clock.Timeline).Resign, "unnoticed": func(*clock.Timeline) {},
	} {
		t.Run(name, func(t *testing.T) {
			var f clock.Fake
			tl := mustTimeline(t, &f)
			tl.Applied(10*second, 1, 0)
			tl.Lead(2)
			f.Advance(5 * second)
			own := mustStamp(t, tl, 2)
			tl.Applied(own, 2, 0)
			leave(tl)
			f.Advance(30 * second)
			tl.Lead(4)
			f.Advance(3 * second)
			wantStamp(t, tl, 4, own+slowed(3*second))
		})
	}
}

// Shows that the own entries of an earlier leadership count no more once a foreign entry came after
// them: the next leadership goes on from that one, and loses no time since.
func TestForeignEntryEndsTheOwnOnes(t *testing.T) {
	var f clock.Fake
	tl := mustTimeline(t, &f)
	tl.Lead(2)
	tl.Applied(mustStamp(t, tl, 2), 2, 0)
	tl.Resign()
	f.Advance(10 * second)
	tl.Applied(9*second, 3, 0)
	f.Advance(5 * second)
	tl.Lead(4)
	wantStamp(t, tl, 4, 9*second+slowed(5*second))
}

// Shows that own entries which are applied only after the leadership ended replace the anchor, as
// anybody's do.
func TestOwnEntriesAfterResigningReplaceTheAnchor(t *testing.T) {
	var f clock.Fake
	tl := mustTimeline(t, &f)
	tl.Lead(2)
	f.Advance(5 * second)
	own := mustStamp(t, tl, 2)
	tl.Resign()
	f.Advance(20 * second)
	tl.Applied(own, 2, 0)
	f.Advance(second)
	tl.Lead(4)
	f.Advance(second)
	wantStamp(t, tl, 4, own+slowed(2*second))
}

// Shows that a leadership without an entry of its own leaves the anchor of the last foreign entry to
// the next one: no time is lost by it.
func TestLeadershipWithoutEntriesKeepsTheAnchor(t *testing.T) {
	var f clock.Fake
	tl := mustTimeline(t, &f)
	tl.Applied(10*second, 1, 0)
	f.Advance(second)
	tl.Lead(2)
	f.Advance(second)
	tl.Resign()
	f.Advance(second)
	tl.Lead(3)
	wantStamp(t, tl, 3, 10*second+slowed(3*second))
}

// Shows that an installed snapshot replaces the anchor, also where it lies behind the old timeline,
// and whether the entries before it were foreign or own.
func TestSnapshotReplacesTheAnchor(t *testing.T) {
	for _, own := range []bool{false, true} {
		var f clock.Fake
		tl := mustTimeline(t, &f)
		tl.Applied(10*second, 1, 0)
		if own {
			tl.Lead(2)
			tl.Applied(mustStamp(t, tl, 2), 2, 0)
			tl.Resign()
		}
		f.Advance(60 * second)
		tl.Restored(40*second, 0)
		f.Advance(2 * second)
		tl.Lead(9)
		f.Advance(second)
		wantStamp(t, tl, 9, 40*second+slowed(3*second))
	}
}

// Shows that the slow-down is taken of the whole span since the anchor: a hundred thousand looks 1,999
// ns apart, each of which alone would round by up to half of its worth, give what one look gives.
func TestSpanIsNotSummedInSteps(t *testing.T) {
	const steps, step = int64(100_000), int64(1999)
	var f clock.Fake
	tl := mustTimeline(t, &f)
	tl.Applied(second, 1, 0)
	tl.Lead(2)
	for i := range steps {
		f.Advance(step)
		wantStamp(t, tl, 2, second+slowed((i+1)*step))
	}
}

// Shows that the slower of the two clocks counts, whichever it is: one that is slewed by 8 % either way
// beside a true one, and a raw one that is fast or slow beside a true slewed one.
func TestSlowerClockCounts(t *testing.T) {
	for _, c := range []struct{ monoPPM, rawPPM, slowerPPM int64 }{
		{80_000, 0, 0}, {-80_000, 0, -80_000}, {0, 300, 0}, {0, -300, -300}, {80_000, 500, 500},
	} {
		var f clock.Fake
		f.Rates(c.monoPPM, c.rawPPM)
		tl := mustTimeline(t, &f)
		tl.Lead(1)
		f.Advance(1000 * second)
		wantStamp(t, tl, 1, slowed(1000*second+c.slowerPPM*1000*1000))
	}
}

// Shows that a clock which was slewed slow, and is then slewed fast, does not give back what it took:
// partition time would run 8 % fast while it does, and a window be short by that. Stamps that see each
// phase, and one that sees the second half of it only, gain no more than true time.
func TestCatchingUpGivesNothingBack(t *testing.T) {
	var f clock.Fake
	tl := mustTimeline(t, &f)
	tl.Lead(1)
	f.Rates(-80_000, 0)
	f.Advance(20 * second)
	wantStamp(t, tl, 1, slowed(20*second*92/100))
	f.Rates(80_000, 0)
	f.Advance(10 * second)
	wantStamp(t, tl, 1, slowed(20*second*92/100+10*second))
	f.Advance(30 * second) // now ahead of the raw clock
	wantStamp(t, tl, 1, slowed(20*second*92/100+40*second))
	f.Rates(-80_000, 0)
	f.Advance(10 * second) // not below what it took before
	wantStamp(t, tl, 1, slowed(20*second*92/100+50*second))
}

// Shows that a machine whose clocks stand still, or that is suspended, only loses time, and goes on
// from where it was.
func TestStandingClocksOnlyLoseTime(t *testing.T) {
	var f clock.Fake
	tl := mustTimeline(t, &f)
	tl.Applied(second, 1, 0)
	tl.Lead(2)
	f.Advance(second)
	f.Freeze(true)
	f.Advance(100 * second)
	wantStamp(t, tl, 2, second+slowed(second))
	f.Freeze(false)
	f.Advance(second)
	f.Suspend(100 * second)
	wantStamp(t, tl, 2, second+slowed(2*second))
	f.StepWall(1000 * second)
	f.Advance(second)
	wantStamp(t, tl, 2, second+slowed(3*second))
}

// Shows that over random spans, on a raw clock whose drift changes within the bound and a slewed one
// that is slow and fast in turn, partition time gains at most the rounding of one nanosecond on
// true time between any two stamps.
func TestStampsNeverOutrunTrueTime(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ppm := rapid.Int64Range(1, clock.MaxMaxDriftPPM).Draw(t, "bound ppm")
		var f clock.Fake
		tl, err := clock.NewTimeline(&f, ppm, clock.TrustNever)
		if err != nil {
			t.Fatal(err)
		}
		tl.Lead(1)
		trueNanos, lowest := int64(0), int64(math.MaxInt64)
		for range rapid.IntRange(1, 50).Draw(t, "stamps") {
			span := rapid.Int64Range(0, rapid.SampledFrom([]int64{10, 5000, second, 1e6 * second}).Draw(t, "scale")).
				Draw(t, "span")
			f.Rates(rapid.Int64Range(-100_000, 100_000).Draw(t, "mono ppm"),
				rapid.Int64Range(-ppm, ppm).Draw(t, "raw ppm"))
			f.Advance(span)
			trueNanos += span
			at, err := tl.Stamp(1)
			if err != nil {
				t.Fatal(err)
			}
			if at-trueNanos-1 > lowest {
				t.Fatalf("offset grew from %d to %d ns", lowest, at-trueNanos)
			}
			lowest = min(lowest, at-trueNanos)
		}
	})
}

// Shows that waiting RealWait(d) on a true clock takes a deadline that is d ahead of a stamp into the past
// of the next stamp, for any phase of the rounding, and not by more than 2 ns: the wait is not padded.
func TestRealWaitIsEnoughAndNoMore(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ppm := rapid.Int64Range(1, clock.MaxMaxDriftPPM).Draw(t, "bound ppm")
		d := rapid.Int64Range(1, 400*86400*second).Draw(t, "d")
		var f clock.Fake
		tl, err := clock.NewTimeline(&f, ppm, clock.TrustNever)
		if err != nil {
			t.Fatal(err)
		}
		tl.Lead(1)
		f.Advance(rapid.Int64Range(0, 1000*second).Draw(t, "phase"))
		from, _ := tl.Stamp(1)
		wait := tl.RealWait(d)
		f.Advance(wait)
		to, _ := tl.Stamp(1)
		if to-from < d {
			t.Fatalf("%d ns of waiting brought %d of %d ns", wait, to-from, d)
		}
		if to-from > d+2 {
			t.Fatalf("%d ns of waiting brought %d, %d were asked for", wait, to-from, d)
		}
	})
}

// Shows that a deadline that has passed needs no wait.
func TestRealWaitOfThePastIsZero(t *testing.T) {
	tl := mustTimeline(t, &clock.Fake{})
	for _, d := range []int64{0, -1, math.MinInt64} {
		if got := tl.RealWait(d); got != 0 {
			t.Errorf("RealWait(%d) = %d", d, got)
		}
	}
}

// Shows that spans of centuries neither overflow nor turn round: stamps and waits stay in order up to
// the largest numbers.
func TestLargeSpansDoNotOverflow(t *testing.T) {
	const centuries = int64(8_000_000_000_000_000_000)
	for _, ppm := range []int64{1, clock.DefaultMaxDriftPPM, clock.MaxMaxDriftPPM} {
		var f clock.Fake
		tl, err := clock.NewTimeline(&f, ppm, clock.TrustNever)
		if err != nil {
			t.Fatal(err)
		}
		tl.Lead(1)
		f.Advance(centuries)
		wantStamp(t, tl, 1, centuries/1_000_000*(1_000_000-ppm))
		once := centuries / 1_000_000 * (1_000_000 - ppm)
		if got := tl.RealWait(once); got != centuries {
			t.Errorf("%d ppm: RealWait is %d, want %d", ppm, got, centuries)
		}
		if got := tl.RealWait(math.MaxInt64); got != math.MaxInt64 {
			t.Errorf("%d ppm: RealWait of for ever is %d", ppm, got)
		}
	}
}

// Shows that partition time ends at the largest number and does not turn round.
func TestPartitionTimeSaturates(t *testing.T) {
	var f clock.Fake
	tl := mustTimeline(t, &f)
	tl.Applied(math.MaxInt64-5*second, 1, 0)
	tl.Lead(2)
	f.Advance(4 * second)
	wantStamp(t, tl, 2, math.MaxInt64-5*second+slowed(4*second))
	f.Advance(4 * second)
	wantStamp(t, tl, 2, math.MaxInt64)
}

// Shows that a timeline refuses a drift bound and a trust that mean nothing.
func TestNewTimelineRefusesBadSettings(t *testing.T) {
	for _, c := range []struct {
		ppm   int64
		trust clock.TrustWall
		ok    bool
	}{
		{1, clock.TrustNever, true}, {clock.MaxMaxDriftPPM, clock.TrustBounded, true},
		{0, clock.TrustNever, false}, {-1, clock.TrustNever, false},
		{clock.MaxMaxDriftPPM + 1, clock.TrustNever, false}, {500, "", false}, {500, "always", false},
	} {
		if _, err := clock.NewTimeline(&clock.Fake{}, c.ppm, c.trust); (err == nil) != c.ok {
			t.Errorf("%d ppm, trust %q: %v", c.ppm, c.trust, err)
		}
	}
}
