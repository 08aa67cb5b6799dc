package node

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/quorate/quorate/partition/group"
	"github.com/quorate/quorate/partition/storage"
)

// mustFreePort is a port on loopback that nothing listens on, below those of outgoing connections.
func mustFreePort(t *testing.T, from int) int {
	t.Helper()
	for port := from + os.Getpid()%1000; port < from+2000; port++ {
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err == nil {
			_ = l.Close() // nothing was written
			return port
		}
	}
	t.Fatal("no free port")
	return 0
}

func mustAlone(t *testing.T) *Config {
	t.Helper()
	at := func(from int) string { return fmt.Sprintf("127.0.0.1:%d", mustFreePort(t, from)) }
	policyFile := filepath.Join(t.TempDir(), "policy.yaml")
	mustWriteFile(t, policyFile, []byte("version: v\ndefault: {limits: [{name: default, limit: 1, window: 60s}]}\n"))
	cfg := &Config{
		ClusterID: "6f1c1a52-7a8e-4f0e-9a53-0d4d8f2f8f11", ID: "n0", DataDir: filepath.Join(t.TempDir(), "data"),
		PolicyFile: policyFile, Nodes: []Peer{{ID: "n0", GRPC: at(12000), HTTP: at(14000), Raft: at(16000)}},
	}
	cfg.SetDefaults()
	return cfg
}

// mustRun starts a node and returns it with what ends it and tells its error.
func mustRun(t *testing.T, cfg *Config) (n *Node, end func() error) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	n, err := Start(ctx, cfg, "test", slog.New(slog.DiscardHandler), func(err error) { t.Errorf("fatal: %v", err) })
	if err != nil {
		cancel()
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- n.Run(ctx) }()
	return n, func() error {
		cancel()
		return <-ended
	}
}

func untilReady(t *testing.T, n *Node) {
	t.Helper()
	deadline := time.After(20 * time.Second)
	look := time.NewTicker(10 * time.Millisecond)
	defer look.Stop()
	for !n.partitionReady().Ready {
		select {
		case <-deadline:
			t.Fatalf("not ready: %+v", n.partitionReady())
		case <-look.C:
		}
	}
}

// mustConsult asks a node that is alone for its digest, as another one would.
func mustConsult(t *testing.T, n *Node) {
	t.Helper()
	other, err := group.Listen("127.0.0.1:0", group.ListenerConfig{Cluster: n.cfg.ClusterID, Node: "n1"})
	if err != nil {
		t.Fatal(err)
	}
	asker := &Node{cfg: n.cfg, claim: n.claim, listener: other}
	s := n.partition.Load().Status()
	self := group.Member{ID: "n0", Instance: n.claim.Instance()}
	for _, digest := range [][16]byte{s.Digest, {1}} { // also when the asker has another
		o, err := asker.consult(t.Context(), self, s.AppliedIndex, digest)
		if err != nil || !o.Known || o.Digest != s.Digest {
			t.Errorf("the digest at %d is %+v, %v, want %x", s.AppliedIndex, o, err, s.Digest)
		}
	}
	o, err := asker.consult(t.Context(), self, s.AppliedIndex+1000, s.Digest)
	if o.Known || o.Index < s.AppliedIndex || err != nil {
		t.Errorf("a digest to come: %+v %v", o, err)
	}
	for _, m := range []group.Member{{ID: "n0", Instance: "another"}, {ID: "n7", Instance: self.Instance}} {
		if _, err := asker.consult(t.Context(), m, s.AppliedIndex, s.Digest); err == nil {
			t.Errorf("%+v answers", m)
		}
	}
	if err := other.Close(); err != nil {
		t.Error(err)
	}
}

