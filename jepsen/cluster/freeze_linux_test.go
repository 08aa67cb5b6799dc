package cluster

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/quorate/quorate/jepsen/history"
	"github.com/quorate/quorate/jepsen/process"
)

const (
	// frozenKeys are in the range that moves.
	frozenKeys = 100_000
	// freezeRounds is how often the range moves there and back.
	freezeRounds = 3
	// stayingSlots are those that do not move, so that the source lives on.
	stayingSlots = 164
	// gatewayConns are open to each node at most.
	gatewayConns = 64
	// askAgain is between two attempts at a check.
	askAgain = 5 * time.Millisecond
	// freezeLimit and freezeSlow are what a move may take.
	freezeLimit = 500 * time.Millisecond
	freezeSlow  = time.Second
)

// moveMeter asks for decisions at a steady rate and notes how long each took.
type moveMeter struct {
	load *Load
	rate int // a second
	keys int

	mu    sync.Mutex // guards the fields below
	taken []taken
	wrong map[string]int // attempts without a decision, by reason
}

// taken is one decision: when it was due, and when it came.
type taken struct{ due, came time.Duration }

// run asks until ctx ends, and then waits for what is under way. A check that is not decided is repeated until it is;
// when it is due counts, not when somebody found the time to send it.
func (m *moveMeter) run(ctx context.Context) {
	var under sync.WaitGroup
	defer under.Wait()
	begun, tick := m.load.Now(), time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for sent := 0; ; {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		for ; sent < int((m.load.Now()-begun).Seconds()*float64(m.rate)); sent++ {
			due := begun + time.Duration(float64(sent)/float64(m.rate)*float64(time.Second))
			k := sent
			under.Go(func() { m.ask(context.WithoutCancel(ctx), due, k) })
		}
	}
}

// ask has one check decided, asking again as a gateway does that is told to.
func (m *moveMeter) ask(ctx context.Context, due time.Duration, k int) {
	check := &history.Check{ID: fmt.Sprint("m", due, "-", k), Principal: fmt.Sprint("k", (k*7919)%m.keys), Class: "bulk", Cost: 1}
	for turn := k; m.load.Now()-due < time.Minute; turn++ {
		answer, err := m.load.ask(ctx, check, m.load.nodes[turn%len(m.load.nodes)])
		m.mu.Lock()
		if err == nil && answer.Decided() {
			m.taken = append(m.taken, taken{due, m.load.Now()})
			m.mu.Unlock()
			return
		}
		if err != nil {
			answer.Reason = errors.Unwrap(err).Error()
		}
		m.wrong[answer.Reason]++
		m.mu.Unlock()
		<-time.After(askAgain)
	}
}

// report tells of the decisions that were due in a time.
func (m *moveMeter) report(from, to time.Duration) freezeReport {
	m.mu.Lock()
	defer m.mu.Unlock()
	var r freezeReport
	var took, came []time.Duration
	for _, t := range m.taken {
		if from <= t.due && t.due < to {
			took, came = append(took, t.came-t.due), append(came, t.came)
		}
	}
	slices.Sort(took)
	slices.Sort(came)
	for i := 1; i < len(came); i++ {
		r.gap = max(r.gap, came[i]-came[i-1])
	}
	slow, _ := slices.BinarySearchFunc(took, freezeSlow, func(a, b time.Duration) int { return cmp.Compare(a, b) })
	r.n = len(took)
	if r.n > 0 {
		r.slow = float64(r.n-slow) / float64(r.n)
		r.p50, r.p99, r.most = took[r.n/2], took[r.n*99/100], took[r.n-1]
	}
	return r
}

type freezeReport struct {
	n                   int
	frozen              time.Duration // as the driver saw it
	gap, p50, p99, most time.Duration
	slow                float64 // the share that took longer than freezeSlow
}

