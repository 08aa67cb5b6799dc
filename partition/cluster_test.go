package partition

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"github.com/quorate/quorate/clock"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/partition/agreement"
	"github.com/quorate/quorate/partition/group"
	"github.com/quorate/quorate/partition/storage"
	"github.com/quorate/quorate/policy"
	"github.com/quorate/quorate/quotaerr"
)

// A future that Raft forgot while it shut down (hashicorp/raft#498) keeps its waiter.
func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction("github.com/hashicorp/raft.(*deferError).Error"))
}

const (
	testDriftPPM = 500
	testEpoch    = fsm.Epoch(1)<<32 + 1
	// patience is how long a condition may take that real elections and disks bring about.
	patience = 20 * time.Second

	testPolicy = `
version: p1
default:
  limits: [{name: default, limit: 100, window: 60s}]
classes:
  convert:
    limits: [{name: per-minute, limit: 3, window: 60s}]
`
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// eventually waits until f holds; elections, disks and connections take real time.
func eventually(t *testing.T, what string, f func() bool) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for !f() {
		if time.Now().After(deadline) {
			t.Fatalf("not within %v: %s", patience, what)
		}
		time.Sleep(2 * time.Millisecond)
	}
}

// mustBirth is the birth of a partition whose seed begins with node's name.
func mustBirth(t *testing.T, node string) *fsm.Birth {
	t.Helper()
	p, err := policy.Parse("policy.yaml", []byte(testPolicy))
	must(t, err)
	b := &fsm.Birth{
		Cluster: "c1", Partition: "p0", Install: fsm.NewInstall(1, p), Bounds: fsm.DefaultBounds(),
		Owned: []fsm.OwnedRange{{
			SlotRange: fsm.SlotRange{First: 0, Last: fsm.NumSlots - 1}, Epoch: testEpoch,
		}},
	}
	copy(b.Seed[:], node)
	return b
}

// shelf is where policies are found by their references, as a node's store of bodies is.
type shelf struct {
	mu    sync.Mutex // guards the fields below
	found map[fsm.Revision]*policy.Policy
	more  chan struct{} // closed when one is added
}

func newShelf(first *policy.Policy) *shelf {
	return &shelf{found: map[fsm.Revision]*policy.Policy{1: first}, more: make(chan struct{})}
}

func (s *shelf) add(r fsm.Revision, p *policy.Policy) fsm.PolicyRef {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.found[r] = p
	close(s.more)
	s.more = make(chan struct{})
	return fsm.NewInstall(r, p).PolicyRef
}

