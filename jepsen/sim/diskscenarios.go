package sim

import (
	"time"
)

// stuckDisk: a sync of the leader's disk never comes back.
func stuckDisk(c *cluster) {
	n := c.mustLead()
	if n == nil {
		return
	}
	c.note("scenario: the disk of %s is stuck", n.id)
	n.currentDisk().set(func(f *diskFaults) { f.stuck = true })
	time.Sleep(6 * time.Second)
}

// failingDisks: the logs of two nodes cannot be written until their processes start anew.
func failingDisks(c *cluster) {
	n := c.mustLead()
	if n == nil {
		return
	}
	for _, n := range []*node{n, c.others(n)[0]} {
		c.note("scenario: the log of %s cannot be written", n.id)
		n.currentDisk().set(func(f *diskFaults) { f.failLog = true })
	}
	time.Sleep(3 * time.Second)
}

// damaged runs damage on the disk of a node that was killed, and lets it start again.
func (c *cluster) damaged(n *node, damage func(*disk)) {
	c.doubt()
	n.mu.Lock()
	n.wanted = false
	n.mu.Unlock()
	n.end(false, "scenario: killed, and its disk is damaged")
	time.Sleep(200 * time.Millisecond)
	damage(n.currentDisk())
	n.mu.Lock()
	n.wanted = true
	n.mu.Unlock()
}

// flippedBits: bits of a follower's log change while it is down.
func flippedBits(c *cluster) {
	for range 4 {
		l := c.mustLead()
		if l == nil || !c.until(20*time.Second, c.whole) {
			return
		}
		c.raw(l, 20)
		time.Sleep(300 * time.Millisecond)
		c.damaged(c.others(l)[c.intN(2)], func(d *disk) {
			for range 2 {
				c.note("a bit is flipped: %v", d.flip())
			}
		})
		time.Sleep(2 * time.Second)
	}
}

// flippedUnderWay: bits of a log change while its node runs, and a follower that was away needs what is there.
func flippedUnderWay(c *cluster) {
	l := c.mustLead()
	if l == nil || !c.until(20*time.Second, c.whole) {
		return
	}
	n, away := c.others(l)[0], c.others(l)[1]
	c.isolate(away, true)
	c.raw(l, 60)
	time.Sleep(500 * time.Millisecond)
	n.end(false, "scenario: killed, so that nothing of the log is in memory")
	c.until(10*time.Second, func() bool {
		return n.now() != nil && l.now() != nil &&
			n.now().group.AppliedIndex() >= l.now().group.AppliedIndex()-1
	})
	if p := l.now(); p != nil {
		c.note("%s transfers to %s: %v", l.id, n.id, p.group.Transfer(n.id))
	}
	c.until(3*time.Second, func() bool { return c.leader() == n })
	c.doubt()
	for range 8 {
		c.note("a bit is flipped: %v", n.currentDisk().flip())
	}
	c.isolate(away, false)
	time.Sleep(4 * time.Second)
}

// lostWrites: a follower's disk gives back entries that had been replaced.
func lostWrites(c *cluster) {
	old, _, _ := c.staleSuffix(12, 12)
	c.net.heal()
	if old == nil || !c.until(20*time.Second, c.whole) {
		return
	}
	c.damaged(old, func(d *disk) { d.loseWrites() })
	time.Sleep(3 * time.Second)
}

// lonely commits on two nodes only, then has one of them lose what it knew while the other is away.
func (c *cluster) lonely(lose func(n *node)) {
	a := c.mustLead()
	if a == nil || !c.until(20*time.Second, c.whole) {
		return
	}
	b, third := c.others(a)[0], c.others(a)[1]
	c.isolate(third, true)
	c.burst(a, "kept", 3)
	c.raw(a, 30)
	time.Sleep(time.Second)
	a.mu.Lock()
	a.wanted = false
	a.mu.Unlock()
	a.end(false, "scenario: away")
	lose(b)
	c.isolate(third, false)
	time.Sleep(8 * time.Second)
	c.burst(third, "kept", 3)
	c.burst(b, "kept", 3)
	time.Sleep(2 * time.Second)
	a.mu.Lock()
	a.wanted = true
	a.mu.Unlock()
	time.Sleep(3 * time.Second)
}

// cutLog: one of the two nodes that hold an entry loses the end of its log while the other is away.
func cutLog(c *cluster) {
	c.lonely(func(n *node) { c.damaged(n, func(d *disk) { c.note("the log is cut: %v", d.cutTail()) }) })
}

// blankDisk: one of the two nodes that hold an entry loses its data directory while the other is away.
func blankDisk(c *cluster) {
	c.lonely(func(n *node) {
		c.doubt()
		n.end(true, "scenario: its data directory is gone")
		n.mu.Lock()
		defer n.mu.Unlock()
		n.blank()
	})
}
