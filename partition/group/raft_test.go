package group

import (
	"errors"
	"io"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/partition/storage"
)

// Three replicas elect a leader and apply the same entries; the group survives the end of its leader;
// and a replica that starts again from its disk, with a blank state machine, applies the same log.
func TestReplicate(t *testing.T) {
	for _, backend := range []storage.Backend{storage.WAL, storage.BoltDB} {
		t.Run(string(backend), func(t *testing.T) {
			dir := t.TempDir()
			c := newCluster(t, 3, 3, func(c *Config) {
				c.Disk = storage.NewFiles(filepath.Join(dir, c.Self.ID), backend, nil)
			})
			c.mustPropose(t, "first", 20, 0)
			before := c.agree(t, 20)

			old := c.leader(t)
			term := old.Leadership().Term
			must(t, old.Close())
			rest := c.without(old)
			rest.mustPropose(t, "second", 5, 0)
			if l := rest.leader(t).Leadership(); l.Term <= term {
				t.Errorf("the next leadership has term %d, the one before had %d", l.Term, term)
			}
			after := rest.agree(t, 25)
			if diff := cmp.Diff(before, after[:20]); diff != "" {
				t.Errorf("committed entries changed: %s", diff)
			}

			old.mustOpen(t)
			if diff := cmp.Diff(after, c.agree(t, 25)); diff != "" {
				t.Errorf("after the restart: %s", diff)
			}
			for _, r := range c {
				eventually(t, "applied index", func() bool { return r.AppliedIndex() == c[0].AppliedIndex() })
				if m := r.Members(); len(m) != 3 || m[0] != c[0].self {
					t.Errorf("members %v", m)
				}
			}
		})
	}
}

// A whole group that starts again has its log, goes on from it, and takes none of the old entries for
// ones that are committed now; the ones proposed now it does, on leader and followers.
func TestRestartAll(t *testing.T) {
	c := newCluster(t, 3, 3, nil)
	c.mustPropose(t, "first", 10, 0)
	before := c.agree(t, 10)
	alone := c.without(c.leader(t))[0]
	must(t, alone.Close())
	alone.mustOpen(t)
	c.agree(t, 10)
	for index, live := range alone.applier.lives() {
		if live {
			t.Errorf("%s takes replayed entry %d for one of now", alone.self.ID, index)
		}
	}
	for _, r := range c {
		must(t, r.Close())
	}
	for _, r := range c {
		r.mustOpen(t)
	}
	// A follower that is a moment late gets an entry together with the news of its commit, and rightly does
	// not take it for one of now: so entries go on until each replica has had three that came in time.
	proposed := 0
	eventually(t, "each has taken three entries for ones of now", func() bool {
		c.mustPropose(t, "second", 1, 0)
		proposed++
		return !slices.ContainsFunc(c, func(r *replica) bool { return r.taken() < 3 })
	})
	after := c.agree(t, 10+proposed)
	if diff := cmp.Diff(before, after[:10]); diff != "" {
		t.Error(diff)
	}
	for _, r := range c {
		for index, live := range r.applier.lives() {
			if live && index <= r.replayed {
				t.Errorf("%s takes replayed entry %d for one of now", r.self.ID, index)
			}
		}
	}
}

// taken is how many entries the replica took for ones that are committed now.
func (r *replica) taken() (n int) {
	for _, live := range r.applier.lives() {
		if live {
			n++
		}
	}
	return n
}

