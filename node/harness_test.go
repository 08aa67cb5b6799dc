package node

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
)

// mustClaimed is node n2 of three, with a data directory of its own and no open ports.
func mustClaimed(t *testing.T) (n *Node, dir string) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), "data")
	cfg := &Config{ClusterID: "6f1c1a52-7a8e-4f0e-9a53-0d4d8f2f8f11", ID: "n2", DataDir: dir}
	for k := range 3 {
		at := func(offset int) string { return fmt.Sprintf("127.0.0.1:%d", 1+3*k+offset) }
		cfg.Nodes = append(cfg.Nodes, Peer{ID: fmt.Sprint("n", k), GRPC: at(0), HTTP: at(1), Raft: at(2)})
	}
	cfg.SetDefaults()
	n = &Node{cfg: cfg, logger: slog.New(slog.DiscardHandler), version: "test"}
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

func mustReadFile(t *testing.T, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return b
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
