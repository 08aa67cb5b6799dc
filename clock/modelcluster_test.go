package clock_test

import (
	"math/rand/v2"
	"strconv"

	"github.com/quorate/quorate/clock"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/policy"
)

const (
	modelNodes = 3
	modelSteps = 350
	// modelWallNanos is the wall time at true time 0.
	modelWallNanos = 1_000_000 * second
)

// counts are what has happened in the models of many seeds.
type counts struct {
	leaders, again, held, dropped, inherited, installs, restarts int
	outages, bridges, saturated, tight, clamped                  int
}

func (c *counts) add(o *counts) {
	c.leaders += o.leaders
	c.again += o.again
	c.held += o.held
	c.dropped += o.dropped
	c.inherited += o.inherited
	c.installs += o.installs
	c.restarts += o.restarts
	c.saturated += o.saturated
	c.tight += o.tight
	c.clamped += o.clamped
	c.outages += o.outages
	c.bridges += o.bridges
}

// cluster is a partition's replicas and what only an observer outside knows: the true time, and the
// one log that they agree on. The state machine is a function of the log, so one stands for all.
type cluster struct {
	rng       *rand.Rand
	wrong     wrong
	trust     clock.TrustWall
	ppm       int64 // the drift bound
	now       int64 // true nanoseconds
	term      uint64
	leader    *node // elected last
	nodes     []*node
	committed []*entry
	state     *fsm.Machine
	claims    *claims
	counts    counts
	ids       int
	fresh     *node // got its state from a snapshot or a restart last
}

func newCluster(seed uint64, w wrong, p *policy.Policy) *cluster {
	rng := rand.New(rand.NewPCG(seed, 0x70617274))
	c := &cluster{
		rng: rng, wrong: w, term: 1, state: fsm.New(), claims: newClaims(),
		trust: clock.TrustNever, ppm: clock.DefaultMaxDriftPPM,
	}
	switch seed % 4 {
	case 1:
		c.ppm = 20_000 // so that the drift and the slow-down weigh as much as the rest
	case 3:
		c.trust = clock.TrustBounded
	}
	birth := &entry{logTerm: 1, command: &fsm.Entry{Kind: fsm.KindBirth, Term: 1, Birth: &fsm.Birth{
		Cluster: "c", Partition: "p", Bounds: fsm.DefaultBounds(), Install: fsm.NewInstall(1, p),
		Owned: []fsm.OwnedRange{{SlotRange: fsm.SlotRange{Last: fsm.NumSlots - 1}, Epoch: 1}},
	}}}
	c.state.Step(1, birth.command)
	c.committed = []*entry{birth}
	for range modelNodes {
		n := newNode(rng, w, c.trust, c.ppm)
		n.log = append(n.log, birth)
		n.apply(birth)
		c.nodes = append(c.nodes, n)
	}
	c.elect()
	return c
}

// run lets true time pass in random steps and one random thing happen after each.
func (c *cluster) run() {
	calm := 1 + c.rng.IntN(8) // leaderships of some clusters last longer
	for range modelSteps {
		c.pass()
		if c.trust == clock.TrustBounded && c.rng.IntN(100) == 0 {
			c.outage()
		}
		n := c.nodes[c.rng.IntN(len(c.nodes))]
		switch x := c.rng.IntN(100); {
		case x < 30:
			c.request()
		case x < 56:
			c.work()
		case x < 70:
			c.commit()
		case x < 85:
			c.apply(n)
			c.apply(c.leader)
		case x < 88:
			c.notice(n)
		case x < 92:
			if c.leader.leading != c.term || c.rng.IntN(calm) == 0 {
				c.elect()
			}
		case x < 95:
			c.install(n)
		case x < 96:
			c.restart(n)
		default:
			c.trouble(n)
		}
	}
	c.counts.saturated, c.counts.tight = c.claims.saturated, c.claims.tight
	c.counts.clamped = c.claims.clamped
	for _, n := range c.nodes {
		c.counts.bridges += n.bridges
	}
}

func (c *cluster) pass() {
	most := []int64{60e6, 60e6, 60e6, 60e6, 60e6, 60e6, 60e6, 300e6, 1e9, 4e9}[c.rng.IntN(10)]
	if c.rng.IntN(150) == 0 {
		most = 15e9
	}
	c.let(c.rng.Int64N(most))
}

func (c *cluster) let(span int64) {
	c.now += span
	for _, n := range c.nodes {
		n.pass(span)
	}
}

// believer is a node that takes itself for the leader, most often the one that is; nil for none.
func (c *cluster) believer() *node {
	if c.leader.leading != 0 && c.leader.asleep <= 0 && c.rng.IntN(4) != 0 {
		return c.leader
	}
	n := c.nodes[c.rng.IntN(len(c.nodes))]
	if n.leading == 0 || n.asleep > 0 {
		return nil
	}
	return n
}

func (c *cluster) request() {
	n := c.believer()
	if n == nil {
		return
	}
	for range 1 + c.rng.IntN(2) {
		c.ids++
		n.queue = append(n.queue, request{arrived: c.now, Check: fsm.Check{
			Principal: []string{"u", "v"}[c.rng.IntN(2)], Gateway: "g", DecisionID: strconv.Itoa(c.ids),
			Charge: fsm.Charge{Class: "a", Cost: 1}, RouteEpoch: 1,
		}})
	}
}

