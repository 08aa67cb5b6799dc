package placement_test

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/quorate/quorate/control/placement"
	"github.com/quorate/quorate/control/state"
)

// newWorld has so many active nodes, n0, n1 and so on.
func newWorld(nodes int) *world {
	w := &world{placement.Input{Replicas: 3, ReplaceAfterNanos: replaceAfter}}
	for i := range nodes {
		w.Nodes = append(w.Nodes, placement.Node{ID: fmt.Sprint("n", i), State: state.NodeActive})
	}
	return w
}

// have adds a partition with voters on n0, n1 and n2.
func (w *world) have(leader string) {
	p := placement.Partition{ID: state.PartitionID(len(w.Partitions)), Leader: leader}
	for i := range 3 {
		p.Members = append(p.Members, placement.Member{Node: fmt.Sprint("n", i)})
	}
	w.Partitions = append(w.Partitions, p)
}

func (w *world) leaders() map[string]int {
	out := map[string]int{}
	for _, p := range w.Partitions {
		out[p.Leader]++
	}
	return out
}

// steps are the steps until there is none; learners that are up and have not stopped catch up before each.
func (w *world) steps(t *testing.T) (made []string) {
	t.Helper()
	for len(made) < 50 {
		for _, p := range w.Partitions {
			for i, m := range p.Members {
				p.Members[i].CaughtUp = m.Learner && !m.Stopped && w.up(m.Node)
			}
		}
		s, ok := placement.Next(w.Input)
		if !ok {
			return made
		}
		made = append(made, s.String())
		if err := w.carryOut(s); err != nil {
			t.Fatal(err)
		}
	}
	t.Fatalf("no end: %v", made)
	return nil
}

// Shows that leaderships that a node handed away, as its disk has too little room, do not come back while it has,
// are balanced among the others, and come back once it has room.
func TestLeadershipsOfLowDisk(t *testing.T) {
	w := newWorld(3)
	for range 6 {
		w.have("n1")
	}
	w.Nodes[0].DiskLow, w.Nodes[2].DiskLow = true, true
	if got := w.steps(t); len(got) > 0 {
		t.Fatalf("handed to nodes without room: %v", got)
	}
	w.Nodes[2].DiskLow = false
	w.steps(t)
	if diff := cmp.Diff(map[string]int{"n1": 3, "n2": 3}, w.leaders()); diff != "" {
		t.Fatal(diff)
	}
	w.Nodes[0].DiskLow = false
	w.steps(t)
	if got := w.leaders()["n0"]; got != 2 {
		t.Fatalf("with room again it leads %d of 6: %v", got, w.leaders())
	}
}

// Shows that a drained leader waits rather than hand its leadership to a node without room, draining or not.
func TestDrainBesideLowDisks(t *testing.T) {
	w := newWorld(4)
	w.have("n0")
	w.Nodes[0].State = state.NodeDraining
	w.Nodes[1].DiskLow, w.Nodes[2].DiskLow, w.Nodes[2].State = true, true, state.NodeDraining
	want := []string{"p0: add learner n3", "p0: promote n3", "p0: transfer leadership to n3", "p0: remove n0"}
	got := w.steps(t)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Fatal(diff)
	}
}

// Shows that a node whose disk has too little room gets no replica, and keeps what it has.
func TestReplicasOfLowDisk(t *testing.T) {
	w := newWorld(4)
	for range 4 {
		w.have("n0")
	}
	for i := range w.Partitions {
		w.Partitions[i].Leader = fmt.Sprint("n", i%3)
	}
	w.Nodes[3].DiskLow = true
	if got := w.steps(t); len(got) > 0 {
		t.Fatalf("for balance: %v", got)
	}
	w.Nodes[2].State = state.NodeDraining
	w.Partitions[2].Leader = "n1"
	if got := w.steps(t); len(got) > 0 {
		t.Fatalf("for a node that is drained: %v", got)
	}
	w.Nodes[2].State, w.Nodes[2].DiskLow = state.NodeActive, true
	if got := w.steps(t); len(got) > 0 {
		t.Fatalf("from a node without room: %v", got)
	}
}

// Shows that a replica that has stopped for good leads nothing, counts for no majority although its node answers,
// is removed as a learner, and as a voter goes first when one is too many, not before.
func TestStoppedReplica(t *testing.T) {
	w := newWorld(4)
	w.have("n0")
	members := w.Partitions[0].Members
	members[1].Stopped = true
	if got := w.steps(t); len(got) > 0 {
		t.Fatalf("with three voters: %v", got)
	}
	w.Nodes[0].State = state.NodeDraining
	if s, ok := placement.Next(w.Input); !ok || s.String() != "p0: transfer leadership to n2" {
		t.Fatalf("when the leader is drained: %v", s)
	}
	w.Nodes[0].State, w.Nodes[2].DownNanos = state.NodeActive, 1
	w.Partitions[0].Members = append(members, placement.Member{Node: "n3", Learner: true, Stopped: true})
	if s, ok := placement.Next(w.Input); ok {
		t.Fatalf("one of three voters serves: %v", s)
	}
	w.Nodes[2].DownNanos = 0
	w.Nodes[3].State = state.NodeDraining // not to be asked again
	if diff := cmp.Diff([]string{"p0: remove n3"}, w.steps(t)); diff != "" {
		t.Fatal(diff)
	}
	w.Nodes[3].State = state.NodeActive
	w.Partitions[0].Members = append(w.Partitions[0].Members, placement.Member{Node: "n3"})
	if diff := cmp.Diff([]string{"p0: remove n1"}, w.steps(t)); diff != "" {
		t.Fatal(diff)
	}
}

// Shows that the control group gives neither leadership nor a first replica to a node whose disk has too little
// room, and a vote only where there is no other; that a learner that has stopped gets no vote, and stays.
func TestControlBesideLowDisks(t *testing.T) {
	c := &council{placement.ControlInput{Leader: "n0", ReplaceAfterNanos: replaceAfter}}
	for i := range 4 {
		c.Nodes = append(c.Nodes, placement.Node{ID: fmt.Sprint("n", i), State: state.NodeActive})
	}
	for i := range 3 {
		c.Members = append(c.Members, placement.Member{Node: fmt.Sprint("n", i), Learner: i > 0})
	}
	mustMake := func(want ...string) {
		t.Helper()
		got, err := c.settle()
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatal(diff)
		}
	}
	c.Nodes[1].DiskLow, c.Nodes[3].DiskLow = true, true
	mustMake("promote n2", "promote n1")
	c.Nodes[3].DiskLow = false
	mustMake("add learner n3")
	c.Nodes[0].State = state.NodeDraining
	c.Nodes[2].DownNanos = 1
	c.Members[3].Stopped = true
	mustMake()
	c.Nodes[2].DownNanos = 0
	mustMake("transfer leadership to n2")
}
