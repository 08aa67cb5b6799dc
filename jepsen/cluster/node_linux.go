package cluster

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
)

// Node is a node's place, and the process that runs it while it is up. It is not safe for concurrent use, but for
// what its docs say.
type Node struct {
	ID      string
	GRPC    string // where it listens, as host:port
	HTTP    string
	Raft    string
	Gossip  string
	Zone    string
	DataDir string
	Log     string // the file that its processes write to

	binary, config string
	cmd            *exec.Cmd
	ended          chan struct{} // closed when the process has ended
	paused         bool
}

// forks starts processes from one thread that never ends: a child that is to end with its parent ends with the
// thread that made it.
var forks = sync.OnceValue(func() chan func() {
	ch := make(chan func())
	go func() {
		runtime.LockOSThread()
		for f := range ch {
			f()
		}
	}()
	return ch
})

// Start runs the node. It does not wait until it is ready.
func (n *Node) Start() error {
	if n.cmd != nil {
		return fmt.Errorf("node %s runs already", n.ID)
	}
	log, err := os.OpenFile(n.Log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close() //nolint:errcheck // the process has a descriptor of its own
	cmd := exec.Command(n.binary, "server", "--config", n.config)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	started := make(chan error)
	forks() <- func() { started <- cmd.Start() }
	if err := <-started; err != nil {
		return fmt.Errorf("node %s: %w", n.ID, err)
	}
	ended := make(chan struct{})
	go func() {
		_ = cmd.Wait() // whether it should have ended is for others to say
		close(ended)
	}()
	n.cmd, n.ended, n.paused = cmd, ended, false
	return nil
}

// Kill ends the process with SIGKILL, if there is one, and waits for its end.
func (n *Node) Kill() error {
	if n.cmd == nil {
		return nil
	}
	if err := n.cmd.Process.Kill(); err != nil && n.Up() {
		return fmt.Errorf("node %s: %w", n.ID, err)
	}
	<-n.ended
	n.cmd, n.paused = nil, false
	return nil
}

// Up reports whether the process has not ended.
func (n *Node) Up() bool {
	if n.cmd == nil {
		return false
	}
	select {
	case <-n.ended:
		return false
	default:
		return true
	}
}

// Pause stops the process with SIGSTOP, and returns when all of it stands still.
func (n *Node) Pause(ctx context.Context) error {
	if !n.Up() {
		return fmt.Errorf("node %s does not run, and cannot be paused", n.ID)
	}
	if err := n.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		return fmt.Errorf("node %s: %w", n.ID, err)
	}
	n.paused = true
	return await(ctx, n.ID+" stands still", func() bool { return still(n.cmd.Process.Pid) })
}

// still reports whether every thread of a process is stopped.
func still(pid int) bool {
	stats, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	if err != nil || len(stats) == 0 {
		return false
	}
	for _, file := range stats {
		text, err := os.ReadFile(file)
		if err != nil {
			return false
		}
		// The state is the word after the name, which is in brackets and may hold anything.
		after := text[bytes.LastIndexByte(text, ')')+1:]
		if !strings.HasPrefix(string(after), " T") {
			return false
		}
	}
	return true
}

// Resume lets a paused process go on.
func (n *Node) Resume() error {
	if !n.paused {
		return nil
	}
	n.paused = false
	if err := n.cmd.Process.Signal(syscall.SIGCONT); err != nil && n.Up() {
		return fmt.Errorf("node %s: %w", n.ID, err)
	}
	return nil
}

// LoseData removes the data directory of a node that is down.
func (n *Node) LoseData() error {
	if n.cmd != nil {
		return fmt.Errorf("node %s runs, and its data cannot be taken away", n.ID)
	}
	return os.RemoveAll(n.DataDir)
}

// Tail is the end of the node's log, to show why something failed.
func (n *Node) Tail() string {
	text, err := os.ReadFile(n.Log)
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	return strings.Join(lines[max(0, len(lines)-12):], "\n")
}
