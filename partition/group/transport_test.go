package group

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
)

// blankReplica is the view of a replica that has nothing yet.
type blankReplica struct{}

func (blankReplica) installed()                          {}
func (blankReplica) committed() uint64                   { return 0 }
func (blankReplica) beginsAfter(uint64) (Position, bool) { return Position{}, false }

// impostor is a node b that sends whatever a leader could send, over a real connection.
type impostor struct {
	*guarded
	self, to Member
}

func newImpostor(t *testing.T, l *Listener, to Member) *impostor {
	t.Helper()
	inner, err := l.Transport("p7", Member{ID: "b", Addr: l.Addr()}, 2*time.Second, hclog.NewNullLogger())
	must(t, err)
	transport := newGuarded(inner, blankReplica{})
	stop := make(chan struct{})
	var drain sync.WaitGroup
	drain.Go(func() { // it votes for nobody
		for {
			select {
			case r := <-transport.Consumer():
				r.Respond(nil, raft.ErrCantBootstrap)
			case <-stop:
				return
			}
		}
	})
	t.Cleanup(func() {
		close(stop)
		drain.Wait()
		must(t, transport.Close())
	})
	return &impostor{guarded: transport, self: Member{ID: "b", Addr: l.Addr()}, to: to}
}

func (i *impostor) header() raft.RPCHeader {
	return raft.RPCHeader{ProtocolVersion: 3, ID: []byte(i.self.ID), Addr: []byte(i.self.Addr)}
}

// mustAppend sends entries prev+1..last, all of term 5, as the leader of term.
func (i *impostor) mustAppend(t *testing.T, term, prev, prevTerm, last, commit uint64) {
	t.Helper()
	request := &raft.AppendEntriesRequest{
		RPCHeader: i.header(), Term: term,
		PrevLogEntry: prev, PrevLogTerm: prevTerm, LeaderCommitIndex: commit,
	}
	for index := prev + 1; index <= last; index++ {
		request.Entries = append(request.Entries, &raft.Log{
			Index: index, Term: 5, Type: raft.LogCommand, Data: fmt.Appendf(nil, "entry-%d", index),
		})
	}
	var response raft.AppendEntriesResponse
	err := i.AppendEntries(i.to.replicaID(), raft.ServerAddress(i.to.Addr), request, &response)
	if err != nil || !response.Success {
		t.Fatalf("append: %+v, %v", response, err)
	}
}

// follower is node a of a group of a, b and c, where b is an impostor and c is not there.
func follower(t *testing.T, fatal func(error)) (*replica, *impostor) {
	t.Helper()
	b := mustListen(t, "c1", "b")
	c := newCluster(t, 1, 1, func(c *Config) {
		c.Bootstrap = append(c.Bootstrap, Member{ID: "b", Addr: b.Addr()}, Member{ID: "c", Addr: "127.0.0.1:1"})
		if fatal != nil {
			c.Fatal = fatal
		}
		c.Timing.Heartbeat = 2 * time.Second // a campaign of its own would only disturb
	})
	return c[0], newImpostor(t, b, c[0].self)
}

