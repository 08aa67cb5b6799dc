package placement

import (
	"cmp"
	"slices"

	"github.com/quorate/quorate/control/state"
)

// ControlInput is what a step of the control group is found from.
type ControlInput struct {
	// Nodes are all that the cluster has, removed ones too if they are members still. One that cannot be a member
	// at present, since it has no data directory, is left out until it can.
	Nodes   []Node
	Members []Member // of the control group as it has them
	Leader  string   // empty while none is known: then nothing can be changed
	// ReplaceAfterNanos is how long a node must have been down to be given up.
	ReplaceAfterNanos int64
}

// ControlStep is one change of the control group's members. Its Kind may be Demote.
type ControlStep struct {
	Kind Kind
	Node string
}

// String is the change in words.
func (c ControlStep) String() string { return c.Kind.String() + " " + c.Node }

// controlVoters is how many voters the control group should have with so many active nodes: an odd number where
// that is possible, and no more than are worth the wait for their disks.
func controlVoters(active int) int {
	switch {
	case active >= 5:
		return 5
	case active >= 3:
		return 3
	}
	return max(active, 1)
}

// NextControl is the next change of the control group's own members, and false when they are as they should be,
// or nothing can be done now. All nodes that are not removed are members; 5 voters, or 3 with fewer than five
// active nodes, or all with fewer than three; over zones as evenly as can be. What holds for Next holds here,
// except that a learner that has stopped stays until its node is replaced: it would be added again at once.
func NextControl(in ControlInput) (ControlStep, bool) {
	c := newCluster(Input{Nodes: in.Nodes, ReplaceAfterNanos: in.ReplaceAfterNanos})
	p := &Partition{Members: in.Members, Leader: in.Leader}
	voters := p.voters()
	if in.Leader == "" || !c.majorityUp(p, voters) {
		return ControlStep{}, false // no step could be committed
	}
	want := c.controlWanted(voters)
	// A node that is removed needs no replica, but its vote may be needed until another has one.
	for _, m := range p.Members {
		if m.Learner && c.gone(m.Node) {
			return ControlStep{Remove, m.Node}, true
		}
	}
	if len(voters) > want {
		if change, ok := c.controlExcess(p, voters); ok {
			return change, true
		}
	} else if to, ok := c.controlCandidate(p, voters, want); ok {
		return ControlStep{Promote, to}, true
	}
	for _, n := range c.Nodes {
		if c.up(n.ID) && !c.cramped(n.ID) && !c.gone(n.ID) && !p.has(n.ID) {
			return ControlStep{AddLearner, n.ID}, true
		}
	}
	if c.bad(in.Leader) {
		if to, ok := c.successor(p, voters); ok {
			return ControlStep{TransferLeader, to}, true
		}
	}
	return ControlStep{}, false
}

// controlWanted is how many voters there should be. One that drains does not count, but keeps its vote where three
// would become fewer: until another has one in its place, or it is removed.
func (c *cluster) controlWanted(voters []string) int {
	active, drains := 0, false
	for _, n := range c.Nodes {
		switch n.State {
		case state.NodeActive:
			active++
		case state.NodeDraining:
			drains = drains || slices.Contains(voters, n.ID)
		case state.NodeRemoved:
		}
	}
	want := controlVoters(active)
	if drains && len(voters) >= 3 {
		want = max(want, 3)
	}
	return want
}

// gone reports that the node is no node of the cluster any more.
func (c *cluster) gone(id string) bool {
	n, ok := c.nodes[id]
	return !ok || n.State == state.NodeRemoved
}

// controlWorth orders voters: removed ones go first.
func (c *cluster) controlWorth(p *Partition, id string) int {
	if c.gone(id) {
		return -1
	}
	return c.worth(p, id)
}

// controlOut is the voter that should lose its vote when one is too many; the leader rather not.
func (c *cluster) controlOut(p *Partition, voters []string) string {
	pinned := c.pinned(p, voters)
	leads := func(id string) int {
		if id == p.Leader {
			return 1
		}
		return 0
	}
	return slices.MinFunc(voters, func(a, b string) int {
		return cmp.Or(
			cmp.Compare(c.controlWorth(p, a), c.controlWorth(p, b)),
			cmp.Compare(pinned(a), pinned(b)),
			cmp.Compare(c.crowdingWithout(voters, a), c.crowdingWithout(voters, b)),
			cmp.Compare(leads(a), leads(b)),
			cmp.Compare(b, a))
	})
}

// controlExcess takes the vote of one voter, after the leadership if that has it.
func (c *cluster) controlExcess(p *Partition, voters []string) (ControlStep, bool) {
	out := c.controlOut(p, voters)
	rest := slices.DeleteFunc(slices.Clone(voters), func(id string) bool { return id == out })
	if !c.majorityUp(p, rest) {
		return ControlStep{}, false
	}
	if out != p.Leader {
		return ControlStep{Demote, out}, true
	}
	to, ok := c.anySuccessor(p, rest)
	return ControlStep{TransferLeader, to}, ok
}

// controlCandidate is a learner that should get a vote: because voters are too few, one of them is bad, or zones
// are more crowded than they need to be.
func (c *cluster) controlCandidate(p *Partition, voters []string, want int) (string, bool) {
	var fit []string
	for _, m := range p.Members {
		if m.Learner && m.CaughtUp && c.serves(p, m.Node) && !c.bad(m.Node) {
			fit = append(fit, m.Node)
		}
	}
	good := slices.DeleteFunc(slices.Clone(voters), c.bad)
	// One whose disk has too little room is better than a vote too few, and than nothing else.
	if roomy := slices.DeleteFunc(slices.Clone(fit), c.cramped); len(roomy) > 0 || len(good) >= want {
		fit = roomy
	}
	if len(fit) == 0 {
		return "", false
	}
	to := slices.MinFunc(fit, func(a, b string) int {
		return cmp.Or(cmp.Compare(c.crowding(with(good, a)), c.crowding(with(good, b))), cmp.Compare(a, b))
	})
	if len(good) < want {
		return to, true
	}
	grown := with(good, to)
	return to, c.crowdingWithout(grown, c.controlOut(p, grown)) < c.crowding(good)
}