func (r freezeReport) String() string {
	return fmt.Sprintf("%d checks, p50 %v, p99 %v, longest %v, %.3f %% over %v, longest time without a decision %v",
		r.n, r.p50.Round(10*time.Microsecond), r.p99.Round(10*time.Microsecond), r.most.Round(time.Millisecond),
		100*r.slow, freezeSlow, r.gap.Round(time.Millisecond))
}

// BenchmarkFreeze moves a range of 100,000 keys away and back under a steady load, and tells for how long the slots were
// frozen, for how long no check was decided, and how many took longer than a second. It fails above half a second, or one per cent. QUORATE_BENCH_RATE is the load's rate a second; 1,000 without it.
func BenchmarkFreeze(b *testing.B) {
	rate := 1000
	if v := os.Getenv("QUORATE_BENCH_RATE"); v != "" {
		var err error
		if rate, err = strconv.Atoi(v); err != nil || rate < 1 {
			b.Fatalf("QUORATE_BENCH_RATE is %q: give a number", v)
		}
	}
	ctx, cancel := context.WithTimeout(b.Context(), 20*time.Minute)
	defer cancel()
	c, load := freezeCluster(ctx, b)
	keys := frozenKeys * numSlots / (numSlots - stayingSlots)
	begun := time.Now()
	fillKeys(ctx, b, load, keys)
	b.Logf("%d keys made in %v", keys, time.Since(begun).Round(time.Second))
	m := &moveMeter{load: load, rate: rate, keys: keys, wrong: map[string]int{}}
	measuring, stop := context.WithCancel(ctx)
	var meter sync.WaitGroup
	meter.Go(func() { m.run(measuring) })
	defer meter.Wait()
	defer stop()
	calm := load.Now()
	must(b, process.Await(ctx, "a calm time passes", func() bool { return load.Now()-calm > 5*time.Second }))
	b.Logf("without a move: %v", m.report(calm, load.Now()))
	var worst freezeReport
	b.ResetTimer()
	for range b.N * freezeRounds {
		for _, args := range [][]string{{"split", "p0", "--at", fmt.Sprint(stayingSlots)}, {"merge", "", "p0"}} {
			r := measureMove(ctx, b, c, m, args)
			worst.gap, worst.slow, worst.most = max(worst.gap, r.gap), max(worst.slow, r.slow), max(worst.most, r.most)
			worst.frozen = max(worst.frozen, r.frozen)
		}
	}
	b.StopTimer()
	calm = load.Now()
	must(b, process.Await(ctx, "a calm time passes", func() bool { return load.Now()-calm > 5*time.Second }))
	b.Logf("without a move, afterwards: %v", m.report(calm, load.Now()))
	b.ReportMetric(float64(worst.frozen.Milliseconds()), "ms-frozen")
	b.ReportMetric(float64(worst.gap.Milliseconds()), "ms-silent")
	b.ReportMetric(float64(worst.most.Milliseconds()), "ms-longest")
	b.ReportMetric(100*worst.slow, "%-over-1s")
	if worst.frozen > freezeLimit || worst.slow > 0.01 {
		b.Errorf("frozen for %v, and %.2f %% of the checks took over %v: the bounds are %v and 1 %%", worst.frozen,
			100*worst.slow, freezeSlow, freezeLimit)
	}
}

// measureMove runs one plan under the load. In args an empty word is the partition that is not p0.
func measureMove(ctx context.Context, b *testing.B, c *Cluster, m *moveMeter, args []string) freezeReport {
	b.Helper()
	s, err := c.Status(ctx)
	must(b, err)
	for _, g := range s.Partitions {
		if g.ID != "p0" && args[1] == "" {
			args[1] = g.ID
		}
	}
	from := m.load.Now()
	id, err := c.StartPlan(ctx, args...)
	must(b, err)
	plan, err := c.AwaitPlan(ctx, id)
	must(b, err)
	if plan.Phase != planDone {
		b.Fatalf("%v has ended as %+v", args, plan)
	}
	to := m.load.Now()
	must(b, process.Await(ctx, "what was due is decided", func() bool { return m.load.Now()-to > 2*time.Second }))
	r := m.report(from, to)
	r.frozen, err = c.frozenFor(id)
	must(b, err)
	m.mu.Lock()
	defer m.mu.Unlock()
	b.Logf("%v in %v, frozen for %v at most: %v; attempts without a decision %v",
		args, (to - from).Round(time.Millisecond), r.frozen.Round(time.Millisecond), r, m.wrong)
	clear(m.wrong)
	return r
}

