package sim

import (
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// Finding is a broken invariant.
type Finding struct {
	Invariant, Text string
}

// Profiles are the names of the profiles.
func Profiles() []string {
	names := []string{profileMixed.name}
	for _, f := range directed {
		names = append(names, f.name)
	}
	return names
}

// Play runs one seed of a profile in a bubble, and tells what broke.
func Play(t *testing.T, seed uint64, name string) []Finding {
	t.Helper()
	all := append([]profile{profileMixed}, directed...)
	i := slices.IndexFunc(all, func(f profile) bool { return f.name == name })
	if i < 0 {
		t.Fatalf("there is no profile %q: use one of %v", name, Profiles())
	}
	var out []Finding
	for _, v := range inBubble(t, seed, false, all[i]).violations {
		out = append(out, Finding{string(v.invariant), v.text})
	}
	return out
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
		known := func(f string) bool { return strings.Contains(g, f) }
		if strings.Contains(head, bubble+"]") && !slices.ContainsFunc(forgiven, known) &&
			!strings.Contains(g, "synctest.testingSynctestTest") {
			out = append(out, g)
		}
	}
	return strings.Join(out, "\n\n")
}
