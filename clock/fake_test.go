package clock_test

import (
	"sync"
	"testing"

	"pgregory.net/rapid"

	"github.com/quorate/quorate/clock"
)

// Shows what each way of passing time does to each clock of a fake machine.
func TestFakeClocks(t *testing.T) {
	for _, c := range []struct {
		name string
		do   func(*clock.Fake)
		want clock.Reading
		wall int64
	}{
		{"true", func(f *clock.Fake) { f.Advance(10 * second) },
			clock.Reading{Mono: 10 * second, Raw: 10 * second, Boot: 10 * second}, 10 * second},
		{"off", func(f *clock.Fake) { f.Rates(80_000, -500); f.Advance(10 * second) },
			clock.Reading{Mono: 10_800_000_000, Raw: 9_995_000_000, Boot: 10_800_000_000}, 10 * second},
		{"frozen", func(f *clock.Fake) { f.Freeze(true); f.Advance(10 * second); f.Freeze(false) },
			clock.Reading{}, 10 * second},
		{"suspended", func(f *clock.Fake) { f.Suspend(10 * second) },
			clock.Reading{Boot: 10 * second}, 10 * second},
		{"set", func(f *clock.Fake) { f.StepWall(-10 * second) }, clock.Reading{}, -10 * second},
	} {
		var f clock.Fake
		c.do(&f)
		if got := f.Read(); got != c.want {
			t.Errorf("%s: %+v, want %+v", c.name, got, c.want)
		}
		if got := f.Wall().Nanos; got != c.wall {
			t.Errorf("%s: the wall clock stands at %d, want %d", c.name, got, c.wall)
		}
		f.Synchronise(7, true)
		if got := f.Wall(); got != (clock.Wall{Nanos: c.wall, ErrorNanos: 7, Bounded: true}) {
			t.Errorf("%s: the wall clock says %+v", c.name, got)
		}
	}
}

// Shows that a fake clock is never off by more than its rate says, however finely time is cut: what the
// other tests prove of clocks within a bound would mean nothing if the fake's own rounding left it.
func TestFakeStaysWithinItsRate(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ppm := rapid.Int64Range(-100_000, 100_000).Draw(t, "ppm")
		var f clock.Fake
		f.Rates(0, ppm)
		passed := int64(0)
		for range rapid.IntRange(1, 200).Draw(t, "steps") {
			step := rapid.Int64Range(0, 5000).Draw(t, "step")
			f.Advance(step)
			passed += step
		}
		if off := (f.Read().Raw - passed) * 1_000_000; ppm >= 0 && (off < 0 || off > passed*ppm) ||
			ppm < 0 && (off > 0 || off < passed*ppm) {
			t.Fatalf("%d ppm: %d after %d", ppm, f.Read().Raw, passed)
		}
	})
}

// Shows, under the race detector, that a fake machine and a timeline on it may be used from many
// goroutines, and that no goroutine sees the stamps of a leadership go back.
func TestTimelineIsSafeForConcurrentUse(t *testing.T) {
	var f clock.Fake
	tl := mustTimeline(t, &f)
	tl.Lead(1)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			last := int64(0)
			for range 500 {
				at, err := tl.Stamp(1)
				if err != nil || at < last {
					t.Errorf("stamp %d after %d: %v", at, last, err)
					return
				}
				last = at
				tl.Applied(at, 1, tl.WallBound())
				tl.RealWait(at)
			}
		})
	}
	wg.Go(func() {
		for i := range int64(500) {
			f.Advance(1000)
			f.Rates(i, -i)
			f.StepWall(i)
			f.Synchronise(i, i%2 == 0)
			f.Suspend(i)
			f.Freeze(i%3 == 0)
		}
	})
	wg.Wait()
}