// Shows that a node alone forms its cluster by itself, and tells its state's digest to who asks for the
// directory that it has; that a start which was cut short after the stores
// were made and before anything was in them is gone on with; and that stores which held something are
// missed.
func TestAlone(t *testing.T) {
	cfg := mustAlone(t)
	claim, err := storage.Claim(cfg.DataDir, storage.Identity{Cluster: cfg.ClusterID, Node: cfg.ID})
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(cfg.DataDir, "groups", "p0")
	s, err := storage.Open(storage.Config{
		Disk: storage.NewFiles(dir, storage.WAL, nil), Partition: "p0", First: true, Fatal: func(err error) { t.Error(err) },
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, err := range []error{s.Close(), claim.Record("p0"), claim.Release()} {
		if err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		n, end := mustRun(t, cfg)
		untilReady(t, n)
		members := n.group.Load().Members()
		if len(members) != 1 || members[0].Instance != claim.Instance() {
			t.Errorf("members %+v", members)
		}
		mustConsult(t, n)
		if err := end(); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	n, err := Start(t.Context(), cfg, "test", slog.New(slog.DiscardHandler), func(error) {})
	if err != nil {
		t.Fatal(err)
	}
	if err := n.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "quorate node replace") {
		t.Errorf("with its stores gone: %v", err)
	}
}

// Shows that a node of three, alone, opens its doors, says whom it waits for, answers questions and does
// not form a cluster; and that it stops in an orderly way.
func TestWaitsForAll(t *testing.T) {
	cfg := mustAlone(t)
	for k := 1; k < 3; k++ { // nothing listens there
		at := func(offset int) string { return fmt.Sprintf("127.0.0.1:%d", 2+3*k+offset) }
		cfg.Nodes = append(cfg.Nodes, Peer{ID: fmt.Sprint("n", k), GRPC: at(0), HTTP: at(1), Raft: at(2)})
	}
	n, end := mustRun(t, cfg)
	deadline := time.After(20 * time.Second)
	look := time.NewTicker(10 * time.Millisecond)
	defer look.Stop()
	for !strings.Contains(n.partitionReady().Detail, "waiting for an answer of n1, n2") {
		select {
		case <-deadline:
			t.Fatalf("%+v", n.partitionReady())
		case <-look.C:
		}
	}
	other, err := group.Listen("127.0.0.1:0", group.ListenerConfig{Cluster: cfg.ClusterID, Node: "n1"})
	if err != nil {
		t.Fatal(err)
	}
	asker := &Node{cfg: cfg, claim: n.claim, listener: other}
	a, err := asker.ask(t.Context(), cfg.Nodes[0], question{Kind: askWho})
	if err != nil || a.Node != "n0" || a.Has || a.Instance != n.claim.Instance() || a.Level == 0 {
		t.Errorf("n0 answers %+v %v", a, err)
	}
	for _, err := range []error{other.Close(), end()} {
		if err != nil {
			t.Error(err)
		}
	}
	if exists(n.groupDir()) {
		t.Error("it has made the group's files")
	}
}

// Shows that what is logged before it is clear that a node takes part is written then, in order, with its
// attributes, and at once from then on; and that no more than a bound is held.
func TestHeldLog(t *testing.T) {
	var out strings.Builder
	plain := slog.NewTextHandler(&out, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey || a.Key == slog.LevelKey {
			return slog.Attr{}
		}
		return a
	}})
	held := newHoldback(plain)
	logger := slog.New(held)
	logger.With("a", 1).Info("one")
	logger.WithGroup("g").Info("two", "b", 2)
	if out.Len() != 0 {
		t.Errorf("not held: %s", &out)
	}
	held.letGo()
	logger.Info("three")
	if want := "msg=one a=1\nmsg=two g.b=2\nmsg=three\n"; out.String() != want {
		t.Errorf("%q, want %q", out.String(), want)
	}
	held = newHoldback(plain)
	for range maxHeldRecords + 1 {
		slog.New(held).Info("many")
	}
	if got := strings.Count(out.String(), "msg=many\n"); got != maxHeldRecords+1 {
		t.Errorf("%d records written", got)
	}
}
