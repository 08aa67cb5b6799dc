package control_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/quorate/quorate/clock"
	"github.com/quorate/quorate/control"
	"github.com/quorate/quorate/control/audit"
	"github.com/quorate/quorate/control/state"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/partition/group"
	"github.com/quorate/quorate/partition/storage"
	"github.com/quorate/quorate/quotaerr"
)

// A future that Raft forgot while it shut down (hashicorp/raft#498) keeps its waiter.
func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction("github.com/hashicorp/raft.(*deferError).Error"))
}

// quick makes elections fast.
var quick = group.Timing{
	Heartbeat: 300 * time.Millisecond, Lease: 300 * time.Millisecond, Commit: 10 * time.Millisecond,
	Request: 500 * time.Millisecond, Enqueue: 500 * time.Millisecond, Proposal: 5 * time.Second,
}

// node is one replica of the control group, with files and a listener of its own.
type node struct {
	*control.Control
	t          *testing.T
	self       group.Member
	listener   *group.Listener
	dir        string
	first      bool
	bootstrap  []group.Member
	compaction group.Compaction
	clock      clock.Fake
	up         bool
}

type cluster []*node

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// newCluster makes nodes a, b, c with one control group.
func newCluster(t *testing.T) cluster {
	t.Helper()
	var c cluster
	var members []group.Member
	for i := range 3 {
		id := string(rune('a' + i))
		l, err := group.Listen("127.0.0.1:0", group.ListenerConfig{Cluster: "c1", Node: id})
		must(t, err)
		t.Cleanup(func() { l.Close() })
		n := &node{
			t: t, listener: l, dir: filepath.Join(t.TempDir(), id), first: true,
			self: group.Member{ID: id, Instance: "dir-" + id, Addr: l.Addr()},
		}
		members = append(members, n.self)
		c = append(c, n)
	}
	c[0].bootstrap = members
	t.Cleanup(func() {
		for _, n := range c {
			n.stop()
		}
	})
	for _, n := range c {
		n.start()
	}
	return c
}

// start opens the replica, as a process start does.
func (n *node) start() {
	n.t.Helper()
	c, err := control.Open(control.Config{
		Dir: n.dir, Logger: slog.New(slog.DiscardHandler), AuditRecords: 50, Clock: &n.clock,
		Fatal:   func(err error) { n.t.Errorf("fatal on %s: %v", n.self.ID, err) },
		Differs: func(index uint64) { n.t.Errorf("%s had another state at %d", n.self.ID, index) },
		Open: func(a group.Applier) (group.Group, error) {
			g, err := group.Open(group.Config{
				Group: control.GroupID, Network: n.listener, Self: n.self, First: n.first, Bootstrap: n.bootstrap,
				Disk: storage.NewFiles(n.dir, storage.BoltDB, nil), Timing: quick, Compaction: n.compaction, Applier: a,
				Fatal: func(err error) { n.t.Errorf("fatal on %s: %v", n.self.ID, err) },
			})
			if err != nil {
				return nil, err
			}
			return g, nil
		},
	})
	must(n.t, err)
	n.Control, n.first, n.bootstrap, n.up = c, false, nil, true
}

func (n *node) stop() {
	if n.up {
		n.up = false
		if err := n.Close(); err != nil {
			n.t.Errorf("close %s: %v", n.self.ID, err)
		}
	}
}

// eventually waits until f holds; elections and connections take real time.
func eventually(t *testing.T, what string, f func() bool) {
	t.Helper()
	deadline := time.After(20 * time.Second)
	look := time.NewTicker(2 * time.Millisecond)
	defer look.Stop()
	for !f() {
		select {
		case <-look.C:
		case <-deadline:
			t.Fatalf("not within 20 s: %s", what)
		}
	}
}

func (c cluster) leader(t *testing.T) *node {
	t.Helper()
	var leader *node
	eventually(t, "a leader is ready", func() bool {
		i := slices.IndexFunc(c, func(n *node) bool { return n.up && n.Group().Leadership().Ready })
		if i >= 0 {
			leader = c[i]
		}
		return i >= 0
	})
	return leader
}

// propose has a command applied by whoever leads, however often that changes: always the same command.
func (c cluster) propose(t *testing.T, cmd *state.Command) (state.Result, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	for {
		r, err := c.leader(t).Propose(ctx, cmd)
		var refused *state.Refusal
		if err == nil || errors.As(err, &refused) || ctx.Err() != nil {
			return r, err
		}
	}
}

