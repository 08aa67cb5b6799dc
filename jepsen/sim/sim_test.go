package sim

import (
	"fmt"
	"os"
	"runtime"
	"slices"
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

// forgiven may be left in a bubble. The first wait for futures that Raft dropped (hashicorp/raft#498) or whose
// goroutine ended with its simulated process, the second are a leadership transfer that never ends
// (hashicorp/raft#696), the third wait for either, and the last for one that ended with its simulated process
// while it opened a replica or sent.
var forgiven = []string{
	"raft.(*deferError).Error",
	"raft.(*Raft).leadershipTransfer(", "raft.(*Raft).leaderLoop.func2(",
	"group.(*RaftGroup).close.func1(", "raft-wal.(*WAL).runRotate(",
	"group.(*guarded).receive(", "raft.(*Raft).pipelineDecode(",
}

// inBubble runs one seed in a bubble of its own.
func inBubble(t *testing.T, seed uint64, verbose bool, f profile) (r report) {
	t.Helper()
	bubble := ""
	defer func() {
		if e := recover(); e != nil {
			if left := leftBehind(bubble); left != "" {
				r.violations = append(r.violations, violation{bubbleHolds, fmt.Sprint(e, "\n", left)})
			}
		}
	}()
	defer watch(seed)()
	synctest.Test(t, func(*testing.T) {
		bubble = bubbleName()
		r = run(seed, verbose, f)
	})
	return r
}

// watch prints all goroutines when a bubble makes no progress.
func watch(seed uint64) (stop func()) {
	timer := time.AfterFunc(40*time.Second, func() {
		buffer := make([]byte, 8<<20)
		fmt.Fprintf(os.Stderr, "seed %d hangs\n%s\n", seed, buffer[:runtime.Stack(buffer, true)])
		os.Exit(3) //nolint:forbidigo // a bubble that hangs cannot be ended otherwise
	})
	return func() { timer.Stop() }
}

// bubbleName is how stacks call the bubble of the calling goroutine.
func bubbleName() string {
	var buffer [256]byte
	head, _, _ := strings.Cut(string(buffer[:runtime.Stack(buffer[:], false)]), "]")
	_, name, _ := strings.Cut(head, ", ")
	return name
}

// leftBehind are the stacks of the goroutines that are left in a bubble, but for those that Raft forgot.
func leftBehind(bubble string) string {
	buffer := make([]byte, 8<<20)
	var out []string
	for _, g := range strings.Split(string(buffer[:runtime.Stack(buffer, true)]), "\n\n") {
		head, _, _ := strings.Cut(g, "\n")
		if strings.Contains(head, bubble+"]") && !slices.ContainsFunc(forgiven, func(f string) bool { return strings.Contains(g, f) }) &&
			!strings.Contains(g, "synctest.testingSynctestTest") {
			out = append(out, g)
		}
	}
	return strings.Join(out, "\n\n")
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
	failed                                           []report
}

func (y *tally) add(r report) {
	y.mu.Lock()
	defer y.mu.Unlock()
	y.checks += r.checks
	y.allows += r.allows
	y.changes += r.changes
	y.faults += r.faults
	y.installs += r.installs
	y.found += len(r.violations)
	if len(r.violations) > 0 {
		y.failed = append(y.failed, r)
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
					y.add(inBubble(t, first+n, false, choose(first+n)))
				}
			})
		}
	})
	if y.allows == 0 || y.changes <= int(seeds) || y.faults == 0 || y.installs == 0 {
		t.Errorf("nothing was put to the test: %d allows, %d leaders, %d faults, %d policies",
			y.allows, y.changes, y.faults, y.installs)
	}
	for _, r := range y.failed {
		for _, v := range r.violations {
			t.Errorf("seed %d: %v", r.seed, v)
		}
		t.Logf("seed %d failed; run it again: make sim SEED=%d", r.seed, r.seed)
	}
	//nolint:forbidigo // a line of its own, with which make sim ends
	fmt.Printf("sim: %d seeds, %d checks, %d allows, %d leader changes, %d faults, %d policies, %d violations\n",
		seeds, y.checks, y.allows, y.changes, y.faults, y.installs, y.found)
}
