package cluster

import (
	"slices"
	"testing"
	"time"

	"github.com/quorate/quorate/jepsen/history"
	"github.com/quorate/quorate/jepsen/process"
)

// TestGatewaysFollowLeaders shows that nodes without a replica of a partition go on answering for it when its leader
// has been killed, as soon as another leads, without waiting for the killed one.
func TestGatewaysFollowLeaders(t *testing.T) {
	w := mustWorld(t, Options{Nodes: 5, First: 5, Partitions: 1, Policy: basic()}, basicLoad())
	for range 2 {
		must(t, w.AwaitWhole(within(t, 60*time.Second), 3))
		s, err := w.Status(within(t, 20*time.Second))
		must(t, err)
		leader, holders := w.Node(s.Partitions[0].Leader), s.Partitions[0].nodes()
		must(t, leader.Kill())
		killed := w.load.Now()
		w.say("kill -9 %s, which led p0; its replicas are on %v", leader.ID, holders)
		for _, n := range w.Nodes {
			if !slices.Contains(holders, n.ID) {
				w.mustDecideAt(n, killed)
			}
		}
		must(t, leader.Start())
		w.mustDecide(50)
	}
	w.mustDecide(300)
	w.mustHold()
	must(t, w.AwaitAgreement(within(t, 60*time.Second)))
}

// failover is how long a partition may be without decisions when its leader has been killed: several elections.
const failover = 20 * time.Second

// mustDecideAt waits until a node has answered checks that were sent since an instant with decisions.
func (w *world) mustDecideAt(n *Node, since time.Duration) {
	w.t.Helper()
	var first time.Duration
	must(w.t, process.Await(within(w.t, failover), n.ID+" answers with decisions", func() bool {
		decided := slices.DeleteFunc(w.load.Since(since), func(a history.Attempt) bool {
			return a.Node != n.ID || a.Sent < since || !a.Answer.Decided()
		})
		if len(decided) > 0 {
			first = decided[0].Received
		}
		return len(decided) >= 20
	}))
	w.say("%s decided again %v after", n.ID, (first - since).Round(time.Millisecond))
}
