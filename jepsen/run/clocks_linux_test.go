package run

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/internal/reference"
	"github.com/quorate/quorate/jepsen/cluster"
	"github.com/quorate/quorate/jepsen/history"
	"github.com/quorate/quorate/jepsen/process"
	"github.com/quorate/quorate/jepsen/workload"
	"github.com/quorate/quorate/policy"
)

const (
	day = 24 * time.Hour
	// clockTurns are how often clocks and leaders change, checksPerTurn what is asked in between.
	clockTurns, checksPerTurn = 8, 60
	// strobeEvery is how often a clock that is not left alone is set.
	strobeEvery = 20 * time.Millisecond
)

// wallModes are what a wall clock can be made to do: its offset at an instant, from when it began to do so.
var wallModes = []struct {
	name   string
	offset func(since time.Duration, tick int) time.Duration
}{
	{"a day ahead", func(time.Duration, int) time.Duration { return day }},
	{"a day behind", func(time.Duration, int) time.Duration { return -day }},
	{"before 1970", func(time.Duration, int) time.Duration { return -100 * 365 * day }},
	{"strobing by a day", func(_ time.Duration, tick int) time.Duration { return day * time.Duration(tick%3-1) }},
	{"standing still", func(since time.Duration, _ int) time.Duration { return -since }},
}

