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

// council carries out the changes of a control group, and checks each against what must never happen.
type council struct {
	placement.ControlInput
}

func (c *council) node(id string) (placement.Node, bool) {
	i := slices.IndexFunc(c.Nodes, func(n placement.Node) bool { return n.ID == id })
	if i < 0 {
		return placement.Node{}, false
	}
	return c.Nodes[i], true
}

func (c *council) up(id string) bool { n, ok := c.node(id); return ok && n.DownNanos == 0 }

func (c *council) low(id string) bool { n, ok := c.node(id); return ok && n.DiskLow }

func (c *council) stopped(id string) bool {
	return slices.ContainsFunc(c.Members, func(m placement.Member) bool { return m.Node == id && m.Stopped })
}

func (c *council) serves(id string) bool { return c.up(id) && !c.stopped(id) }

// handAway does what a leader does whose disk has too little room.
func (c *council) handAway() {
	if at := c.successors(); c.low(c.Leader) && len(at) > 0 {
		c.Leader = at[0]
	}
}

// successors are the voters that could lead, but the leader.
func (c *council) successors() []string {
	return slices.DeleteFunc(c.voters(), func(id string) bool { return id == c.Leader || !c.serves(id) || c.low(id) })
}

// good says that a node may have a vote for good.
func (c *council) good(id string) bool {
	n, ok := c.node(id)
	return ok && n.State == state.NodeActive && n.DownNanos < replaceAfter
}

func (c *council) voters() (out []string) {
	for _, m := range c.Members {
		if !m.Learner {
			out = append(out, m.Node)
		}
	}
	return out
}

func (c *council) majorityUp() bool {
	up := 0
	for _, id := range c.voters() {
		if c.serves(id) {
			up++
		}
	}
	return up > len(c.voters())/2
}

func (c *council) want() int {
	active, drains := 0, false
	for _, n := range c.Nodes {
		if n.State == state.NodeActive {
			active++
		}
		drains = drains || n.State == state.NodeDraining && slices.Contains(c.voters(), n.ID)
	}
	want := [...]int{1, 1, 2, 3, 3, 5, 5, 5, 5, 5}[active]
	if drains && len(c.voters()) >= 3 {
		return max(want, 3)
	}
	return want
}

// Shows that of three nodes one that drains keeps its vote, until a fourth has one in its place; and loses it for good
// once it is removed.
func TestADrainCostsNoVote(t *testing.T) {
	c := &council{placement.ControlInput{Leader: "n0", ReplaceAfterNanos: replaceAfter}}
	for k := range 3 {
		id := fmt.Sprint("n", k)
		c.Nodes = append(c.Nodes, placement.Node{ID: id, State: state.NodeActive})
		c.Members = append(c.Members, placement.Member{Node: id})
	}
	c.Nodes[2].State = state.NodeDraining
	for _, step := range []struct {
		what string
		do   func()
		want []string
	}{
		{"nobody could take its place", func() {}, nil},
		{"a fourth", func() { c.Nodes = append(c.Nodes, placement.Node{ID: "n3", State: state.NodeActive}) },
			[]string{"add learner n3", "promote n3", "demote n2"}},
		{"it is removed", func() { c.Nodes[2].State = state.NodeRemoved }, []string{"remove n2"}},
	} {
		step.do()
		got, err := c.settle()
		if diff := cmp.Diff(step.want, got); err != nil || diff != "" {
			t.Errorf("%s: %v %s", step.what, err, diff)
		}
	}
}

// carryOut makes the change, or says why it must not be made.
func (c *council) carryOut(s placement.ControlStep) error {
	before := len(c.voters())
	at := slices.IndexFunc(c.Members, func(m placement.Member) bool { return m.Node == s.Node })
	n, known := c.node(s.Node)
	gone := !known || n.State == state.NodeRemoved
	c.Members = slices.Clone(c.Members)
	switch s.Kind {
	case placement.AddLearner:
		if at >= 0 || gone || !c.up(s.Node) || n.DiskLow {
			return fmt.Errorf("%v: there already, removed, down, or without room", s)
		}
		c.Members = append(c.Members, placement.Member{Node: s.Node, Learner: true})
	case placement.Promote:
		if at < 0 || !c.Members[at].Learner || !c.Members[at].CaughtUp || !c.good(s.Node) || !c.serves(s.Node) {
			return fmt.Errorf("%v: no learner that could vote", s)
		}
		c.Members[at] = placement.Member{Node: s.Node}
	case placement.Demote:
		if at < 0 || c.Members[at].Learner || s.Node == c.Leader {
			return fmt.Errorf("%v: no voter, or the leader", s)
		}
		c.Members[at].Learner = true
	case placement.Remove:
		if at < 0 || !c.Members[at].Learner || !gone {
			return fmt.Errorf("%v: no learner, or still a node", s)
		}
		c.Members = slices.Delete(c.Members, at, at+1)
	case placement.TransferLeader:
		if at < 0 || c.Members[at].Learner || !c.serves(s.Node) || n.DiskLow || s.Node == c.Leader {
			return fmt.Errorf("%v: it cannot lead, or does", s)
		}
		c.Leader = s.Node
	}
	if n := len(c.voters()); n < min(before, c.want()) || n > max(before, c.want()+1) {
		return fmt.Errorf("%v: leaves %d of %d voters, wanted are %d", s, n, before, c.want())
	}
	if !c.majorityUp() {
		return fmt.Errorf("%v: costs the majority", s)
	}
	return nil
}

