package node

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/quorate/quorate/partition/group"
)

// Shows that a node without a cluster opens its doors, says what it waits for, answers questions and makes nothing;
// that no cluster is made while a node in join is silent; and that it stops in an orderly way.
func TestWaitsForACluster(t *testing.T) {
	cfg := mustConfigs(t, 2)[0]
	n := mustRun(t, cfg)
	eventually(t, "it says what it waits for", func() bool {
		return strings.Contains((*backend)(n.Node).Waiting(), "no answer from "+cfg.Join[1])
	}, func() any { return n.ready() })
	if _, _, err := n.makeCluster(t.Context(), 1, "test"); err == nil || !strings.Contains(err.Error(), cfg.Join[1]) {
		t.Errorf("with a silent node: %v", err)
	}
	other, err := group.Listen("127.0.0.1:0", group.ListenerConfig{Cluster: cfg.ClusterID, Node: "n1"})
	if err != nil {
		t.Fatal(err)
	}
	asker := &Node{cfg: &Config{ClusterID: cfg.ClusterID, ID: "n1"}, claim: n.claim, listener: other}
	a, err := asker.ask(t.Context(), "n0", cfg.Raft, question{Kind: askWho})
	if err != nil || a.Self != n.self() || a.Has || a.Level == 0 {
		t.Errorf("n0 answers %+v %v", a, err)
	}
	if _, err := asker.ask(t.Context(), group.Anyone, cfg.Raft, question{Kind: "why"}); err == nil {
		t.Error("a question of no kind is answered")
	}
	if err := other.Close(); err != nil {
		t.Error(err)
	}
	mustEnd(t, n)
	if exists(filepath.Join(cfg.DataDir, "groups")) {
		t.Error("it has made a group's files")
	}
}

// Shows that a node alone is a cluster by itself, tells its state's digest to who asks for the directory that it
// has, is the same after a restart, and that stores which held something are missed.
func TestAlone(t *testing.T) {
	cfg := mustConfigs(t, 1)[0]
	n := mustRun(t, cfg)
	mustInit(t, []*running{n}, 2)
	untilReady(t, n)
	mustConsult(t, n)
	mustEnd(t, n)
	n = mustRun(t, cfg)
	untilReady(t, n)
	mustEnd(t, n)
	if err := os.RemoveAll(filepath.Join(cfg.DataDir, "groups", "p1")); err != nil {
		t.Fatal(err)
	}
	n = mustRun(t, cfg)
	if err := <-n.ended; err == nil || !strings.Contains(err.Error(), "p1") ||
		!strings.Contains(err.Error(), "quorate node replace") {
		t.Errorf("with its stores gone: %v", err)
	}
	n.cancel()
}

// Shows that a start that comes while an operator has the node make the cluster does not take the stores that are being
// made for those of an earlier start: it waits, and the node serves.
func TestStartBesideInit(t *testing.T) {
	cfg := mustConfigs(t, 1)[0]
	ctx, cancel := context.WithCancel(t.Context())
	node, err := Start(ctx, cfg, "test", slog.New(slog.DiscardHandler), func(err error) { t.Errorf("fatal: %v", err) })
	if err != nil {
		t.Fatal(err)
	}
	n := &running{Node: node, cancel: cancel, ended: make(chan error, 1)}
	made := make(chan error, 1)
	go func() {
		_, _, err := n.makeCluster(ctx, 1, "test")
		made <- err
	}()
	for deadline := time.Now().Add(patience); !n.claim.Has(controlID); runtime.Gosched() {
		if time.Now().After(deadline) {
			t.Fatal("nothing is made")
		}
	}
	go func() { n.ended <- n.Run(ctx) }()
	if err := <-made; err != nil {
		t.Error(err)
	}
	mustPublish(t, n, 0, "v1", 3)
	untilReady(t, n)
	mustEnd(t, n)
}

// mustConsult asks a node that is alone for its digests, as another one would.
func mustConsult(t *testing.T, n *running) {
	t.Helper()
	other, err := group.Listen("127.0.0.1:0", group.ListenerConfig{Cluster: n.cfg.ClusterID, Node: "n1"})
	if err != nil {
		t.Fatal(err)
	}
	asker := &Node{cfg: &Config{ClusterID: n.cfg.ClusterID, ID: "n1"}, claim: n.claim, listener: other, gossip: n.gossip}
	asker.neighbours.met(n.self())
	self := group.Member{ID: "n0", Instance: n.claim.Instance()}
	for _, id := range []string{"p0", controlID} {
		consult, index := asker.consult(id), n.hosted.of(id).group.Load().AppliedIndex()
		own := n.hosted.of(id).suspect(index, [16]byte{})
		if !own.Known && id == controlID {
			t.Errorf("%s: the digest at %d is not known", id, index)
		}
		o, err := consult(t.Context(), self, index+1000, own.Digest)
		if o.Known || o.Index < index || err != nil {
			t.Errorf("%s: a digest to come: %+v %v", id, o, err)
		}
		for _, m := range []group.Member{{ID: "n0", Instance: "another"}, {ID: "n7", Instance: self.Instance}} {
			if _, err := consult(t.Context(), m, index, own.Digest); err == nil {
				t.Errorf("%s: %+v answers", id, m)
			}
		}
	}
	if _, err := asker.consult("p9")(t.Context(), self, 1, [16]byte{}); err == nil {
		t.Error("a group that is not there answers")
	}
	if err := other.Close(); err != nil {
		t.Error(err)
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
