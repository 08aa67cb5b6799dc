package group

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/quorate/quorate/partition/storage"
)

// A future that Raft forgot while it shut down (hashicorp/raft#498) keeps its waiter.
func TestMain(m *testing.M) {
	if os.Getenv(benchReplica) != "" {
		os.Exit(runBenchReplica())
	}
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction("github.com/hashicorp/raft.(*deferError).Error"))
}

// quick makes elections fast. The lease is as long as it may be, since it, not the heartbeat, is what a
// busy machine breaks first.
var quick = Timing{
	Heartbeat: 300 * time.Millisecond, Lease: 300 * time.Millisecond, Commit: 10 * time.Millisecond, Request: 500 * time.Millisecond,
	Enqueue: 500 * time.Millisecond, Proposal: 5 * time.Second,
}

// recorder is an Applier that remembers every entry.
type recorder struct {
	mu      sync.Mutex // guards the fields below
	log     []string
	live    map[uint64]bool
	hold    chan struct{} // if set, Apply waits for its end
	refuse  error         // what Restore answers
	entered chan struct{} // gets one per Apply that waits
	asked   int           // how often Restore was called
}

func (r *recorder) Apply(index, term uint64, data []byte, live bool) any {
	r.mu.Lock()
	hold := r.hold
	r.mu.Unlock()
	if hold != nil {
		r.entered <- struct{}{}
		<-hold
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.log = append(r.log, fmt.Sprintf("%d/%d %.20s", index, term, data))
	if r.live == nil {
		r.live = map[uint64]bool{}
	}
	r.live[index] = live
	return index
}

type recording []string

func (r *recorder) Snapshot() (Snapshot, error) { return recording(r.entries()), nil }

func (s recording) WriteTo(w io.Writer) (int64, error) {
	data, err := json.Marshal(s)
	if err != nil {
		return 0, err
	}
	n, err := w.Write(data)
	return int64(n), err
}

func (recording) Release() {}

func (r *recorder) Restore(from io.Reader) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.asked++
	if r.refuse != nil {
		return r.refuse
	}
	r.log = nil
	return json.NewDecoder(from).Decode(&r.log)
}

func (r *recorder) entries() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.log)
}

// lives is a copy of what Apply was told.
func (r *recorder) lives() map[uint64]bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return maps.Clone(r.live)
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// eventually waits until f holds; elections and connections take real time.
func eventually(t *testing.T, what string, f func() bool) {
	t.Helper()
	deadline := time.After(10 * time.Second)
	look := time.NewTicker(2 * time.Millisecond)
	defer look.Stop()
	for !f() {
		select {
		case <-look.C:
		case <-deadline:
			t.Fatalf("not within 10 s: %s", what)
		}
	}
}

// replica is one node with one group.
type replica struct {
	*RaftGroup
	self     Member
	listener *Listener
	applier  *recorder
	config   Config
	dir      string // of its files
}

type cluster []*replica

// newCluster makes nodes a, b, c, … with a group of the first voters of them; adjust may change each
// configuration before the start.
func newCluster(t *testing.T, nodes, voters int, adjust func(*Config)) cluster {
	t.Helper()
	var c cluster
	dir := t.TempDir()
	for i := range nodes {
		id := string(rune('a' + i))
		l := mustListen(t, "c1", id)
		c = append(c, &replica{self: Member{ID: id, Instance: "dir-" + id, Addr: l.Addr()}, listener: l})
	}
	var members []Member
	for _, r := range c[:voters] {
		members = append(members, r.self)
	}
	for i, r := range c {
		r.config = Config{
			Group: "p7", Network: r.listener, Self: r.self, First: true,
			Disk:   storage.NewFiles(filepath.Join(dir, r.self.ID, "p7"), storage.WAL, nil),
			Timing: quick, Fatal: func(err error) { t.Errorf("fatal on %s: %v", r.self.ID, err) },
		}
		if i == 0 {
			r.config.Bootstrap = members
		}
		r.dir = filepath.Join(dir, r.self.ID, "p7")
		must(t, os.MkdirAll(filepath.Dir(r.dir), 0o750))
		if adjust != nil {
			adjust(&r.config)
		}
		r.mustOpen(t)
	}
	t.Cleanup(func() {
		for _, r := range c {
			if err := r.Close(); err != nil {
				t.Errorf("close %s: %v", r.self.ID, err)
			}
		}
	})
	return c
}

func mustListen(t *testing.T, cluster, node string) *Listener {
	t.Helper()
	l, err := Listen("127.0.0.1:0", ListenerConfig{Cluster: cluster, Node: node})
	must(t, err)
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	return l
}

// mustOpen starts the replica with a blank state machine, as a process start does.
func (r *replica) mustOpen(t *testing.T) {
	t.Helper()
	r.applier = &recorder{}
	r.config.Applier = r.applier
	g, err := Open(r.config)
	must(t, err)
	r.RaftGroup, r.config.First = g, false
}

// leader waits for a leader that may stamp among the replicas.
func (c cluster) leader(t *testing.T) *replica {
	t.Helper()
	var leader *replica
	eventually(t, "a leader is ready", func() bool {
		i := slices.IndexFunc(c, func(r *replica) bool { return r.Leadership().Ready })
		if i >= 0 {
			leader = c[i]
		}
		return i >= 0
	})
	return leader
}

// without is the cluster but for one.
func (c cluster) without(out *replica) cluster {
	return slices.DeleteFunc(slices.Clone(c), func(r *replica) bool { return r == out })
}

// mustPropose proposes entries one after the other, each to whoever leads then, and wants each to be
// committed.
func (c cluster) mustPropose(t *testing.T, name string, n int, size int) {
	t.Helper()
	for i := range n {
		data := make([]byte, max(size, 20))
		copy(data, fmt.Sprintf("%s-%d", name, i))
		p := c.leader(t).Propose(data)
		<-p.Done()
		if _, err := p.Result(); err != nil {
			t.Fatal(err)
		}
	}
}

// agree waits until all replicas have applied the same n entries, and compares them.
func (c cluster) agree(t *testing.T, n int) []string {
	t.Helper()
	for _, r := range c {
		eventually(t, fmt.Sprintf("%s has applied %d entries", r.self.ID, n), func() bool {
			return len(r.applier.entries()) >= n
		})
	}
	want := c[0].applier.entries()
	if len(want) != n {
		t.Errorf("%d entries were applied, want %d", len(want), n)
	}
	for _, r := range c[1:] {
		if diff := cmp.Diff(want, r.applier.entries()); diff != "" {
			t.Errorf("%s differs from %s: %s", r.self.ID, c[0].self.ID, diff)
		}
	}
	return want
}

func withCompaction(log, trailing uint64) func(*Config) {
	return func(c *Config) { c.Compaction = Compaction{LogBytes: log, TrailingBytes: trailing} }
}
