package placement

import (
	"cmp"
	"slices"
)

// Next is the next step, and false when everything is where it should be, or nothing can be done now.
func Next(in Input) (Step, bool) {
	c := newCluster(in)
	settled := true
	for i := range c.Partitions {
		p := &c.Partitions[i]
		step, found, still := c.repair(p)
		if found && !p.Busy && p.Leader != "" {
			return step, true
		}
		settled = settled && still && !p.Busy
	}
	if !settled {
		return Step{}, false // balance can wait, and its sums are not those of the end
	}
	if step, ok := c.balance(); ok {
		return step, true
	}
	return c.balanceLeaders()
}

// repair is the next step that a partition needs whatever the others do. settled says that it needs none,
// or that there is nothing that could help it.
func (c *cluster) repair(p *Partition) (step Step, found, settled bool) {
	of := func(k Kind, node string) (Step, bool, bool) { return Step{k, p.ID, node}, true, false }
	voters := p.voters()
	if !c.majorityUp(p, voters) {
		return Step{}, false, false // no step could be committed
	}
	if m, ok := c.learner(p); ok {
		switch {
		case m.Stopped || c.bad(m.Node):
			return of(Remove, m.Node)
		case !m.CaughtUp || !c.up(m.Node) || !c.majorityUp(p, with(voters, m.Node)):
			return Step{}, false, false
		}
		return of(Promote, m.Node)
	}
	if len(voters) > c.Replicas {
		out := c.excess(p, voters)
		rest := slices.DeleteFunc(slices.Clone(voters), func(id string) bool { return id == out })
		if !c.majorityUp(p, rest) {
			return Step{}, false, false
		}
		if out == p.Leader {
			if to, ok := c.anySuccessor(p, rest); ok {
				return of(TransferLeader, to)
			}
			return Step{}, false, false
		}
		return of(Remove, out)
	}
	if p.Leader != "" && c.bad(p.Leader) {
		if to, ok := c.successor(p, voters); ok {
			return of(TransferLeader, to)
		}
	}
	if to, ok := c.better(p, voters); ok {
		return of(AddLearner, to)
	}
	return Step{}, false, true
}

// learner is a replica without a vote; one that should go first.
func (c *cluster) learner(p *Partition) (m Member, ok bool) {
	useless := func(l Member) bool { return l.Stopped || c.bad(l.Node) }
	for _, l := range p.Members {
		if l.Learner && (!ok || useless(l) && !useless(m)) {
			m, ok = l, true
		}
	}
	return m, ok
}

// excess is the voter that should go when one is too many.
func (c *cluster) excess(p *Partition, voters []string) string {
	pinned := c.pinned(p, voters)
	return slices.MinFunc(voters, func(a, b string) int {
		return cmp.Or(
			cmp.Compare(c.worth(p, a), c.worth(p, b)),
			cmp.Compare(pinned(a), pinned(b)),
			cmp.Compare(c.crowdingWithout(voters, a), c.crowdingWithout(voters, b)),
			cmp.Compare(c.load[b], c.load[a]),
			cmp.Compare(a, b))
	})
}

// pinned orders voters: the leader last when no other could take over from it.
func (c *cluster) pinned(p *Partition, voters []string) func(id string) int {
	_, movable := c.first(p, slices.DeleteFunc(slices.Clone(voters), func(id string) bool { return id == p.Leader }))
	return func(id string) int {
		if id == p.Leader && !movable {
			return 1
		}
		return 0
	}
}

func (c *cluster) crowdingWithout(nodes []string, out string) int {
	return c.crowding(slices.DeleteFunc(slices.Clone(nodes), func(id string) bool { return id == out }))
}

// successor is the voter that should lead; false when none can.
func (c *cluster) successor(p *Partition, voters []string) (string, bool) {
	return c.first(p, slices.DeleteFunc(slices.Clone(voters), c.bad))
}

// anySuccessor is a successor if there is one, or else one that is to go too: it will do until it goes itself.
func (c *cluster) anySuccessor(p *Partition, voters []string) (string, bool) {
	if to, ok := c.successor(p, voters); ok {
		return to, true
	}
	return c.first(p, voters)
}

// first is the voter that leads the fewest partitions, of those that could lead. One whose disk has too little
// room is never among them: its node hands its leaderships away.
func (c *cluster) first(p *Partition, voters []string) (string, bool) {
	able := slices.DeleteFunc(slices.Clone(voters), func(id string) bool { return !c.serves(p, id) || c.cramped(id) })
	if len(able) == 0 {
		return "", false
	}
	return slices.MinFunc(able, func(a, b string) int {
		return cmp.Or(cmp.Compare(c.leads[a], c.leads[b]), cmp.Compare(a, b))
	}), true
}

// better is a node that should get a replica: because voters are too few, one of them is bad, or zones are
// more crowded than they need to be.
func (c *cluster) better(p *Partition, voters []string) (string, bool) {
	good := slices.DeleteFunc(slices.Clone(voters), c.bad)
	fit := c.candidates(p)
	if len(fit) == 0 {
		return "", false
	}
	to := slices.MinFunc(fit, func(a, b string) int {
		return cmp.Or(
			cmp.Compare(c.crowding(with(good, a)), c.crowding(with(good, b))),
			cmp.Compare(c.load[a], c.load[b]),
			cmp.Compare(a, b))
	})
	if len(good) < c.Replicas {
		return to, true
	}
	grown := with(good, to)
	return to, c.crowdingWithout(grown, c.excess(p, grown)) < c.crowding(good)
}

// candidates are the nodes that could get a replica of p.
func (c *cluster) candidates(p *Partition) (out []string) {
	for _, n := range c.Nodes {
		if !c.bad(n.ID) && c.up(n.ID) && !c.cramped(n.ID) && !p.has(n.ID) {
			out = append(out, n.ID)
		}
	}
	return out
}

func with(nodes []string, id string) []string { return append(slices.Clone(nodes), id) }

// balance moves one replica from a node to one with at least two fewer, where zones are no worse for it.
func (c *cluster) balance() (Step, bool) {
	for i := range c.Partitions {
		p := &c.Partitions[i]
		voters := p.voters()
		if p.Leader == "" || len(voters) != c.Replicas || slices.ContainsFunc(voters, c.bad) {
			continue
		}
		for _, to := range c.candidates(p) {
			grown := with(voters, to)
			// What will go once the new one has its vote, with the load that it has then.
			c.load[to]++
			out := c.excess(p, grown)
			c.load[to]--
			if out != to && c.load[out] >= c.load[to]+2 && c.crowdingWithout(grown, out) <= c.crowding(voters) {
				return Step{AddLearner, p.ID, to}, true
			}
		}
	}
	return Step{}, false
}

// balanceLeaders hands one leadership from a node to one with at least two fewer.
func (c *cluster) balanceLeaders() (Step, bool) {
	for i := range c.Partitions {
		p := &c.Partitions[i]
		if p.Leader == "" {
			continue
		}
		to, ok := c.successor(p, p.voters())
		if ok && to != p.Leader && c.leads[p.Leader] >= c.leads[to]+2 {
			return Step{TransferLeader, p.ID, to}, true
		}
	}
	return Step{}, false
}
