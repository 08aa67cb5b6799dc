package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// binary is the program under test: $QUORATE_BINARY, or one that is built for the run.
var binary = sync.OnceValues(func() (string, error) {
	if b := os.Getenv("QUORATE_BINARY"); b != "" {
		return b, nil
	}
	dir, err := os.MkdirTemp("", "quorate-e2e-")
	if err != nil {
		return "", err
	}
	b := filepath.Join(dir, "quorate")
	out, err := exec.Command("go", "build", "-tags=hashicorpmetrics", "-o", b, ".").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("go build: %w\n%s", err, out)
	}
	return b, nil
})

func mustBinary(t *testing.T) string {
	t.Helper()
	b, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// e2ePolicy has a short window, so that tests need not wait for a minute.
const e2ePolicy = `
version: e2e
default: {limits: [{name: default, limit: 100, window: 60s}]}
classes:
  convert: {limits: [{name: per-minute, limit: 3, window: 60s}]}
  quick: {limits: [{name: per-3s, limit: 3, window: 3s}]}
`

// processes is a local cluster of real processes: `quorate dev --processes`, and the nodes that a test
// starts again after it has killed them.
type processes struct {
	dir    string
	nodes  []devNode
	dev    *exec.Cmd
	stderr *lockedBuffer
	own    map[string]*exec.Cmd // nodes started by the test
}

// lockedBuffer collects what a process writes while a test reads it.
type lockedBuffer struct {
	mu sync.Mutex // guards b
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// mustFreePorts finds a base with room for n nodes' ports, below those that the kernel gives to outgoing
// connections: one of these could take the port of a node that is down.
func mustFreePorts(t *testing.T, n int) int {
	t.Helper()
	for base := 12000 + os.Getpid()%150*100; base < 32000; base += 10 * n {
		if allFree(base, n) {
			return base
		}
	}
	t.Fatal("no free ports")
	return 0
}

func allFree(base, n int) bool {
	for k := range n {
		for offset := range 4 {
			l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", base+10*k+offset))
			if err != nil {
				return false
			}
			_ = l.Close()
		}
	}
	return true
}

// mustCluster starts three nodes on a fresh directory.
func mustCluster(t *testing.T) *processes {
	t.Helper()
	dir := t.TempDir()
	file := filepath.Join(t.TempDir(), "policy.yaml")
	if err := os.WriteFile(file, []byte(e2ePolicy), 0o600); err != nil {
		t.Fatal(err)
	}
	return mustStart(t, dir, mustFreePorts(t, 3), "--policy", file)
}

func mustStart(t *testing.T, dir string, base int, args ...string) *processes {
	t.Helper()
	p := &processes{dir: dir, stderr: &lockedBuffer{}, own: map[string]*exec.Cmd{}}
	args = append([]string{
		"dev", "--processes", "-o", "json", "--data-dir", dir, "--base-port", fmt.Sprint(base),
	}, args...)
	p.dev = exec.Command(mustBinary(t), args...)
	p.dev.Stderr = p.stderr
	out, err := p.dev.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.dev.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.stop(t) })
	line, err := bufio.NewReader(out).ReadBytes('\n')
	if err != nil {
		t.Fatalf("dev ended before it was ready: %v\n%s", err, p.stderr)
	}
	var ready struct {
		Nodes []devNode `json:"nodes"`
	}
	if err := json.Unmarshal(line, &ready); err != nil {
		t.Fatalf("%s: %v", line, err)
	}
	p.nodes = ready.Nodes
	return p
}

// stop ends everything, and checks that dev goes in an orderly way and leaves no child behind.
func (p *processes) stop(t *testing.T) {
	t.Helper()
	for id, cmd := range p.own {
		_ = cmd.Process.Kill() // it may have been killed before
		_ = cmd.Wait()
		delete(p.own, id)
	}
	if p.dev == nil {
		return
	}
	if err := p.dev.Process.Signal(syscall.SIGTERM); err != nil {
		t.Errorf("dev: %v", err)
	}
	if err := p.dev.Wait(); err != nil {
		t.Errorf("dev: %v\n%s", err, p.stderr)
	}
	p.dev = nil
	for _, n := range p.nodes {
		if err := syscall.Kill(n.PID, 0); err == nil {
			t.Errorf("node %s (pid %d) outlives dev", n.ID, n.PID)
		}
	}
}

