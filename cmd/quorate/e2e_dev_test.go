package main

import (
	"crypto/sha256"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Shows that a node that dies stays dead and dev says so, that SIGINT ends the rest in an orderly way, and
// that a second start on the same directory goes on with all nodes where they were.
func TestDevAndItsNodes(t *testing.T) {
	t.Parallel()
	p := mustCluster(t)
	c := mustClient(t, p.rotated(0)...)
	made := []decision{mustDecide(t, c, "u1", "convert", "a0"), mustDecide(t, c, "u1", "convert", "a1")}
	dead := p.nodes[2]
	p.kill(t, dead.ID)
	want := fmt.Sprintf("node %s (pid %d) ended: signal: killed; it stays down\n", dead.ID, dead.PID)
	if got := p.stderr.String(); got != want {
		t.Errorf("dev says %q, want %q", got, want)
	}
	made = append(made, mustDecide(t, c, "u1", "convert", "a2"))
	if left := processesOf(dead.DataDir + ".yaml"); len(left) > 0 || ready(dead) {
		t.Errorf("%s is back: %v", dead.ID, left)
	}
	p.stop(t, syscall.SIGINT)
	if got := p.stderr.String(); got != want {
		t.Errorf("dev says %q, want no more than %q", got, want)
	}
	if !allFree(p.base, 3) {
		t.Error("a port is still in use")
	}

	again := mustStart(t, p.dir, p.base)
	mustSame(t, again.nodes, "u1", "convert", made)
	again.mustUsed(t, "u1", "convert", 3)
	again.mustAgree(t)
}

// Shows that the nodes do not outlive dev, not even if it is killed, and that the cluster goes on from
// there.
func TestKilledDev(t *testing.T) {
	t.Parallel()
	p := mustCluster(t)
	made := []decision{p.check(t, p.addrs(), "u1", "convert", "a0")}
	if err := p.dev.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = p.dev.Wait() // it says that it was killed
	p.dev = nil
	until(t, "the nodes have ended", func() bool { return len(processesOf(p.dir)) == 0 && allFree(p.base, 3) })

	again := mustStart(t, p.dir, p.base)
	mustSame(t, again.nodes, "u1", "convert", made)
}

// Shows that dev goes on where an earlier one was cut short: on a directory whose nodes have never met, and on one
// whose cluster is made and has no policy yet, with the policy that was laid down or with another; and that a
// cluster with a policy keeps it, whatever --policy says.
func TestDevGoesOn(t *testing.T) {
	t.Parallel()
	f := &devFlags{nodes: 3, basePort: mustFreePorts(t, 3), policy: filepath.Join(t.TempDir(), "policy.yaml")}
	mustPut(t, f.policy, e2ePolicy)
	other := filepath.Join(t.TempDir(), "other.yaml")
	mustPut(t, other, strings.Replace(e2ePolicy, "version: e2e", "version: other", 1))
	for _, tt := range []struct {
		made bool // whether the cluster was made before
		args []string
		want string // the policy's label
	}{{false, nil, "e2e"}, {true, nil, "e2e"}, {true, []string{"--policy", other}, "other"}} {
		dir := t.TempDir()
		c, err := layDevCluster(dir, f)
		if err != nil {
			t.Fatal(err)
		}
		if tt.made {
			p := &processes{dir: dir, base: f.basePort, stderr: &lockedBuffer{}, own: map[string]*exec.Cmd{}}
			for _, n := range c.nodes {
				p.nodes = append(p.nodes, devNode{ID: n.ID, GRPC: n.GRPC, HTTP: n.HTTP, DataDir: n.DataDir})
				mustPut(t, c.logOf(n.ID), "")
				p.launch(t, n.ID)
			}
			until(t, "the cluster is made", func() bool {
				return p.ask(t, "cluster", "init", "--partitions", "2").status == exitDone
			})
			p.stop(t, syscall.SIGTERM)
		}
		p := mustStart(t, dir, f.basePort, tt.args...)
		v, _ := p.status(t)
		if want := map[bool]int{true: 2, false: 3}[tt.made]; len(v.Partitions) != want {
			t.Errorf("%+v: %d partitions, want %d", tt, len(v.Partitions), want)
		}
		for _, g := range v.Partitions {
			if g.PolicyVersion != tt.want || g.PolicyRevision != 1 {
				t.Errorf("%+v: %s has revision %d, %s", tt, g.ID, g.PolicyRevision, g.PolicyVersion)
			}
		}
		p.stop(t, syscall.SIGTERM)
		if tt.args == nil {
			continue
		}
		again := mustStart(t, dir, f.basePort, "--policy", filepath.Join(dir, "none.yaml"))
		if v, _ := again.status(t); len(v.Partitions) == 0 || v.Partitions[0].PolicyVersion != "other" {
			t.Errorf("started again: %+v", v)
		}
		if want := dir + " holds a cluster that has its policy already: --policy is not read\n"; again.stderr.String() != want {
			t.Errorf("dev says %q, want %q", again.stderr, want)
		}
		again.stop(t, syscall.SIGTERM)
	}
}

// Shows that dev refuses, in one clear line and with exit status 1, another number of nodes or other ports
// than the directory has, a directory that is not its own, and ports in use, and that it then leaves no
// process and changes no file of a cluster that was there.
func TestDevRefusesToStart(t *testing.T) {
	t.Parallel()
	base, other := mustFreePorts(t, 3), mustFreePorts(t, 3)
	p := mustStart(t, t.TempDir(), base)
	p.stop(t, syscall.SIGTERM)
	before := treeOf(t, p.dir)
	strange := t.TempDir()
	if err := os.WriteFile(filepath.Join(strange, "letter"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct {
		base int
		args []string
		want string
	}{
		"other number": {
			base, []string{"--data-dir", p.dir, "--nodes", "1"},
			"holds a cluster of 3 nodes: start it with --nodes 3",
		},
		"other ports": {other, []string{"--data-dir", p.dir}, fmt.Sprint("start it with --base-port ", base)},
		"not its own": {base, []string{"--data-dir", strange}, "is not empty and holds no cluster of dev"},
	} {
		for _, how := range [][]string{{}, {"--processes"}} {
			args := append([]string{"dev", "--base-port", fmt.Sprint(tt.base)}, tt.args...)
			mustRefuse(t, name, tt.want, append(args, how...)...)
		}
	}
	if diff := cmp.Diff(before, treeOf(t, p.dir)); diff != "" {
		t.Errorf("files changed:\n%s", diff)
	}

	for offset, door := range []string{"gRPC", "HTTP", "Raft"} {
		taken := fmt.Sprintf("127.0.0.1:%d", base+10+offset)
		l, err := net.Listen("tcp", taken)
		if err != nil {
			t.Fatal(err)
		}
		for _, how := range [][]string{{}, {"--processes"}} {
			dir := t.TempDir()
			args := append([]string{"dev", "--base-port", fmt.Sprint(base), "--data-dir", dir}, how...)
			mustRefuse(t, door+" in use", taken+": bind: address already in use", args...)
			for pid, line := range processesOf(dir) {
				t.Errorf("%s in use: process %d is left: %s", door, pid, line)
			}
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// mustRefuse runs a command that must end with exit status 1, and one line that says what was wanted.
func mustRefuse(t *testing.T, name, want string, args ...string) {
	t.Helper()
	r := command(t, args...)
	if r.status != exitError || r.stdout != "" ||
		strings.Count(r.stderr, "\n") != 1 || !strings.Contains(r.stderr, want) {
		t.Errorf("%s: quorate %s: %+v, want one line with %q", name, strings.Join(args, " "), r, want)
	}
}

// treeOf is what is in a directory: each path, with a digest of the file.
func treeOf(t *testing.T, dir string) map[string]string {
	t.Helper()
	found := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			found[path] = "a directory"
			return err
		}
		b, err := os.ReadFile(path)
		found[path] = fmt.Sprintf("%d bytes, %x", len(b), sha256.Sum256(b))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// Shows that a node refuses, in one line and with exit status 1, what it must not start with, and changes
// nothing of the data: the directory of another node or of another cluster, addresses that others can
// reach, keys that it does not know, and a directory that another process uses.
func TestServerRefusesToStart(t *testing.T) {
	t.Parallel()
	p := mustCluster(t)
	made := []decision{p.check(t, p.addrs(), "u1", "convert", "a0")}
	config := filepath.Join(p.dir, "n0.yaml")
	mustRefuse(t, "in use", "data directory is in use: process", "server", "--config", config)
	p.stop(t, syscall.SIGTERM)

	text, err := os.ReadFile(config)
	if err != nil {
		t.Fatal(err)
	}
	first := p.nodes[0]
	everywhere := func(door, addr string) [2]string {
		listen := "\n" + door + ": " + addr
		return [2]string{listen, strings.Replace(listen, "127.0.0.1", "0.0.0.0", 1)}
	}
	for name, tt := range map[string]struct {
		edit [2]string
		want string
	}{
		"another node": {[2]string{"node_id: n0", "node_id: n1"}, `belongs to node "n0"`},
		"another cluster": {
			[2]string{"cluster_id: ", "cluster_id: 00000000-0000-4000-8000-000000000000 # "}, "of cluster",
		},
		"gRPC for all":   {everywhere("grpc", first.GRPC), "0.0.0.0 is not loopback"},
		"HTTP for all":   {everywhere("http", first.HTTP), "0.0.0.0 is not loopback"},
		"Raft for all":   {everywhere("raft", first.Raft), "0.0.0.0 is not loopback"},
		"gossip for all": {everywhere("gossip", first.Gossip), "0.0.0.0 is not loopback"},
		"unknown key":    {[2]string{"node_id:", "nodeid: x\nnode_id:"}, "nodeid"},
		"unknown part":   {[2]string{"max_drift_ppm:", "drift: 1\n    max_drift_ppm:"}, "drift"},
	} {
		changed := strings.Replace(string(text), tt.edit[0], tt.edit[1], 1)
		if changed == string(text) {
			t.Fatalf("%s: nothing to change in\n%s", name, text)
		}
		file := filepath.Join(t.TempDir(), "changed.yaml")
		if err := os.WriteFile(file, []byte(changed), 0o600); err != nil {
			t.Fatal(err)
		}
		before := dataOf(t, p.dir)
		mustRefuse(t, name, tt.want, "server", "--config", file)
		if diff := cmp.Diff(before, dataOf(t, p.dir)); diff != "" {
			t.Errorf("%s: files changed:\n%s", name, diff)
		}
	}

	mustSwap(t, first.DataDir, p.nodes[1].DataDir)
	before := dataOf(t, p.dir)
	mustRefuse(t, "n0 on n1's", `belongs to node "n1"`, "server", "--config", config)
	mustRefuse(t, "n1 on n0's", `belongs to node "n0"`, "server", "--config", filepath.Join(p.dir, "n1.yaml"))
	if diff := cmp.Diff(before, dataOf(t, p.dir)); diff != "" {
		t.Errorf("swapped: files changed:\n%s", diff)
	}
	mustSwap(t, first.DataDir, p.nodes[1].DataDir)
	again := mustStart(t, p.dir, p.base)
	mustSame(t, again.nodes, "u1", "convert", made)
}

// dataOf is treeOf without the locks, which say who holds a directory and not what is in it, and without the audit
// trail, which is made again from the control group's log.
func dataOf(t *testing.T, dir string) map[string]string {
	t.Helper()
	tree := treeOf(t, dir)
	for path := range tree {
		if name := filepath.Base(path); name == "lock" || name == "audit.db" {
			delete(tree, path)
		}
	}
	return tree
}

func mustSwap(t *testing.T, a, b string) {
	t.Helper()
	for _, move := range [][2]string{{a, a + ".aside"}, {b, a}, {a + ".aside", b}} {
		if err := os.Rename(move[0], move[1]); err != nil {
			t.Fatal(err)
		}
	}
}
