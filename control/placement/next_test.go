package placement_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/quorate/quorate/control/placement"
	"github.com/quorate/quorate/control/state"
)

const replaceAfter = int64(60e9)

// world carries steps out, and checks each against what must never happen.
type world struct {
	placement.Input
}

func (w *world) node(id string) *placement.Node {
	i := slices.IndexFunc(w.Nodes, func(n placement.Node) bool { return n.ID == id })
	if i < 0 {
		return nil
	}
	return &w.Nodes[i]
}

func (w *world) up(id string) bool { n := w.node(id); return n != nil && n.DownNanos == 0 }

func (w *world) usable(id string) bool {
	return w.up(id) && w.node(id).State == state.NodeActive && !w.node(id).DiskLow
}

// leads reports that a member could lead.
func (w *world) leads(m placement.Member) bool {
	return !m.Learner && !m.Stopped && w.up(m.Node) && !w.node(m.Node).DiskLow
}

// stuck reports that no other member could take the leadership over.
func (w *world) stuck(p placement.Partition) bool {
	return !slices.ContainsFunc(p.Members, func(m placement.Member) bool { return m.Node != p.Leader && w.leads(m) })
}

// handAway does what nodes do by themselves whose disks have too little room: leaderships go to any voter.
func (w *world) handAway() {
	for i := range w.Partitions {
		p := &w.Partitions[i]
		if n := w.node(p.Leader); n == nil || !n.DiskLow {
			continue
		}
		if at := slices.IndexFunc(p.Members, w.leads); at >= 0 {
			p.Leader = p.Members[at].Node
		}
	}
}

func (w *world) majorityUp(p *placement.Partition) bool {
	up, all := 0, 0
	for _, m := range p.Members {
		if !m.Learner {
			all++
			if w.up(m.Node) && !m.Stopped {
				up++
			}
		}
	}
	return up > all/2
}

// carryOut makes the step, or says why it must not be made.
func (w *world) carryOut(s placement.Step) error {
	p := &w.Partitions[slices.IndexFunc(w.Partitions, func(p placement.Partition) bool { return p.ID == s.Partition })]
	if p.Busy || p.Leader == "" || !w.majorityUp(p) {
		return fmt.Errorf("%v: the partition cannot change", s)
	}
	at := slices.IndexFunc(p.Members, func(m placement.Member) bool { return m.Node == s.Node })
	voters := func() (n int) {
		for _, m := range p.Members {
			if !m.Learner {
				n++
			}
		}
		return n
	}
	before := voters()
	switch s.Kind {
	case placement.AddLearner:
		if at >= 0 || !w.usable(s.Node) || len(p.Members) > before {
			return fmt.Errorf("%v: there already, not usable, or beside another learner", s)
		}
		p.Members = append(slices.Clone(p.Members), placement.Member{Node: s.Node, Learner: true})
	case placement.Promote:
		if at < 0 || !p.Members[at].Learner || !p.Members[at].CaughtUp || p.Members[at].Stopped {
			return fmt.Errorf("%v: no learner that has caught up", s)
		}
		p.Members[at] = placement.Member{Node: s.Node}
	case placement.TransferLeader:
		if at < 0 || !w.leads(p.Members[at]) || p.Leader == s.Node {
			return fmt.Errorf("%v: it cannot lead, or does", s)
		}
		p.Leader = s.Node
	case placement.Remove:
		if at < 0 || p.Leader == s.Node {
			return fmt.Errorf("%v: no member, or the leader", s)
		}
		p.Members = slices.Delete(slices.Clone(p.Members), at, at+1)
		if voters() < min(before, w.Replicas) {
			return fmt.Errorf("%v: leaves %d voters", s, voters())
		}
	}
	if !w.majorityUp(p) {
		return fmt.Errorf("%v: costs the majority", s)
	}
	return nil
}

