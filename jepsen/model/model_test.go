package model

import (
	"os"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// number reads an environment variable.
func number(t *testing.T, name string, otherwise uint64) uint64 {
	t.Helper()
	s := os.Getenv(name)
	if s == "" {
		return otherwise
	}
	n, err := strconv.ParseUint(s, 10, 64)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return n
}

// Random partitions under random trouble keep every invariant, and enough happens to them that a broken one would show.
func TestModel(t *testing.T) {
	seeds, first := number(t, "QUORATE_MODEL_SEEDS", 300), number(t, "QUORATE_MODEL_FIRST", 1)
	var mu sync.Mutex
	var sum Counts
	var next atomic.Uint64
	began := time.Now()
	var workers sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		workers.Go(func() {
			for n := next.Add(1) - 1; n < seeds; n = next.Add(1) - 1 {
				seed := first + n
				r := Run(seed, Choose(seed))
				mu.Lock()
				sum.Add(r.Counts)
				for _, v := range r.Violations {
					t.Errorf("seed %d (%s): %v", seed, Choose(seed).Name, v)
				}
				mu.Unlock()
			}
		})
	}
	workers.Wait()
	t.Logf("%d seeds, %.0f a minute: %+v", seeds, float64(seeds)/time.Since(began).Minutes(), sum)
	n := int(seeds)
	for _, least := range []struct {
		what      string
		got, want int
	}{
		{"allows", sum.Allows, 30 * n}, {"denials", sum.Denials, 10 * n}, {"replays", sum.Replays, 5 * n},
		{"checks at an edge", sum.Edges, 2 * n}, {"leaders", sum.Leaders, 5 * n}, {"stamps held over a term", sum.Held, n / 20},
		{"restarts", sum.Restarts, n}, {"outages", sum.Outages, n / 2}, {"snapshots", sum.Snapshots, n},
		{"snapshots installed", sum.Installs, n / 2}, {"policies", sum.Policies, n},
		{"moves", sum.Moves, n / 2}, {"plans undone", sum.Undone, n / 20},
		{"forgiven", sum.Forgiven, n / 10},
	} {
		if least.got < least.want {
			t.Errorf("the model is too tame: %d %s in %d seeds, want %d", least.got, least.what, n, least.want)
		}
	}
}

// A seed gives a run whole: two runs of it are the same.
func TestSeedReproduces(t *testing.T) {
	for seed := range uint64(10) {
		a, b := Run(seed, Choose(seed)), Run(seed, Choose(seed))
		if a.Counts != b.Counts || a.Digest != b.Digest {
			t.Errorf("seed %d: two runs differ: %+v %x and %+v %x", seed, a.Counts, a.Digest, b.Counts, b.Digest)
		}
	}
}
