package disk

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// Node is a node on an image of its own, and the process that runs it while it is up. It is not safe for
// concurrent use.
type Node struct {
	ID      string
	GRPC    string // where it listens, as host:port
	HTTP    string
	Raft    string
	Gossip  string
	DataDir string
	Image   *Image
	Log     string // the file that its processes write to

	config  string
	process *process
}

// process is one run of a node.
type process struct {
	cmd    *exec.Cmd
	offset int64         // where in the node's log it begins
	ended  chan struct{} // closed when it has ended
}

// Start runs the binary as this node. It does not wait until the node is ready.
func (n *Node) Start(binary string, environment ...string) error {
	if n.process != nil {
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
	p := &process{
		cmd: exec.Command(binary, "server", "--config", n.config), offset: info.Size(), ended: make(chan struct{}),
	}
	p.cmd.Stdout, p.cmd.Stderr = log, log
	p.cmd.Env = append(os.Environ(), environment...)
	if err := p.cmd.Start(); err != nil {
		return fmt.Errorf("node %s: %w", n.ID, err)
	}
	go func() {
		_ = p.cmd.Wait() // the status is looked at in AwaitEnd
		close(p.ended)
	}()
	n.process = p
	return nil
}

// signalKill asks for the end of the process, which may have come already.
func (n *Node) signalKill() error {
	if n.process == nil {
		return nil
	}
	if err := n.process.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("node %s: %w", n.ID, err)
	}
	return nil
}

// Kill ends the process with SIGKILL, if there is one, and waits for its end.
func (n *Node) Kill() error {
	if err := n.signalKill(); err != nil || n.process == nil {
		return err
	}
	<-n.process.ended
	n.process = nil
	return nil
}

// Up reports whether the process has not ended.
func (n *Node) Up() bool {
	if n.process == nil {
		return false
	}
	select {
	case <-n.process.ended:
		return false
	default:
		return true
	}
}

// AwaitEnd waits for the process to end by itself. It returns its exit status, -1 after a signal, and the lines
// that it wrote beside its structured log: why it ended.
func (n *Node) AwaitEnd(ctx context.Context) (status int, lines []string, err error) {
	p := n.process
	if p == nil {
		return 0, nil, fmt.Errorf("node %s is not running", n.ID)
	}
	select {
	case <-p.ended:
	case <-ctx.Done():
		return 0, nil, fmt.Errorf("node %s goes on running: %w", n.ID, ctx.Err())
	}
	n.process = nil
	lines, err = n.words(p.offset)
	return p.cmd.ProcessState.ExitCode(), lines, err
}

// words are the lines of the log, from an offset on, that are not of the structured log.
func (n *Node) words(offset int64) ([]string, error) {
	f, err := os.Open(n.Log)
	if err != nil {
		return nil, err
	}
	defer f.Close() //nolint:errcheck // only read from
	text, err := io.ReadAll(io.NewSectionReader(f, offset, 1<<30))
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
	return strings.Join(lines[max(0, len(lines)-15):], "\n")
}

// Ready reports whether the node says that it is.
func (n *Node) Ready(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+n.HTTP+"/readyz", nil)
	if err != nil {
		return false
	}
	resp, err := http.DefaultClient.Do(req)
	return err == nil && resp.Body.Close() == nil && resp.StatusCode == http.StatusOK
}

// AwaitSegmentEnd waits until a segment of the node's log grows beyond what was set aside for it, which it does
// with the write that ends it. It looks all the time, since what follows, the begin of the next segment, takes
// only milliseconds.
func (n *Node) AwaitSegmentEnd(ctx context.Context) error {
	before, err := n.largestSegment()
	if err != nil {
		return err
	}
	for ctx.Err() == nil {
		now, err := n.largestSegment()
		if err != nil {
			return err
		}
		if now > before {
			return nil
		}
	}
	return fmt.Errorf("no segment of %s ended: %w", n.ID, ctx.Err())
}

// largestSegment is the size of the node's largest segment.
func (n *Node) largestSegment() (largest int64, err error) {
	files, err := filepath.Glob(filepath.Join(n.DataDir, "groups", "p0", "wal", "*.wal"))
	if err != nil {
		return 0, err
	}
	for _, file := range files {
		info, err := os.Stat(file)
		switch {
		case errors.Is(err, fs.ErrNotExist): // it was dropped meanwhile
		case err != nil:
			return 0, err
		default:
			largest = max(largest, info.Size())
		}
	}
	return largest, nil
}