// settle makes changes until there is none; learners catch up, and a leader with too little room goes, before each.
func (c *council) settle() (made []string, err error) {
	for len(made) < 100 {
		for i := range c.Members {
			c.Members[i].CaughtUp = c.Members[i].Learner && c.up(c.Members[i].Node)
		}
		c.handAway()
		s, ok := placement.NextControl(c.ControlInput)
		if !ok {
			return made, nil
		}
		made = append(made, s.String())
		if err := c.carryOut(s); err != nil {
			return made, err
		}
	}
	return made, fmt.Errorf("no end: %v", made)
}

// pairs is how many pairs of the nodes are in one zone.
func (c *council) pairs(nodes []string) (n int) {
	zones := map[string]int{}
	for _, id := range nodes {
		node, _ := c.node(id)
		n += zones[node.Zone]
		zones[node.Zone]++
	}
	return n
}

// judge says what is wrong with a group that no step changes any more.
func (c *council) judge() error {
	voters, spare := c.voters(), []string{}
	for _, n := range c.Nodes {
		at := slices.IndexFunc(c.Members, func(m placement.Member) bool { return m.Node == n.ID })
		switch {
		case n.State == state.NodeRemoved && at >= 0 && c.Members[at].Learner:
			return fmt.Errorf("%s is removed, and a learner", n.ID)
		case n.State != state.NodeRemoved && n.DownNanos == 0 && !n.DiskLow && at < 0:
			return fmt.Errorf("%s is no member", n.ID)
		case at >= 0 && c.Members[at].Learner && c.good(n.ID) && c.serves(n.ID):
			spare = append(spare, n.ID)
		}
	}
	bad := slices.DeleteFunc(slices.Clone(voters), c.good)
	down := slices.ContainsFunc(voters, func(id string) bool { return !c.serves(id) })
	switch {
	case len(spare) > 0 && (len(voters) < c.want() || len(bad) > 0 && len(voters) == c.want()):
		return fmt.Errorf("%v could vote, voters are %v, bad ones %v", spare, voters, bad)
	case len(voters) > c.want() && !down && (len(c.successors()) > 0 || c.good(c.Leader)):
		return fmt.Errorf("%d voters, wanted are %d", len(voters), c.want())
	case len(bad) == 0 && !c.good(c.Leader):
		return fmt.Errorf("%s leads", c.Leader)
	}
	if len(voters) != c.want() || len(bad) > 0 || slices.ContainsFunc(voters, c.stopped) {
		return nil
	}
	spare = slices.DeleteFunc(spare, c.low)
	for i := range voters {
		for _, s := range spare {
			other := slices.Clone(voters)
			other[i] = s
			if c.pairs(other) < c.pairs(voters) {
				return fmt.Errorf("voters %v, with %s in the place of %s zones are more even", voters, s, voters[i])
			}
		}
	}
	return nil
}