// A follower refuses a proposal definitely and knows whom to ask; after Close every replica refuses.
func TestProposeOnFollower(t *testing.T) {
	c := newCluster(t, 3, 3, nil)
	leader := c.leader(t)
	follower := c.without(leader)[0]
	eventually(t, "the follower knows the leader", func() bool {
		m, ok := follower.Leader()
		return ok && m == leader.self
	})
	p := follower.Propose([]byte("x"))
	<-p.Done()
	if _, err := p.Result(); !errors.Is(err, ErrNotLeader) || errors.Is(err, ErrUnknown) {
		t.Errorf("got %v, want ErrNotLeader", err)
	}
	must(t, follower.Close())
	p = follower.Propose([]byte("x"))
	<-p.Done()
	if _, err := p.Result(); !errors.Is(err, ErrNotLeader) || !errors.Is(err, ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
	if err := follower.CompactNow(); !errors.Is(err, ErrClosed) {
		t.Errorf("CompactNow after Close: %v", err)
	}
}

// A leader that loses its majority ends its leadership by itself, and signals it; what was in flight
// has an unknown fate.
func TestLoseMajority(t *testing.T) {
	c := newCluster(t, 3, 3, nil)
	leader := c.leader(t)
	eventually(t, "the change was signalled", func() bool { return len(leader.Changed()) == 1 })
	<-leader.Changed()
	for _, r := range c.without(leader) {
		must(t, r.Close())
	}
	p := leader.Propose([]byte("x"))
	<-p.Done()
	if _, err := p.Result(); !errors.Is(err, ErrUnknown) || errors.Is(err, ErrNotLeader) {
		t.Errorf("got %v, want ErrUnknown", err)
	}
	select {
	case <-leader.Changed():
	case <-time.After(10 * time.Second):
		t.Fatal("no signal")
	}
	eventually(t, "leadership ends", func() bool { return leader.Leadership() == Leadership{} })
}

// What Raft has lost is no leadership, though its signal is still to come; and a late signal for the
// leadership at hand does not end it, since a term is led once only.
func TestLeadershipIsOneTerm(t *testing.T) {
	c := newCluster(t, 3, 3, nil)
	leader := c.leader(t)
	<-leader.Changed()
	was := leader.Leadership()
	leader.begin(attempt{}, true)
	if got := leader.Leadership(); got != was || len(leader.Changed()) != 0 {
		t.Errorf("after a late signal: %+v with %d signals, want %+v", got, len(leader.Changed()), was)
	}
	follower := c.without(leader)[0]
	for name, l := range map[string]Leadership{
		"another term": {Term: was.Term + 1, Ready: true}, "not this node": {Term: was.Term, Ready: true},
	} {
		r := map[string]*replica{"another term": leader, "not this node": follower}[name]
		before := r.lead.now.Swap(&l)
		if got := r.Leadership(); got != (Leadership{}) {
			t.Errorf("%s: %+v", name, got)
		}
		r.lead.now.Store(before)
	}
}

// holdApplier makes Apply on a single leader wait, with one proposal inside it.
func holdApplier(t *testing.T, r *replica) (release func(), held Proposal) {
	t.Helper()
	hold := make(chan struct{})
	r.applier.mu.Lock()
	r.applier.hold, r.applier.entered = hold, make(chan struct{}, 100)
	r.applier.mu.Unlock()
	p := r.Propose([]byte("held"))
	<-r.applier.entered
	return func() { close(hold) }, p
}

// A committed entry whose result does not come has an unknown fate at its deadline, though its future
// goes on; and the places for proposals are bounded meanwhile: one too many is refused definitely.
func TestProposalDeadlineAndBound(t *testing.T) {
	c := newCluster(t, 1, 1, func(c *Config) {
		c.MaxProposals = 2
		c.Timing.Proposal = 100 * time.Millisecond
	})
	leader := c.leader(t)
	release, held := holdApplier(t, leader)
	second := leader.Propose([]byte("second"))
	third := leader.Propose([]byte("third"))
	<-third.Done()
	if _, err := third.Result(); !errors.Is(err, ErrNotLeader) {
		t.Errorf("beyond the bound: %v", err)
	}
	for _, p := range []Proposal{held, second} {
		<-p.Done()
		if _, err := p.Result(); !errors.Is(err, ErrUnknown) {
			t.Errorf("at the deadline: %v", err)
		}
	}
	release()
	eventually(t, "the places are free again", func() bool { return leader.Status().InFlight == 0 })
	if got := c.agree(t, 2); !strings.Contains(got[0], "held") {
		t.Errorf("applied %v", got)
	}
}

// Proposals that are in flight when the group closes end, with a result or an unknown fate.
func TestCloseInFlight(t *testing.T) {
	c := newCluster(t, 3, 3, nil)
	leader := c.leader(t)
	release, held := holdApplier(t, leader)
	proposals := []Proposal{held}
	for range 20 {
		proposals = append(proposals, leader.Propose([]byte("x")))
	}
	closed := make(chan error)
	go func() { closed <- leader.Close() }()
	<-leader.closing
	release()
	must(t, <-closed)
	for i, p := range proposals {
		select {
		case <-p.Done():
			if _, err := p.Result(); err != nil && !errors.Is(err, ErrUnknown) {
				t.Errorf("proposal %d: %v", i, err)
			}
		default:
			t.Errorf("proposal %d is still open after Close", i)
		}
	}
}

// Close comes back in time although the state machine does not.
func TestCloseIsBounded(t *testing.T) {
	c := newCluster(t, 1, 1, func(c *Config) { c.Timing.Close = 50 * time.Millisecond })
	r := c.leader(t)
	release, held := holdApplier(t, r)
	err := r.RaftGroup.Close()
	if err == nil || !strings.Contains(err.Error(), "has not stopped") {
		t.Errorf("got %v", err)
	}
	<-held.Done()
	if _, err := held.Result(); !errors.Is(err, ErrUnknown) {
		t.Errorf("in flight: %v", err)
	}
	release()
	must(t, r.raft.Shutdown().Error())
	r.loops.Wait()
	eventually(t, "Raft has stopped", func() bool { return len(r.applier.entries()) == 1 })
	r.closeErr = r.store.Load().Close() // for the cleanup of the cluster
}

// The log is compacted by itself when it exceeds its bytes; a follower that was away, and whose next
// entry is gone, gets the snapshot and then the rest.
func TestCompactionAndInstall(t *testing.T) {
	slots := make(chan struct{}, 1)
	c := newCluster(t, 3, 3, func(c *Config) {
		withCompaction(128<<10, 16<<10)(c)
		c.SnapshotSlots = slots
	})
	c.mustPropose(t, "first", 5, 0)
	c.agree(t, 5)
	away := c.without(c.leader(t))[0]
	must(t, away.Close())
	rest := c.without(away)
	rest.mustPropose(t, "second", 200, 1<<10)
	rest.agree(t, 205)
	for _, r := range rest {
		eventually(t, "the log is compacted", func() bool {
			s := r.Status()
			return s.SnapshotsTaken > 0 && s.LogBytes < 128<<10
		})
	}
	away.mustOpen(t)
	c.agree(t, 205)
	eventually(t, "one snapshot was installed", func() bool { return away.Status().SnapshotsInstalled == 1 })
	index := rest[0].AppliedIndex()
	eventually(t, "applied index after the install", func() bool { return away.AppliedIndex() == index })

	// The snapshot is also what the next start goes by.
	must(t, away.Close())
	away.mustOpen(t)
	rest.mustPropose(t, "third", 5, 0)
	c.agree(t, 210)
}

// What stays of the log is sized by bytes, and by entries only where these are large.
func TestTrailing(t *testing.T) {
	for name, tc := range map[string]struct {
		entries, bytes int
		low, high      uint64
	}{
		"small entries": {300, 20, 230, 260}, // 68 bytes each, 16 KiB: 240
		"large entries": {100, 4 << 10, minTrailing, minTrailing + 3},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t, 1, 1, withCompaction(64<<20, 16<<10))
			c.mustPropose(t, "x", tc.entries, tc.bytes)
			must(t, c[0].CompactNow())
			if n := c[0].store.Load().EntriesWithin(math.MaxUint64); n < tc.low || n > tc.high {
				t.Errorf("%d entries stay, want %d to %d", n, tc.low, tc.high)
			}
			if s := c[0].Status(); s.SnapshotIndex != s.LastIndex || s.LogBytes != 0 {
				t.Errorf("snapshot at %d, log to %d with %d bytes beyond", s.SnapshotIndex, s.LastIndex, s.LogBytes)
			}
			must(t, c[0].CompactNow()) // nothing new is no error
		})
	}
}

