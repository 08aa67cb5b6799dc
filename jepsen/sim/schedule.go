package sim

import (
	"time"

	"github.com/quorate/quorate/clock"
)

// scenario is what happens to a cluster while clients use it.
type scenario func(c *cluster)

// mixed is faults of all kinds, one after the other and beside each other.
func mixed(c *cluster) {
	stop := make(chan struct{})
	defer close(stop)
	c.operators.Go(func() { c.authority.publishing(stop) })
	end := time.Now().Add(c.between(12*time.Second, 25*time.Second))
	var mends []func()
	for time.Now().Before(end) {
		time.Sleep(c.between(100*time.Millisecond, 2500*time.Millisecond))
		if mend := c.fault(); mend != nil {
			mends = append(mends, mend)
		}
		for len(mends) > 2 || len(mends) > 0 && c.intN(3) == 0 {
			mends[0]()
			mends = mends[1:]
		}
	}
}

// someone is a random node, and often the leader, whom faults hurt most.
func (c *cluster) someone() *node {
	if l := c.leader(); l != nil && c.intN(2) == 0 {
		return l
	}
	return c.nodes[c.intN(3)]
}

// fault does one thing to the cluster; what it returns ends it.
func (c *cluster) fault() func() {
	c.history.fault()
	n := c.someone()
	o := c.others(n)[c.intN(2)]
	kinds := []func(n, o *node) func(){
		(*node).faultIsolate, (*node).faultOneWay, (*node).faultLossy, (*node).faultHeld, (*node).faultPower,
		(*node).faultKill, (*node).faultFreeze, (*node).faultClock, (*node).faultSlowDisk, (*node).faultDisk,
		(*node).faultTransfer, (*node).faultCompact, (*node).faultSlowApply, (*node).faultAll, (*node).faultWipe,
		(*node).faultUnconfirmed,
	}
	return kinds[c.intN(len(kinds))](n, o)
}

func (n *node) faultIsolate(*node) func() {
	n.c.note("fault: %s is cut off", n.id)
	n.c.isolate(n, true)
	return func() { n.c.isolate(n, false) }
}

func (n *node) faultOneWay(o *node) func() {
	n.c.note("fault: nothing goes from %s to %s", n.id, o.id)
	n.c.cut(n, o, true)
	return func() { n.c.cut(n, o, false) }
}

func (n *node) faultLossy(o *node) func() {
	loss, answers, repeats := float64(n.c.intN(40))/100, float64(n.c.intN(40))/100, float64(n.c.intN(50))/100
	slow := n.c.between(0, 300*time.Millisecond)
	n.c.note("fault: from %s to %s %.0f %% of requests, %.0f %% of answers are lost, %.0f %% come twice, up to %v late",
		n.id, o.id, loss*100, answers*100, repeats*100, slow)
	n.c.net.change(n.id, o.id, func(l *link) { l.loss, l.answerLoss, l.repeats, l.slow = loss, answers, repeats, slow })
	return func() { n.c.net.change(n.id, o.id, func(l *link) { *l = link{cut: l.cut} }) }
}

func (n *node) faultHeld(*node) func() {
	held := n.c.between(300*time.Millisecond, 1900*time.Millisecond)
	n.c.note("fault: answers to %s are held for %v", n.id, held)
	for _, o := range n.c.others(n) {
		n.c.net.change(n.id, o.id, func(l *link) { l.held = held })
	}
	return func() {
		for _, o := range n.c.others(n) {
			n.c.net.change(n.id, o.id, func(l *link) { l.held = 0 })
		}
	}
}

func (n *node) faultPower(*node) func() {
	n.end(true, "fault: loss of power")
	return nil
}

func (n *node) faultKill(*node) func() {
	n.end(false, "fault: killed")
	return nil
}

func (n *node) faultFreeze(*node) func() {
	n.c.note("fault: the clocks of %s stand still", n.id)
	n.freeze(true)
	return func() { n.freeze(false) }
}

func (n *node) faultClock(*node) func() {
	raw := int64(n.c.intN(2*driftPPM+1)) - driftPPM
	slew := int64(n.c.intN(160_001)) - 80_000
	n.c.note("fault: the clocks of %s drift by %d ppm and are slewed by %d ppm", n.id, raw, slew)
	n.clocks(func(f *clock.Fake) { f.Rates(raw+slew, raw) })
	return nil
}

func (n *node) faultSlowDisk(*node) func() {
	slow := n.c.between(5*time.Millisecond, 600*time.Millisecond)
	n.c.note("fault: syncs of %s take %v", n.id, slow)
	d := n.currentDisk()
	d.set(func(f *diskFaults) { f.slow = slow })
	return func() { d.set(func(f *diskFaults) { f.slow = 0 }) }
}

// faultDisk lasts until the process ends, which it does by itself.
func (n *node) faultDisk(*node) func() {
	kind := n.c.intN(3)
	n.c.note("fault: the disk of %s: %s", n.id, []string{"a sync hangs", "syncs fail", "writes fail"}[kind])
	n.currentDisk().set(func(f *diskFaults) { f.stuck, f.failSync, f.failWrite = kind == 0, kind == 1, kind == 2 })
	return nil
}

func (n *node) faultTransfer(o *node) func() {
	p := n.now()
	if p == nil || !p.group.Leadership().Ready {
		return nil
	}
	n.c.operators.Go(func() { n.c.note("%s transfers leadership to %s: %v", n.id, o.id, p.group.Transfer(o.id)) })
	return nil
}

func (n *node) faultCompact(*node) func() {
	p := n.now()
	if p == nil {
		return nil
	}
	n.c.operators.Go(func() { n.c.note("%s compacts: %v", n.id, p.group.CompactNow()) })
	return nil
}

func (n *node) faultSlowApply(*node) func() {
	slow := n.c.between(10*time.Millisecond, 400*time.Millisecond)
	n.c.note("fault: %s takes %v to apply an entry", n.id, slow)
	n.setSlow(func(uint64) time.Duration { return slow })
	return func() { n.setSlow(nil) }
}

func (n *node) faultAll(*node) func() {
	power := n.c.intN(2) == 0
	for _, x := range n.c.nodes {
		x.end(power, "fault: all at once")
	}
	return nil
}

// faultWipe takes a node's data directory, when no other replica is being replaced.
func (n *node) faultWipe(*node) func() {
	if !n.c.whole() {
		return nil
	}
	n.c.doubt()
	n.end(true, "fault: its data directory is gone")
	n.mu.Lock()
	defer n.mu.Unlock()
	n.blank()
	return nil
}

func (n *node) currentDisk() *disk {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.disk
}

func (n *node) setSlow(f func(uint64) time.Duration) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.slow = f
}

func (c *cluster) doubt() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.doubtful = true
}
