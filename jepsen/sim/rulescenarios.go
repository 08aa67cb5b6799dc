package sim

import (
	"context"
	"fmt"
	"time"

	"github.com/quorate/quorate/fsm"
)

// earlyAnswers: a leader is asked while it reaches nobody, and another one decides for the same caller.
func earlyAnswers(c *cluster) {
	for range 3 {
		l := c.mustLead()
		if l == nil {
			return
		}
		c.note("scenario: %s is asked and reaches nobody", l.id)
		c.isolate(l, true)
		c.burst(l, "early", 3)
		var next *node
		c.until(10*time.Second, func() bool { next = c.leader(); return next != nil && next != l })
		if next != nil {
			c.burst(next, "early", 3)
		}
		time.Sleep(2 * time.Second)
		c.net.heal()
		time.Sleep(3 * time.Second)
	}
}

// heldBatches: entries wait for the disks of the followers, and checks for entries; then the disks are fast again.
func heldBatches(c *cluster) {
	for range 12 {
		l := c.mustLead()
		if l == nil {
			return
		}
		slow := c.between(400*time.Millisecond, 1200*time.Millisecond)
		for _, n := range c.others(l) {
			n.currentDisk().set(func(f *diskFaults) { f.slow = slow })
		}
		for range 6 {
			c.burst(l, "filler", 1)
			time.Sleep(c.between(5*time.Millisecond, 120*time.Millisecond))
		}
		c.burst(l, "held", 3)
		time.Sleep(slow)
		for _, n := range c.others(l) {
			n.currentDisk().set(func(f *diskFaults) { f.slow = 0 })
		}
		for range 12 {
			c.burst(l, "held", 2)
			time.Sleep(c.between(50*time.Millisecond, 150*time.Millisecond))
		}
		time.Sleep(c.between(0, 10*time.Second))
	}
}

// decideOne asks the leader, whoever it is, until there is an answer.
func (c *cluster) decideOne(check fsm.Check) {
	c.until(20*time.Second, func() bool {
		l := c.leader()
		if l == nil {
			return false
		}
		ctx, cancel := context.WithTimeout(c.ctx, callTimeout)
		defer cancel()
		a, err := l.check(ctx, check)
		if err != nil {
			return false
		}
		c.history.told(result{id: check.DecisionID, reason: a.Reason, recorded: a.Recorded, node: l.id})
		return true
	})
}

// some are checks with ids of their own.
func (c *cluster) some(principal string, count int) []fsm.Check {
	var out []fsm.Check
	for i := range count {
		out = append(out, fsm.Check{
			Principal: principal, Gateway: "s", DecisionID: fmt.Sprintf("some-%s-%d-%d", principal, i, c.intN(1<<40)),
			RouteEpoch: simEpoch, Charge: fsm.Charge{Class: "c", Cost: 1},
		})
	}
	return out
}

// restartedWhole: all replicas compact their logs, end and begin again, and who has asked before asks again, long
// after the windows have passed and before the ids are forgotten.
func restartedWhole(c *cluster) {
	if c.mustLead() == nil {
		return
	}
	checks := c.some("again", 3)
	for _, check := range checks {
		c.decideOne(check)
	}
	time.Sleep(time.Second)
	for _, n := range c.nodes {
		if p := n.now(); p != nil {
			c.note("scenario: %s compacts: %v", n.id, p.group.CompactNow())
		}
	}
	for _, n := range c.nodes {
		n.end(c.intN(2) == 0, "scenario: all end")
	}
	if c.mustLead() == nil {
		return
	}
	time.Sleep(12 * time.Second)
	for _, check := range checks {
		c.decideOne(check)
	}
}

// sentSnapshot: a follower is cut off until it needs a snapshot, then it leads, and who has asked before asks again.
func sentSnapshot(c *cluster) {
	l := c.mustLead()
	if l == nil {
		return
	}
	n := c.others(l)[c.intN(2)]
	c.note("scenario: %s is cut off until it needs a snapshot", n.id)
	c.isolate(n, true)
	checks := c.some("sent", 6)
	for _, check := range checks {
		c.decideOne(check)
	}
	if l = c.leader(); l == nil || l.now() == nil {
		c.net.heal()
		return
	}
	c.raw(l, 400)
	time.Sleep(2 * time.Second)
	if p := l.now(); p != nil {
		c.note("scenario: %s compacts: %v", l.id, p.group.CompactNow())
	}
	c.net.heal()
	c.until(20*time.Second, c.whole)
	if p := l.now(); p != nil {
		c.note("scenario: %s transfers to %s: %v", l.id, n.id, p.group.Transfer(n.id))
	}
	for _, check := range append(checks, c.some("sent", 3)...) {
		c.decideOne(check)
	}
	time.Sleep(2 * time.Second)
}
