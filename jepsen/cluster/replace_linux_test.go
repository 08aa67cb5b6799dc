package cluster

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/quorate/quorate/jepsen/process"
)

// TestAnyNodeReplaced shows that any node may lose its data: with its old replicas taken out, and an empty directory,
// it gets copies and its votes, while the others decide and no cap is broken. Should the old directory come back
// after that, its votes do not count, even where they would make a majority of those that there were, and the node
// ends and says why.
func TestAnyNodeReplaced(t *testing.T) {
	w := mustWorld(t, Options{Nodes: 3, First: 3, Partitions: 2, Policy: basic()}, basicLoad())
	w.mustControlVoters(3)
	at := w.rand.IntN(len(w.Nodes))
	n, other := w.Nodes[at], w.Nodes[(at+1)%len(w.Nodes)]
	w.say("kill -9 %s, and its data is lost", n.ID)
	must(t, n.Kill())
	must(t, n.SetAside())
	w.mustDecide(50)
	out, err := w.Command(within(t, 60*time.Second), "node", "replace", n.ID)
	must(t, err)
	w.say("node replace %s: %s", n.ID, out)
	w.mustBeWithout(n)
	w.mustRefuseOld(n, other)
	must(t, n.LoseData())
	must(t, n.Start())
	must(t, w.AwaitWhole(within(t, 60*time.Second), 3))
	w.mustControlVoters(3)
	w.say("%s has its votes", n.ID)
	w.mustDecide(300)
	w.mustHold()
	must(t, w.AwaitAgreement(within(t, 60*time.Second)))
}

// mustBeWithout waits until no group counts the node any more.
func (w *world) mustBeWithout(n *Node) {
	w.t.Helper()
	must(w.t, process.Await(within(w.t, 60*time.Second), "no group counts "+n.ID, func() bool {
		s, err := w.Status(w.t.Context())
		return err == nil && !slices.ContainsFunc(s.groups(), func(g *GroupState) bool {
			return g.Leader == "" || slices.Contains(g.nodes(), n.ID)
		})
	}))
}

// mustRefuseOld starts a node with the directory that was given up, beside one of the two others only: it must end before
// it takes part in anything, and nothing may be decided.
func (w *world) mustRefuseOld(n, other *Node) {
	w.t.Helper()
	must(w.t, other.Kill())
	alone := w.load.Now()
	must(w.t, n.PutBack())
	must(w.t, n.Start())
	w.say("kill -9 %s, and %s comes back with its old directory", other.ID, n.ID)
	status, lines, err := n.AwaitEnd(within(w.t, 60*time.Second))
	must(w.t, err)
	said := strings.Join(lines, " / ")
	w.say("%s has ended with status %d: %s", n.ID, status, said)
	if status == 0 || !strings.Contains(said, "empty data directory") && !strings.Contains(said, "empty one") {
		w.t.Errorf("%s must not come back with its old directory, and say what to do; status %d: %s", n.ID, status, said)
	}
	from := w.load.Now()
	for _, up := range w.Nodes {
		if up != other && up != n {
			must(w.t, w.load.AwaitUndecided(within(w.t, 60*time.Second), from, 10, up))
		}
	}
	for _, a := range w.load.Since(alone) {
		if a.Sent >= alone && a.Answer.Decided() {
			w.t.Fatalf("decided with one voter of two, and a directory that was given up: %+v", a)
		}
	}
	must(w.t, other.Start())
	w.say("%s is back", other.ID)
	w.mustDecide(50)
}
