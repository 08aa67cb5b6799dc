package hints

import (
	"fmt"
	"math"
	"sync"
	"testing"

	"pgregory.net/rapid"
)

const milli = int64(1_000_000)

// Shows that for any course of denials, revisions and look-ups a hint is given only where a denial of the same check was
// kept in the present round, less than five seconds ago, and ends before the owner would admit it by that denial.
func TestNeverLongerThanTheDenial(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		table, now := New[int64](64), int64(0)
		until := map[Key]int64{} // the latest instant up to which a hint may be given
		for range rapid.IntRange(1, 80).Draw(t, "steps") {
			now += rapid.Int64Range(0, 3000*milli).Draw(t, "pause")
			k := Key{Principal: rapid.SampledFrom([]string{"x", "y"}).Draw(t, "p"), Cost: rapid.Int64Range(1, 2).Draw(t, "c")}
			switch rapid.IntRange(0, 5).Draw(t, "what") {
			case 0:
				table.Revise()
				clear(until)
			case 1, 2:
				sent, retry := now-rapid.Int64Range(0, 50*milli).Draw(t, "way"), rapid.Int64Range(0, 9000).Draw(t, "retry")
				round := table.Round() - uint64(rapid.IntRange(0, 1).Draw(t, "old"))
				table.Exhausted(k, retry, Answer{sent, now, round}, retry)
				if end := min(sent+retry*milli-milli, sent+MaxNanos); round == table.Round() && end > now {
					if old, ok := until[k]; !ok || old <= now {
						until[k] = end
					} else {
						until[k] = min(old, end)
					}
				}
			default:
				h := table.Get(now, k)
				if end, ok := until[k]; (h != nil) != (ok && now < end) {
					t.Fatalf("at %d of %v: %v, it ends at %d", now, k, h, end)
				}
			}
		}
	})
}

// Shows that neither long waits nor the table's bounds break anything, and that no table keeps nothing.
func TestCorners(t *testing.T) {
	table := New[int](16)
	table.Exhausted(Key{}, 1, Answer{ReceivedNanos: 1}, math.MaxInt64)
	if h := table.Get(2, Key{}); h == nil || h.RetryNanos <= 0 || table.Get(MaxNanos, Key{}) != nil {
		t.Errorf("%+v", h)
	}
	table.Exhausted(Key{}, 1, Answer{}, math.MinInt64)
	if table.Get(0, Key{}) != nil {
		t.Error("a wait below 0 makes a hint")
	}
	for i := range 1000 {
		table.Exhausted(Key{Principal: fmt.Sprint(i)}, i, Answer{}, 1000)
	}
	if n := table.Len(); n > 16 || n == 0 {
		t.Errorf("%d are kept", n)
	}
	none := New[int](0)
	none.Revise()
	none.Exhausted(Key{}, 1, Answer{}, 1000)
	none.Blocked(Key{}, 1, Answer{})
	if none != nil || none.Get(0, Key{}) != nil || none.Len() != 0 || none.Round() != 0 {
		t.Error("no table keeps something")
	}
}

// Shows, with the race detector, that hints may be kept, looked up and ended at once.
func TestConcurrent(t *testing.T) {
	table := New[int](128)
	var all sync.WaitGroup
	for g := range 4 {
		all.Go(func() {
			for i := range 1000 {
				k := Key{Principal: fmt.Sprint(i % 50)}
				table.Exhausted(k, g, Answer{Round: table.Round()}, 1000)
				table.Get(1, k)
				if i%100 == 0 {
					table.Revise()
					_ = table.Len()
				}
			}
		})
	}
	all.Wait()
}

// BenchmarkGet is a look-up, which allocates nothing.
func BenchmarkGet(b *testing.B) {
	table := New[int](1 << 16)
	k := Key{Principal: "a principal of usual length", Class: "convert", Cost: 1}
	table.Exhausted(k, 1, Answer{}, 10_000)
	b.ReportAllocs()
	for b.Loop() {
		if table.Get(1, k) == nil {
			b.Fatal("none")
		}
	}
}