// What OpenSnapshot opens is what the Applier wrote of all that was applied before, also when nothing is new; and it
// stays readable when later snapshots have taken its place.
func TestOpenSnapshot(t *testing.T) {
	c := newCluster(t, 1, 1, nil)
	c.mustPropose(t, "x", 5, 0)
	want := c[0].applier.entries()
	var opened []io.ReadCloser
	for range 2 {
		r, err := c[0].OpenSnapshot()
		must(t, err)
		opened = append(opened, r)
	}
	for range 4 {
		c.mustPropose(t, "y", 1, 0)
		must(t, c[0].CompactNow())
	}
	for _, r := range opened {
		var restored recorder
		must(t, restored.Restore(r))
		must(t, r.Close())
		if diff := cmp.Diff(want, restored.entries()); diff != "" {
			t.Error(diff)
		}
	}
}

// A group that has applied nothing of the Applier's can be compacted, also right after a membership
// change, which Raft alone refuses.
func TestCompactEmpty(t *testing.T) {
	c := newCluster(t, 1, 1, nil)
	c.leader(t)
	must(t, c[0].CompactNow())
	must(t, c[0].AddLearner(Member{ID: "z", Addr: "127.0.0.1:1"}))
	must(t, c[0].CompactNow())
}

// A learner joins without a vote, is promoted, leads, and the former leader is removed; a leader does
// not remove itself, and a learner cannot be handed leadership.
func TestMembership(t *testing.T) {
	c := newCluster(t, 4, 3, nil)
	c[:3].mustPropose(t, "x", 3, 0)
	leader, learner := c[:3].leader(t), c[3]
	must(t, leader.AddLearner(learner.self))
	c.agree(t, 3)
	err := leader.Transfer(learner.self.ID)
	if err == nil || !strings.Contains(err.Error(), "promote it first") {
		t.Errorf("transfer to a learner: %v", err)
	}
	must(t, leader.Promote(learner.self.ID))
	if err := leader.Remove(leader.self.ID); err == nil {
		t.Error("the leader removed itself")
	}
	if err := leader.Remove("nobody"); err == nil {
		t.Error("a stranger was removed")
	}
	must(t, leader.Transfer(learner.self.ID))
	eventually(t, "the new member leads", func() bool { return learner.Leadership().Ready })
	must(t, learner.Remove(leader.self.ID))
	rest := c.without(leader)
	rest.mustPropose(t, "y", 2, 0)
	rest.agree(t, 5)
	if m := learner.Members(); len(m) != 3 {
		t.Errorf("members %v", m)
	}
	if err := rest.without(learner)[0].Transfer(""); !errors.Is(err, ErrNotLeader) {
		t.Errorf("transfer by a follower: %v", err)
	}
}

