package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	quoratev1 "github.com/quorate/quorate/proto/quorate/v1"
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

// spawner runs functions on one thread that never ends, for the kernel ends what mustSpawn starts when the
// thread that started it does.
var spawner = sync.OnceValue(func() chan<- func() {
	todo := make(chan func())
	go func() {
		runtime.LockOSThread()
		for f := range todo {
			f()
		}
	}()
	return todo
})

// mustSpawn starts a process that ends with the tests, however those end.
func mustSpawn(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	cmd.SysProcAttr = childAttr()
	started := make(chan error)
	spawner() <- func() { started <- cmd.Start() }
	if err := <-started; err != nil {
		t.Fatal(err)
	}
}

// e2ePolicy has a class with a short window, so that tests need not wait for a minute, and horizons that
// are longer than any test asks an id again.
const e2ePolicy = `
version: e2e
default: {limits: [{name: default, limit: 100, window: 60s}]}
classes:
  convert: {limits: [{name: per-minute, limit: 3, window: 60s}], replay_horizon: 5m}
  quick: {limits: [{name: per-3s, limit: 3, window: 3s}], replay_horizon: 5m}
`

const (
	quickLimit  = 3
	quickWindow = 3 * time.Second
)

// orderlyStop is how long dev or a node may take to end after a signal that asks for it.
const orderlyStop = 10 * time.Second

