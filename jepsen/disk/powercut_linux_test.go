package disk

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/quorate/quorate/jepsen/process"
)

// Shows that nothing acknowledged is lost, neither a decision nor an operator's change, when the power of all three
// nodes is cut at the same instant in the middle of both, and that they come back by themselves.
func TestPowerCutOfAll(t *testing.T) {
	needDisks(t)
	c := mustCluster(t, Options{})
	w := mustWork(t, c, false)
	for range rounds(t) {
		mustCutAll(t, c, w)
		must(t, c.StartAll(within(t, 30*time.Second)))
		mustServe(t, w)
		mustAudit(t, c, w)
	}
}

// Shows the same at the worst moment for the log: when a segment of it has just ended and the next has not begun,
// which the nodes, having the same entries, come to at the same time.
func TestPowerCutAtTheEndOfASegment(t *testing.T) {
	needDisks(t)
	for round := range rounds(t) {
		t.Run(fmt.Sprint("round ", round+1), func(t *testing.T) {
			// Snapshots seldom, so that the segment whose end is waited for is not dropped before.
			c := mustCluster(t, Options{SnapshotLogMiB: 64})
			w := mustWork(t, c, true)
			must(t, mustLeader(t, c).AwaitSegmentEnd(within(t, time.Minute)))
			must(t, c.CutPower(within(t, 30*time.Second), c.Nodes...))
			must(t, c.StartAll(within(t, 30*time.Second)))
			mustServe(t, w)
			w.Stop()
			mustAudit(t, c, w)
		})
	}
}

// mustCutAll cuts all power at some moment of the load.
func mustCutAll(t *testing.T, c *Cluster, w *work) {
	t.Helper()
	must(t, w.AwaitMore(within(t, 30*time.Second), 500+rand.IntN(1500)))
	must(t, w.acts.AwaitMore(within(t, 30*time.Second), 1+rand.IntN(5)))
	must(t, c.CutPower(within(t, 30*time.Second), c.Nodes...))
}

// Shows that the test above would notice: with a program whose syncs do nothing, acknowledged allows are lost, or
// changes are, unless a node sees by itself that it has lost something.
func TestPowerCutNoticesMissingSyncs(t *testing.T) {
	needDisks(t)
	b, err := process.Build(t.TempDir(), "chaos")
	must(t, err)
	for range 3 {
		if lostWithoutSyncs(t, b) {
			return
		}
	}
	t.Error("the power cut test cannot see lost syncs: nothing was lost in three cuts without any")
}

// lostWithoutSyncs cuts the power of a cluster that does not sync, and reports whether that lost anything.
func lostWithoutSyncs(t *testing.T, binary string) bool {
	t.Helper()
	c := mustCluster(t, Options{Binary: binary, Environment: []string{"QUORATE_UNGUARDED=synced-write"}})
	for _, n := range c.Nodes { // what the nodes are is there after the cut, only what they did since is not
		must(t, n.Image.Sync())
	}
	w := mustWork(t, c, false)
	mustCutAll(t, c, w)
	w.Stop()
	err := c.StartAll(within(t, 30*time.Second))
	var ended *Ended
	if errors.As(err, &ended) && strings.Contains(ended.Error(), "data was lost") {
		t.Logf("without syncs: acknowledged %d; a node saw by itself that it has lost some: %v", w.Acknowledged(), ended)
		return true
	}
	must(t, err)
	a, err := w.Audit(within(t, 2*time.Minute))
	must(t, err)
	acts, err := w.acts.Audit(within(t, time.Minute))
	t.Logf("without syncs: %v; %v; %v", a, acts, err)
	return len(a.Lost) > 0 || len(acts.Lost) > 0
}

// Shows that a cluster goes on serving when the power of one node is cut, of whichever kind, that the node comes back
// and has what the others have, and that nothing acknowledged is lost.
func TestPowerCutOfOne(t *testing.T) {
	needDisks(t)
	c := mustCluster(t, Options{})
	w := mustWork(t, c, false)
	for range rounds(t) {
		for _, which := range kinds {
			n := mustPick(t, c, which)
			must(t, c.CutPower(within(t, 30*time.Second), n))
			mustServe(t, w)
			must(t, c.Start(n))
			must(t, c.AwaitReady(within(t, 30*time.Second), n))
		}
		mustAudit(t, c, w)
	}
}

// kinds are those of the nodes to which faults happen: the one that leads the partition, one that does not, and the
// one that leads the control group.
var kinds = []string{"leader", "follower", "leader of the control group"}

// mustPick is a node of one of the kinds.
func mustPick(t *testing.T, c *Cluster, which string) *Node {
	t.Helper()
	switch which {
	case "leader":
		return mustLeader(t, c)
	case "follower":
		return c.Others(mustLeader(t, c))[rand.IntN(2)]
	default:
		return mustControlLeader(t, c)
	}
}

// Shows that with the power of two nodes of three cut, the leader among them, nothing is acknowledged until one of
// them is back, that two then serve, and that nothing acknowledged is lost.
func TestPowerCutOfTwo(t *testing.T) {
	needDisks(t)
	c := mustCluster(t, Options{})
	w := mustWork(t, c, false)
	for range rounds(t) {
		leader := mustLeader(t, c)
		others := c.Others(leader)
		must(t, c.CutPower(within(t, 30*time.Second), leader, others[0]))
		resume := w.acts.Pause() // the answer to an act may have been on its way
		before := w.acts.Acknowledged()
		resume()
		mustRefuse(t, w, "")
		if n := w.acts.Acknowledged() - before; n > 0 {
			t.Errorf("%d changes were acknowledged", n)
		}
		must(t, c.Start(others[0]))
		mustServe(t, w)
		must(t, c.Start(leader))
		must(t, c.AwaitReady(within(t, 30*time.Second), c.Nodes...))
		mustAudit(t, c, w)
	}
}
