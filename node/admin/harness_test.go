package admin

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"iter"
	"log/slog"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/quorate/quorate/clock"
	"github.com/quorate/quorate/control"
	"github.com/quorate/quorate/control/state"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/internal/identity"
	"github.com/quorate/quorate/partition/group"
	"github.com/quorate/quorate/partition/storage"
	"github.com/quorate/quorate/policy"
	quoratev1 "github.com/quorate/quorate/proto/quorate/v1"
	"github.com/quorate/quorate/quotaerr"
	"github.com/quorate/quorate/rpc"
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

var ops = rpc.Actor{Name: "admin/ops", Role: identity.Admin}

// node is a node with a real replica of the control group, and the rest as the test has it.
type node struct {
	*Admin
	cluster *cluster
	id      string
	control *control.Control
	clock   clock.Fake
	wall    time.Time
}

// cluster is the nodes, and what a test says of them.
type cluster struct {
	nodes []*node

	mu         sync.Mutex // guards the fields below
	waiting    []Waiting
	down       map[string]time.Duration
	leaders    map[string]string
	held       map[string][]string
	cut        map[string]bool // nodes that do not answer the others
	mayReplace error
	unmade     error // of who asks for the control group
	init       error // of making the cluster
	inits      []int // partitions that it was to have
	transfers  []string
	partition  func(ctx context.Context, id string) (*quoratev1.PartitionPolicyResponse, error)
	forgive    func(fsm.Forgive) (fsm.Forgiven, error)
	lose       func(*state.Command) bool // a command whose fate the proposer does not hear
	replicas   []string                  // of a partition that is made for a plan
	progress   map[fsm.PlanID]string
	save       func(io.Writer) error
	restore    func(Restore) (Restored, error)
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// newCluster makes a cluster of so many nodes, a, b, …; all with a vote in the control group, and one partition
// of all slots on all of them, which a leads.
func newCluster(t *testing.T, count int) *cluster {
	t.Helper()
	c := &cluster{
		down: map[string]time.Duration{}, leaders: map[string]string{"p0": "a"}, held: map[string][]string{},
		cut: map[string]bool{},
	}
	var members []group.Member
	var listeners []*group.Listener
	for i := range count {
		id := string(rune('a' + i))
		l, err := group.Listen("127.0.0.1:0", group.ListenerConfig{Cluster: "c1", Node: id})
		must(t, err)
		t.Cleanup(func() { l.Close() })
		listeners = append(listeners, l)
		members = append(members, group.Member{ID: id, Instance: "dir-" + id, Addr: l.Addr()})
	}
	for i, m := range members {
		n := &node{cluster: c, id: m.ID, wall: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)}
		bootstrap := members
		if i > 0 {
			bootstrap = nil
		}
		n.open(t, listeners[i], m, bootstrap)
		n.Admin = New(n.view(), slog.New(slog.DiscardHandler))
		n.now = func() time.Time { return n.wall }
		c.nodes = append(c.nodes, n)
	}
	c.make(t, members)
	return c
}

func (n *node) open(t *testing.T, l *group.Listener, self group.Member, bootstrap []group.Member) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), n.id)
	opened, err := control.Open(control.Config{
		Dir: dir, Logger: slog.New(slog.DiscardHandler), Clock: &n.clock,
		Fatal:   func(err error) { t.Errorf("fatal on %s: %v", n.id, err) },
		Differs: func(index uint64) { t.Errorf("%s had another state at %d", n.id, index) },
		Open: func(a group.Applier) (group.Group, error) {
			g, err := group.Open(group.Config{
				Group: control.GroupID, Network: l, Self: self, First: true, Bootstrap: bootstrap,
				Disk: storage.NewFiles(dir, storage.BoltDB, nil), Timing: quick, Applier: a,
				Fatal: func(err error) { t.Errorf("fatal on %s: %v", n.id, err) },
			})
			if err != nil {
				return nil, err
			}
			return g, nil
		},
	})
	must(t, err)
	t.Cleanup(func() { must(t, opened.Close()) })
	n.control = opened
}

