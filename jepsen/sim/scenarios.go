package sim

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/fsm"
)

// raw puts entries into a node's log that the state machine refuses, past the owner and its bound of entries
// in flight: a long stale suffix, or a log that grows fast.
func (c *cluster) raw(n *node, count int) {
	p := n.now()
	if p == nil {
		return
	}
	for range count {
		data := fsm.AppendEntry(nil, &fsm.Entry{
			Kind: fsm.KindBatch, Term: 1, Stamp: fsm.Time(c.intN(1 << 30)),
		})
		c.proposals.Go(func() { <-p.group.(*watched).Group.Propose(data).Done() })
	}
}

// burst asks a node for decisions, each under an id of its own.
func (c *cluster) burst(n *node, principal string, count int) {
	for range count {
		id := fmt.Sprintf("burst-%d-%d", time.Now().UnixNano(), c.intN(1<<40))
		c.clients.Go(func() {
			ctx, cancel := context.WithTimeout(c.ctx, callTimeout)
			defer cancel()
			a, err := n.check(ctx, fsm.Check{
				Principal: principal, Gateway: "b", DecisionID: id, RouteEpoch: simEpoch,
				Charge: fsm.Charge{Class: "c", Cost: 1},
			})
			if err == nil {
				c.history.told(result{id: id, reason: a.Reason, recorded: a.Recorded, node: n.id})
			}
		})
	}
}

// header is that of a request of a process.
func (p *process) header() raft.RPCHeader {
	return raft.RPCHeader{
		ProtocolVersion: raft.ProtocolVersionMax, ID: []byte(p.self.ID + "@" + p.self.Instance), Addr: []byte(p.self.Addr),
	}
}

func (p *process) transport() *transport {
	p.n.c.net.mu.Lock()
	defer p.n.c.net.mu.Unlock()
	return p.n.c.net.at[p.self.Addr]
}

// deposedQuietly: a request to campaign that was long on its way makes a leader while the old one still
// leads; the first thing that the old one hears of it is a heartbeat.
func deposedQuietly(c *cluster) {
	a := c.mustLead()
	if a == nil {
		return
	}
	b, third := c.others(a)[0], c.others(a)[1]
	p, q := a.now(), b.now()
	if p == nil || q == nil {
		return
	}
	from, to := p.transport(), q.transport()
	if from == nil || to == nil {
		return
	}
	c.note("scenario: %s is deposed by %s quietly", a.id, b.id)
	c.cut(a, third, true)
	c.cut(a, b, true)
	c.net.setTap(func(k *packet) {
		if k.from.self.ID != b.id || k.to.self.ID != a.id {
			return
		}
		if !isHeartbeat(k.command) {
			k.delay = 700 * time.Millisecond
		}
	})
	c.net.flights.Go(func() {
		to.serve(&packet{from: from, to: to, command: &raft.TimeoutNowRequest{RPCHeader: p.header()}}, func() {})
	})
	term := p.group.Status().Term
	for range 500 {
		if p.group.Status().Term > term {
			break
		}
		time.Sleep(time.Millisecond)
	}
	c.raw(a, 8) // at once, as they queue while the main loop is busy
	c.raw(b, 10)
	time.Sleep(time.Second)
	c.net.setTap(nil)
	c.cut(a, b, false)
	c.cut(a, third, false)
	time.Sleep(2 * time.Second)
}

// staleSuffix cuts a leader off with entries that only it has. The others go on; it returns the old
// leader, the new one, and where their logs part.
func (c *cluster) staleSuffix(stale, fresh int) (old, now *node, parted uint64) {
	old = c.mustLead()
	if old == nil || old.now() == nil {
		return nil, nil, 0
	}
	c.isolate(old, true)
	parted = old.now().group.Status().CommitIndex
	c.raw(old, stale)
	c.until(10*time.Second, func() bool { now = c.leader(); return now != nil && now != old })
	if now == nil || now == old || now.now() == nil {
		return nil, nil, 0
	}
	c.raw(now, fresh)
	time.Sleep(500 * time.Millisecond)
	return old, now, parted
}

// rewound: the first request that a follower with a stale suffix gets ends before the suffix begins. Raft's
// protocol allows any such request: a leader's idea of what a follower has may fall back.
func rewound(c *cluster) {
	book := newBook(c.net)
	defer book.close()
	c.raw(c.mustLead(), 20)
	time.Sleep(500 * time.Millisecond)
	old, now, parted := c.staleSuffix(100, 40)
	if old == nil {
		c.net.heal()
		return
	}
	p, q := now.now(), old.now()
	if p == nil || q == nil {
		c.net.heal()
		return
	}
	from, to := p.transport(), q.transport()
	request := book.rewind(p, parted)
	c.note("scenario: a rewound request from %s to %s, of %d entries, where the logs part at %d: %v",
		now.id, old.id, len(request.Entries), parted, request.PrevLogEntry)
	if len(request.Entries) > 0 && from != nil && to != nil {
		to.serve(&packet{from: from, to: to, command: request}, func() {})
	}
	time.Sleep(500 * time.Millisecond)
	c.net.heal()
	time.Sleep(2 * time.Second)
}

// conflictingInstall: a snapshot is installed on a log that reaches beyond it.
func conflictingInstall(c *cluster) {
	old, now, _ := c.staleSuffix(240, 120)
	if old != nil {
		if p := now.now(); p != nil {
			c.note("scenario: %s compacts, and %s has a longer log: %v", now.id, old.id, p.group.CompactNow())
		}
	}
	c.net.heal()
	time.Sleep(4 * time.Second)
}