// stepMade is what a driver logs of the steps between which slots are frozen: when it was made, and how long that took.
var stepMade = regexp.MustCompile(
	`(?m)^time=(\S+) .*msg="a step of a plan was made" .*plan=(\d+) step=(freeze|activate) .*took=(\S+)`)

// frozenFor is how long a plan's slots were frozen at most: from before the freeze was asked for until the activation
// was answered.
func (c *Cluster) frozenFor(plan uint64) (time.Duration, error) {
	var begun, ended time.Time
	for _, n := range c.Nodes {
		text, err := os.ReadFile(n.Log)
		if err != nil {
			return 0, err
		}
		for _, found := range stepMade.FindAllStringSubmatch(string(text), -1) {
			at, err := time.Parse(time.RFC3339Nano, found[1])
			took, bad := time.ParseDuration(found[4])
			if err := errors.Join(err, bad); err != nil {
				return 0, err
			}
			switch {
			case found[2] != fmt.Sprint(plan):
			case found[3] == "freeze":
				begun = at.Add(-took)
			default:
				ended = at
			}
		}
	}
	if begun.IsZero() || ended.IsZero() {
		return 0, fmt.Errorf("the logs do not tell when plan %d froze and activated", plan)
	}
	return ended.Sub(begun), nil
}

// freezeCluster is three nodes and one partition, and a load that asks for nothing by itself.
func freezeCluster(ctx context.Context, b *testing.B) (*Cluster, *Load) {
	b.Helper()
	binary, err := process.Program()
	must(b, err)
	room := []history.Limit{{Name: "bulk", Max: 1000, Window: history.Window(24 * time.Hour)}}
	c, err := NewCluster(ctx, b.TempDir(), Options{
		Binary: binary, Nodes: 3, First: 3, Partitions: 1, Moves: true,
		Policy: history.Policy{Version: "bulk", Default: history.Class{Limits: room}, Classes: map[string]history.Class{"bulk": {Limits: room}}},
	})
	must(b, err)
	b.Cleanup(func() { must(b, c.Close()) })
	load, err := c.StartLoad(ctx, LoadOptions{Timeout: 20 * time.Second}) // else what waits here would be sent again and again
	must(b, err)
	t := load.http.Transport.(*http.Transport)
	t.MaxIdleConnsPerHost, t.MaxConnsPerHost = gatewayConns, gatewayConns // more checks than that wait, which counts
	b.Cleanup(func() { load.Stop(nil) })
	return c, load
}

// fillKeys has each principal admitted once.
func fillKeys(ctx context.Context, b *testing.B, load *Load, keys int) {
	b.Helper()
	var next atomic.Int64
	var clients sync.WaitGroup
	for range 64 {
		clients.Go(func() {
			for k := int(next.Add(1)) - 1; k < keys && ctx.Err() == nil; k = int(next.Add(1)) - 1 {
				check := &history.Check{ID: fmt.Sprint("f", k), Principal: fmt.Sprint("k", k), Class: "bulk", Cost: 1}
				for turn := k; ctx.Err() == nil; turn++ {
					answer, err := load.ask(ctx, check, load.nodes[turn%len(load.nodes)])
					if err == nil && answer.Allowed {
						break
					}
				}
			}
		})
	}
	clients.Wait()
	must(b, ctx.Err())
}