// A damaged snapshot, and one that the state machine refuses, end the start with the cause; an older
// one is not tried.
func TestSnapshotRefused(t *testing.T) {
	var fatal atomic.Int32
	c := newCluster(t, 1, 1, func(c *Config) { c.Fatal = func(error) { fatal.Add(1) } })
	for range 2 {
		c.mustPropose(t, "x", 3, 0)
		must(t, c[0].CompactNow())
	}
	must(t, c[0].Close())

	refusing := &recorder{refuse: errors.New("made by version 9")}
	c[0].config.Applier = refusing
	if _, err := Open(c[0].config); err == nil || fatal.Load() != 1 || refusing.asked != 1 {
		t.Errorf("a snapshot that was refused: %v, fatal %d times, restored %d times",
			err, fatal.Load(), refusing.asked)
	}
	states, err := filepath.Glob(filepath.Join(c[0].dir, "snapshots", "*", "state.bin"))
	must(t, err)
	if len(states) != 2 {
		t.Fatalf("%d snapshots, want 2", len(states))
	}
	good, err := os.ReadFile(states[1])
	must(t, err)
	must(t, os.WriteFile(states[1], append([]byte{'!'}, good[1:]...), 0o600))
	c[0].config.Applier = &recorder{}
	if _, err := Open(c[0].config); err == nil || !errors.Is(err, storage.ErrDamaged) {
		t.Errorf("a damaged snapshot: %v", err)
	}
	must(t, os.WriteFile(states[1], good, 0o600))
	c[0].mustOpen(t)
	c.mustPropose(t, "y", 1, 0)
	c.agree(t, 7)
}

