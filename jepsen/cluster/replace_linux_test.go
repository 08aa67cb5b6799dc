package cluster

import (
	"testing"
	"time"
)

// TestAnyNodeReplaced shows that any node may lose its data: with its old replicas taken out, and an empty directory,
// it gets copies and its votes, while the others decide and no cap is broken.
func TestAnyNodeReplaced(t *testing.T) {
	w := mustWorld(t, Options{Nodes: 3, First: 3, Partitions: 2, Policy: basic()}, basicLoad())
	n := w.Nodes[w.rand.IntN(len(w.Nodes))]
	w.say("kill -9 %s, and its data is lost", n.ID)
	must(t, n.Kill())
	must(t, n.LoseData())
	w.mustDecide(50)
	out, err := w.Command(within(t, 60*time.Second), "node", "replace", n.ID)
	must(t, err)
	w.say("node replace %s: %s", n.ID, out)
	must(t, n.Start())
	must(t, w.AwaitWhole(within(t, 60*time.Second), 3))
	w.mustControlVoters(3)
	w.say("%s has its votes", n.ID)
	w.mustDecide(100)
	w.mustHold()
	must(t, w.AwaitAgreement(within(t, 60*time.Second)))
}
