package netns

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/quorate/quorate/jepsen/process"
)

const (
	// patience is how long anything may take.
	patience = 30 * time.Second
	// moment is how long something is waited for that is not to come.
	moment = 300 * time.Millisecond
	port   = 7000
)

var available = sync.OnceValue(func() error { return Available(context.Background()) })

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// need skips a test where there can be no namespaces.
func need(t *testing.T) {
	t.Helper()
	if err := available(); err != nil {
		if os.Getenv("QUORATE_NETNS_REQUIRED") != "" {
			t.Fatal(err)
		}
		t.Skipf("there can be no namespaces: %v", err)
	}
}

// mustMake makes a network of some nodes.
func mustMake(t *testing.T, ids ...string) *Fabric {
	t.Helper()
	need(t)
	f, err := New(ids...)
	must(t, err)
	t.Cleanup(func() { must(t, f.Close()) })
	return f
}

// mustConnect connects one node with another: both ends of a connection.
func mustConnect(t *testing.T, f *Fabric, from, to string) (near, far net.Conn) {
	t.Helper()
	l, err := f.Listen(to, port)
	must(t, err)
	defer l.Close()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	near, err = f.DialFrom(ctx, from, "tcp", l.Addr().String())
	must(t, err)
	t.Cleanup(func() { _ = near.Close() })
	far, err = l.Accept()
	must(t, err)
	t.Cleanup(func() { _ = far.Close() })
	return near, far
}

func mustWrite(t *testing.T, conn net.Conn, text string) {
	t.Helper()
	_, err := conn.Write([]byte(text))
	must(t, err)
}

// mustArrive reads a text that has to come.
func mustArrive(t *testing.T, conn net.Conn, want string) {
	t.Helper()
	must(t, conn.SetReadDeadline(time.Now().Add(patience)))
	got := make([]byte, len(want))
	if _, err := io.ReadFull(conn, got); err != nil || string(got) != want {
		t.Fatalf("%q has come, and %v; want %q", got, err, want)
	}
}

// mustNotArrive reads for a moment in which nothing may come.
func mustNotArrive(t *testing.T, conn net.Conn) {
	t.Helper()
	must(t, conn.SetReadDeadline(time.Now().Add(moment)))
	var b [64]byte
	if n, err := conn.Read(b[:]); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("%q has come, and %v; nothing should", b[:n], err)
	}
}

// Shows that a link that drops in one direction carries the other, that a connection over it lives on, and that a new one
// cannot be made.
func TestDropOneWay(t *testing.T) {
	f := mustMake(t, "n0", "n1")
	near, far := mustConnect(t, f, "n0", "n1")
	f.Set("n0", "n1", process.Condition{Drop: true})
	mustWrite(t, far, "to n0")
	mustArrive(t, near, "to n0")
	mustWrite(t, near, "to n1")
	mustNotArrive(t, far)
	ctx, cancel := context.WithTimeout(t.Context(), moment)
	defer cancel()
	if conn, err := f.DialFrom(ctx, "n0", "tcp", far.LocalAddr().String()); err == nil {
		_ = conn.Close()
		t.Error("n0 has reached n1, to which nothing is carried")
	}
	if there, back := f.Stopped("n0", "n1"), f.Stopped("n1", "n0"); there == 0 || back != 0 {
		t.Errorf("%d packets were stopped there, want some, and %d back, want none", there, back)
	}
	f.Clear()
	mustArrive(t, far, "to n1")
}

// Shows that a link that is late in one direction is as late as it is told.
func TestDelay(t *testing.T) {
	const late = 80 * time.Millisecond
	f := mustMake(t, "n0")
	near, far := mustConnect(t, f, process.Outside, "n0")
	f.Set(process.Outside, "n0", process.Condition{Delay: late})
	began := time.Now()
	mustWrite(t, near, "question")
	mustArrive(t, far, "question")
	asked := time.Since(began)
	mustWrite(t, far, "answer")
	mustArrive(t, near, "answer")
	if asked < late {
		t.Errorf("a question took %v, and should be %v late", asked, late)
	}
	if c := f.Counts(process.Outside, "n0"); c.Delayed == 0 || c.Dropped > 0 {
		t.Errorf("packets should be delayed, and none dropped: %+v", c)
	}
}

// Shows that a link that holds hands over nothing, and when it is released all that was sent.
func TestHold(t *testing.T) {
	f := mustMake(t, "n0")
	near, far := mustConnect(t, f, process.Outside, "n0")
	f.Set("n0", process.Outside, process.Condition{Hold: true})
	mustWrite(t, near, "question")
	mustArrive(t, far, "question")
	mustWrite(t, far, "answer")
	mustNotArrive(t, near)
	f.Set("n0", process.Outside, process.Condition{})
	mustArrive(t, near, "answer")
	if c := f.Counts("n0", process.Outside); c.Held == 0 || c.Dropped > 0 {
		t.Errorf("packets should be held, and none dropped: %+v", c)
	}
}

