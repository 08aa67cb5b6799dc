package bench

import (
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// Shows that ranks are drawn with the probabilities of Zipf's law, for exponents below, at and above 1, by comparing
// with the law itself: each rank's count within five standard deviations.
func TestZipfFollowsItsLaw(t *testing.T) {
	const n, draws = 50, 200_000
	for _, s := range []float64{0.5, 0.99, 1, 1.0000000001, 1.2, 3} {
		z := NewZipf(rand.New(rand.NewPCG(1, 2)), n, s)
		counts := make([]int, n)
		for range draws {
			counts[z.Next()]++
		}
		total := 0.0
		for k := range n {
			total += math.Pow(float64(k+1), -s)
		}
		for k, got := range counts {
			p := math.Pow(float64(k+1), -s) / total
			if off := math.Abs(float64(got) - draws*p); off > 5*math.Sqrt(draws*p*(1-p))+1 {
				t.Errorf("s %v: rank %d was drawn %d times, want about %.0f", s, k, got, draws*p)
			}
		}
	}
}

// Shows that draws stay within the ranks, also of one key and of as many as there may be.
func TestZipfStaysWithin(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.OneOf(rapid.Just(1), rapid.IntRange(1, 10), rapid.IntRange(1, MaxKeys)).Draw(t, "n")
		z := NewZipf(rand.New(rand.NewPCG(3, rapid.Uint64().Draw(t, "seed"))), n, rapid.Float64Range(0.01, 10).Draw(t, "s"))
		for range 100 {
			if k := z.Next(); k < 0 || k >= n {
				t.Fatalf("rank %d of %d", k, n)
			}
		}
	})
}

// Shows that the exhausted share is that of the keys, evenly among them: of any keys in a row it is their number
// times the share, up to one.
func TestExhaustedShareIsEven(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		k := Keys{N: MaxKeys, ExhaustedShare: rapid.OneOf(rapid.Float64Range(0, 1), rapid.SampledFrom([]float64{0, 0.5, 1})).Draw(t, "share")}
		first, row := rapid.IntRange(0, 1_000_000).Draw(t, "first"), rapid.IntRange(1, 500).Draw(t, "row")
		count := 0
		for i := range row {
			if k.Exhausted(first + i) {
				count++
			}
		}
		if off := math.Abs(float64(count) - float64(row)*k.ExhaustedShare); off > 1.0001 {
			t.Errorf("%d of %d keys from %d are exhausted with a share of %v", count, row, first, k.ExhaustedShare)
		}
	})
}

// Shows that each key has a name of its own with the prefix, and that a worker draws the same keys again.
func TestKeysAreRepeatable(t *testing.T) {
	k := Keys{N: 1001, Prefix: "who-", ZipfS: 1}
	all := k.names()
	seen := map[string]bool{}
	for i := range k.N {
		seen[all.of(i)] = true
	}
	if len(seen) != k.N || all.of(0) != "who-0000" || all.of(1000) != "who-1000" || strings.Contains(all.of(7), " ") {
		t.Errorf("%d names: %s to %s", len(seen), all.of(0), all.of(1000))
	}
	a, b, other := k.picker(1), k.picker(1), k.picker(2)
	same := 0
	for range 1000 {
		x := a.next()
		if y := b.next(); x != y {
			t.Fatalf("drew %d, then %d", x, y)
		}
		if x == other.next() {
			same++
		}
	}
	if same > 500 {
		t.Errorf("two workers drew the same key %d times of 1000", same)
	}
}

// Shows that the draws of a load allocate nothing.
func TestDrawingAllocatesNothing(t *testing.T) {
	for _, s := range []float64{0, 1} {
		k := Keys{N: 100_000, Prefix: "k", ZipfS: s}
		all, p := k.names(), k.picker(0)
		if n := testing.AllocsPerRun(1000, func() { _ = all.of(p.next()) }); n != 0 {
			t.Errorf("zipf %v: %v allocations", s, n)
		}
	}
}