// settle carries steps out until there is none; learners catch up, and nodes with too little room hand their
// leaderships away, before each.
func (w *world) settle() (steps int, err error) {
	bound := 20 + 20*len(w.Partitions)*(w.Replicas+len(w.Nodes))
	for ; steps <= bound; steps++ {
		for _, p := range w.Partitions {
			for i := range p.Members {
				p.Members[i].CaughtUp = p.Members[i].Learner && w.up(p.Members[i].Node)
			}
		}
		w.handAway()
		s, ok := placement.Next(w.Input)
		if !ok {
			return steps, nil
		}
		if err := w.carryOut(s); err != nil {
			return steps, err
		}
	}
	return steps, fmt.Errorf("no end after %d steps: %+v", steps, w.Input)
}

func drawWorld(t *rapid.T) *world {
	w := &world{placement.Input{Replicas: rapid.SampledFrom([]int{1, 3, 3, 5}).Draw(t, "replicas"), ReplaceAfterNanos: replaceAfter}}
	for i := range rapid.IntRange(1, 9).Draw(t, "nodes") {
		w.Nodes = append(w.Nodes, placement.Node{
			ID: fmt.Sprint("n", i), Zone: rapid.SampledFrom([]string{"x", "y", "z"}).Draw(t, "zone"),
			State:     rapid.SampledFrom([]state.NodeState{state.NodeActive, state.NodeActive, state.NodeActive, state.NodeDraining}).Draw(t, "state"),
			DownNanos: rapid.SampledFrom([]int64{0, 0, 0, 0, 1, replaceAfter, replaceAfter * 2}).Draw(t, "down"),
			DiskLow:   rapid.IntRange(0, 4).Draw(t, "low") == 0,
		})
	}
	for i := range rapid.IntRange(1, 8).Draw(t, "partitions") {
		p := placement.Partition{ID: state.PartitionID(i)}
		at := rapid.Permutation(w.Nodes).Draw(t, "members")
		for _, n := range at[:rapid.IntRange(1, min(len(at), 6)).Draw(t, "count")] {
			p.Members = append(p.Members, placement.Member{Node: n.ID, Stopped: rapid.IntRange(0, 9).Draw(t, "stopped") == 0})
		}
		if last := len(p.Members) - 1; last > 0 && rapid.Bool().Draw(t, "learner") {
			p.Members[last].Learner = true
		}
		if w.majorityUp(&p) {
			for _, m := range p.Members {
				if !m.Learner && w.up(m.Node) && !m.Stopped {
					p.Leader = m.Node
				}
			}
		}
		w.Partitions = append(w.Partitions, p)
	}
	return w
}

// Shows that from any start the steps end, that each is possible and keeps the majority, and that what can
// be had is had: enough voters, none on a node that is leaving or dead, zones as even as they can be; also where
// nodes hand leaderships away since their disks have too little room, and replicas have stopped.
func TestStepsConverge(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := drawWorld(t)
		if _, err := w.settle(); err != nil {
			t.Fatal(err)
		}
		for _, p := range w.Partitions {
			if p.Leader == "" {
				continue
			}
			if err := w.judge(p); err != nil {
				t.Fatalf("%v: %+v\n%+v", err, p, w.Nodes)
			}
		}
	})
}

// judge says what is wrong with a partition that no step changes any more.
func (w *world) judge(p placement.Partition) error {
	zones, spare, good, waits := map[string]int{}, map[string]int{}, 0, false
	for _, n := range w.Nodes {
		at := slices.IndexFunc(p.Members, func(m placement.Member) bool { return m.Node == n.ID })
		gone := n.State != state.NodeActive || n.DownNanos >= replaceAfter
		switch {
		case at >= 0 && p.Members[at].Learner && p.Members[at].Stopped:
			return fmt.Errorf("the learner on %s has stopped", n.ID)
		case at >= 0 && p.Members[at].Learner:
			waits = true // a learner that is away for the moment
		case at >= 0 && !gone:
			zones[n.Zone]++
			good++
		case at < 0 && w.usable(n.ID):
			spare[n.Zone]++
		}
		waits = waits || at >= 0 && (n.DownNanos > 0 || p.Members[at].Stopped) // its majority may hang on each vote
	}
	switch {
	case waits:
		return nil
	case good < w.Replicas && len(spare) > 0:
		return fmt.Errorf("%d good replicas, and nodes to spare", good)
	case w.stuck(p) && w.node(p.Leader).State != state.NodeActive:
		return nil
	case good == w.Replicas && len(p.Members) > w.Replicas:
		return fmt.Errorf("%d replicas", len(p.Members))
	}
	for crowded, n := range zones {
		for zone := range spare {
			if zones[zone]+1 < n {
				return fmt.Errorf("zone %s has %d, zone %s %d", crowded, n, zone, zones[zone])
			}
		}
	}
	return nil
}