// Shows that a connection survives links that lose, reorder and duplicate packets: all arrives, once and in order.
func TestLoss(t *testing.T) {
	f := mustMake(t, "n0")
	near, far := mustConnect(t, f, process.Outside, "n0")
	bad := process.Condition{Loss: 0.1, Duplicate: 0.2, Delay: time.Millisecond, Jitter: 2 * time.Millisecond}
	f.Set(process.Outside, "n0", bad)
	f.Set("n0", process.Outside, bad)
	sent := make([]byte, 512<<10)
	_, _ = rand.Read(sent)
	go func() {
		_, _ = near.Write(sent)
	}()
	must(t, far.SetReadDeadline(time.Now().Add(patience)))
	got := make([]byte, len(sent))
	if _, err := io.ReadFull(far, got); err != nil || !bytes.Equal(got, sent) {
		t.Errorf("what has arrived is not what was sent: %v", err)
	}
	if c := f.Counts(process.Outside, "n0"); c.Dropped == 0 || c.Duplicated == 0 || c.Delayed == 0 {
		t.Errorf("packets should be lost, duplicated and late: %+v", c)
	}
}

// Shows that a node that is cut off hears no other, that clients reach it, and that it hears the others again after that.
func TestCut(t *testing.T) {
	f := mustMake(t, "n0", "n1", "n2")
	fromNode, atNode := mustConnect(t, f, "n0", "n1")
	fromClient, atClient := mustConnect(t, f, process.Outside, "n1")
	n := &process.Node{ID: "n1"}
	f.Cut(n)
	f.Clear()
	if !f.IsCut(n) {
		t.Error("n1 is not cut off")
	}
	mustWrite(t, fromClient, "client")
	mustArrive(t, atClient, "client")
	mustWrite(t, fromNode, "node")
	mustNotArrive(t, atNode)
	f.Heal(n)
	mustArrive(t, atNode, "node")
}

// Shows that a process that is started in a namespace sees its devices and no others, and that this process sees none
// of them.
func TestProcessInNamespace(t *testing.T) {
	f := mustMake(t, "n0")
	var out bytes.Buffer
	cmd := exec.Command("cat", "/proc/net/dev")
	cmd.Stdout = &out
	must(t, f.Do("n0", cmd.Start))
	must(t, cmd.Wait())
	var devices []string
	for line := range strings.Lines(out.String()) {
		if name, _, is := strings.Cut(strings.TrimSpace(line), ":"); is {
			devices = append(devices, name)
		}
	}
	if len(devices) != 2 || !strings.Contains(out.String(), device+":") || !strings.Contains(out.String(), "lo:") {
		t.Errorf("it sees the devices %v, want lo and %s", devices, device)
	}
	addrs, err := net.InterfaceAddrs()
	must(t, err)
	for _, a := range addrs {
		if strings.HasPrefix(a.String(), f.Addr("n0").String()) {
			t.Errorf("this process has the node's address: %v", a)
		}
	}
}

// Shows that nothing is left of a network that was closed: no goroutine, no thread in another namespace, and no open
// file, were there connections over it or not.
func TestCloseLeavesNothing(t *testing.T) {
	count := func() (goroutines, files int) {
		entries, err := os.ReadDir("/proc/self/fd")
		must(t, err)
		return runtime.NumGoroutine(), len(entries)
	}
	// The first one begins what stays for good: the poller, and a thread from which others are made.
	must(t, mustMakeAlone(t).Close())
	goroutines, files := count()
	f := mustMakeAlone(t)
	near, far := mustConnect(t, f, process.Outside, "n0")
	f.Set(process.Outside, "n0", process.Condition{Hold: true})
	mustWrite(t, near, "held")
	must(t, f.Close())
	must(t, errors.Join(near.Close(), far.Close()))
	if err := f.Do("n0", func() error { return nil }); !errors.Is(err, net.ErrClosed) {
		t.Errorf("in a namespace that is closed something can be done: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	err := process.Await(ctx, "all goroutines and threads have ended", func() bool {
		g, n := count()
		return g <= goroutines && n <= files && others(t) == 0
	})
	if err != nil {
		g, n := count()
		t.Errorf("%v: %d goroutines, were %d; %d files, were %d; %d threads elsewhere",
			err, g, goroutines, n, files, others(t))
	}
}

// mustMakeAlone makes a network that the test closes.
func mustMakeAlone(t *testing.T) *Fabric {
	t.Helper()
	need(t)
	f, err := New("n0")
	must(t, err)
	return f
}

// others is how many threads of this process are in another network namespace than the first one.
func others(t *testing.T) (n int) {
	t.Helper()
	own, err := os.Readlink("/proc/self/ns/net")
	must(t, err)
	tasks, err := os.ReadDir("/proc/self/task")
	must(t, err)
	for _, task := range tasks {
		is, err := os.Readlink("/proc/self/task/" + task.Name() + "/ns/net")
		if err == nil && is != own { // an error: it has just ended
			n++
		}
	}
	return n
}
