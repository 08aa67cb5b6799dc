package group

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/quorate/quorate/partition/storage"
)

// benchReplica, in the environment, makes this test binary the replica that it names, with its files in benchFolder.
const (
	benchReplica = "QUORATE_BENCH_REPLICA"
	benchFolder  = "QUORATE_BENCH_FOLDER"
)

// nothing is an Applier without a state.
type nothing struct{}

func (nothing) Apply(uint64, uint64, []byte, bool) any { return nil }
func (nothing) Snapshot() (Snapshot, error)            { return recording(nil), nil }
func (nothing) Restore(from io.Reader) error           { return json.NewDecoder(from).Decode(new([]string)) }
func benchMember(id string, l *Listener) Member {
	return Member{ID: id, Instance: "dir-" + id, Addr: l.Addr()}
}
func benchListen(id string) (*Listener, error) {
	return Listen("127.0.0.1:0", ListenerConfig{Cluster: "bench", Node: id})
}

func benchConfig(dir string, self Member, l *Listener) Config {
	return Config{
		Group: "p0", Network: l, Self: self, First: true, Applier: nothing{},
		Disk:  storage.NewFiles(filepath.Join(dir, self.ID), storage.WAL, nil),
		Fatal: func(err error) { panic(err) },
	}
}

// runBenchReplica is a process with a replica, until its standard input ends. It prints where it is reached.
func runBenchReplica() int {
	err := func() error {
		id := os.Getenv(benchReplica)
		l, err := benchListen(id)
		if err != nil {
			return err
		}
		g, err := Open(benchConfig(os.Getenv(benchFolder), benchMember(id, l), l))
		if err != nil {
			return err
		}
		fmt.Println(l.Addr())
		if _, err := io.Copy(io.Discard, os.Stdin); err != nil {
			return err
		}
		if err := g.Close(); err != nil {
			return err
		}
		return l.Close()
	}()
	if err != nil {
		fmt.Fprintln(os.Stderr, "replica:", err)
		return 1
	}
	return 0
}

// mustReplica starts a process with a replica, which ends with b.
func mustReplica(b *testing.B, id, dir string) Member {
	b.Helper()
	program, err := os.Executable()
	mustBench(b, err)
	c := exec.Command(program)
	c.Env = append(os.Environ(), benchReplica+"="+id, benchFolder+"="+dir)
	c.Stderr = os.Stderr
	in, err := c.StdinPipe()
	mustBench(b, err)
	out, err := c.StdoutPipe()
	mustBench(b, err)
	mustBench(b, c.Start())
	b.Cleanup(func() {
		_ = in.Close() // it has ended already if this fails
		if err := c.Wait(); err != nil {
			b.Errorf("replica %s: %v", id, err)
		}
	})
	lines := bufio.NewScanner(out)
	if !lines.Scan() {
		b.Fatalf("replica %s did not start: %v", id, lines.Err())
	}
	return Member{ID: id, Instance: "dir-" + id, Addr: lines.Text()}
}

func mustBench(b *testing.B, err error) {
	b.Helper()
	if err != nil {
		b.Fatal(err)
	}
}

// BenchmarkCommit is the bare commit of an entry, one at a time, with each of three replicas in a process of its own,
// on files: what a lone check cannot be faster than. The benchmark's process leads.
func BenchmarkCommit(b *testing.B) {
	dir := b.TempDir()
	l, err := benchListen("a")
	mustBench(b, err)
	self := benchMember("a", l)
	c := benchConfig(dir, self, l)
	c.Bootstrap = []Member{self, mustReplica(b, "b", dir), mustReplica(b, "c", dir)}
	g, err := Open(c)
	mustBench(b, err)
	defer func() {
		mustBench(b, g.Close())
		mustBench(b, l.Close())
	}()
	for deadline := time.After(20 * time.Second); !g.Leadership().Ready; {
		select {
		case <-g.Changed():
		case <-deadline:
			b.Fatal("the benchmark's process does not lead")
		}
	}
	for _, size := range []int{64, 64 << 10} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			var took []time.Duration
			for b.Loop() {
				begin := time.Now()
				p := g.Propose(make([]byte, size))
				<-p.Done()
				if _, err := p.Result(); err != nil {
					b.Fatal(err)
				}
				took = append(took, time.Since(begin))
			}
			slices.Sort(took)
			b.ReportMetric(float64(took[len(took)/2].Nanoseconds()), "p50-ns")
		})
	}
}