// A leader's request that verifies entries up to 30 and speaks of commit index 200 commits up to 30 and
// no further, though the follower has entries up to 60. Raft alone commits all 60: should that change,
// the clamp can go.
func TestOverCommit(t *testing.T) {
	t.Run("guarded", func(t *testing.T) {
		a, b := follower(t, nil)
		b.mustAppend(t, 5, 1, 1, 60, 1)
		b.mustAppend(t, 6, 20, 5, 30, 200)
		cluster{a}.agree(t, 29) // 2..30
		if s := a.Status(); s.CommitIndex != 30 || s.LastIndex != 60 {
			t.Errorf("commit index %d of %d, want 30 of 60", s.CommitIndex, s.LastIndex)
		}
		b.mustAppend(t, 6, 60, 5, 60, 50) // and it goes on as far as is verified
		cluster{a}.agree(t, 49)
	})
	t.Run("raft alone", func(t *testing.T) {
		l, bl := mustListen(t, "c1", "a"), mustListen(t, "c1", "b")
		self := Member{ID: "a", Addr: l.Addr()}
		transport, err := l.Transport("p7", self, 2*time.Second, hclog.NewNullLogger())
		must(t, err)
		c := Config{
			Group: "p7", Self: self, Timing: Timing{Heartbeat: 2 * time.Second},
			Bootstrap: []Member{self, {ID: "b", Addr: bl.Addr()}, {ID: "c", Addr: "127.0.0.1:1"}},
		}
		c.setDefaults()
		store, snapshots := raft.NewInmemStore(), raft.NewInmemSnapshotStore()
		must(t, raft.BootstrapCluster(c.raftConfig(), store, store, snapshots, transport, c.bootstrap()))
		f := &adapter{applier: &recorder{}, live: func(uint64, uint64) bool { return false }}
		r, err := raft.NewRaft(c.raftConfig(), f, store, store, snapshots, transport)
		must(t, err)
		defer func() {
			stopped := r.Shutdown()
			must(t, transport.Close())
			must(t, stopped.Error())
		}()
		b := newImpostor(t, bl, self)
		b.mustAppend(t, 5, 1, 1, 60, 1)
		b.mustAppend(t, 6, 20, 5, 30, 200)
		if got := r.CommitIndex(); got != 60 {
			t.Errorf("commit index %d: Raft no longer over-commits", got)
		}
	})
}

// The clamp lowers a commit index to the end of the request, and never raises one.
func TestClampCommit(t *testing.T) {
	for _, tc := range []struct{ prev, entries, commit, want uint64 }{
		{20, 10, 200, 30}, {20, 10, 25, 25}, {20, 0, 200, 20}, {0, 0, 0, 0}, {0, 0, 9, 0},
	} {
		r := &raft.AppendEntriesRequest{
			PrevLogEntry: tc.prev, LeaderCommitIndex: tc.commit, Entries: make([]*raft.Log, tc.entries),
		}
		clampCommit(r)
		if r.LeaderCommitIndex != tc.want {
			t.Errorf("%+v became %d", tc, r.LeaderCommitIndex)
		}
	}
}

// A heartbeat goes to Raft's main goroutine, although a handler for it was set; Raft's own transport
// hands it to the handler.
func TestNoHeartbeatFastPath(t *testing.T) {
	for _, guard := range []bool{true, false} {
		t.Run(fmt.Sprintf("guarded %t", guard), func(t *testing.T) {
			al, bl := mustListen(t, "c1", "a"), mustListen(t, "c1", "b")
			a, err := al.Transport("p7", Member{ID: "a", Addr: al.Addr()}, 2*time.Second, hclog.NewNullLogger())
			must(t, err)
			if guard {
				a = newGuarded(a, blankReplica{})
			}
			defer func() { must(t, a.Close()) }()
			fast := make(chan struct{}, 1)
			a.SetHeartbeatHandler(func(r raft.RPC) {
				fast <- struct{}{}
				r.Respond(&raft.AppendEntriesResponse{Success: true}, nil)
			})
			b := newImpostor(t, bl, Member{ID: "a", Addr: al.Addr()})
			sent := make(chan error, 1)
			go func() {
				var response raft.AppendEntriesResponse
				sent <- b.AppendEntries("a", raft.ServerAddress(al.Addr()),
					&raft.AppendEntriesRequest{RPCHeader: b.header(), Term: 7}, &response)
			}()
			select {
			case r := <-a.Consumer():
				r.Respond(&raft.AppendEntriesResponse{Success: true}, nil)
				if !guard {
					t.Error("Raft's transport has no fast path any more: the guard can go")
				}
			case <-fast:
				if guard {
					t.Error("the heartbeat took the fast path")
				}
			}
			must(t, <-sent)
		})
	}
}

