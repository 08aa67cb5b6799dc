package disk

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/quorate/quorate/jepsen/process"
)

// inside is set in the environment of the tests' own namespaces.
const inside = "QUORATE_DISK_INSIDE"

// TestMain runs the tests again in namespaces of their own, of mounts and processes: when that run ends, however
// it does, its mounts and processes end with it.
func TestMain(m *testing.M) {
	if os.Getenv(inside) != "" || os.Geteuid() != 0 {
		m.Run()
		process.RemoveProgram()
		return
	}
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.Env = append(os.Environ(), inside+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWPID, Unshareflags: syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL,
	}
	runtime.LockOSThread() // the child is to end with this process, not with one of its threads
	err := cmd.Run()
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit):
		os.Exit(max(1, exit.ExitCode())) //nolint:forbidigo // the only way to pass the inner run's status on
	case err != nil: // no namespaces for this root: the tests say why they are skipped
		m.Run()
		process.RemoveProgram()
	}
}

// available is why there can be no images here.
var available = sync.OnceValue(func() error {
	dir, err := os.MkdirTemp("", "quorate-disk-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	ctx, cancel := context.WithTimeout(context.Background(), cleanTimeout)
	defer cancel()
	return Available(ctx, dir)
})

// needDisks skips a test where disks cannot be made.
func needDisks(t *testing.T) {
	t.Helper()
	if err := available(); err != nil {
		if os.Getenv("QUORATE_DISK_REQUIRED") != "" {
			t.Fatalf("disks cannot be made here: %v", err)
		}
		t.Skipf("disks cannot be made here: %v", err)
	}
}

// mustCluster starts a cluster on disks of its own that ends with the test.
func mustCluster(t *testing.T, o Options) *Cluster {
	t.Helper()
	if o.Binary == "" {
		b, err := process.Program()
		if err != nil {
			t.Fatal(err)
		}
		o.Binary = b
	}
	c, err := NewCluster(within(t, 30*time.Second), t.TempDir(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			for _, n := range c.Nodes {
				t.Logf("the log of %s ends:\n%s", n.ID, n.Tail())
			}
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

// work is what goes on while disks fail: decisions, and an operator's acts.
type work struct {
	*Load
	acts *Acts
}

// mustWork starts work that ends with the test.
func mustWork(t *testing.T, c *Cluster, padded bool) *work {
	t.Helper()
	w := &work{c.StartLoad(padded), c.StartActs()}
	t.Cleanup(w.Stop)
	mustServe(t, w)
	return w
}

// Stop ends the work.
func (w *work) Stop() {
	w.Load.Stop()
	w.acts.Stop()
}

// mustServe shows that the cluster makes decisions, and takes the acts of an operator.
func mustServe(t *testing.T, w *work) {
	t.Helper()
	must(t, w.AwaitMore(within(t, 30*time.Second), 300))
	must(t, w.acts.AwaitMore(within(t, 30*time.Second), 2))
}

// within is a context that ends after a time, or with the test.
func within(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func mustLeader(t *testing.T, c *Cluster) *Node {
	t.Helper()
	leader, err := c.Leader(within(t, 30*time.Second))
	must(t, err)
	return leader
}

func mustControlLeader(t *testing.T, c *Cluster) *Node {
	t.Helper()
	leader, err := c.ControlLeader(within(t, 30*time.Second))
	must(t, err)
	return leader
}

// mustAudit accounts for the work, of which nothing may be lost, and compares the replicas. The work pauses meanwhile.
func mustAudit(t *testing.T, c *Cluster, w *work) {
	t.Helper()
	defer w.Pause()()
	defer w.acts.Pause()()
	a, err := w.Audit(within(t, 2*time.Minute))
	t.Logf("%v", a)
	must(t, err)
	if len(a.Lost) > 0 {
		t.Errorf("%d acknowledged allows are lost: %q", len(a.Lost), a.Lost[:min(5, len(a.Lost))])
	}
	acts, err := w.acts.Audit(within(t, time.Minute))
	t.Logf("%v", acts)
	must(t, err)
	if len(acts.Lost) > 0 {
		t.Errorf("%d acknowledged changes are lost: %q", len(acts.Lost), acts.Lost[:min(5, len(acts.Lost))])
	}
	must(t, c.AwaitAgreement(within(t, 30*time.Second), c.Nodes...))
}

// rounds is how often a fault is repeated.
func rounds(t *testing.T) int {
	t.Helper()
	v := os.Getenv("QUORATE_DISK_ROUNDS")
	if v == "" {
		return 1
	}
	n, err := strconv.Atoi(v)
	if err != nil || n < 1 || n > 100 {
		t.Fatalf("QUORATE_DISK_ROUNDS is %q: give a number from 1 to 100", v)
	}
	return n
}