func (c cluster) mustPropose(t *testing.T, cmd *state.Command) state.Result {
	t.Helper()
	r, err := c.propose(t, cmd)
	must(t, err)
	return r
}

func publish(base fsm.Revision, label string) *state.Command {
	return &state.Command{Kind: state.KindPublish, Actor: "kim", Publish: &state.Publish{
		Base: base, Label: label, Body: state.Digest{1}, Bytes: 9, Held: true,
	}}
}

// mustInit makes the cluster with its nodes and one partition.
func (c cluster) mustInit(t *testing.T) {
	t.Helper()
	c.mustPropose(t, &state.Command{Kind: state.KindInit, Init: &state.Init{Cluster: "c1", Incarnation: 1, Seed: [16]byte{1}}})
	for _, n := range c {
		c.mustPropose(t, &state.Command{Kind: state.KindPutNode, Node: &state.PutNode{
			ID: n.self.ID, Instance: n.self.Instance, GRPC: "grpc-" + n.self.ID, Raft: n.self.Addr,
		}})
	}
	c.mustPropose(t, &state.Command{Kind: state.KindCreate, Create: &state.Create{
		Map: 4, Replicas: []string{"a", "b", "c"}, Ranges: []fsm.SlotRange{{First: 0, Last: fsm.NumSlots - 1}},
	}})
}

// agree waits until all replicas that are up have applied the same, and compares states and audit trails.
func (c cluster) agree(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	var want *state.State
	eventually(t, "a read", func() (ok bool) {
		s, err := c.leader(t).Read(ctx)
		want = s
		return err == nil
	})
	var first []*state.Record
	for i, n := range c {
		if !n.up {
			continue
		}
		eventually(t, n.self.ID+" has applied all", func() bool { return n.State().Version >= want.Version })
		if n.State().Digest() != want.Digest() {
			t.Errorf("the digest of %s is another", n.self.ID)
		}
		found, _, err := n.Audit(audit.Query{Limit: audit.MaxFound})
		must(t, err)
		if first == nil {
			first = found
		}
		if diff := cmp.Diff(first, found); diff != "" {
			t.Errorf("the audit trail of %s is another than that of %s: %s", n.self.ID, c[0].self.ID, diff)
		}
		if len(first) != min(50, int(want.AuditCount)) {
			t.Errorf("%d: %d records of %d", i, len(first), want.AuditCount)
		}
	}
}

// Shows that, with the leader stopped in the middle of publishes and started again, each publish has one
// effect, and state and audit trail are the same on all replicas, also after snapshots, and after a start of
// all of them.
func TestLeaderIsLost(t *testing.T) {
	c := newCluster(t)
	c.mustInit(t)
	revision := fsm.Revision(0)
	more := func(n int) {
		t.Helper()
		for range n {
			revision++
			if r := c.mustPropose(t, publish(revision-1, fmt.Sprint("p", revision))); r.Revision != revision {
				t.Fatalf("revision %d, want %d", r.Revision, revision)
			}
		}
	}
	more(5)
	lost := c.leader(t)
	lost.stop()
	more(40) // more than the audit trail keeps, with those before
	for _, n := range c {
		if n.up {
			must(t, n.Group().CompactNow())
		}
	}
	more(5)
	lost.start()
	c.agree(t)
	for _, n := range c {
		n.stop()
	}
	for _, n := range c {
		n.start()
	}
	c.agree(t)
	more(2)
	c.agree(t)
	for _, n := range c {
		for _, r := range n.State().Revisions {
			if r.Label != fmt.Sprint("p", r.Number) {
				t.Errorf("revision %d is %s", r.Number, r.Label)
			}
		}
	}
}

// Shows that of publishes made at the same time against the same revision exactly one is done, and that the
// others hear which revision is in force.
func TestOnePublishWins(t *testing.T) {
	c := newCluster(t)
	c.mustInit(t)
	leader := c.leader(t)
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	const rounds, rivals = 5, 8
	for round := range rounds {
		base := fsm.Revision(round)
		var wg sync.WaitGroup
		var mu sync.Mutex
		won, stale := 0, 0
		for i := range rivals {
			wg.Go(func() {
				_, err := leader.Propose(ctx, publish(base, fmt.Sprintf("p%d-%d", round, i)))
				var refused *state.Refusal
				mu.Lock()
				defer mu.Unlock()
				switch {
				case err == nil:
					won++
				case errors.As(err, &refused) && refused.Code == state.CodeStale && refused.Current == uint64(base+1) &&
					quotaerr.ReasonOf(err) == quotaerr.PolicyStale:
					stale++
				default:
					t.Errorf("got %v", err)
				}
			})
		}
		wg.Wait()
		if won != 1 || stale != rivals-1 {
			t.Fatalf("round %d: %d won, %d were stale", round, won, stale)
		}
	}
	c.agree(t)
}

