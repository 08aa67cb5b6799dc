package sim

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
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

// A goroutine that stays in a bubble is found, and told from those of the test itself.
func TestLeftBehind(t *testing.T) {
	bubble := ""
	defer func() {
		if recover() == nil || !strings.Contains(leftBehind(bubble), "TestLeftBehind") {
			t.Errorf("a goroutine was left in %q, unnoticed: %s", bubble, leftBehind(bubble))
		}
	}()
	synctest.Test(t, func(*testing.T) {
		bubble = bubbleName()
		go func() { select {} }()
	})
}

// tally sums up runs.
type tally struct {
	mu                                               sync.Mutex
	checks, allows, changes, faults, installs, found int
	took                                             time.Duration
}

func (y *tally) add(r report) {
	y.mu.Lock()
	defer y.mu.Unlock()
	y.checks += r.checks
	y.allows += r.allows
	y.changes += r.changes
	y.faults += r.faults
	y.installs += r.installs
	y.took += r.took
	y.found += len(r.violations)
}

// tell tells of a run that failed at once, and all that happened in it: the same seed may have to be run often until it
// fails again.
func tell(t *testing.T, r report) {
	t.Helper()
	for _, v := range r.violations {
		t.Errorf("seed %d: %v", r.seed, v)
	}
	if len(r.violations) > 0 {
		t.Logf("seed %d failed; run it again: make sim SEED=%d; what happened:\n%s", r.seed, r.seed, r.notes)
	}
}

// A cluster under seeded faults of network, disk, clock and process breaks none of the invariants.
func TestSim(t *testing.T) {
	if os.Getenv("QUORATE_SIM_SEED") != "" {
		seed := number(t, "QUORATE_SIM_SEED", 0)
		r := inBubble(t, seed, true, choose(seed))
		t.Log("what happened:\n" + r.notes)
		for _, v := range r.violations {
			t.Error(v)
		}
		return
	}
	seeds, first := number(t, "QUORATE_SIM_SEEDS", 40), number(t, "QUORATE_SIM_FIRST", 1)
	var y tally
	var next atomic.Uint64
	t.Run("seeds", func(t *testing.T) {
		for range runtime.GOMAXPROCS(0) {
			t.Run("worker", func(t *testing.T) {
				t.Parallel()
				for n := next.Add(1) - 1; n < seeds; n = next.Add(1) - 1 {
					r := inBubble(t, first+n, false, choose(first+n))
					y.add(r)
					tell(t, r)
				}
			})
		}
	})
	if y.allows == 0 || y.changes <= int(seeds) || y.faults == 0 || y.installs == 0 {
		t.Errorf("nothing was put to the test: %d allows, %d leaders, %d faults, %d policies",
			y.allows, y.changes, y.faults, y.installs)
	}
	//nolint:forbidigo // a line of its own, with which make sim ends
	fmt.Printf("sim: %d seeds, %.1f simulated hours, %d checks, %d allows, %d leader changes, %d faults, %d policies, %d violations\n",
		seeds, y.took.Hours(), y.checks, y.allows, y.changes, y.faults, y.installs, y.found)
}
