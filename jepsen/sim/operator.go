package sim

import (
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/quorate/quorate/partition/group"
)

// blank gives the node an empty data directory; it needs mu, or that nobody else knows the node.
func (n *node) blank() {
	n.number++
	n.instance = fmt.Sprintf("i%d", n.number)
	n.disk = newDisk(rand.New(rand.NewPCG(n.c.seed, uint64(100*n.number)+uint64(n.id[1]))))
	n.altered = time.Time{}
	n.alter = nil
}

// operate does what an operator and a process supervisor do, until the run ends.
func (c *cluster) operate() {
	for c.nap(200 * time.Millisecond) {
		for _, n := range c.nodes {
			n.supervise()
		}
	}
}

// administer keeps the replica set to the nodes that there are.
func (c *cluster) administer() {
	for c.nap(300 * time.Millisecond) {
		if l := c.leader(); l != nil {
			c.arrange(l)
		}
	}
}

// supervise starts a process that is to run, on a blank disk when its own was refused.
func (n *node) supervise() {
	n.mu.Lock()
	p, wanted, refused := n.p, n.wanted, n.refused
	n.mu.Unlock()
	if refused && p != nil {
		n.end(false, "it is to be replaced")
		return
	}
	if p != nil || !wanted {
		return
	}
	if refused {
		n.mu.Lock()
		n.blank()
		n.refused = false
		n.mu.Unlock()
		n.c.note("%s is replaced by %s", n.id, n.instance)
	}
	if n.c.intN(4) == 0 { // it takes a while
		n.start(nil)
	}
}

// arrange takes one step towards the replica set that is meant.
func (c *cluster) arrange(leader *node) {
	p := leader.now()
	if p == nil {
		return
	}
	members := map[string]group.Member{}
	for _, m := range p.group.Members() {
		members[m.ID] = m
	}
	for _, n := range c.others(leader) {
		n.mu.Lock()
		is := n.member()
		n.mu.Unlock()
		m, there := members[n.id]
		var err error
		switch {
		case there && m.Instance != "" && m.Instance != is.Instance:
			err = p.group.Remove(n.id)
			c.note("%s removes %s@%s: %v", leader.id, n.id, m.Instance, err)
		case !there:
			err = p.group.AddLearner(is)
			c.note("%s adds %s@%s: %v", leader.id, n.id, is.Instance, err)
		case m.Learner:
			q := n.now()
			if q == nil || q.group.AppliedIndex()+2 < p.group.AppliedIndex() {
				continue
			}
			err = p.group.Promote(n.id)
			c.note("%s promotes %s@%s: %v", leader.id, n.id, is.Instance, err)
		default:
			continue
		}
		return
	}
}
