package cluster

import (
	"testing"
	"time"

	"github.com/quorate/quorate/jepsen/netns"
)

// TestCut shows that a node can be cut off and put back, which other tests need: while a partition's leader is cut
// off it answers clients without a decision, and the others decide without it; once it is back it decides as well.
func TestCut(t *testing.T) { testCut(t, Options{Cuts: true}) }

// TestCutInNamespaces shows the same of a network whose packets are lost, and not only held up in relays.
func TestCutInNamespaces(t *testing.T) {
	if err := netns.Available(t.Context()); err != nil {
		t.Skipf("there can be no namespaces: %v", err)
	}
	testCut(t, Options{Namespaces: true})
}

func testCut(t *testing.T, o Options) {
	o.Nodes, o.First, o.Partitions, o.Policy = 3, 3, 1, basic()
	w := mustWorld(t, o, basicLoad())
	w.mustControlVoters(3)
	n := w.leader("p0")()
	w.Network.Cut(&n.Node)
	cut := w.load.Now()
	w.say("%s, which leads p0, is cut off", n.ID)
	for _, other := range w.Nodes {
		if other != n {
			w.mustDecideAt(other, cut)
		}
	}
	from := w.load.Now()
	must(t, w.load.AwaitUndecided(within(t, time.Minute), from, 10, n))
	for _, a := range w.load.Since(from) {
		if a.Node == n.ID && a.Sent >= from && a.Answer.Decided() {
			t.Errorf("%s is cut off, and has decided: %+v", n.ID, a)
		}
	}
	if stopped := w.stoppedFrom(n); stopped == 0 {
		t.Errorf("nothing that %s sent was stopped while it was cut off", n.ID)
	}
	w.Network.Heal(&n.Node)
	w.say("%s is back", n.ID)
	w.mustDecideAt(n, w.load.Now())
	w.mustDecide(300)
	w.mustHold()
	must(t, w.AwaitAgreement(within(t, 60*time.Second)))
}

// stoppedFrom is how often something was stopped on the way from a node to the others.
func (w *world) stoppedFrom(n *Node) (stopped int) {
	for _, other := range w.Nodes {
		if other != n {
			stopped += w.Network.Stopped(n.ID, other.ID)
		}
	}
	return stopped
}
