package process

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
)

// tailLines is how much of a log is shown when something failed.
const tailLines = 15

// Node is a node's place, and the process that runs it while it is up. It may be started, killed and paused by one
// goroutine at a time; how it stands may be asked by any.
type Node struct {
	ID      string
	GRPC    string // where it listens, as host:port
	HTTP    string
	Raft    string
	Gossip  string
	DataDir string
	Config  string // the file that it is started with
	Log     string // the file that its processes write to

	// Dialled is where the other nodes dial it, when a Network is between them. Else it is not used.
	Dialled Addresses

	Binary      string
	Environment []string // NAME=value, beside this process's own
	Place       Place    // where its processes run

	run *atomic.Pointer[run] // nil while it is down
	pid *atomic.Int64        // of the last process; 0 before there was one
}

// Addresses are where a node is dialled by others, as host:port.
type Addresses struct{ GRPC, Raft, Gossip string }

// run is one process of a node.
type run struct {
	cmd    *exec.Cmd
	offset int64         // where in the node's log it begins
	ended  chan struct{} // closed when it has ended
	paused atomic.Bool
}

// NewNode is the k-th node on loopback, whose files are in dir and whose ports follow base. Its data directory is the
// caller's to choose.
func NewNode(binary, dir string, k, base int) Node {
	return NewNodeAt(netip.AddrFrom4([4]byte{127, 0, 0, 1}), binary, dir, k, base)
}

// NodeID is the id of the k-th node.
func NodeID(k int) string { return fmt.Sprint("n", k) }

// NewNodeAt is the same at another address.
func NewNodeAt(host netip.Addr, binary, dir string, k, base int) Node {
	at := func(offset int) string { return fmt.Sprint(host, ":", base+portsPerNode*k+offset) }
	id := NodeID(k)
	return Node{
		ID: id, GRPC: at(0), HTTP: at(1), Raft: at(2), Gossip: at(3), Binary: binary,
		Dialled: Addresses{GRPC: at(4), Raft: at(5), Gossip: at(6)}, run: &atomic.Pointer[run]{}, pid: &atomic.Int64{},
		Config: filepath.Join(dir, id+".yaml"), Log: filepath.Join(dir, id+".log"),
	}
}

// Start runs the node. It does not wait until it is ready.
func (n *Node) Start() error {
	if n.run.Load() != nil {
		return fmt.Errorf("node %s runs already", n.ID)
	}
	log, err := os.OpenFile(n.Log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close() //nolint:errcheck // the process has a descriptor of its own
	info, err := log.Stat()
	if err != nil {
		return err
	}
	r := &run{cmd: exec.Command(n.Binary, "server", "--config", n.Config), offset: info.Size(), ended: make(chan struct{})}
	r.cmd.Stdout, r.cmd.Stderr = log, log
	r.cmd.Env = append(os.Environ(), n.Environment...)
	r.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := n.Place.start(r.cmd); err != nil {
		return fmt.Errorf("node %s: %w", n.ID, err)
	}
	n.pid.Store(int64(r.cmd.Process.Pid))
	go func() {
		_ = r.cmd.Wait() // the status is looked at in AwaitEnd
		close(r.ended)
	}()
	n.run.Store(r)
	return nil
}

// PID is the id of the last process; 0 before there was one.
func (n *Node) PID() int { return int(n.pid.Load()) }

// Up reports whether the process has not ended.
func (n *Node) Up() bool { r := n.run.Load(); return r != nil && !r.hasEnded() }

// Ended reports whether the process has ended, and was not killed.
func (n *Node) Ended() bool {
	r := n.run.Load()
	return r != nil && r.hasEnded()
}

func (r *run) hasEnded() bool {
	select {
	case <-r.ended:
		return true
	default:
		return false
	}
}

// SignalKill asks for the end of the process, which may have come already.
func (n *Node) SignalKill() error {
	r := n.run.Load()
	if r == nil {
		return nil
	}
	if err := r.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("node %s: %w", n.ID, err)
	}
	return nil
}

// Kill ends the process with SIGKILL, if there is one, and waits for its end.
func (n *Node) Kill() error {
	r := n.run.Load()
	if err := n.SignalKill(); err != nil || r == nil {
		return err
	}
	<-r.ended
	n.run.Store(nil)
	return nil
}

// AwaitEnd waits for the process to end by itself. It returns its exit status, -1 after a signal, and the lines
// that it wrote beside its structured log: why it ended.
func (n *Node) AwaitEnd(ctx context.Context) (status int, lines []string, err error) {
	r := n.run.Load()
	if r == nil {
		return 0, nil, fmt.Errorf("node %s is not running", n.ID)
	}
	select {
	case <-r.ended:
	case <-ctx.Done():
		return 0, nil, fmt.Errorf("node %s goes on running: %w", n.ID, ctx.Err())
	}
	n.run.Store(nil)
	lines, err = n.words(r.offset)
	return r.cmd.ProcessState.ExitCode(), lines, err
}

// logFrom is the node's log from an offset on.
func (n *Node) logFrom(offset int64) ([]byte, error) {
	f, err := os.Open(n.Log)
	if err != nil {
		return nil, err
	}
	defer f.Close() //nolint:errcheck // only read from
	return io.ReadAll(io.NewSectionReader(f, offset, 1<<30))
}

// words are the lines of the log, from an offset on, that are not of the structured log.
func (n *Node) words(offset int64) ([]string, error) {
	text, err := n.logFrom(offset)
	if err != nil {
		return nil, err
	}
	var words []string
	for line := range bytes.Lines(text) {
		if s := strings.TrimSpace(string(line)); s != "" && !strings.HasPrefix(s, "time=") {
			words = append(words, s)
		}
	}
	return words, nil
}

// Tail is the end of the node's log, to show why something failed.
func (n *Node) Tail() string {
	text, err := os.ReadFile(n.Log)
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	return strings.Join(lines[max(0, len(lines)-tailLines):], "\n")
}