// make makes the cluster's state.
func (c *cluster) make(t *testing.T, members []group.Member) {
	t.Helper()
	ids := []string{}
	commands := []*state.Command{{Kind: state.KindInit, Init: &state.Init{Cluster: "c1", Incarnation: 1, Seed: [16]byte{1}}}}
	for _, m := range members {
		ids = append(ids, m.ID)
		commands = append(commands, &state.Command{Kind: state.KindPutNode, Node: &state.PutNode{
			ID: m.ID, Instance: m.Instance, GRPC: "grpc-" + m.ID, Raft: m.Addr,
		}})
	}
	commands = append(commands, &state.Command{Kind: state.KindCreate, Create: &state.Create{
		Map: uint64(len(members)) + 1, Replicas: ids, Ranges: []fsm.SlotRange{{First: 0, Last: fsm.NumSlots - 1}},
	}})
	for _, cmd := range commands {
		eventually(t, "a leader applies a command", func() bool {
			_, err := c.leader(t).control.Propose(t.Context(), cmd)
			var refused *state.Refusal
			if errors.As(err, &refused) {
				t.Fatal(refused)
			}
			return err == nil
		})
	}
	eventually(t, "all have applied it", func() bool {
		return !slices.ContainsFunc(c.nodes, func(n *node) bool { return len(n.control.State().Partitions) == 0 })
	})
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

// leader is the node that leads the control group.
func (c *cluster) leader(t *testing.T) (leader *node) {
	t.Helper()
	eventually(t, "a leader is ready", func() bool {
		leader = c.led()
		return leader != nil
	})
	return leader
}

func (c *cluster) led() *node {
	i := slices.IndexFunc(c.nodes, func(n *node) bool { return n.control.Group().Leadership().Ready })
	if i < 0 {
		return nil
	}
	return c.nodes[i]
}

// follower is a node that does not lead the control group.
func (c *cluster) follower(t *testing.T) *node {
	t.Helper()
	leader := c.leader(t)
	return c.nodes[slices.IndexFunc(c.nodes, func(n *node) bool { return n != leader })]
}

// view is the cluster as one node sees it.
type view struct {
	*cluster
	self *node
}

var _ Cluster = (*view)(nil)

func (n *node) view() *view { return &view{n.cluster, n} }

func (v *view) Self() string { return v.self.id }

func (v *view) Init(_ context.Context, actor string, n int) (nodes, parts []string, err error) {
	v.inits = append(v.inits, n)
	if v.cluster.init != nil {
		return nil, nil, v.cluster.init
	}
	return []string{actor}, []string{fmt.Sprint(n)}, nil
}

func (v *view) Control() (*control.Control, error) {
	if v.unmade != nil {
		return nil, v.unmade
	}
	return v.self.control, nil
}

func (v *view) Propose(ctx context.Context, cmd *state.Command) (state.Result, error) {
	leader := v.led()
	if leader == nil {
		return state.Result{}, quotaerr.New(quotaerr.NoQuorum, "no leader")
	}
	r, err := leader.control.Propose(ctx, cmd)
	v.mu.Lock()
	defer v.mu.Unlock()
	if err == nil && v.lose != nil && v.lose(cmd) {
		return state.Result{}, quotaerr.New(quotaerr.OutcomeUnknown, "the answer was lost")
	}
	return r, err
}

func (v *view) Waiting() []Waiting {
	v.mu.Lock()
	defer v.mu.Unlock()
	return slices.Clone(v.waiting)
}

func (v *view) Down(node string) time.Duration {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.down[node]
}

func (v *view) ControlRole(node string) string {
	for _, m := range v.self.control.Group().Members() {
		switch {
		case m.ID != node:
		case m.Learner:
			return "learner"
		default:
			return "voter"
		}
	}
	return ""
}

func (v *view) Leader(id string) (string, bool) {
	if id == control.GroupID {
		m, ok := v.self.control.Group().Leader()
		return m.ID, ok
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	node, ok := v.leaders[id]
	return node, ok
}

func (v *view) Held(_ context.Context, node string) ([]string, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.held[node], nil
}

func (v *view) MayReplace(context.Context, string) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.mayReplace
}

func (v *view) Transfer(_ context.Context, id, node string) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.transfers = append(v.transfers, id+" to "+node)
	return nil
}

// reach are the nodes that answer this one, itself among them.
func (v *view) reach() []*node {
	v.mu.Lock()
	defer v.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(v.nodes), func(n *node) bool { return n != v.self && v.cut[n.id] })
}

