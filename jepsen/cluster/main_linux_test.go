package cluster

import (
	"context"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/quorate/quorate/jepsen/check"
	"github.com/quorate/quorate/jepsen/history"
	"github.com/quorate/quorate/jepsen/process"
)

func TestMain(m *testing.M) {
	m.Run()
	process.RemoveProgram()
}

// mustSeed is what the test draws from; it is printed.
func mustSeed(t testing.TB) (uint64, *rand.Rand) {
	t.Helper()
	seed := rand.Uint64N(1 << 32)
	if v := os.Getenv("QUORATE_CLUSTER_SEED"); v != "" {
		var err error
		if seed, err = strconv.ParseUint(v, 10, 64); err != nil {
			t.Fatalf("QUORATE_CLUSTER_SEED is %q: give a number", v)
		}
	}
	t.Logf("seed: QUORATE_CLUSTER_SEED=%d", seed)
	return seed, rand.New(rand.NewPCG(seed, 1<<40))
}

// within is a context that ends after a time, or with the test.
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

// world is a cluster with its load and its policies, and the test that they are for.
type world struct {
	*Cluster
	t        *testing.T
	load     *Load
	policies *Policies
	rand     *rand.Rand
	examined bool
}

// mustWorld makes a cluster and begins a load. Both end with the test, which fails if the history is broken.
func mustWorld(t *testing.T, o Options, l LoadOptions) *world {
	t.Helper()
	var err error
	if o.Binary == "" {
		o.Binary, err = process.Program()
		must(t, err)
	}
	seed, r := mustSeed(t)
	c, err := NewCluster(within(t, 60*time.Second), t.TempDir(), o)
	must(t, err)
	t.Cleanup(func() {
		if t.Failed() {
			for _, n := range c.Nodes {
				t.Logf("the log of %s ends:\n%s", n.ID, n.Tail())
			}
		}
		must(t, c.Close())
		mustKeepLogs(t, c)
	})
	l.Seed = seed
	load, err := c.StartLoad(t.Context(), l)
	must(t, err)
	w := &world{Cluster: c, t: t, load: load, policies: NewPolicies(c, load.Now), rand: r}
	t.Cleanup(func() {
		if h := load.Stop(w.policies.revisions); !w.examined { // the test failed before
			t.Logf("so far: %v", check.Examine(h))
			if err := check.Examine(h).Err(); err != nil {
				t.Error(err)
			}
		}
	})
	_, err = load.AwaitAnswers(within(t, 20*time.Second), 0, 50, "a decision", (*history.Answer).Decided)
	must(t, err)
	return w
}

// mustKeepLogs copies the nodes' logs to where QUORATE_CLUSTER_LOGS says.
func mustKeepLogs(t testing.TB, c *Cluster) {
	t.Helper()
	dir := os.Getenv("QUORATE_CLUSTER_LOGS")
	if dir == "" {
		return
	}
	must(t, os.MkdirAll(dir, 0o700))
	for _, n := range c.Nodes {
		text, err := os.ReadFile(n.Log)
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, filepath.Base(n.Log)), text, 0o600)
		}
		must(t, err)
	}
}

// say logs what happens, with the instant of the history.
func (w *world) say(format string, args ...any) {
	w.t.Helper()
	clock := time.Now().UTC().Format("05.000") // as the nodes' logs have it
	w.t.Logf("%8.3f :%s "+format, append([]any{w.load.Now().Seconds(), clock}, args...)...)
}

// mustDecide waits until n checks that are sent from now on are decided.
func (w *world) mustDecide(n int) {
	w.t.Helper()
	_, err := w.load.AwaitAnswers(within(w.t, 45*time.Second), w.load.Now(), n, "a decision", (*history.Answer).Decided)
	must(w.t, err)
}

// maxMore bounds how often more of a history is waited for.
const maxMore = 20

// mustHold ends the load once the history shows enough to be worth it, and examines it. How much that is does not hang
// on how busy the machine was meanwhile.
func (w *world) mustHold() *check.Report {
	w.t.Helper()
	for more := 0; more < maxMore && !worth(w.soFar()); more++ {
		w.mustDecide(200)
	}
	w.examined = true
	r := check.Examine(w.load.Stop(w.policies.revisions))
	w.say("%v", r)
	if err := r.Err(); err != nil {
		w.t.Error(err)
	}
	if !worth(r) {
		w.t.Errorf("the history shows too little to be worth anything: %v", r)
	}
	w.mustRun()
	return r
}

// soFar examines what there is, between the checks.
func (w *world) soFar() (r *check.Report) {
	w.t.Helper()
	must(w.t, w.load.Quiet(func() error {
		r = check.Examine(w.load.history(w.policies.revisions))
		return nil
	}))
	return r
}

// worth reports that a history shows enough.
func worth(r *check.Report) bool {
	return r.Admitted >= 100 && r.Denied >= 100 && r.Replayed >= 10 && r.Reached >= 20
}

// mustRun shows that no process has ended that was not killed.
func (w *world) mustRun() {
	w.t.Helper()
	for _, n := range w.Nodes {
		if n.Ended() {
			w.t.Fatalf("node %s has ended by itself; its log ends:\n%s", n.ID, n.Tail())
		}
	}
}

// mustRestart kills a random node that is up, and starts it again.
func (w *world) mustRestart() {
	w.t.Helper()
	var up []*Node
	for _, n := range w.Nodes {
		if n.Up() {
			up = append(up, n)
		}
	}
	n := up[w.rand.IntN(len(up))]
	w.say("kill -9 %s, and start it again", n.ID)
	must(w.t, n.Kill())
	must(w.t, n.Start())
}
