package sdk

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"
)

// mustApart starts a node in a process of its own.
func mustApart(b *testing.B) (addr string) {
	b.Helper()
	self, err := os.Executable()
	other := filepath.Join(b.TempDir(), "node") // by its name a profiler tells it from the client
	if err = errors.Join(err, os.Symlink(self, other)); err != nil {
		b.Fatal(err)
	}
	cmd := exec.Command(other)
	cmd.Env = append(os.Environ(), nodeVariable+"=1")
	in, errIn := cmd.StdinPipe()
	out, errOut := cmd.StdoutPipe()
	if errIn != nil || errOut != nil || cmd.Start() != nil {
		b.Fatal("the node cannot be started")
	}
	b.Cleanup(func() {
		_ = in.Close()
		_ = cmd.Wait()
	})
	addr, err = bufio.NewReader(out).ReadString('\n')
	if err != nil {
		b.Fatal(err)
	}
	return strings.TrimSpace(addr)
}

// BenchmarkCrowd is what a check costs the client's process where 2,048 are under way, each in a request's context, with
// the node in another process: processor time, allocations, and how many go in a frame.
func BenchmarkCrowd(b *testing.B) {
	client, err := New([]string{mustApart(b)})
	if err != nil {
		b.Fatal(err)
	}
	defer mustClose(b, client)
	mustReady(b, client)
	names := make([]string, 100_000)
	for i := range names {
		names[i] = fmt.Sprintf("bench-%05d", i)
	}
	var next atomic.Int64
	b.ReportAllocs()
	b.ResetTimer()
	before := processorNanos(b)
	var all sync.WaitGroup
	for range 2048 {
		all.Go(func() {
			ctx, cancel := context.WithCancel(b.Context())
			defer cancel()
			for i := next.Add(1); i <= int64(b.N); i = next.Add(1) {
				if d, err := client.Check(ctx, names[i*7919%int64(len(names))], "deny"); err != nil || !d.Verified() {
					b.Error(err)
					return
				}
			}
		})
	}
	all.Wait()
	b.ReportMetric(float64(processorNanos(b)-before)/float64(b.N), "cpu-ns/op")
	s := client.Stats()
	b.ReportMetric(float64(s.Sends)/float64(s.Frames), "checks/frame")
}

// processorNanos is the processor time of this process.
func processorNanos(b *testing.B) int64 {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return u.Utime.Nano() + u.Stime.Nano()
}
