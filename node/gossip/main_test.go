package gossip

import (
	"bytes"
	"log/slog"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
)

const (
	cluster = "3b0c1c52-7a8e-4f0e-9a53-0d4d8f2f8f11"
	// patience bounds every wait here: far more than any takes on a busy machine.
	patience = 30 * time.Second
)

// hurried is the pace of the tests.
var hurried = pace{
	probe: 200 * time.Millisecond, probeTimeout: 100 * time.Millisecond,
	gossip: 20 * time.Millisecond, exchange: 300 * time.Millisecond, reclaim: 100 * time.Millisecond,
	alone: 40 * time.Millisecond, missing: 80 * time.Millisecond, settled: 80 * time.Millisecond,
}

// A probe of memberlist's that was under way when its node closed ends by itself, within a few of its intervals.
func TestMain(m *testing.M) {
	code := m.Run()
	deadline := time.Now().Add(patience)
	for code == 0 {
		err := goleak.Find()
		if err == nil {
			break
		}
		if time.Now().After(deadline) {
			_, _ = os.Stderr.WriteString(err.Error())
			code = 1
		}
	}
	os.Exit(code) //nolint:forbidigo // a TestMain that looks for leaks says so itself
}

// key is a cluster's.
func key(b byte) []byte { return bytes.Repeat([]byte{b}, keyBytes) }

// await looks at a condition until it holds.
func await(t *testing.T, what string, condition func() bool) {
	t.Helper()
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	look := time.NewTicker(2 * time.Millisecond)
	defer look.Stop()
	for !condition() {
		select {
		case <-deadline.C:
			t.Fatalf("not within %v: %s", patience, what)
		case <-look.C:
		}
	}
}

// configFor is that of a node of the tests' cluster, on any port.
func configFor(node string, seeds ...string) Config {
	return Config{
		Cluster: cluster, Node: node, Bind: "127.0.0.1:0", Key: key(1),
		Seeds: func() []string { return seeds },
		Self:  Meta{ID: node, Instance: node + "-1", GRPC: "127.0.0.1:1", HTTP: "127.0.0.1:2", Raft: "127.0.0.1:3", Zone: "a"},
	}
}

func mustOpen(t *testing.T, c Config) *Gossip {
	t.Helper()
	g, err := open(c, hurried)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { mustClose(t, g) })
	return g
}

func mustClose(t *testing.T, g *Gossip) {
	t.Helper()
	if err := g.Close(); err != nil {
		t.Errorf("close: %v", err)
	}
}

// sees reports whether g has seen the node and takes it for alive, or not.
func sees(g *Gossip, node string, alive bool) bool {
	s, ok := find(g, node)
	return ok && s.Alive == alive
}

func find(g *Gossip, node string) (Seen, bool) {
	for _, s := range g.Nodes() {
		if s.ID == node {
			return s, true
		}
	}
	return Seen{}, false
}

// awaitAll waits until each sees all others alive.
func awaitAll(t *testing.T, all ...*Gossip) {
	t.Helper()
	for _, g := range all {
		for _, other := range all {
			if g != other {
				await(t, g.node+" sees "+other.node, func() bool { return sees(g, other.node, true) })
			}
		}
	}
}

// book keeps what is logged.
type book struct {
	mu   sync.Mutex
	text strings.Builder
}

func (b *book) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *book) logger() *slog.Logger { return slog.New(slog.NewTextHandler(b, nil)) }

func (b *book) count(text string) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return strings.Count(b.text.String(), text)
}