// A leader on which an interrupted transfer left its mark refuses every entry for ever; the guard finds
// it, also when nobody proposes. A mark that goes by itself is no reason to stop.
func TestStuckTransfer(t *testing.T) {
	fatal := make(chan error, 100)
	c := newCluster(t, 1, 1, func(c *Config) { c.Fatal = func(err error) { fatal <- err } })
	leader := c.leader(t)

	leader.observeTransfer(raft.ErrLeadershipTransferInProgress)
	eventually(t, "the guard asked and found the group well", func() bool {
		return leader.lead.transferSince.Load() == 0
	})
	if len(fatal) != 0 {
		t.Fatalf("fatal: %v", <-fatal)
	}

	field := reflect.ValueOf(leader.raft).Elem().FieldByName("leaderState").
		FieldByName("leadershipTransferInProgress")
	mark := (*int32)(unsafe.Pointer(field.UnsafeAddr()))
	atomic.StoreInt32(mark, 1)
	start := time.Now()
	p := leader.Propose([]byte("x"))
	<-p.Done()
	if _, err := p.Result(); !errors.Is(err, ErrNotLeader) {
		t.Errorf("got %v, want ErrNotLeader", err)
	}
	select {
	case err := <-fatal:
		if !strings.Contains(err.Error(), "transfer has not ended") {
			t.Error(err)
		}
		if d := time.Since(start); d < 3*quick.Heartbeat {
			t.Errorf("after %v already", d)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("the guard did not find it")
	}
	atomic.StoreInt32(mark, 0)
}

// Every error of Raft is a definite no or an unknown fate, and keeps its cause.
func TestOutcome(t *testing.T) {
	for cause, want := range map[error]error{
		raft.ErrNotLeader:                    ErrNotLeader,
		raft.ErrEnqueueTimeout:               ErrNotLeader,
		raft.ErrLeadershipTransferInProgress: ErrNotLeader,
		raft.ErrLeadershipLost:               ErrUnknown,
		raft.ErrRaftShutdown:                 ErrUnknown,
		raft.ErrAbortedByRestore:             ErrUnknown,
		errors.New("no space left"):          ErrUnknown,
	} {
		if err := outcome(cause); !errors.Is(err, want) || !errors.Is(err, cause) {
			t.Errorf("%v became %v, want %v", cause, err, want)
		}
	}
	if outcome(nil) != nil {
		t.Error("no error became one")
	}
}

// All problems of a configuration are reported at once.
func TestConfigProblems(t *testing.T) {
	l := mustListen(t, "c1", "a")
	_, err := Open(Config{
		Group: "p7", Network: l, Self: Member{ID: "b"}, Bootstrap: []Member{{ID: "c", Addr: "x:1"}},
		Timing: Timing{Heartbeat: time.Second, Lease: 2 * time.Second},
	})
	for _, want := range []string{
		"Disk", "Applier", "Fatal", "config Self: a member needs", "Lease", "does not list",
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v does not mention %q", err, want)
		}
	}
}

// A node that has won, and whose barrier then fails, may not stamp: it leads without being ready, tries again,
// and is ready when a barrier of its own term has come through.
func TestBarrierFailsAfterWinning(t *testing.T) {
	c := newCluster(t, 1, 1, nil)
	leader := c.leader(t)
	term := leader.Leadership().Term
	leader.setLeadership(Leadership{Term: term}) // as it was when it had just won
	a := leader.settle(attempt{term: term, started: time.Now()}, raft.ErrEnqueueTimeout)
	if got := leader.Leadership(); got != (Leadership{Term: term}) {
		t.Errorf("after a failed barrier: %+v", got)
	}
	if a.term != term || a.result != nil {
		t.Fatalf("it gives up: %+v", a)
	}
	a = leader.press(a)
	if got := leader.Leadership(); got.Ready || a.result == nil {
		t.Errorf("before the next barrier came through: %+v", got)
	}
	leader.settle(a, <-a.result)
	if got := leader.Leadership(); got != (Leadership{Term: term, Ready: true}) {
		t.Errorf("after a barrier that came through: %+v", got)
	}
}
