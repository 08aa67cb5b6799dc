package budget

import (
	"testing"

	"pgregory.net/rapid"
)

// Shows that for any course of sends and retries there are at most as many retries as the share of the first sends and
// the minimum give, and what can be saved up.
func TestBound(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ratio, least := rapid.Float64Range(0, 1).Draw(t, "ratio"), rapid.IntRange(0, 20).Draw(t, "min")
		now, sends, retries := int64(5), 0, 0
		b := New(now, ratio, least)
		for range rapid.IntRange(0, 300).Draw(t, "steps") {
			now += rapid.Int64Range(-1, 2e8).Draw(t, "pause")
			if rapid.Bool().Draw(t, "first") {
				n := rapid.IntRange(1, 50).Draw(t, "sends")
				b.Earn(now, n)
				sends += n
			} else if b.Spend(now) {
				retries++
			}
		}
		seconds := float64(now-5)/1e9 + 1e-6*300
		if most := 10*float64(least) + 1 + float64(sends)*ratio + seconds*float64(least) + 1e-6; float64(retries) > most {
			t.Fatalf("%d retries after %d sends in %.3f s, at most %.3f", retries, sends, seconds, most)
		}
	})
}

// Shows that one retry in ten is paid for by ten sends, with no minimum, and that nothing is there at first.
func TestRatio(t *testing.T) {
	b := New(0, 0.125, 0)
	for range 5 {
		if b.Spend(0) {
			t.Fatal("a retry is free")
		}
		for n := range 4 {
			b.Earn(0, n)
		}
		b.Earn(0, 2)
		if !b.Spend(0) {
			t.Fatal("eight sends pay for no retry")
		}
	}
}
