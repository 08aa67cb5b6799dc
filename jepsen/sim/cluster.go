package sim

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"github.com/quorate/quorate/clock"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/partition/group"
	"github.com/quorate/quorate/partition/storage"
)

const (
	simEpoch = fsm.Epoch(1)<<32 + 1
	// patience is how long the cluster may take, after the last fault, until it is whole again.
	patience = 60 * time.Second
	// mostNotes bounds the lines that are kept of a run.
	mostNotes = 5000

	// simRule is the rule of the class that the clients use, in all policies.
	simRule = "{replay_horizon: 10m, limits: [{name: second, limit: 3, window: 1s}, {name: ten, limit: 20, window: 10s}]}"
)

// simLimits are those of the rule above.
var simLimits = []limit{{3, time.Second}, {20, 10 * time.Second}}

// cluster is three nodes, their network and those who use them.
type cluster struct {
	seed       uint64
	verbose    bool
	net        *network
	nodes      []*node
	history    *history
	authority  *authority
	birth      *fsm.Birth
	timing     group.Timing
	compaction group.Compaction
	begun      time.Time
	ctx        context.Context // ends with the run
	cancel     context.CancelFunc
	proposals  sync.WaitGroup
	clients    sync.WaitGroup
	operators  sync.WaitGroup
	quiet      chan struct{} // closed when clients are to end

	mu       sync.Mutex // guards the fields below
	rng      *rand.Rand
	notes    []string
	stopped  bool
	highest  uint64 // index of the newest entry applied anywhere
	doubtful bool   // a disk was damaged: what was durable may not be any more
}

func newCluster(seed uint64, verbose bool) (*cluster, error) {
	c := &cluster{
		seed: seed, verbose: verbose, history: newHistory(), begun: time.Now(), quiet: make(chan struct{}),
		rng: rand.New(rand.NewPCG(seed, 1)),
		timing: group.Timing{
			Write: 4 * time.Second, Proposal: 5 * time.Second, Ready: 15 * time.Second, Close: 20 * time.Second,
		},
		compaction: group.Compaction{LogBytes: 24 << 10, TrailingBytes: 4 << 10},
	}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	var err error
	if c.authority, err = newAuthority(c); err != nil {
		return nil, err
	}
	c.birth = &fsm.Birth{
		Cluster: "c1", Partition: partitionID, Bounds: fsm.DefaultBounds(),
		Install: fsm.Install{PolicyRef: c.authority.inForce()},
		Owned: []fsm.OwnedRange{{
			SlotRange: fsm.SlotRange{First: 0, Last: fsm.NumSlots - 1}, Epoch: simEpoch,
		}},
	}
	c.net = newNetwork(rand.New(rand.NewPCG(seed, 2)))
	c.net.seen = c.history.packet
	c.net.answered = c.votes
	var first []group.Member
	for i := range 3 {
		n := &node{
			c: c, id: fmt.Sprintf("n%d", i+1), admin: make(chan struct{}, 1), wanted: true,
			clock: c.newClock(),
		}
		n.blank()
		c.nodes = append(c.nodes, n)
		first = append(first, n.member())
	}
	for i, n := range c.nodes {
		if i == 0 {
			n.start(first)
		} else {
			n.start(nil)
		}
	}
	return c, nil
}

// newClock is the clocks of a machine that was just started.
func (c *cluster) newClock() *machineClock {
	raw := int64(c.intN(2*driftPPM+1)) - driftPPM
	slew := int64(0)
	if c.intN(3) == 0 {
		slew = int64(c.intN(160_001)) - 80_000
	}
	return newMachineClock(int64(c.intN(1_000_000))*int64(time.Second), raw+slew, raw)
}

func (c *cluster) intN(n int) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.rng.IntN(n)
}

func (c *cluster) between(low, high time.Duration) time.Duration {
	return low + time.Duration(c.intN(int((high-low)/time.Millisecond)+1))*time.Millisecond
}

// note keeps a line for whoever reruns the seed.
func (c *cluster) note(format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	line := fmt.Sprintf("%10.4f  ", time.Since(c.begun).Seconds()) + fmt.Sprintf(format, args...)
	if len(c.notes) < mostNotes {
		c.notes = append(c.notes, line)
	}
}

func (c *cluster) told() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return strings.Join(c.notes, "\n")
}

func (c *cluster) stopping() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.stopped
}

func (c *cluster) byID(id string) *node { return c.nodes[id[1]-'1'] }

// leader is the node that leads and may stamp, nil when none does.
func (c *cluster) leader() *node {
	var found *node
	var term uint64
	for _, n := range c.nodes {
		if p := n.now(); p != nil {
			if l := p.group.Leadership(); l.Ready && l.Term > term {
				found, term = n, l.Term
			}
		}
	}
	return found
}

// until waits until f holds, no longer than the limit; it reports whether it does.
func (c *cluster) until(limit time.Duration, f func() bool) bool {
	end := time.Now().Add(limit)
	for !f() {
		if time.Now().After(end) {
			return false
		}
		time.Sleep(50 * time.Millisecond)
	}
	return true
}

// mustLead waits for a leader.
func (c *cluster) mustLead() *node {
	c.until(30*time.Second, func() bool { return c.leader() != nil })
	return c.leader()
}

// others are the nodes but one.
func (c *cluster) others(n *node) []*node {
	var out []*node
	for _, o := range c.nodes {
		if o != n {
			out = append(out, o)
		}
	}
	return out
}

