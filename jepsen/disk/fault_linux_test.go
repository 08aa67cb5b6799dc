package disk

import (
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/quorate/quorate/jepsen/process"
)

// endsWithin is how long a node may take to end after its disk has failed: the time that a write may take before
// the disk counts as stuck, and some.
const endsWithin = 15 * time.Second

// mustEnd waits for a node to end because of its disk: with exit status 1, and with one line that names a file and
// the reason, and the group that the file is of.
func mustEnd(t *testing.T, n *Node, limit time.Duration, reason string) {
	t.Helper()
	status, lines, err := n.AwaitEnd(within(t, limit))
	must(t, err)
	for _, line := range lines {
		t.Logf("%s: %s", n.ID, line)
	}
	if status != 1 || len(lines) != 1 {
		t.Fatalf("%s ended with exit status %d and %d lines, expected 1 and 1", n.ID, status, len(lines))
	}
	if !slices.ContainsFunc([]string{"partition p0", "partition control", "control group"}, func(group string) bool {
		return strings.HasPrefix(lines[0], "quorate: "+group+": ")
	}) {
		t.Errorf("%s does not say whose file it is", n.ID)
	}
	for _, part := range []string{n.DataDir + "/", reason} {
		if !strings.Contains(lines[0], part) {
			t.Errorf("%s does not say %q", n.ID, part)
		}
	}
}

// mustReturn starts a node and waits until it is ready.
func mustReturn(t *testing.T, c *Cluster, n *Node) {
	t.Helper()
	must(t, c.Start(n))
	must(t, c.AwaitReady(within(t, 30*time.Second), n))
}

// Shows that a node whose disk dies under it ends by itself and says why, that the others serve on, and that
// nothing acknowledged is lost; and that the node catches up when the disk is back.
func TestDeadDisk(t *testing.T) {
	needDisks(t)
	c := mustCluster(t, Options{})
	w := mustWork(t, c, false)
	for range rounds(t) {
		for _, which := range kinds {
			n := mustPick(t, c, which)
			t.Logf("the disk of %s, the %s, dies", n.ID, which)
			must(t, n.Image.Shutdown())
			mustEnd(t, n, endsWithin, "input/output error")
			mustServe(t, w)
			must(t, n.Image.Unmount(within(t, 30*time.Second)))
			must(t, n.Image.Mount())
			mustReturn(t, c, n)
			mustServe(t, w)
			mustAudit(t, c, w)
		}
	}
}

// Shows that a node whose disk is full ends by itself and says why, that the others serve on, and that nothing
// acknowledged is lost; and that the node catches up when there is room again. What finds no room first is a snapshot,
// the log of the partition, or, when an operator makes changes meanwhile, mostly a file of the control group.
func TestFullDisk(t *testing.T) {
	needDisks(t)
	for name, test := range map[string]struct {
		snapshotMiB int64
		acts        bool
	}{
		"snapshots often": {1, false}, "snapshots seldom": {64, false}, "changes": {64, true},
	} {
		t.Run(name, func(t *testing.T) {
			c := mustCluster(t, Options{SnapshotLogMiB: test.snapshotMiB, ImageMiB: 256})
			w := mustWork(t, c, true)
			for range rounds(t) {
				for _, which := range kinds {
					mustSurviveFull(t, c, w, which, test.acts)
				}
			}
		})
	}
}

func mustSurviveFull(t *testing.T, c *Cluster, w *work, which string, acts bool) {
	t.Helper()
	n := mustPick(t, c, which)
	t.Logf("the disk of %s, the %s, is full", n.ID, which)
	resume := func() {}
	if !acts {
		resume = sync.OnceFunc(w.acts.Pause())
		t.Cleanup(resume) // before the work is stopped, which waits for it
	}
	must(t, n.Image.Inflate(0))
	// The log has room in what it has allocated before, so this takes a while.
	mustEnd(t, n, time.Minute, "no space left on device")
	resume()
	mustServe(t, w)
	must(t, n.Image.Deflate())
	mustReturn(t, c, n)
	mustServe(t, w)
	mustAudit(t, c, w)
}

// mustRefuse shows that no decision is made any more, after those that were under way, and that they are refused
// for a reason, any if it is empty.
func mustRefuse(t *testing.T, w *work, reason string) {
	t.Helper()
	must(t, w.AwaitRefusals(within(t, 30*time.Second), reason, 3*workers))
	resume := w.Pause()
	before := w.Acknowledged()
	resume()
	must(t, w.AwaitRefusals(within(t, 30*time.Second), reason, 3*workers))
	if n := w.Acknowledged() - before; n > 0 {
		t.Errorf("%d allows were acknowledged", n)
	}
}

// Shows that a node whose disk is lost for good is replaced by one with an empty disk: it catches up, counts for the
// majority from then on, and nothing acknowledged is lost.
func TestExchangedDisk(t *testing.T) {
	needDisks(t)
	c := mustCluster(t, Options{})
	w := mustWork(t, c, false)
	for range rounds(t) {
		for _, which := range kinds {
			n := mustPick(t, c, which)
			t.Logf("the disk of %s, the %s, is lost", n.ID, which)
			must(t, n.Image.Shutdown())
			mustEnd(t, n, endsWithin, "input/output error")
			must(t, n.Image.Exchange(within(t, 30*time.Second)))
			mustServe(t, w)
			out, err := c.Command(within(t, 30*time.Second), "node", "replace", n.ID, "--timeout", "20s")
			must(t, err)
			t.Logf("%s", out)
			must(t, c.Start(n))
			must(t, c.AwaitVote(within(t, 30*time.Second), n))
			mustServe(t, w)
			mustAudit(t, c, w)

			other := c.Others(n)[rand.IntN(2)]
			must(t, other.Kill())
			mustServe(t, w)
			mustReturn(t, c, other)
		}
	}
	mustAudit(t, c, w)
}

// Shows that a leader that has little room left hands over, and that the cluster serves on; that without room
// anywhere checks are refused, with capacity, and no node ends; and that with room again they are served, with
// nothing lost.
func TestWatermark(t *testing.T) {
	needDisks(t)
	const watermarkMiB = 32
	c := mustCluster(t, Options{MinFreeMiB: watermarkMiB})
	w := mustWork(t, c, false)
	for range rounds(t) {
		low := mustLeader(t, c)
		must(t, low.Image.Inflate(watermarkMiB/2<<20))
		must(t, process.Await(within(t, 30*time.Second), "another node leads", func() bool {
			return mustLeader(t, c) != low
		}))
		mustServe(t, w)
		if leader := mustLeader(t, c); leader == low {
			t.Errorf("%s leads again, though it has little room", leader.ID)
		}
		for _, n := range c.Others(low) {
			must(t, n.Image.Inflate(watermarkMiB/2<<20))
		}
		mustRefuse(t, w, "capacity")
		for _, n := range c.Nodes {
			if !n.Up() {
				t.Fatalf("%s has ended, though it had some room left", n.ID)
			}
			must(t, n.Image.Deflate())
		}
		mustServe(t, w)
		mustAudit(t, c, w)
	}
}
