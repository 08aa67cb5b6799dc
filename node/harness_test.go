package node

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/quorate/quorate/control/state"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/policy"
)

const testCluster = "6f1c1a52-7a8e-4f0e-9a53-0d4d8f2f8f11"

// patience bounds what a test waits for.
const patience = 40 * time.Second

// mustClaimed is node n2 with a data directory of its own and no open ports.
func mustClaimed(t *testing.T) (n *Node, dir string) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), "data")
	cfg := &Config{ClusterID: testCluster, ID: "n2", DataDir: dir}
	cfg.SetDefaults()
	n = &Node{
		cfg: cfg, logger: slog.New(slog.DiscardHandler), version: "test", hosted: hosted{replicas: map[string]*replica{}},
	}
	if err := n.claimDir(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := n.claim.Release(); err != nil {
			t.Error(err)
		}
	})
	return n, dir
}

func mustWriteFile(t *testing.T, path string, b []byte) {
	t.Helper()
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// mustFreePorts is the first of some ports on loopback that nothing listens on, below those of outgoing connections.
func mustFreePorts(t *testing.T, count int) int {
	t.Helper()
	for base := 12000 + os.Getpid()%1000*20; base+count < 32000; base += count {
		free := true
		for port := base; port < base+count && free; port++ {
			l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
			if free = err == nil; free {
				_ = l.Close() // nothing was written
			}
		}
		if free {
			return base
		}
	}
	t.Fatal("no free ports")
	return 0
}

// mustConfigs are the configurations of nodes that know of each other.
func mustConfigs(t *testing.T, count int) (out []*Config) {
	t.Helper()
	base, dir := mustFreePorts(t, 4*count), t.TempDir()
	at := func(k, offset int) string { return fmt.Sprintf("127.0.0.1:%d", base+4*k+offset) }
	var join []string
	for k := range count {
		join = append(join, at(k, 2))
	}
	for k := range count {
		id := fmt.Sprint("n", k)
		cfg := &Config{
			ClusterID: testCluster, ID: id, DataDir: filepath.Join(dir, id), Join: join,
			GRPC: at(k, 0), HTTP: at(k, 1), Raft: at(k, 2), Gossip: at(k, 3),
		}
		cfg.SetDefaults()
		out = append(out, cfg)
	}
	return out
}

// running is a node that runs.
type running struct {
	*Node
	cancel context.CancelFunc
	ended  chan error
}

// mustRun starts a node.
func mustRun(t *testing.T, cfg *Config) *running {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	logger := slog.New(slog.DiscardHandler)
	if os.Getenv("QUORATE_TEST_LOG") != "" {
		logger = slog.New(slog.NewTextHandler(os.Stderr, nil))
	}
	n, err := Start(ctx, cfg, "test", logger, func(err error) { t.Errorf("fatal: %v", err) })
	if err != nil {
		cancel()
		t.Fatal(err)
	}
	r := &running{Node: n, cancel: cancel, ended: make(chan error, 1)}
	go func() { r.ended <- n.Run(ctx) }()
	return r
}

// mustEnd stops nodes, all at once.
func mustEnd(t *testing.T, nodes ...*running) {
	t.Helper()
	for _, n := range nodes {
		n.cancel()
	}
	for _, n := range nodes {
		if err := <-n.ended; err != nil {
			t.Errorf("node %s: %v", n.cfg.ID, err)
		}
	}
}

// eventually waits until something is so; tell says how it is instead.
func eventually(t *testing.T, what string, so func() bool, tell func() any) {
	t.Helper()
	deadline := time.After(patience)
	look := time.NewTicker(20 * time.Millisecond)
	defer look.Stop()
	for !so() {
		select {
		case <-deadline:
			t.Fatalf("not in time: %s: %+v", what, tell())
		case <-look.C:
		}
	}
}

// isReady reports that a node says that it is.
func (r *running) isReady() bool {
	for _, c := range r.ready() {
		if !c.Ready {
			return false
		}
	}
	return true
}

func untilReady(t *testing.T, nodes ...*running) {
	t.Helper()
	for _, n := range nodes {
		eventually(t, n.cfg.ID+" is ready", n.isReady, func() any {
			select {
			case err := <-n.ended:
				return fmt.Sprint("it has ended: ", err)
			default:
				return n.ready()
			}
		})
	}
}

// mustInit makes the cluster on the first node, with a policy.
func mustInit(t *testing.T, nodes []*running, partitions int) {
	t.Helper()
	if _, _, err := nodes[0].makeCluster(t.Context(), partitions, "test"); err != nil {
		t.Fatal(err)
	}
	mustPublish(t, nodes[0], 0, "v1", 3)
}

// mustPublish puts a policy in force that admits so many conversions a minute; the node leads the control group.
func mustPublish(t *testing.T, n *running, base fsm.Revision, version string, limit int64) {
	t.Helper()
	rule := func(limit int64) policy.Class {
		return policy.Class{Limits: []policy.Limit{{Name: "per-minute", Max: limit, WindowNanos: int64(time.Minute)}}}
	}
	convert := rule(limit)
	mustPublishPolicy(t, n, base, policy.Policy{
		Version: version, Default: rule(100), Classes: map[string]*policy.Class{"convert": &convert},
	})
}

// mustPublishPolicy puts a policy in force; the node leads the control group.
func mustPublishPolicy(t *testing.T, n *running, base fsm.Revision, draft policy.Policy) {
	t.Helper()
	p, err := policy.New(draft)
	if err != nil {
		t.Fatal(err)
	}
	body, d, c := p.AppendBinary(nil), state.Digest(p.Digest()), n.control()
	epoch := c.State().BodyEpoch
	if _, err := c.Bodies().Put(d, epoch, func(yield func([]byte, error) bool) { yield(body, nil) }); err != nil {
		t.Fatal(err)
	}
	eventually(t, "a majority holds the body", func() bool {
		held, of, _ := n.spreadBody(t.Context(), d, epoch)
		return 2*held > of
	}, func() any { return nil })
	_, err = c.Propose(t.Context(), &state.Command{Kind: state.KindPublish, Actor: "test", Publish: &state.Publish{
		Base: base, Label: p.Version, Body: d, Bytes: int64(len(body)), Held: true, BodyEpoch: epoch,
	}})
	if err != nil {
		t.Fatal(err)
	}
}