func (p *processes) node(id string) devNode {
	for _, n := range p.nodes {
		if n.ID == id {
			return n
		}
	}
	return devNode{}
}

// kill ends a node with SIGKILL.
func (p *processes) kill(t *testing.T, id string) {
	t.Helper()
	if cmd := p.own[id]; cmd != nil {
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait()
		delete(p.own, id)
		return
	}
	if err := syscall.Kill(p.node(id).PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	until(t, "dev reports that "+id+" ended", func() bool {
		return strings.Contains(p.stderr.String(), "node "+id+" ")
	})
}

// restart starts a killed node again.
func (p *processes) restart(t *testing.T, id string) {
	t.Helper()
	log, err := os.OpenFile(filepath.Join(p.dir, id+".log"), os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	cmd := exec.Command(mustBinary(t), "server", "--config", filepath.Join(p.dir, id+".yaml"))
	cmd.Stderr = log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p.own[id] = cmd
	defer func() {
		if t.Failed() {
			t.Logf("the log of %s: %s", id, lastLine(filepath.Join(p.dir, id+".log")))
		}
	}()
	until(t, id+" is ready", func() bool { return p.ready(p.node(id)) })
}

func (p *processes) ready(n devNode) bool {
	resp, err := http.Get("http://" + n.HTTP + "/readyz")
	if err != nil {
		return false
	}
	return resp.Body.Close() == nil && resp.StatusCode == http.StatusOK
}

// until polls a condition for at most half a minute.
func until(t *testing.T, what string, condition func() bool) {
	t.Helper()
	deadline := time.After(30 * time.Second)
	look := time.NewTicker(20 * time.Millisecond)
	defer look.Stop()
	for !condition() {
		select {
		case <-deadline:
			t.Fatalf("not within 30 s: %s", what)
		case <-look.C:
		}
	}
}

func (p *processes) addrs() string {
	var addrs []string
	for _, n := range p.nodes {
		addrs = append(addrs, n.GRPC)
	}
	return strings.Join(addrs, ",")
}

// command runs a client command against all nodes, or those in addr.
func (p *processes) command(t *testing.T, addr string, args ...string) (status int, stdout, stderr string) {
	t.Helper()
	if addr == "" {
		addr = p.addrs()
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, mustBinary(t), append(args, "--addr", addr)...)
	var out, errOut bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errOut
	if err := cmd.Run(); err != nil && cmd.ProcessState == nil {
		t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), out.String(), errOut.String()
}

// decision is what check -o json and /v1/check print.
type decision struct {
	Allowed      bool   `json:"allowed"`
	Reason       string `json:"reason"`
	Limit        string `json:"limit"`
	Remaining    int64  `json:"remaining"`
	RetryAfterMs int64  `json:"retry_after_ms"`
	Replayed     bool   `json:"replayed"`
}

// check asks for one decision with the command line.
func (p *processes) check(t *testing.T, addr, principal, class, id string) decision {
	t.Helper()
	status, out, errOut := p.command(t, addr, "check", principal, class, "--id", id, "-o", "json")
	var d decision
	if err := json.Unmarshal([]byte(out), &d); err != nil {
		t.Fatalf("check %s %s: exit status %d, %q, %s", principal, id, status, out, errOut)
	}
	if want := map[bool]int{true: exitDone, false: exitDenied}[d.Allowed]; status != want {
		t.Fatalf("check %s %s: exit status %d with allowed %v", principal, id, status, d.Allowed)
	}
	return d
}

// post asks one node for one decision over HTTP. err is a failure of the transport.
func (p *processes) post(n devNode, principal, class, id string) (d decision, err error) {
	body, err := json.Marshal(map[string]string{"principal": principal, "api_class": class, "decision_id": id})
	if err != nil {
		return d, err
	}
	resp, err := http.Post("http://"+n.HTTP+"/v1/check", "application/json", bytes.NewReader(body))
	if err != nil {
		return d, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return d, err
	}
	return d, json.Unmarshal(text, &d)
}

// leader is the id of the node that leads.
func (p *processes) leader(t *testing.T) (id string) {
	t.Helper()
	until(t, "there is a leader", func() bool {
		_, out, _ := p.command(t, "", "cluster", "status", "-o", "json")
		var s clusterView
		if json.Unmarshal([]byte(out), &s) != nil || len(s.Partitions) != 1 {
			return false
		}
		id = s.Partitions[0].Leader
		return id != ""
	})
	return id
}