// clockWorld is a cluster whose clocks can be set, and the model that tells what it has to decide.
type clockWorld struct {
	*cluster.Cluster
	t     *testing.T
	rand  *rand.Rand
	begun time.Time
	door  *workload.HTTP
	model *reference.Model
	asked []fsm.Check // that are recorded, lately
	when  []time.Time // they were asked
	ids   int
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func within(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

// hours is a policy with windows that no admission leaves while the test runs.
func hours() history.Policy {
	limits := func(n int64, w time.Duration) []history.Limit {
		return []history.Limit{{Name: "long", Max: n, Window: history.Window(w)}, {Name: "longer", Max: 2 * n, Window: history.Window(5 * w)}}
	}
	return history.Policy{
		Version: "hours", Default: history.Class{Limits: limits(9, time.Hour)},
		Classes: map[string]history.Class{"convert": {Limits: limits(12, 2*time.Hour)}, "export": {Limits: limits(7, 12*time.Hour)}},
		Groups: map[string]history.Group{"account": {
			Classes: []string{"convert", "export"}, Limits: []history.Limit{{Name: "account", Max: 15, Window: history.Window(day)}},
		}},
	}
}

func (w *clockWorld) clockFile(n *cluster.Node) string { return n.DataDir + ".clock" }

// set puts a node's clock file in place.
func (w *clockWorld) set(n *cluster.Node, wall, counting time.Duration) error {
	text, err := json.Marshal(map[string]int64{"wall_offset_ns": int64(wall), "mono_offset_ns": int64(counting)})
	if err != nil {
		return err
	}
	if err := os.WriteFile(w.clockFile(n)+".new", text, 0o600); err != nil {
		return err
	}
	return os.Rename(w.clockFile(n)+".new", w.clockFile(n))
}

func mustClockWorld(t *testing.T) *clockWorld {
	t.Helper()
	binary, err := process.ChaosProgram()
	must(t, err)
	t.Cleanup(process.RemoveProgram)
	seed := rand.Uint64N(1 << 32)
	t.Logf("seed %d", seed)
	p := hours()
	c, err := cluster.NewCluster(within(t, time.Minute), t.TempDir(), cluster.Options{
		Binary: binary, Nodes: 3, First: 3, Partitions: 2, Policy: p,
	})
	must(t, err)
	t.Cleanup(func() {
		if t.Failed() {
			for _, n := range c.Nodes {
				t.Logf("the log of %s ends:\n%s", n.ID, n.Tail())
			}
		}
		must(t, c.Close())
	})
	text, err := json.Marshal(p)
	must(t, err)
	parsed, err := policy.Parse("hours.json", text)
	must(t, err)
	config, err := c.GatewayTLS()
	must(t, err)
	w := &clockWorld{
		Cluster: c, t: t, rand: rand.New(rand.NewPCG(seed, 1)), begun: time.Now(), door: workload.NewHTTP(config, nil),
		model: reference.New(fsm.Birth{Install: fsm.NewInstall(1, parsed)}, 1),
	}
	t.Cleanup(w.door.Close)
	for _, n := range c.Nodes { // one after another, each with a clock of its own
		n.Environment = append(n.Environment, "QUORATE_CLOCK="+w.clockFile(n))
		must(t, n.Kill())
		must(t, n.Start())
		must(t, c.AwaitWhole(within(t, time.Minute), 3))
	}
	return w
}

// draw is the next of the sequence: something new, or something recorded within the last seconds once more.
func (w *clockWorld) draw() fsm.Check {
	if len(w.asked) > 0 && w.rand.IntN(5) == 0 {
		if k := w.rand.IntN(len(w.asked)); time.Since(w.when[k]) < 10*time.Second {
			return w.asked[k]
		}
	}
	w.ids++
	return fsm.Check{
		Principal: fmt.Sprint("u", w.rand.IntN(14)), Gateway: identity, DecisionID: fmt.Sprint("d", w.ids),
		Charge: fsm.Charge{
			Class: []string{"convert", "export", "other"}[w.rand.IntN(3)], Cost: 1 + w.rand.Int64N(3),
		},
	}
}

// mustDecide has the cluster decide one check, with the same id at one node after another until one has.
func (w *clockWorld) mustDecide(k fsm.Check) (a history.Answer) {
	w.t.Helper()
	ctx := within(w.t, time.Minute)
	for attempt := 1; ; attempt++ {
		n := w.Nodes[w.rand.IntN(len(w.Nodes))]
		asking, cancel := context.WithTimeout(ctx, 2*time.Second)
		answer, err := w.door.Ask(asking, &workload.Node{ID: n.ID, HTTP: n.HTTP}, &workload.Check{
			ID: k.DecisionID, Principal: k.Principal, Class: k.Class, Cost: k.Cost, Attempt: uint32(attempt),
		})
		cancel()
		if err == nil && answer.Decided() {
			return answer
		}
		if ctx.Err() != nil {
			w.t.Fatalf("%+v is not decided: %+v, %v", k, answer, err)
		}
	}
}

// compare has the cluster and the model decide the next check, and tells how they differ.
func (w *clockWorld) compare(k fsm.Check) (allowed bool, err error) {
	w.t.Helper()
	got := w.mustDecide(k)
	want := w.model.Check(fsm.Time(time.Since(w.begun)), k)
	if got.Recorded {
		w.asked, w.when = append(w.asked, k), append(w.when, time.Now())
	}
	if got.Allowed != want.Allowed() || got.Reason != want.Reason.String() || got.Limit != want.Limit ||
		got.Remaining != want.Remaining {
		err = fmt.Errorf("%+v: decided %+v, want %v, limit %q, %d remaining", k, got, want.Reason, want.Limit, want.Remaining)
	}
	if wait := time.Duration(got.RetryAfterMS) * time.Millisecond; wait > 61*time.Hour {
		err = fmt.Errorf("%+v: it is to come back in %v", k, wait)
	}
	return got.Allowed, err
}

// disturb sets the nodes' wall clocks over and over as their modes say, until stop is called.
func (w *clockWorld) disturb(modes map[*cluster.Node]int) (stop func()) {
	end := make(chan struct{})
	var running sync.WaitGroup
	running.Go(func() {
		begun, ticks := time.Now(), time.NewTicker(strobeEvery)
		defer ticks.Stop()
		for tick := 0; ; tick++ {
			for n, m := range modes {
				if err := w.set(n, wallModes[m].offset(time.Since(begun), tick), 0); err != nil {
					w.t.Error(err)
				}
			}
			select {
			case <-ticks.C:
			case <-end:
				return
			}
		}
	})
	return sync.OnceFunc(func() { close(end); running.Wait() })
}

// mustChangeLeaders has the partitions led by a node whose clock is wrong, or kills who leads, or all.
func (w *clockWorld) mustChangeLeaders(turn int) {
	w.t.Helper()
	ctx := within(w.t, time.Minute)
	switch {
	case turn == clockTurns/2:
		w.t.Log("kill -9 all")
		for _, n := range w.Nodes {
			must(w.t, n.Kill())
		}
		for _, n := range w.Nodes {
			must(w.t, n.Start())
		}
	case turn%2 == 0:
		to := w.Nodes[turn/2%len(w.Nodes)]
		w.t.Logf("%s is to lead", to.ID)
		for _, p := range []string{"p0", "p1"} {
			// One that leads already, or is not caught up, refuses: then nothing changes.
			_, _ = w.Command(ctx, "partition", "transfer-leader", p, to.ID)
		}
	default:
		n, err := w.Leader(ctx, fmt.Sprint("p", turn/2%2))
		must(w.t, err)
		w.t.Logf("kill -9 %s, which leads", n.ID)
		must(w.t, n.Kill())
		must(w.t, n.Start())
	}
}

// TestClocksChangeNothing asks a cluster one sequence of checks with windows of hours, while its wall clocks jump by a
// day, go before 1970, strobe and stand still, and leadership goes to nodes whose clocks are wrong. It shows that each
// decision is the one that the naive model makes, with the same limit and the same room; and, by putting the clocks
// ahead that count, that the comparison notices when time does matter.
func TestClocksChangeNothing(t *testing.T) {
	w := mustClockWorld(t)
	allowed, denied := 0, 0
	count := func(is bool) {
		if is {
			allowed++
		} else {
			denied++
		}
	}
	for turn := range clockTurns {
		modes := map[*cluster.Node]int{}
		for i, n := range w.Nodes {
			modes[n] = (turn + i + w.rand.IntN(2)) % len(wallModes)
			t.Logf("the wall clock of %s: %s", n.ID, wallModes[modes[n]].name)
		}
		stop := w.disturb(modes)
		t.Cleanup(stop)
		w.mustChangeLeaders(turn)
		for range checksPerTurn {
			is, err := w.compare(w.draw())
			if err != nil {
				t.Fatal(err)
			}
			count(is)
		}
		stop()
	}
	t.Logf("%d allowed, %d denied, each as the model has it", allowed, denied)
	if allowed < 100 || denied < 100 {
		t.Error("that is too little to show anything")
	}
	for _, n := range w.Nodes {
		if text, err := os.ReadFile(n.Log); err != nil || !bytes.Contains(text, []byte("the clocks are disturbed")) {
			t.Errorf("the clocks of %s were not disturbed: %v", n.ID, err)
		}
		must(t, w.set(n, 0, 3*day))
	}
	must(t, process.Await(within(t, time.Minute), "a decision differs", func() bool {
		_, err := w.compare(w.draw())
		return err != nil
	}))
}