func (c *cluster) work() {
	if n := c.believer(); n != nil {
		n.work(c.now)
	}
}

// commit commits some of the leader's log, no less than its own first entry.
func (c *cluster) commit() {
	n := c.leader
	first := max(n.opening+1, len(c.committed)+1)
	if n.leading != c.term || n.asleep > 0 || first > len(n.log) {
		return
	}
	for _, e := range n.log[len(c.committed) : first+c.rng.IntN(len(n.log)-first+1)] {
		c.committed = append(c.committed, e)
		if e.command == nil {
			continue
		}
		command := *e.command
		if c.wrong.relabels {
			command.Term = e.logTerm
		}
		a := c.state.Step(e.logTerm, &command)
		e.at, e.refused = int64(a.Time), a.Refused != fsm.ReasonUnspecified
		if e.logTerm != e.command.Term {
			c.counts.held++
		}
		if !e.refused {
			c.claims.committed(e, a, c.now)
		}
	}
}

func (c *cluster) apply(n *node) {
	if n.asleep > 0 || n.cut {
		return
	}
	more := len(c.committed) - n.applied
	if more > 0 && c.rng.IntN(3) == 0 {
		more = c.rng.IntN(more + 1)
	}
	for range more {
		n.apply(c.committed[n.applied])
	}
}

// notice tells a leader of old that it is one. Its owner looks at once or later.
func (c *cluster) notice(n *node) {
	if n.leading == 0 || n == c.leader && n.leading == c.term {
		return
	}
	n.leading = 0
	if c.rng.IntN(2) == 0 {
		n.look()
	}
}

// elect makes a node the leader whose log has all that is committed, and what it has or was sent of
// the rest. The leader before does not know.
func (c *cluster) elect() {
	n := c.nodes[c.rng.IntN(len(c.nodes))]
	if c.rng.IntN(3) == 0 {
		for _, holder := range c.nodes {
			if holder.batch != nil {
				n = holder // with a stamp in hand
			}
		}
	}
	if c.fresh != nil && c.rng.IntN(2) == 0 {
		n, c.fresh = c.fresh, nil
	}
	if n.asleep > 0 {
		return
	}
	last := len(c.committed)
	complete := len(n.log) >= last && n.log[last-1] == c.committed[last-1]
	if c.leader != nil && (!complete || c.rng.IntN(2) == 0) {
		most := len(c.leader.log)
		kept := last + c.rng.IntN(most-last+1)
		c.counts.dropped += most - kept
		n.log = append([]*entry(nil), c.leader.log[:kept]...)
	}
	c.counts.inherited += len(n.log) - last
	c.term++
	n.log = append(n.log, &entry{logTerm: c.term})
	n.leading, n.opening, n.cut = c.term, len(n.log)-1, false
	c.leader = n
	c.counts.leaders++
	if c.timed(n.applied).by == n {
		c.counts.again++
	}
}

// timed is the last of so many entries that carries time.
func (c *cluster) timed(entries int) *entry {
	last := c.committed[0]
	for _, e := range c.committed[:entries] {
		if e.command != nil && !e.refused {
			last = e
		}
	}
	return last
}

// outage takes all nodes down for a while, in which their wall clocks are set.
func (c *cluster) outage() {
	down := c.rng.Int64N(40 * second)
	for _, n := range c.nodes {
		n.asleep, n.frozen = 0, 0
	}
	c.let(down)
	for _, n := range c.nodes {
		n.setWall()
		c.restart(n)
	}
	c.elect()
	c.counts.outages++
}

func (c *cluster) install(n *node) {
	behind := len(c.committed) - n.applied
	if behind < 2 || n.leading != 0 || n.asleep > 0 || n == c.leader {
		return
	}
	to := len(c.committed)
	if c.rng.IntN(2) == 0 {
		to = n.applied + 1 + c.rng.IntN(behind)
	}
	n.install(c.committed[:to], c.timed(to))
	n.cut, c.fresh = false, n
	c.counts.installs++
	c.rush()
}

// rush sometimes makes the node with a fresh state the leader at once and lets it open its term, so that
// little true time lies between the entries before and its first stamp.
func (c *cluster) rush() {
	if c.rng.IntN(6) != 0 {
		return
	}
	c.elect()
	c.commit()
	c.apply(c.leader)
}

func (c *cluster) restart(n *node) {
	snapshot := c.rng.IntN(n.applied + 1)
	n.restart(snapshot, c.timed(snapshot), c.rng.IntN(2) == 0)
	c.fresh = n
	c.counts.restarts++
	c.rush()
}

// trouble does something to a node's clocks, or to the node.
func (c *cluster) trouble(n *node) {
	switch c.rng.IntN(6) {
	case 0, 1:
		n.setRates()
		if c.trust == clock.TrustBounded {
			n.setWall()
		}
	case 2:
		n.frozen = c.rng.Int64N(8 * second)
	case 3:
		n.asleep = c.rng.Int64N(8 * second)
	default:
		n.cut = n != c.leader && !n.cut
	}
}