// After the install of a snapshot that ends inside the follower's log, Raft believes in entries that
// are gone; that is found at once.
func TestInstallInsideLog(t *testing.T) {
	fatal := make(chan error, 10)
	a, b := follower(t, func(err error) { fatal <- err })
	b.mustAppend(t, 5, 1, 1, 60, 1)
	install := func(index uint64) {
		t.Helper()
		state := binary.BigEndian.AppendUint64([]byte(snapshotMagic), index)
		state = append(state, `["the state"]`...)
		var response raft.InstallSnapshotResponse
		err := b.InstallSnapshot(a.self.replicaID(), raft.ServerAddress(a.self.Addr), &raft.InstallSnapshotRequest{
			RPCHeader: b.header(), SnapshotVersion: 1, Term: 6, Leader: []byte(b.self.Addr),
			LastLogIndex: index, LastLogTerm: 6, Configuration: raft.EncodeConfiguration(raft.Configuration{}),
			ConfigurationIndex: 1, Size: int64(len(state)),
		}, &response, bytes.NewReader(state))
		if err != nil || !response.Success {
			t.Fatalf("install: %+v, %v", response, err)
		}
	}
	install(70) // beyond the log: no reason to stop
	if len(fatal) != 0 {
		t.Fatalf("fatal: %v", <-fatal)
	}
	if got := a.applier.entries(); len(got) != 1 || got[0] != "the state" || a.AppliedIndex() != 70 {
		t.Errorf("state %v at %d", got, a.AppliedIndex())
	}
	b.mustAppend(t, 6, 70, 6, 90, 70)
	install(80)
	select {
	case err := <-fatal:
		if !strings.Contains(err.Error(), "entries up to 90, but the log ends at 80") {
			t.Error(err)
		}
	default:
		t.Error("it was not found")
	}
}

// Commit news counts as of now only for an entry that this follower had before the news.
func TestRecentCommits(t *testing.T) {
	var c recentCommits
	c.note(&raft.AppendEntriesRequest{PrevLogEntry: 100, LeaderCommitIndex: 100})
	c.note(&raft.AppendEntriesRequest{PrevLogEntry: 90, LeaderCommitIndex: 95, Entries: make([]*raft.Log, 9)})
	c.note(&raft.AppendEntriesRequest{})
	for index, want := range map[uint64]bool{100: true, 99: false, 95: false, 36: false, 0: false} {
		if c.has(index) != want {
			t.Errorf("has(%d) = %t", index, !want)
		}
	}
}

// stuffed is a pipeline whose peer has refused the first request: like that of Raft's transport, it takes
// no further request until its answers are read, or it is closed.
type stuffed struct {
	answers chan raft.AppendFuture
	closed  chan struct{}
	once    sync.Once
}

type refusedAppend struct{ raft.AppendFuture }

func (refusedAppend) Error() error                          { return nil }
func (refusedAppend) Request() *raft.AppendEntriesRequest   { return &raft.AppendEntriesRequest{} }
func (refusedAppend) Response() *raft.AppendEntriesResponse { return &raft.AppendEntriesResponse{} }

func (s *stuffed) AppendEntries(*raft.AppendEntriesRequest, *raft.AppendEntriesResponse,
) (raft.AppendFuture, error) {
	<-s.closed
	return nil, raft.ErrPipelineShutdown
}

func (s *stuffed) Consumer() <-chan raft.AppendFuture { return s.answers }

func (s *stuffed) Close() error {
	s.once.Do(func() { close(s.closed) })
	return nil
}

// After a refused request Raft reads no more answers, but may send once more, and would wait in that for as
// long as it leads; here the pipeline ends with the refusal, and so does the wait.
func TestPipelineEndsWithRefusal(t *testing.T) {
	inner := &stuffed{answers: make(chan raft.AppendFuture, 1), closed: make(chan struct{})}
	acked := newAcknowledged()
	p := newPipeline(inner, "b", &acked)
	inner.answers <- refusedAppend{}
	if f := <-p.Consumer(); f.Response().Success {
		t.Error("the refusal was lost")
	}
	sent := make(chan error)
	go func() {
		_, err := p.AppendEntries(nil, nil)
		sent <- err
	}()
	if err := <-sent; !errors.Is(err, raft.ErrPipelineShutdown) {
		t.Errorf("got %v", err)
	}
	must(t, p.Close())
	if got := acked.by("b"); got != (Position{}) {
		t.Errorf("a refusal counts as an acknowledgement of %v", got)
	}
}