// processes is a local cluster of real processes: `quorate dev --processes`, and the nodes that a test
// starts again after it has killed them.
type processes struct {
	dir    string
	base   int
	nodes  []devNode
	dev    *exec.Cmd // nil once it has ended
	stderr *lockedBuffer
	own    map[string]*exec.Cmd // nodes started by the test

	routing *quoratev1.RoutingMap // once it was asked for
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

// Ports are given out from below those that the kernel picks for outgoing connections, each once in a
// run: a cluster that is down for a moment must find its own free again.
const (
	firstPort = 20000
	lastPort  = 32000
)

var ports = struct {
	sync.Mutex
	next int // guarded
}{next: firstPort + os.Getpid()%100*100}

// mustFreePorts finds a base with room for n nodes' ports.
func mustFreePorts(t *testing.T, n int) int {
	t.Helper()
	ports.Lock()
	defer ports.Unlock()
	for ; ports.next < lastPort; ports.next += 10 * n {
		if base := ports.next; allFree(base, n) {
			ports.next += 10 * n
			return base
		}
	}
	t.Fatalf("no free ports up to %d", lastPort)
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

// mustCluster starts three nodes with e2ePolicy on a fresh directory.
func mustCluster(t *testing.T) *processes {
	t.Helper()
	file := filepath.Join(t.TempDir(), "policy.yaml")
	if err := os.WriteFile(file, []byte(e2ePolicy), 0o600); err != nil {
		t.Fatal(err)
	}
	return mustStart(t, t.TempDir(), mustFreePorts(t, 3), "--policy", file)
}

// mustStart starts `dev --processes` on dir, waits until it says that it is ready, and stops it at the
// test's end.
func mustStart(t *testing.T, dir string, base int, args ...string) *processes {
	t.Helper()
	p := &processes{dir: dir, base: base, stderr: &lockedBuffer{}, own: map[string]*exec.Cmd{}}
	args = append([]string{
		"dev", "--processes", "-o", "json", "--data-dir", dir, "--base-port", fmt.Sprint(base),
	}, args...)
	p.dev = exec.Command(mustBinary(t), args...)
	p.dev.Stderr = p.stderr
	out, err := p.dev.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	mustSpawn(t, p.dev)
	t.Cleanup(func() { p.stop(t, syscall.SIGTERM) })
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
	if seen := processesOf(dir); runtime.GOOS == "linux" && len(seen) != 1+len(p.nodes) {
		t.Errorf("dev and %d nodes run, and these are seen: %v", len(p.nodes), seen)
	}
	return p
}

// stop ends everything, dev by the given signal, and checks that all go in an orderly way and that no
// process is left.
func (p *processes) stop(t *testing.T, sig syscall.Signal) {
	t.Helper()
	if t.Failed() {
		for _, n := range p.nodes {
			t.Logf("%s, pid %d: %s", n.ID, n.PID, lastLine(filepath.Join(p.dir, n.ID+".log")))
		}
	}
	for id, cmd := range p.own {
		mustEnd(t, id, cmd, syscall.SIGTERM)
		delete(p.own, id)
	}
	if p.dev != nil {
		mustEnd(t, "dev", p.dev, sig)
		p.dev = nil
	}
	for pid, line := range processesOf(p.dir) {
		t.Errorf("process %d is left: %s", pid, line)
		if slices.ContainsFunc(p.nodes, func(n devNode) bool { return n.PID == pid }) {
			_ = syscall.Kill(pid, syscall.SIGKILL) // it may have ended since
		}
	}
}

// mustEnd signals a process and checks that it ends with status 0 in time.
func mustEnd(t *testing.T, name string, cmd *exec.Cmd, sig syscall.Signal) {
	t.Helper()
	if err := cmd.Process.Signal(sig); err != nil {
		t.Errorf("%s: %v", name, err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	select {
	case err := <-ended:
		if err != nil {
			t.Errorf("%s after %s: %v", name, sig, err)
		}
	case <-time.After(orderlyStop):
		t.Errorf("%s runs on %s after %s", name, orderlyStop, sig)
		_ = cmd.Process.Kill() // it may end at this moment
		t.Logf("%s, killed: %v", name, <-ended)
	}
}

// processesOf are the running processes whose command line names a file under dir. It sees them on Linux
// only.
func processesOf(dir string) map[int]string {
	found := map[int]string{}
	files, _ := filepath.Glob("/proc/[0-9]*/cmdline") // the pattern is sound
	for _, file := range files {
		b, err := os.ReadFile(file)
		line := strings.ReplaceAll(string(b), "\x00", " ")
		if err != nil || !strings.Contains(line, dir+"/") && !strings.Contains(line, dir+" ") {
			continue // it has ended, or is another
		}
		var pid int
		if _, err := fmt.Sscanf(file, "/proc/%d/cmdline", &pid); err == nil {
			found[pid] = line
		}
	}
	return found
}

func (p *processes) node(id string) devNode {
	for _, n := range p.nodes {
		if n.ID == id {
			return n
		}
	}
	return devNode{}
}

// others are the nodes but the one with this id.
func (p *processes) others(id string) (out []devNode) {
	for _, n := range p.nodes {
		if n.ID != id {
			out = append(out, n)
		}
	}
	return out
}

// kill ends a node with SIGKILL, and waits until it is gone.
func (p *processes) kill(t *testing.T, id string) {
	t.Helper()
	if cmd := p.own[id]; cmd != nil {
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait() // it says that it was killed
		delete(p.own, id)
		return
	}
	if err := syscall.Kill(p.node(id).PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	until(t, "dev reports that "+id+" ended", func() bool {
		return strings.Contains(p.stderr.String(), "node "+id+" (pid ")
	})
}

// restart starts a killed node again with `server --config`, and waits until it is ready.
func (p *processes) restart(t *testing.T, id string) {
	t.Helper()
	log, err := os.OpenFile(filepath.Join(p.dir, id+".log"), os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	cmd := exec.Command(mustBinary(t), "server", "--config", filepath.Join(p.dir, id+".yaml"))
	cmd.Stderr = log
	mustSpawn(t, cmd)
	p.own[id] = cmd
	until(t, id+" is ready", func() bool { return ready(p.node(id)) })
}

// pid is a node's process at present.
func (p *processes) pid(id string) int {
	if cmd := p.own[id]; cmd != nil {
		return cmd.Process.Pid
	}
	return p.node(id).PID
}

func ready(n devNode) bool {
	resp, err := web.Get("http://" + n.HTTP + "/readyz")
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