// Shows that Confirm, asked by many at once while revisions are published, never tells an older revision than
// one that had been committed before the call; that callers share entries; and that a follower says who leads.
func TestConfirmIsNeverOld(t *testing.T) {
	c := newCluster(t)
	c.mustInit(t)
	leader := c.leader(t)
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	before := leader.Group().AppliedIndex()
	var committed sync.Map // revision → closed
	newest := func() (n fsm.Revision) {
		committed.Range(func(k, _ any) bool { n = max(n, k.(fsm.Revision)); return true })
		return n
	}
	done := make(chan struct{})
	var askers sync.WaitGroup
	var asked [8]int
	for i := range asked {
		askers.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				at := newest()
				got, err := leader.Confirm(ctx)
				if err != nil {
					t.Errorf("confirm: %v", err)
					return
				}
				asked[i]++
				if got.Revision == nil && at > 0 || got.Revision != nil && got.Revision.Number < at {
					t.Errorf("%v was confirmed after %d had been committed", got.Revision, at)
				}
			}
		})
	}
	for n := range fsm.Revision(20) {
		if _, err := leader.Propose(ctx, publish(n, fmt.Sprint("p", n+1))); err != nil {
			t.Error(err)
			break
		}
		committed.Store(n+1, true)
	}
	close(done)
	askers.Wait()
	calls := 0
	for _, n := range asked {
		calls += n
	}
	if entries := leader.Group().AppliedIndex() - before - 20; calls == 0 || entries > uint64(calls)/2+8 {
		t.Errorf("%d calls took %d entries", calls, entries)
	}
	for _, n := range c {
		if n == leader {
			continue
		}
		_, err := n.Confirm(ctx)
		if e := quotaerr.As(err); e == nil || e.Reason != quotaerr.NotLeader || e.Leader != leader.self.ID ||
			e.LeaderAddr != "grpc-"+leader.self.ID {
			t.Errorf("%s: %v", n.self.ID, err)
		}
	}
}

// Shows that a watcher on a follower sees versions grow up to the newest, and that its error ends the watch.
func TestWatch(t *testing.T) {
	c := newCluster(t)
	c.mustInit(t)
	leader := c.leader(t)
	follower := c[slices.IndexFunc(c, func(n *node) bool { return n != leader })]
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	enough := errors.New("enough")
	seen := make(chan error, 1)
	go func() {
		last := uint64(0)
		seen <- follower.Watch(ctx, func(s *state.State) error {
			if s.Version < last {
				return fmt.Errorf("version %d after %d", s.Version, last)
			}
			last = s.Version
			if r := s.InForce(); r != nil && r.Number == 10 {
				return enough
			}
			return nil
		})
	}()
	for n := range fsm.Revision(10) {
		c.mustPropose(t, publish(n, fmt.Sprint("p", n+1)))
	}
	if err := <-seen; !errors.Is(err, enough) {
		t.Fatal(err)
	}
}

// Shows that a minority answers nothing, says so honestly, and that a command of unknown fate is applied once
// when it is sent again.
func TestMinorityIsHonest(t *testing.T) {
	c := newCluster(t)
	c.mustInit(t)
	leader := c.leader(t)
	for _, n := range c {
		if n != leader {
			n.stop()
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	cmd := publish(0, "p1")
	_, err := leader.Propose(ctx, cmd)
	if r := quotaerr.ReasonOf(err); r != quotaerr.OutcomeUnknown && r != quotaerr.NotLeader && r != quotaerr.NoQuorum {
		t.Fatalf("got %v", err)
	}
	if _, err := leader.Confirm(ctx); err == nil {
		t.Fatal("a minority confirmed")
	}
	for _, n := range c {
		if n != leader {
			n.start()
		}
	}
	if r := c.mustPropose(t, cmd); r.Revision != 1 {
		t.Fatalf("revision %d", r.Revision)
	}
	if r := c.mustPropose(t, cmd); !r.Repeated || r.Revision != 1 {
		t.Fatalf("again: %+v", r)
	}
	c.agree(t)
}