// Shows that from any start the changes of the control group end, that each is possible, keeps a majority up and
// the voters as many as they were or are wanted, and that what can be had is had: all nodes are members, enough
// of them voters, none of these leaving or dead while another could be, zones as even as they can be; also where
// disks have too little room, and replicas have stopped.
func TestControlConverges(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := &council{placement.ControlInput{ReplaceAfterNanos: replaceAfter}}
		states := []state.NodeState{
			state.NodeActive, state.NodeActive, state.NodeActive, state.NodeActive, state.NodeDraining, state.NodeRemoved,
		}
		for i := range rapid.IntRange(1, 9).Draw(t, "nodes") {
			c.Nodes = append(c.Nodes, placement.Node{
				ID: fmt.Sprint("n", i), Zone: rapid.SampledFrom([]string{"x", "y", "z"}).Draw(t, "zone"),
				State:     rapid.SampledFrom(states).Draw(t, "state"),
				DownNanos: rapid.SampledFrom([]int64{0, 0, 0, 0, 1, replaceAfter}).Draw(t, "down"),
				DiskLow:   rapid.IntRange(0, 4).Draw(t, "low") == 0,
			})
		}
		at := rapid.Permutation(c.Nodes).Draw(t, "members")
		for i, n := range at[:rapid.IntRange(1, len(at)).Draw(t, "count")] {
			c.Members = append(c.Members, placement.Member{
				Node: n.ID, Learner: i > 0 && rapid.Bool().Draw(t, "learner"),
				Stopped: rapid.IntRange(0, 9).Draw(t, "stopped") == 0,
			})
		}
		if rapid.IntRange(0, 5).Draw(t, "stranger") == 0 {
			c.Members = append(c.Members, placement.Member{Node: "stranger", Learner: rapid.Bool().Draw(t, "learner")})
		}
		for _, id := range c.voters() {
			if c.majorityUp() && c.serves(id) {
				c.Leader = id
			}
		}
		if _, err := c.settle(); err != nil {
			t.Fatalf("%v: %+v", err, c.ControlInput)
		}
		if c.Leader == "" {
			return
		}
		if err := c.judge(); err != nil {
			t.Fatalf("%v: %+v", err, c.ControlInput)
		}
	})
}

// Shows the changes in order while a cluster of one node grows to six over three zones, a voter dies for good, one
// is drained with the leadership, and both are removed.
func TestControlGrowsAndShrinks(t *testing.T) {
	c := &council{placement.ControlInput{
		Leader: "n0", ReplaceAfterNanos: replaceAfter, Members: []placement.Member{{Node: "n0"}},
	}}
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
	grow := func(ids ...int) {
		for _, i := range ids {
			c.Nodes = append(c.Nodes, placement.Node{
				ID: fmt.Sprint("n", i), Zone: string("xyz"[i%3]), State: state.NodeActive,
			})
		}
	}
	grow(0, 1, 2)
	mustMake("add learner n1", "promote n1", "add learner n2", "promote n2")
	grow(3, 4, 5)
	mustMake("add learner n3", "promote n3", "add learner n4", "promote n4", "add learner n5")
	c.Nodes[3].DownNanos = replaceAfter - 1
	mustMake()
	c.Nodes[3].DownNanos = replaceAfter
	mustMake("promote n5", "demote n3")
	c.Nodes[3].State = state.NodeRemoved
	mustMake("remove n3")
	c.Nodes[0].State = state.NodeDraining // four are left: three voters
	mustMake("transfer leadership to n1", "demote n0", "demote n5")
	c.Nodes[0].State = state.NodeRemoved
	mustMake("remove n0")
}

// Shows that nothing is done while no leader is known, or voters that are up are no majority, or would be none
// afterwards.
func TestControlWithoutMajority(t *testing.T) {
	in := placement.ControlInput{
		Nodes: []placement.Node{
			{ID: "a", State: state.NodeActive}, {ID: "b", State: state.NodeActive, DownNanos: replaceAfter},
			{ID: "c", State: state.NodeActive},
		},
		Members:           []placement.Member{{Node: "a"}, {Node: "b"}},
		ReplaceAfterNanos: replaceAfter,
	}
	if s, ok := placement.NextControl(in); ok {
		t.Errorf("without a leader: %v", s)
	}
	in.Leader = "a"
	if s, ok := placement.NextControl(in); ok {
		t.Errorf("with one of two voters: %v", s)
	}
	in.Nodes[1].DownNanos = 0
	if s, ok := placement.NextControl(in); !ok || s.String() != "add learner c" {
		t.Errorf("with both: %v", s)
	}
	in = placement.ControlInput{Leader: "a", ReplaceAfterNanos: replaceAfter, Nodes: []placement.Node{
		{ID: "a", State: state.NodeActive}, {ID: "b", State: state.NodeActive, DownNanos: 1},
		{ID: "c", State: state.NodeActive, DownNanos: 1}, {ID: "d", State: state.NodeDraining}, {ID: "e", State: state.NodeDraining},
	}}
	for _, n := range in.Nodes {
		in.Members = append(in.Members, placement.Member{Node: n.ID})
	}
	if s, ok := placement.NextControl(in); ok {
		t.Errorf("with three of five voters up, the vote of one of these is taken: %v", s)
	}
	in.Nodes[1].DownNanos = 0
	if s, ok := placement.NextControl(in); !ok || s.String() != "demote e" {
		t.Errorf("with four of five: %v", s)
	}
}
