package placement

import (
	"cmp"
	"slices"
	"strconv"

	"github.com/quorate/quorate/control/state"
)

// Node is a node as it stands.
type Node struct {
	ID    string
	Zone  string
	State state.NodeState
	// DownNanos is for how long it has not answered; 0 while it is up.
	DownNanos int64
}

// Member is one replica of a partition.
type Member struct {
	Node     string
	Learner  bool
	CaughtUp bool // a learner that could take part in a majority at once
}

// Partition is a partition as it stands.
type Partition struct {
	ID      state.PartitionID
	Members []Member
	Leader  string // empty while none is known: then nothing can be changed
	Busy    bool   // a step is being carried out
}

// Input is what a step is found from.
type Input struct {
	Nodes      []Node
	Partitions []Partition
	// Replicas is how many voters each partition should have.
	Replicas int
	// ReplaceAfterNanos is how long a node must have been down to be given up.
	ReplaceAfterNanos int64
}

// Kind says what a step does.
type Kind uint8

// The kinds of steps.
const (
	AddLearner     Kind = 1 // Node gets a replica without a vote
	Promote        Kind = 2 // the learner on Node gets its vote
	TransferLeader Kind = 3 // Node takes over the leadership
	Remove         Kind = 4 // the replica on Node goes
	Demote         Kind = 5 // the voter on Node loses its vote and stays; of the control group only
)

// String is the kind in words.
func (k Kind) String() string {
	switch k {
	case AddLearner:
		return "add learner"
	case Promote:
		return "promote"
	case TransferLeader:
		return "transfer leadership to"
	case Remove:
		return "remove"
	case Demote:
		return "demote"
	}
	return "step " + strconv.Itoa(int(k))
}

// Step is one change of one partition.
type Step struct {
	Kind      Kind
	Partition state.PartitionID
	Node      string
}

// String is the step in words.
func (s Step) String() string { return s.Partition.String() + ": " + s.Kind.String() + " " + s.Node }

// cluster is the input, indexed.
type cluster struct {
	Input
	nodes map[string]*Node
	load  map[string]int // replicas
	leads map[string]int
}

func newCluster(in Input) *cluster {
	c := &cluster{Input: in, nodes: map[string]*Node{}, load: map[string]int{}, leads: map[string]int{}}
	c.Nodes = slices.SortedFunc(slices.Values(in.Nodes), func(a, b Node) int { return cmp.Compare(a.ID, b.ID) })
	c.Partitions = slices.SortedFunc(slices.Values(in.Partitions), func(a, b Partition) int {
		return cmp.Compare(a.ID, b.ID)
	})
	for i := range c.Nodes {
		c.nodes[c.Nodes[i].ID] = &c.Nodes[i]
	}
	for _, p := range c.Partitions {
		for _, m := range p.Members {
			c.load[m.Node]++
		}
		c.leads[p.Leader]++
	}
	return c
}

func (c *cluster) up(id string) bool { n, ok := c.nodes[id]; return ok && n.DownNanos == 0 }

// bad reports that the node should have no replica: it is unknown, leaving, or given up.
func (c *cluster) bad(id string) bool {
	n, ok := c.nodes[id]
	return !ok || n.State != state.NodeActive || n.DownNanos > 0 && n.DownNanos >= c.ReplaceAfterNanos
}

// worth orders bad nodes: one that cannot answer goes before one that is leaving.
func (c *cluster) worth(id string) int {
	switch {
	case !c.bad(id):
		return 2
	case c.up(id):
		return 1
	}
	return 0
}

func (p *Partition) has(node string) bool {
	return slices.ContainsFunc(p.Members, func(m Member) bool { return m.Node == node })
}

func (p *Partition) voters() (out []string) {
	for _, m := range p.Members {
		if !m.Learner {
			out = append(out, m.Node)
		}
	}
	slices.Sort(out)
	return out
}

// crowding is how many pairs of the nodes are in one zone. Nodes that are bad do not count: they are to go.
func (c *cluster) crowding(nodes []string) (pairs int) {
	zones := map[string]int{}
	for _, id := range nodes {
		if !c.bad(id) {
			pairs += zones[c.nodes[id].Zone]
			zones[c.nodes[id].Zone]++
		}
	}
	return pairs
}

// majorityUp reports that enough of the voters answer.
func (c *cluster) majorityUp(voters []string) bool {
	up := 0
	for _, id := range voters {
		if c.up(id) {
			up++
		}
	}
	return up > len(voters)/2
}
