package gateways

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/quorate/quorate/jepsen/check"
	"github.com/quorate/quorate/jepsen/cluster"
	"github.com/quorate/quorate/jepsen/gateways/talk"
	"github.com/quorate/quorate/jepsen/process"
)

// program is the gateway's, built once.
var program = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "quorate-gateways-")
	if err != nil {
		return "", err
	}
	builtIn = dir
	return Build(dir)
})

var builtIn string

func TestMain(m *testing.M) {
	m.Run()
	process.RemoveProgram()
	if err := os.RemoveAll(builtIn); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
}

func within(t testing.TB, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// world is a cluster and the gateways that ask it.
type world struct {
	*cluster.Cluster
	t        *testing.T
	binary   string
	dir      string
	begun    int64
	killed   []int64 // when leaders were killed, as talk.Now tells it
	policies *cluster.Policies
	gateways []*Gateway
	rand     *rand.Rand
}

// mustWorld makes a cluster of three nodes and so many gateways, each with a certificate of its own. All ends with the
// test.
func mustWorld(t *testing.T, o cluster.Options, gateways int) *world {
	t.Helper()
	binary, err := process.Program()
	must(t, err)
	gateway, err := program()
	must(t, err)
	o.Binary, o.Nodes, o.First = binary, 3, 3
	w := &world{t: t, binary: binary, dir: t.TempDir(), begun: talk.Now(), rand: rand.New(rand.NewPCG(1, 2))}
	w.Cluster, err = cluster.NewCluster(within(t, time.Minute), w.dir, o)
	must(t, err)
	t.Cleanup(func() {
		if t.Failed() {
			for _, n := range w.Nodes {
				t.Logf("the log of %s ends:\n%s", n.ID, n.Tail())
			}
		}
		must(t, w.Close())
	})
	w.policies = cluster.NewPolicies(w.Cluster, w.now)
	var addrs []string
	for _, n := range w.Nodes {
		addrs = append(addrs, n.Dialled.GRPC)
	}
	for k := range gateways {
		name := fmt.Sprint("edge", k)
		_, err := process.Run(within(t, 10*time.Second), binary, "cert", "gateway", name, "--dir", w.dir)
		must(t, err)
		file := func(suffix string) string { return filepath.Join(w.dir, "gateway-"+name+suffix) }
		g, err := Start(within(t, 10*time.Second), gateway, name, "-addr", strings.Join(addrs, ","),
			"-ca", filepath.Join(w.dir, "ca.pem"), "-cert", file(".pem"), "-key", file("-key.pem"))
		must(t, err)
		w.gateways = append(w.gateways, g)
		t.Cleanup(func() {
			if err := g.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	return w
}

// now is the instant of the history.
func (w *world) now() time.Duration { return time.Duration(talk.Now() - w.begun) }

func (w *world) say(format string, args ...any) {
	w.t.Helper()
	w.t.Logf("%8.3f "+format, append([]any{w.now().Seconds()}, args...)...)
}

// load has every gateway ask, with seeds of their own.
func (w *world) load(l talk.Load) {
	w.t.Helper()
	for k, g := range w.gateways {
		l.Seed = uint64(k + 1)
		must(w.t, g.Load(w.t.Context(), l))
	}
}

// run waits.
func (w *world) run(d time.Duration) {
	w.t.Helper()
	select {
	case <-time.After(d):
	case <-w.t.Context().Done():
		w.t.FailNow()
	}
}

// stop ends the loads, and returns all checks and the final counters.
func (w *world) stop() (checks map[string][]talk.Check, stats map[string]*talk.Stats) {
	w.t.Helper()
	checks, stats = map[string][]talk.Check{}, map[string]*talk.Stats{}
	for _, g := range w.gateways {
		s, err := g.Stop(w.t.Context())
		must(w.t, err)
		checks[g.Name], stats[g.Name] = g.Checks(), s
	}
	return checks, stats
}

// mustHold judges what holds of any load: that all gateways' verified decisions together keep every cap, that nothing is
// let through but as declared, that no id is made twice, and that the counters say what happened.
func (w *world) mustHold(checks map[string][]talk.Check, stats map[string]*talk.Stats) *check.Report {
	w.t.Helper()
	r := check.Examine(History(checks, w.begun, w.policies.Revisions()))
	w.say("%v", r)
	errs := []error{r.Err(), DistinctIDs(checks)}
	for name, all := range checks {
		_, local := LocalCaps(w.policies.Present(), all)
		errs = append(errs, Declared(w.policies.Present(), all, w.killed), Counted(stats[name], all), local)
	}
	if err := errors.Join(errs...); err != nil {
		w.t.Error(err)
	}
	for _, n := range w.Nodes {
		if n.Ended() {
			w.t.Errorf("node %s has ended by itself; its log ends:\n%s", n.ID, n.Tail())
		}
	}
	return r
}

const (
	// late is by how much a check may take longer than its timeout when the machine is busy: what a gateway's process,
	// one of up to seven, may have to wait until it runs. lateMostly is for most checks.
	late, lateMostly = 500 * time.Millisecond, 50 * time.Millisecond
)

// mustBeInTime judges how long checks took.
func (w *world) mustBeInTime(name string, checks []talk.Check) {
	w.t.Helper()
	times, err := InTime(w.policies.Present(), checks, lateMostly, late)
	for class, t := range times {
		w.say("%s: class %s: %v", name, class, t)
	}
	if err != nil {
		w.t.Errorf("%s: %v", name, err)
	}
}

// outcomes counts checks by what came of them.
func outcomes(checks map[string][]talk.Check) map[string]int {
	n := map[string]int{}
	for _, all := range checks {
		for i := range all {
			switch c := &all[i]; {
			case c.Failed:
				n["error "+c.Reason]++
			case c.Source == byOwner:
				n[c.Reason]++
			default:
				n[c.Source]++
			}
		}
	}
	return n
}

// flat are the checks of all gateways.
func flat(checks map[string][]talk.Check) (out []talk.Check) {
	for _, all := range checks {
		out = append(out, all...)
	}
	return out
}

// between are the checks that were sent from an instant on, and before another.
func between(checks []talk.Check, from, to int64) (out []talk.Check) {
	for _, c := range checks {
		if c.Sent >= from && c.Sent < to {
			out = append(out, c)
		}
	}
	return out
}