// find waits for a policy, as Config.Policy is to.
func (s *shelf) find(ctx context.Context, ref fsm.PolicyRef) (*policy.Policy, error) {
	for {
		s.mu.Lock()
		p, more := s.found[ref.Revision], s.more
		s.mu.Unlock()
		if p != nil {
			return p, nil
		}
		select {
		case <-more:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// always is a policy lease that does not end.
func always(t *testing.T) func() PolicyLease {
	t.Helper()
	l, err := clock.GrantLease(clock.Reading{}, math.MaxInt64, testDriftPPM)
	must(t, err)
	return func() PolicyLease { return PolicyLease{Revision: 1, Lease: l} }
}

// convert is a check of the class with a limit of 3 in 60 s.
func convert(principal, id string) fsm.Check {
	return fsm.Check{
		Principal: principal, Gateway: "gw1", DecisionID: id, RouteEpoch: testEpoch,
		Charge: fsm.Charge{Class: "convert", Cost: 1},
	}
}

func usageOf(principal, class string) fsm.Peek {
	return fsm.Peek{Principal: principal, Class: class, RouteEpoch: testEpoch}
}

// machine is one node of a cluster: it outlives its process, which is the Partition.
type machine struct {
	id       string
	self     group.Member
	clock    *clock.Fake
	listener *group.Listener
	fatal    chan error   // what its process ended with
	births   atomic.Int32 // how often it was asked for the birth
	opened   bool         // once
	level    fsm.Level    // of its program; 0 is the newest

	mu    sync.Mutex // guards the fields below
	p     *Partition // nil while down
	ahead []Ahead
}

// cluster is three replicas of a partition on loopback sockets and real files. When the test ends it
// checks itself: the replicas that are up agree, and each closes in time.
type cluster struct {
	t           *testing.T
	dir         string
	machines    []*machine
	compaction  group.Compaction
	network     func(group.Network) group.Network // nil: as it is
	tick        time.Duration                     // an hour, so that nothing is written but what the test asks for
	expectAhead bool
	policies    *shelf
	level       fsm.Level        // of all programs; 0 is the newest
	id          string           // of the partition; p0
	birth       func(*fsm.Birth) // changes what it is made with; nil: nothing
}

// newCluster starts three nodes whose clocks differ, as those of machines do, and stand still.
func newCluster(t *testing.T, adjust func(*cluster)) *cluster {
	t.Helper()
	c := &cluster{t: t, dir: t.TempDir(), tick: time.Hour, policies: newShelf(mustBirth(t, "").Policy), id: "p0"}
	if adjust != nil {
		adjust(c)
	}
	for i, id := range []string{"n1", "n2", "n3"} {
		l, err := group.Listen("127.0.0.1:0", group.ListenerConfig{Cluster: "c1", Node: id})
		must(t, err)
		t.Cleanup(func() {
			if err := l.Close(); err != nil {
				t.Error(err)
			}
		})
		m := &machine{
			id: id, self: group.Member{ID: id, Instance: "dir-" + id, Addr: l.Addr()}, clock: &clock.Fake{},
			listener: l, fatal: make(chan error, 8), level: c.level,
		}
		m.clock.Advance(int64(i+1) * int64(time.Hour))
		c.machines = append(c.machines, m)
	}
	t.Cleanup(c.finish)
	for _, m := range c.machines {
		c.mustOpen(m)
	}
	return c
}

// mustOpen starts a node's process on its files.
func (c *cluster) mustOpen(m *machine) {
	c.t.Helper()
	must(c.t, c.open(m))
}

func (c *cluster) open(m *machine) error {
	c.t.Helper()
	var network group.Network = m.listener
	if c.network != nil {
		network = c.network(network)
	}
	dir := filepath.Join(c.dir, m.id)
	must(c.t, os.MkdirAll(dir, 0o750))
	first := !m.opened
	m.opened = true
	var members []group.Member
	for _, other := range c.machines {
		if m == c.machines[0] { // the one that makes the group
			members = append(members, other.self)
		}
	}
	p, err := Open(Config{
		ID: c.id, NodeID: m.id, Source: m.clock, MaxDriftPPM: testDriftPPM, TrustWall: clock.TrustNever,
		Birth: func() (*fsm.Birth, error) {
			m.births.Add(1)
			b := mustBirth(c.t, m.id)
			if c.birth != nil {
				c.birth(b)
			}
			return b, nil
		},
		Policy: c.policies.find, Lease: always(c.t),
		Open: func(a group.Applier) (group.Group, error) {
			return group.Open(group.Config{
				Group: c.id, Disk: storage.NewFiles(filepath.Join(dir, c.id), storage.WAL, nil),
				Network: network, Self: m.self, First: first, Bootstrap: members,
				Applier: a, Compaction: c.compaction,
				Timing: group.Timing{
					Heartbeat: 200 * time.Millisecond, Commit: 10 * time.Millisecond,
					Request: 500 * time.Millisecond, Enqueue: 500 * time.Millisecond,
					Proposal: 5 * time.Second,
				},
				Fatal: func(err error) { c.t.Errorf("fatal on %s: %v", m.id, err) },
			})
		},
		Ahead: func(a Ahead) {
			m.mu.Lock()
			defer m.mu.Unlock()
			m.ahead = append(m.ahead, a)
		},
		Consult: c.consult(m), PeerLevels: c.peerLevels(m), level: m.level, WithRoom: c.withRoom(m),
		Fatal:   func(err error) { m.fatal <- err },
		Metrics: prometheus.NewRegistry(), Logger: slog.New(slog.DiscardHandler), tickInterval: c.tick,
	})
	if err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.p = p
	return nil
}

// consult asks the other process directly; one that is down does not answer.
func (c *cluster) consult(from *machine) agreement.Consult {
	return func(_ context.Context, m group.Member, index uint64, own [16]byte) (agreement.Opinion, error) {
		for _, other := range c.machines {
			if p := other.partition(); other.id == m.ID && other != from && p != nil {
				return p.Suspect(index, own), nil
			}
		}
		return agreement.Opinion{}, group.ErrNoAnswer
	}
}

// peerLevels are those of the processes that run, and all of them only when all run.
func (c *cluster) peerLevels(from *machine) func() (fsm.Level, bool) {
	return func() (fsm.Level, bool) {
		lowest, all := fsm.Level(math.MaxUint32), true
		for _, m := range c.machines {
			if m == from {
				continue
			}
			p := m.partition()
			if p == nil {
				all = false
				continue
			}
			lowest = min(lowest, p.cfg.level)
		}
		return lowest, all
	}
}

// withRoom is a process that runs and whose disk is not low.
func (c *cluster) withRoom(from *machine) func() (string, bool) {
	return func() (string, bool) {
		for _, m := range c.up() {
			if m != from && !m.partition().Status().DiskLow {
				return m.id, true
			}
		}
		return "", false
	}
}

// partition is the node's running process; nil while it is down.
func (m *machine) partition() *Partition {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.p
}

func (m *machine) alarms() []Ahead {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.ahead)
}

// mustClose ends a node's process, and does not wait for ever.
func (c *cluster) mustClose(m *machine) {
	c.t.Helper()
	m.mu.Lock()
	p := m.p
	m.p = nil
	m.mu.Unlock()
	closed := make(chan error, 1)
	go func() { closed <- p.Close() }()
	select {
	case err := <-closed:
		if err != nil {
			c.t.Errorf("close %s: %v", m.id, err)
		}
	case <-time.After(patience):
		c.t.Fatalf("close of %s is stuck", m.id)
	}
}

// up are the nodes that run.
func (c *cluster) up() []*machine {
	return slices.DeleteFunc(slices.Clone(c.machines), func(m *machine) bool { return m.partition() == nil })
}

// finish is the cluster's check of itself.
func (c *cluster) finish() {
	up := c.up()
	if len(up) > 1 && !c.t.Failed() {
		c.agree(up)
	}
	for _, m := range up {
		c.mustClose(m)
	}
	for _, m := range c.machines {
		if len(m.fatal) > 0 {
			c.t.Errorf("%s ended: %v", m.id, <-m.fatal)
		}
		if a := m.alarms(); len(a) > 0 && !c.expectAhead {
			c.t.Errorf("%s saw partition time outrun its clock: %+v", m.id, a)
		}
	}
}

// agree waits until the replicas of ms have applied the same entries, compares their states and
// returns the state.
func (c *cluster) agree(ms []*machine) Status {
	c.t.Helper()
	var all []Status
	eventually(c.t, "replicas stand at the same entry", func() bool {
		all = all[:0]
		for _, m := range ms {
			all = append(all, m.partition().Status())
		}
		return !slices.ContainsFunc(all, func(s Status) bool { return s.AppliedIndex != all[0].AppliedIndex })
	})
	for i, s := range all {
		if s.Digest != all[0].Digest || s.Time != all[0].Time || s.Keys != all[0].Keys ||
			s.Allows != all[0].Allows || s.Denials != all[0].Denials {
			c.t.Errorf("at index %d %s has\n%+v\n%s has\n%+v", s.AppliedIndex, ms[i].id, s, ms[0].id, all[0])
		}
		if d, ok := ms[i].partition().replica.DigestAt(s.AppliedIndex); ok && d != s.Digest {
			c.t.Errorf("%s: DigestAt(%d) is %x, the status said %x", ms[i].id, s.AppliedIndex, d, s.Digest)
		}
	}
	return all[0]
}

// find is the node that leads a partition that was born, if any does.
func (c *cluster) find() *machine {
	for _, m := range c.up() {
		if p := m.partition(); p != nil && p.group.Leadership().Ready && p.owner.born() {
			return m
		}
	}
	return nil
}

// leader waits for a node that leads.
func (c *cluster) leader() (m *machine) {
	c.t.Helper()
	eventually(c.t, "a node leads", func() bool {
		m = c.find()
		return m != nil
	})
	return m
}

// advance lets true time pass on all machines, once all replicas that are up have applied what there
// is: to a replica that applied an entry only after its clock jumped, no time would have passed since
// that entry. The leader's clock is last, since partition time that comes from it must not meet a
// follower whose clock the test has not moved yet.
func (c *cluster) advance(d time.Duration) {
	c.t.Helper()
	c.agree(c.up())
	leader := c.leader()
	for _, m := range c.machines {
		if m != leader {
			m.clock.Advance(int64(d))
		}
	}
	leader.clock.Advance(int64(d))
}

// expire lets time pass until principal's usage of convert has ended. A minute need not do: a
// leadership that begins counts no time that it cannot prove.
func (c *cluster) expire(principal string) {
	c.t.Helper()
	eventually(c.t, "the usage of "+principal+" ends", func() bool {
		c.advance(61 * time.Second)
		return c.mustPeek(principal, "convert").Remaining == 3
	})
}

// decide does what a gateway does: it asks whoever leads, with the same decision id, until it gets an
// answer. unsure hears of each error on the way.
func (c *cluster) decide(check fsm.Check, unsure func(error)) (Answer, error) {
	var err error
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(2 * time.Millisecond) {
		m := c.find()
		if m == nil {
			continue
		}
		p := m.partition()
		if p == nil {
			continue
		}
		var a Answer
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		a, err = p.Check(ctx, check)
		cancel()
		if err == nil {
			return a, nil
		}
		switch quotaerr.ReasonOf(err) {
		case quotaerr.NotLeader, quotaerr.NoQuorum, quotaerr.OutcomeUnknown:
			if unsure != nil {
				unsure(err)
			}
		default:
			return Answer{}, err
		}
	}
	return Answer{}, errors.Join(errors.New("no answer in time"), err)
}

func (c *cluster) mustDecide(check fsm.Check) Answer {
	c.t.Helper()
	a, err := c.decide(check, nil)
	if err != nil {
		c.t.Fatalf("check %s of %s: %v", check.DecisionID, check.Principal, err)
	}
	return a
}

// mustPeek tells the usage, from whoever leads.
func (c *cluster) mustPeek(principal, class string) UsageAnswer {
	c.t.Helper()
	var u UsageAnswer
	var err error
	eventually(c.t, "a peek is answered", func() bool {
		u, err = c.leader().partition().Peek(c.t.Context(), usageOf(principal, class))
		return err == nil
	})
	return u
}

// mustReason wants err to have a reason.
func mustReason(t *testing.T, err error, want quotaerr.Reason) *quotaerr.Error {
	t.Helper()
	if got := quotaerr.ReasonOf(err); got != want {
		t.Fatalf("got %v, want %s", err, want)
	}
	return quotaerr.As(err)
}

func ids(prefix string, n int) []string {
	out := make([]string, n)
	for i := range out {
		out[i] = fmt.Sprintf("%s-%d", prefix, i)
	}
	return out
}

// other is a node that is up and not m.
func (c *cluster) other(m *machine) *machine {
	up := c.up()
	return up[slices.IndexFunc(up, func(o *machine) bool { return o != m })]
}

// mustLead has m lead, and returns the term.
func (c *cluster) mustLead(m *machine) uint64 {
	c.t.Helper()
	eventually(c.t, m.id+" leads", func() bool {
		leader := c.leader()
		if leader != m {
			_ = leader.partition().group.Transfer(m.id) // it may have moved already; then it is asked again
		}
		return leader == m
	})
	return m.partition().group.Leadership().Term
}
