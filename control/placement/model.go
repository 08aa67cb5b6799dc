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
	// DiskLow says that its disk has too little room: it gets no new replica and no leadership. What it has stays.
	DiskLow bool
}

// Member is one replica of a partition.
type Member struct {
	Node     string
	Learner  bool
	CaughtUp bool // a learner that could take part in a majority at once
	// Stopped says that the replica has stopped for good: it counts for no majority, though its node answers.
	Stopped bool
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

// cramped reports that the node's disk has too little room to get a replica, or to lead.
func (c *cluster) cramped(id string) bool { n, ok := c.nodes[id]; return ok && n.DiskLow }

// serves reports that p's replica on the node can take part in a majority.
func (c *cluster) serves(p *Partition, id string) bool { return c.up(id) && !p.stopped(id) }

// worth orders replicas that may go: one that is of no use goes before one on a node that is leaving.
func (c *cluster) worth(p *Partition, id string) int {
	switch {
	case p.stopped(id) || c.bad(id) && !c.up(id):
		return 0
	case c.bad(id):
		return 1
	}
	return 2
}

func (p *Partition) stopped(node string) bool {
	return slices.ContainsFunc(p.Members, func(m Member) bool { return m.Node == node && m.Stopped })
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

// majorityUp reports that enough of the members of p, if these were its voters, could commit a step.
func (c *cluster) majorityUp(p *Partition, voters []string) bool {
	up := 0
	for _, id := range voters {
		if c.serves(p, id) {
			up++
		}
	}
	return up > len(voters)/2
}