func (v *view) SpreadBody(_ context.Context, d state.Digest, epoch uint64) (held, of int, err error) {
	for _, n := range v.reach() {
		if _, perr := n.control.Bodies().Put(d, epoch, v.self.control.Bodies().Chunks(d)); perr != nil {
			err = perr
			continue
		}
		held++
	}
	return held, len(v.nodes), err
}

func (v *view) FetchBody(_ context.Context, d state.Digest) error {
	err := errors.New("nobody has it")
	for _, n := range v.reach() {
		if n == v.self {
			continue
		}
		if _, err = v.self.control.Bodies().Put(d, 0, n.control.Bodies().Chunks(d)); err == nil {
			return nil
		}
	}
	return err
}

func (v *view) PartitionPolicy(ctx context.Context, id string) (*quoratev1.PartitionPolicyResponse, error) {
	if v.partition == nil {
		return nil, errors.New("no answer")
	}
	return v.partition(ctx, id)
}

func (v *view) Forgive(_ context.Context, f fsm.Forgive) (fsm.Forgiven, error) {
	return v.cluster.forgive(f)
}

func (v *view) PlanReplicas() []string { return v.cluster.replicas }

func (v *view) PlanProgress(plan fsm.PlanID) string { return v.progress[plan] }

func (v *view) Save(_ context.Context, w io.Writer) (state.Digest, error) {
	return state.Digest{0xab}, v.cluster.save(w)
}

func (v *view) Restore(_ context.Context, r Restore) (Restored, error) { return v.cluster.restore(r) }

// source is a policy of this version; with convert's limit.
func source(t *testing.T, version string, limit int) *policy.Policy {
	t.Helper()
	p, err := policy.Parse("p.yaml", fmt.Appendf(nil, `
version: %s
default: {limits: [{name: d, limit: 5, window: 1m}]}
classes:
  convert: {limits: [{name: m, limit: %d, window: 1m}]}
  export: {limits: [{name: m, limit: 3, window: 1m}]}
`, version, limit))
	must(t, err)
	return p
}

func pieces(b []byte) iter.Seq2[[]byte, error] {
	return func(yield func([]byte, error) bool) {
		for chunk := range slices.Chunk(b, 16) {
			if !yield(chunk, nil) {
				return
			}
		}
	}
}

// mustUpload brings a policy in and returns its digest.
func (n *node) mustUpload(t *testing.T, p *policy.Policy) []byte {
	t.Helper()
	encoded := p.AppendBinary(nil)
	d := sha256.Sum256(encoded)
	_, err := n.UploadPolicy(t.Context(), ops, d[:], pieces(encoded))
	must(t, err)
	return d[:]
}

// mustApply puts a policy in force.
func (n *node) mustApply(t *testing.T, p *policy.Policy, base uint64) *quoratev1.ApplyPolicyResponse {
	t.Helper()
	out, err := n.ApplyPolicy(t.Context(), ops, &quoratev1.ApplyPolicyRequest{Digest: n.mustUpload(t, p), Base: base, Comment: "why"})
	must(t, err)
	return out
}

// comments are those of the newest records, oldest first.
func (n *node) comments(t *testing.T, count uint32) (out []string) {
	t.Helper()
	found, err := n.SearchAudit(t.Context(), ops, &quoratev1.SearchAuditRequest{Limit: count})
	must(t, err)
	for _, r := range slices.Backward(found.GetRecords()) {
		out = append(out, r.GetAction()+" "+r.GetComment())
	}
	return out
}

// trail are the newest records, oldest first, in short.
func (n *node) trail(t *testing.T, count uint32) (out []string) {
	t.Helper()
	found, err := n.SearchAudit(t.Context(), ops, &quoratev1.SearchAuditRequest{Limit: count})
	must(t, err)
	for _, r := range slices.Backward(found.GetRecords()) {
		out = append(out, fmt.Sprintf("%s %s %s: %s", r.GetActor(), r.GetAction(), r.GetObject(), r.GetResult()))
	}
	return out
}

func wantReason(t *testing.T, err error, want quotaerr.Reason, what string) {
	t.Helper()
	if got := quotaerr.ReasonOf(err); got != want {
		t.Errorf("%s: %q (%v), want %q", what, got, err, want)
	}
}