// mustInstall sends a snapshot that ends at index.
func (i *impostor) mustInstall(t *testing.T, term, index uint64) {
	t.Helper()
	state := binary.BigEndian.AppendUint64([]byte(snapshotMagic), index)
	state = append(state, `["the state"]`...)
	var response raft.InstallSnapshotResponse
	err := i.InstallSnapshot(i.to.replicaID(), raft.ServerAddress(i.to.Addr), &raft.InstallSnapshotRequest{
		RPCHeader: i.header(), SnapshotVersion: 1, Term: term, Leader: []byte(i.self.Addr),
		LastLogIndex: index, LastLogTerm: 5, Configuration: raft.EncodeConfiguration(raft.Configuration{}),
		ConfigurationIndex: 1, Size: int64(len(state)),
	}, &response, bytes.NewReader(state))
	if err != nil || !response.Success {
		t.Fatalf("install: %+v, %v", response, err)
	}
}

// A leader that has fallen back in what it believes of a follower sends a snapshot that ends before what the
// follower has committed: nothing of it is installed, nothing of the log goes, and the log goes on. Raft
// alone would go back, and forget what it acknowledged.
func TestOlderSnapshot(t *testing.T) {
	a, b := follower(t, nil)
	b.mustAppend(t, 5, 1, 1, 60, 60)
	want := cluster{a}.agree(t, 59)
	b.mustInstall(t, 6, 40)
	b.mustAppend(t, 6, 40, 5, 62, 62) // as the leader goes on, behind the snapshot
	got := cluster{a}.agree(t, 61)
	if diff := cmp.Diff(want, got[:59]); diff != "" {
		t.Errorf("after an older snapshot: %s", diff)
	}
	if s := a.Status(); s.LastIndex != 62 || s.SnapshotIndex != 0 || s.SnapshotsInstalled != 0 || s.Term != 6 {
		t.Errorf("%+v", s)
	}
}

// A leader that begins before what a follower has compacted away is understood: with entries that are all
// committed there, with some that are new, and with the very first; no snapshot is needed.
func TestCompactedAway(t *testing.T) {
	a, b := follower(t, nil)
	b.mustAppend(t, 5, 1, 1, 60, 60)
	b.mustAppend(t, 5, 60, 5, 120, 120)
	b.mustAppend(t, 5, 120, 5, 200, 200)
	cluster{a}.agree(t, 199)
	a.RaftGroup.config.Compaction.TrailingBytes = 1 // 64 entries stay all the same
	must(t, a.CompactNow())
	first, ok := a.store.Load().BeginsAfter(0)
	if !ok || first.Index < 100 {
		t.Fatalf("the log begins at %+v", first)
	}
	b.mustAppend(t, 5, 20, 5, 30, 200)
	b.mustAppend(t, 5, 50, 5, 210, 210)
	request := &raft.AppendEntriesRequest{RPCHeader: b.header(), Term: 5, LeaderCommitIndex: 210, Entries: []*raft.Log{
		{Index: 1, Term: 1, Type: raft.LogNoop}, {Index: 2, Term: 5, Data: []byte("entry-2")},
	}}
	var response raft.AppendEntriesResponse
	err := b.AppendEntries(a.self.replicaID(), raft.ServerAddress(a.self.Addr), request, &response)
	if err != nil || !response.Success {
		t.Fatalf("from the first on: %+v, %v", response, err)
	}
	cluster{a}.agree(t, 209)
	if s := a.Status(); s.LastIndex != 210 || s.SnapshotsInstalled != 0 {
		t.Errorf("%+v", s)
	}
}