// isolate cuts a node off.
func (c *cluster) isolate(n *node, cut bool) {
	for _, o := range c.others(n) {
		c.cut(n, o, cut)
		c.cut(o, n, cut)
	}
}

func (c *cluster) cut(from, to *node, cut bool) {
	c.net.change(from.id, to.id, func(l *link) { l.cut = cut })
}

// nap is false when the run ended.
func (c *cluster) nap(d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-c.ctx.Done():
		return false
	}
}

// heldByMajority checks an entry that is applied for the first time: two disks hold it durably.
func (c *cluster) heldByMajority(index, term uint64) {
	c.mu.Lock()
	skip := index <= c.highest || c.doubtful
	c.highest = max(c.highest, index)
	c.mu.Unlock()
	if skip {
		return
	}
	held := 0
	for _, n := range c.nodes {
		n.mu.Lock()
		d := n.disk
		n.mu.Unlock()
		if d.durable(index, term) {
			held++
		}
	}
	if held < 2 {
		c.history.violate(quorumHolds, "log index %d (term %d) is applied, and %d disks hold it", index, term, held)
	}
}

// clocks changes a node's clocks.
func (n *node) clocks(f func(*clock.Fake)) {
	n.mu.Lock()
	m := n.clock
	n.mu.Unlock()
	m.change(f)
}

// freeze stops a node's clocks, or lets them go on. It is no fault that a lease withstands.
func (n *node) freeze(frozen bool) {
	n.mu.Lock()
	if n.frozen || frozen {
		n.still = time.Now()
	}
	n.frozen = frozen
	n.mu.Unlock()
	n.clocks(func(f *clock.Fake) { f.Freeze(frozen) })
}

// leases reports whether the node's clocks have run long enough to trust its leases.
func (n *node) leases() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return !n.frozen && (n.still.IsZero() || time.Since(n.still) > leaseTime+time.Second)
}

// heal ends all faults that do not end with a process.
func (c *cluster) heal() {
	c.net.heal()
	for _, n := range c.nodes {
		n.freeze(false)
		n.mu.Lock()
		n.slow, n.wanted = nil, true
		d := n.disk
		n.mu.Unlock()
		d.set(func(f *diskFaults) { f.slow, f.hold, f.cut = 0, nil, nil })
	}
	c.authority.set(func(a *authority) { a.paused, a.cut = false, map[string]bool{} })
	c.note("all is healed")
}

// mustLive checks that the cluster is whole again in time.
func (c *cluster) mustLive() {
	healed := time.Now()
	decided := c.until(patience, func() bool {
		l := c.leader()
		if l == nil {
			return false
		}
		ctx, cancel := context.WithTimeout(c.ctx, 2*time.Second)
		defer cancel()
		id := fmt.Sprintf("last-%d", time.Now().UnixNano())
		_, err := l.check(ctx, fsm.Check{
			Principal: "late", Gateway: "g", DecisionID: id, RouteEpoch: simEpoch,
			Charge: fsm.Charge{Class: "c", Cost: 1},
		})
		return err == nil
	})
	if !decided {
		c.history.violate(liveHolds, "no check was decided in %v after the last fault: %s", patience, c.standing())
		return
	}
	if !c.until(patience-time.Since(healed), c.whole) {
		c.history.violate(liveHolds, "the replicas are not one in %v after the last fault: %s", patience, c.standing())
	}
}

// whole reports whether all nodes run, vote, and have applied the same.
func (c *cluster) whole() bool {
	leader := c.leader()
	if leader == nil {
		return false
	}
	l := leader.now()
	if l == nil {
		return false
	}
	members := l.group.Members()
	if len(members) != len(c.nodes) {
		return false
	}
	for _, m := range members {
		n := c.byID(m.ID)
		p := n.now()
		if m.Learner || p == nil || m.Instance != "" && m.Instance != p.self.Instance ||
			p.group.AppliedIndex() != l.group.AppliedIndex() {
			return false
		}
		n.mu.Lock()
		refused := n.refused
		n.mu.Unlock()
		if refused {
			return false
		}
	}
	return true
}

func (c *cluster) standing() string {
	var out []string
	for _, n := range c.nodes {
		p := n.now()
		if p == nil {
			out = append(out, n.id+" is down")
			continue
		}
		out = append(out, fmt.Sprintf("%s@%s: %v, leads %v, members %v", n.id, p.self.Instance, p.group.Status(),
			p.group.Leadership(), p.group.Members()))
	}
	return strings.Join(out, "; ")
}

// finish ends everything.
func (c *cluster) finish() {
	c.mu.Lock()
	c.stopped = true
	c.mu.Unlock()
	c.cancel()
	c.operators.Wait()
	c.clients.Wait()
	for _, n := range c.nodes {
		n.stop()
	}
	for _, n := range c.nodes {
		n.cleanup.Wait()
	}
	c.net.close()
	c.proposals.Wait()
	// A write that ended with its process has left its watchdog behind, which ends when the write is overdue. A
	// snapshot has a little longer.
	time.Sleep(2 * storage.DefaultWriteTimeout)
}

// stop ends a process in order.
func (n *node) stop() {
	n.mu.Lock()
	p := n.p
	n.p = nil
	n.mu.Unlock()
	if p == nil {
		return
	}
	n.cleanup.Go(func() {
		<-p.opened
		p.mu.Lock()
		part := p.partition
		p.mu.Unlock()
		if part != nil {
			if err := part.Close(); err != nil {
				n.c.note("%s closes: %v", n.id, err)
			}
		}
		p.life.end()
	})
}
