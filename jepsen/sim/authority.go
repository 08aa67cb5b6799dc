package sim

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/quorate/quorate/clock"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/partition"
	"github.com/quorate/quorate/policy"
)

const (
	// leaseTime is how long a node may go by what the authority confirmed, renewEvery how often it asks.
	leaseTime  = 10 * time.Second
	renewEvery = 2 * time.Second
	// installTimeout bounds one attempt to install a revision.
	installTimeout = 2 * time.Second
)

// authority stands for the control group as the nodes see it: it numbers the policies, and confirms to a node
// which one is in force.
type authority struct {
	c *cluster

	mu       sync.Mutex // guards the fields below
	policies []*policy.Policy
	paused   bool            // it confirms nothing
	cut      map[string]bool // nodes that do not reach it
}

func newAuthority(c *cluster) (*authority, error) {
	a := &authority{c: c, cut: map[string]bool{}}
	return a, a.publish()
}

// publish puts the next revision in force. All have the same limits, so that usage which an install forgets
// breaks the cap; every third lists the class that the clients use, which all others decide as default.
func (a *authority) publish() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	number := len(a.policies) + 1
	text := fmt.Sprintf("version: p%d\ndefault: %s\n", number, simRule)
	if number%3 == 0 {
		text += fmt.Sprintf("classes: {c: %s}\n", simRule)
	}
	p, err := policy.Parse("policy.yaml", []byte(text))
	if err != nil {
		return err
	}
	a.policies = append(a.policies, p)
	a.c.history.publish(fsm.Revision(number))
	a.c.note("revision %d is published", number)
	return nil
}

// inForce names the revision in force.
func (a *authority) inForce() fsm.PolicyRef {
	a.mu.Lock()
	defer a.mu.Unlock()
	n := len(a.policies)
	return fsm.NewInstall(fsm.Revision(n), a.policies[n-1]).PolicyRef
}

// reaches reports whether a node's question, or its answer, gets through.
func (a *authority) reaches(node string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return !a.paused && !a.cut[node]
}

func (a *authority) set(f func(a *authority)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	f(a)
}

// publishing publishes a policy now and then, until the run ends or stop is closed.
func (a *authority) publishing(stop <-chan struct{}) {
	for {
		select {
		case <-stop:
			return
		case <-a.c.ctx.Done():
			return
		case <-time.After(a.c.between(500*time.Millisecond, 8*time.Second)):
		}
		if err := a.publish(); err != nil {
			a.c.history.violate(bubbleHolds, "%v", err)
			return
		}
	}
}

// find is where a node's process gets a policy from: it takes a while.
func (p *process) find(ctx context.Context, ref fsm.PolicyRef) (*policy.Policy, error) {
	delay := time.Duration(0)
	if p.n.c.intN(2) == 0 {
		delay = p.n.c.between(0, 300*time.Millisecond)
	}
	select {
	case <-time.After(delay):
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-p.life.dead:
		p.life.breathe()
	}
	a := p.n.c.authority
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.policies[ref.Revision-1], nil
}

// renew asks for a policy lease again and again, and installs what is in force where the process leads, until
// it ends.
func (p *process) renew(source clock.Source) {
	c := p.n.c
	for {
		sent := source.Read()
		p.life.sleep(c.latency())
		ref, ok := c.authority.inForce(), c.authority.reaches(p.n.id)
		p.life.sleep(c.latency())
		if ok && c.authority.reaches(p.n.id) {
			lease, err := clock.GrantLease(sent, int64(leaseTime), driftPPM)
			if err != nil {
				c.history.violate(bubbleHolds, "%v", err)
				return
			}
			p.mu.Lock()
			p.lease = partition.PolicyLease{Revision: ref.Revision, Lease: lease}
			part, g := p.partition, p.group
			p.mu.Unlock()
			if part != nil && g.Leadership().Ready && part.Revision() < ref.Revision {
				ctx, cancel := context.WithTimeout(c.ctx, installTimeout)
				if err := part.Install(ctx, ref); err != nil {
					c.note("%s does not install revision %d: %v", p.n.id, ref.Revision, err)
				}
				cancel()
			}
		}
		p.life.sleep(renewEvery)
	}
}

func (p *process) leased() partition.PolicyLease {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.lease
}

// latency is one way between a node and the authority.
func (c *cluster) latency() time.Duration {
	if c.intN(8) == 0 {
		return c.between(0, 3*time.Second)
	}
	return c.between(0, 30*time.Millisecond)
}

func (n *node) faultUnconfirmed(*node) func() {
	a := n.c.authority
	if n.c.intN(2) == 0 {
		n.c.note("fault: nobody is confirmed a policy")
		a.set(func(a *authority) { a.paused = true })
		return func() { a.set(func(a *authority) { a.paused = false }) }
	}
	n.c.note("fault: %s is confirmed no policy", n.id)
	a.set(func(a *authority) { a.cut[n.id] = true })
	return func() { a.set(func(a *authority) { a.cut[n.id] = false }) }
}

// unconfirmed: the leader is cut off from the authority, and nothing else, for longer than a lease, while
// another policy is published.
func unconfirmed(c *cluster) {
	l := c.mustLead()
	if l == nil {
		return
	}
	time.Sleep(c.between(0, 4*time.Second))
	c.note("scenario: %s is confirmed no policy", l.id)
	c.authority.set(func(a *authority) { a.cut[l.id] = true })
	time.Sleep(c.between(0, 2*time.Second))
	if err := c.authority.publish(); err != nil {
		c.history.violate(bubbleHolds, "%v", err)
	}
	time.Sleep(leaseTime + c.between(time.Second, 5*time.Second))
	c.authority.set(func(a *authority) { a.cut[l.id] = false })
	time.Sleep(4 * time.Second)
}