// halfVote: power is lost when the term of a vote has been written.
func halfVote(c *cluster) {
	leader := c.mustLead()
	if leader == nil {
		return
	}
	var voter, other *node
	for _, n := range c.others(leader) {
		d := n.currentDisk()
		d.mu.Lock()
		voted := strings.Contains(string(d.table["LastVoteCand"]), "addr-"+leader.id)
		d.mu.Unlock()
		if voted {
			voter = n
		}
	}
	if voter == nil {
		return
	}
	for _, n := range c.others(leader) {
		if n != voter {
			other = n
		}
	}
	p, q := leader.now(), other.now()
	if p == nil || q == nil || voter.now() == nil {
		return
	}
	c.raw(leader, 5)
	time.Sleep(300 * time.Millisecond)
	term := p.group.Status().Term + 1
	for _, n := range c.nodes {
		c.isolate(n, true)
	}
	voter.currentDisk().set(func(f *diskFaults) {
		f.cutAfterPut, f.cut = "LastVoteTerm", func() { voter.end(true, "scenario: between the writes of a vote") }
	})
	vote := func(by *process, index, last uint64) {
		to := voter.now()
		if to == nil || to.transport() == nil {
			return
		}
		k := &packet{from: by.transport(), to: to.transport(), command: &raft.RequestVoteRequest{
			RPCHeader: by.header(), Term: term, LastLogIndex: index, LastLogTerm: last,
			LeadershipTransfer: true,
		}}
		if k.from == nil {
			return
		}
		if r, ok := k.to.serve(k, func() {}); ok {
			c.votes(k, r.response)
		}
	}
	vote(q, 1<<40, term)
	c.until(5*time.Second, func() bool { return voter.now() != nil })
	vote(p, 1, 1)
	time.Sleep(500 * time.Millisecond)
	c.net.heal()
}

// slowMachine: the leader's state machine stands still for longer than any proposal may take.
func slowMachine(c *cluster) {
	n := c.mustLead()
	if n == nil {
		return
	}
	c.note("scenario: the state machine of %s stands still", n.id)
	n.setSlow(func(uint64) time.Duration { return 12 * time.Second })
	time.Sleep(2 * time.Second)
	n.setSlow(nil)
	time.Sleep(12 * time.Second)
}

// interruptedTransfers: leaders are cut off while they hand over.
func interruptedTransfers(c *cluster) {
	c.net.setTap(func(k *packet) {
		if _, ok := k.command.(*raft.TimeoutNowRequest); ok {
			k.lost = true
		}
	})
	for range 8 {
		n := c.mustLead()
		if n == nil {
			break
		}
		p := n.now()
		if p == nil {
			continue
		}
		o := c.others(n)[c.intN(2)]
		c.cut(n, o, true)
		time.Sleep(c.between(0, 100*time.Millisecond))
		c.raw(n, 3)
		c.operators.Go(func() {
			for range 2 { // the second begins while a request of the first is still on its way
				c.note("%s transfers to %s: %v", n.id, o.id, p.group.Transfer(o.id))
			}
		})
		time.Sleep(1050 * time.Millisecond)
		c.isolate(n, true)
		time.Sleep(700 * time.Millisecond)
		c.isolate(n, false)
		time.Sleep(3 * time.Second)
	}
	c.net.setTap(nil)
}

// lateMachine: leadership goes to a node that has not applied the last entries, after the old leader's clock
// stood still.
func lateMachine(c *cluster) {
	n := c.mustLead()
	if n == nil {
		return
	}
	o := c.others(n)[0]
	time.Sleep(12 * time.Second) // what was admitted has expired
	c.burst(n, "late", 1)
	time.Sleep(1500 * time.Millisecond)
	c.note("scenario: the clock of %s and the state machine of %s stand still", n.id, o.id)
	n.freeze(true)
	o.setSlow(func(uint64) time.Duration { return 5 * time.Second })
	time.Sleep(3 * time.Second)
	c.burst(n, "late", 3)
	time.Sleep(100 * time.Millisecond)
	p := n.now()
	if p == nil {
		return
	}
	c.note("%s transfers to %s: %v", n.id, o.id, p.group.Transfer(o.id))
	c.until(time.Second, func() bool { q := o.now(); return q != nil && q.group.Leadership().Term != 0 })
	c.burst(o, "late", 3)
	time.Sleep(2 * time.Second)
	o.setSlow(nil)
	n.freeze(false)
	time.Sleep(5 * time.Second)
}

// wrongState: a follower computes something else than the others, once.
func wrongState(c *cluster) {
	l := c.mustLead()
	if l == nil {
		return
	}
	n := c.others(l)[c.intN(2)]
	n.mu.Lock()
	was := n.number
	n.alter = func(_ uint64, data []byte) []byte {
		e, err := fsm.DecodeEntry(data)
		if err != nil || len(e.Checks) == 0 {
			return data
		}
		n.mu.Lock()
		n.alter = nil
		n.mu.Unlock()
		e.Checks[0].Principal = "somebody-else"
		return fsm.AppendEntry(nil, e)
	}
	n.mu.Unlock()
	c.note("scenario: %s computes something else", n.id)
	c.burst(l, "altered", 2)
	stopped := c.until(20*time.Second, func() bool {
		n.mu.Lock()
		defer n.mu.Unlock()
		return n.refused || n.number != was
	})
	if !stopped {
		c.history.violate(stopHolds, "%s computed something else and goes on", n.id)
	}
}
