package clock_test

import (
	"testing"
	"time"

	"github.com/quorate/quorate/clock"
)

// Shows that the machine's own clocks can be read, never go back, run at one pace within the bounds of
// slewing, and that its wall clock is that of the time package.
func TestSystemClocks(t *testing.T) {
	s, err := clock.System()
	if err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	first := s.Read()
	if first.Mono <= 0 || first.Raw <= 0 || first.Boot < first.Mono {
		t.Fatalf("implausible clocks: %+v", first)
	}
	last := first
	for time.Since(start) < 20*time.Millisecond {
		now := s.Read()
		if now.Mono < last.Mono || now.Raw < last.Raw || now.Boot < last.Boot {
			t.Fatalf("clocks went back: %+v after %+v", now, last)
		}
		last = now
	}
	for name, span := range map[string]int64{
		"mono": last.Mono - first.Mono, "raw": last.Raw - first.Raw, "boot": last.Boot - first.Boot,
	} {
		// The last look may be long before the loop's end if the machine is busy, never after it.
		if span <= 0 || span > int64(time.Since(start))*12/10 {
			t.Errorf("%s advanced by %d ns in %v", name, span, time.Since(start))
		}
	}
	before := time.Now().UnixNano()
	w := s.Wall()
	if after := time.Now().UnixNano(); w.Nanos < before || w.Nanos > after {
		t.Errorf("wall clock %d is not between %d and %d", w.Nanos, before, after)
	}
	if w.Bounded != (w.ErrorNanos > 0) {
		t.Errorf("a bound of %d ns with bounded %v", w.ErrorNanos, w.Bounded)
	}
}