// Shows that where no zones matter, replicas and leaders end within one of each other on all nodes, and that
// the end is stable.
func TestEvenLoad(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := drawWorld(t)
		for i := range w.Nodes {
			w.Nodes[i] = placement.Node{ID: w.Nodes[i].ID, State: state.NodeActive}
		}
		for i := range w.Partitions {
			w.Partitions[i].Leader = w.Partitions[i].Members[0].Node
			for j := range w.Partitions[i].Members {
				w.Partitions[i].Members[j].Stopped = false
			}
		}
		if _, err := w.settle(); err != nil {
			t.Fatal(err)
		}
		load := map[string]int{}
		for _, n := range w.Nodes {
			load[n.ID] = 0
		}
		for _, p := range w.Partitions {
			for _, m := range p.Members {
				load[m.Node]++
			}
		}
		least, most := 1<<30, 0
		for _, n := range load {
			least, most = min(least, n), max(most, n)
		}
		if most > least+1 {
			t.Fatalf("loads %v", load)
		}
		if s, ok := placement.Next(w.Input); ok {
			t.Fatalf("it goes on: %v", s)
		}
	})
}

// Shows the steps of a drain in order: another node first, then its vote, the leadership, and the old one.
func TestDrain(t *testing.T) {
	w := &world{placement.Input{Replicas: 3, ReplaceAfterNanos: replaceAfter}}
	for i, zone := range []string{"x", "y", "z", "x"} {
		w.Nodes = append(w.Nodes, placement.Node{ID: fmt.Sprint("n", i), Zone: zone, State: state.NodeActive})
	}
	w.Partitions = []placement.Partition{{ID: 4, Leader: "n0", Members: []placement.Member{{Node: "n0"}, {Node: "n1"}, {Node: "n2"}}}}
	if s, ok := placement.Next(w.Input); ok {
		t.Fatalf("a balanced cluster moves: %v", s)
	}
	w.Nodes[0].State = state.NodeDraining
	var got []string
	for {
		s, ok := placement.Next(w.Input)
		if !ok {
			break
		}
		got = append(got, s.String())
		if err := w.carryOut(s); err != nil {
			t.Fatal(err)
		}
		if s.Kind == placement.AddLearner {
			if again, ok := placement.Next(w.Input); ok {
				t.Fatalf("before it has caught up: %v", again)
			}
			w.Partitions[0].Members[3].CaughtUp = true
		}
	}
	want := []string{
		"p4: transfer leadership to n1", "p4: add learner n3", "p4: promote n3", "p4: remove n0",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Fatal(diff)
	}
}

// Shows that a node that is down is not given up before its time, and is then.
func TestDeadNodes(t *testing.T) {
	w := &world{placement.Input{Replicas: 3, ReplaceAfterNanos: replaceAfter}}
	for i := range 4 {
		w.Nodes = append(w.Nodes, placement.Node{ID: fmt.Sprint("n", i), State: state.NodeActive})
	}
	w.Partitions = []placement.Partition{{Leader: "n0", Members: []placement.Member{{Node: "n0"}, {Node: "n1"}, {Node: "n2"}}}}
	w.Nodes[2].DownNanos = replaceAfter - 1
	if s, ok := placement.Next(w.Input); ok {
		t.Fatalf("given up too soon: %v", s)
	}
	w.Nodes[2].DownNanos = replaceAfter
	if steps, err := w.settle(); err != nil || steps != 3 {
		t.Fatalf("%d steps: %v", steps, err)
	}
	w.Partitions[0].Busy = true
	w.Nodes[1].State = state.NodeDraining
	if s, ok := placement.Next(w.Input); ok {
		t.Fatalf("a second change beside one under way: %v", s)
	}
}
