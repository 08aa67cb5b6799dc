package cluster

import (
	"testing"
	"time"
)

// TestCut shows that a node can be cut off and put back, which other tests need: while a partition's leader is cut
// off it answers clients without a decision, and the others decide without it; once it is back it decides as well.
func TestCut(t *testing.T) {
	w := mustWorld(t, Options{Nodes: 3, First: 3, Partitions: 1, Policy: basic(), Cuts: true}, basicLoad())
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
	w.Network.Heal(&n.Node)
	w.say("%s is back", n.ID)
	w.mustDecideAt(n, w.load.Now())
	w.mustDecide(300)
	w.mustHold()
	must(t, w.AwaitAgreement(within(t, 60*time.Second)))
}
