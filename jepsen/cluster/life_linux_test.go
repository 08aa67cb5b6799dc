package cluster

import (
	"slices"
	"testing"
	"time"

	"github.com/quorate/quorate/jepsen/history"
)

// basic is the policy of the tests that do not change it: caps that a load reaches all the time.
func basic() history.Policy {
	return history.Policy{
		Version: "basic",
		Default: history.Class{Limits: []history.Limit{{Name: "default", Max: 6, Window: history.Window(3 * time.Second)}}},
		Classes: map[string]history.Class{
			"strict": {Limits: []history.Limit{{Name: "burst", Max: 3, Window: history.Window(time.Second)}, {Name: "room", Max: 5, Window: history.Window(4 * time.Second)}}},
			"wide":   {Limits: []history.Limit{{Name: "room", Max: 12, Window: history.Window(3 * time.Second)}}},
		},
		Groups: map[string]history.Group{
			"account": {
				Classes: []string{"strict", "wide"},
				Limits:  []history.Limit{{Name: "account", Max: 14, Window: history.Window(4 * time.Second)}},
			},
		},
	}
}

// basicLoad asks for more of basic than it has.
func basicLoad() LoadOptions {
	return LoadOptions{
		Clients: 10, Principals: 6, Classes: []string{"strict", "strict", "wide", "wide", "misc", "other"},
		Pause: 60 * time.Millisecond,
	}
}

// TestLife shows that nodes can be added, drained and removed, with a process killed at each step, and no cap is
// ever broken; in the end each partition has its three voters, and all replicas have the same state.
func TestLife(t *testing.T) {
	w := mustWorld(t, Options{Nodes: 5, First: 3, Partitions: 2, Policy: basic()}, basicLoad())
	for _, id := range []string{"n3", "n4"} {
		must(t, w.Node(id).Start())
		must(t, w.AwaitNode(within(t, 30*time.Second), id, "waits to be added", func(n NodeInfo) bool {
			return n.State == "waiting"
		}))
		w.mustStep("node", "add", id)
		must(t, w.AwaitNode(within(t, 60*time.Second), id, "is in the control group", func(n NodeInfo) bool {
			return n.State == "active" && n.Control != ""
		}))
	}
	drained := w.Nodes[w.rand.IntN(len(w.Nodes))]
	w.mustStep("node", "drain", drained.ID, "--wait")
	w.mustStep("node", "remove", drained.ID)
	must(t, drained.Kill())
	w.Nodes = slices.DeleteFunc(w.Nodes, func(n *Node) bool { return n == drained })
	w.mustRestart()
	w.mustDecide(100)
	must(t, w.AwaitWhole(within(t, 60*time.Second), 3))
	w.mustHold()
	must(t, w.AwaitAgreement(within(t, 60*time.Second)))
	nodes, err := w.ListNodes(within(t, 10*time.Second))
	must(t, err)
	if n := nodes[drained.ID]; n.State != "removed" || len(n.Partitions) > 0 {
		t.Errorf("%s was removed, and is %+v", drained.ID, n)
	}
}

// mustStep runs a command while a random process is killed and started again, and then another.
func (w *world) mustStep(args ...string) {
	w.t.Helper()
	done := make(chan error, 1)
	ctx := within(w.t, 90*time.Second)
	addrs := w.addrs()
	w.say("quorate %v", args)
	go func() {
		_, err := w.commandAt(ctx, addrs, args...)
		done <- err
	}()
	// Somewhere within the command, or after it.
	select {
	case err := <-done:
		done <- err
	case <-time.After(time.Duration(w.rand.IntN(400)) * time.Millisecond):
	}
	w.mustRestart()
	must(w.t, <-done)
	w.say("quorate %v has returned", args)
	w.mustDecide(20)
	w.mustRestart() // while what the command began goes on
	w.mustDecide(50)
}
