package cluster

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/quorate/quorate/jepsen/check"
	"github.com/quorate/quorate/jepsen/history"
	"github.com/quorate/quorate/jepsen/process"
)

const (
	// failoverBound is what the 99th percentile of failoverKills failovers may take.
	failoverBound = 4 * time.Second
	failoverKills = 50
	// killWithin is what a kill may take on average, until all replicas follow again.
	killWithin = 12 * time.Second
	// allowWithin is when a failover is given up: no leader that can be elected takes as long.
	allowWithin = time.Minute

	failoverClass = "steady"
	// failoverTimeout bounds an attempt: a node holds a check for less, so that no failover is cut off.
	failoverTimeout = 6 * time.Second
	failoverHorizon = time.Minute
	// askedAgain is how old the allows are that are asked for again in the end. What is left of the horizon is for
	// the asking.
	askedAgain = 45 * time.Second
	// calmAllows are made between a replica's return and the next kill.
	calmAllows = 50
)

// BenchmarkFailover kills the leader of the only partition under load, again and again, and tells how long it takes
// from the kill until the first allow that was asked for after it. It fails when the 99th percentile of 50 kills is
// above four seconds, or when an allow that was answered does not count, or is answered otherwise when it is asked for
// again. QUORATE_BENCH_KILLS is how many kills; 50 without it. Below 50 the percentile is told and not judged.
func BenchmarkFailover(b *testing.B) {
	kills := failoverKills
	if v := os.Getenv("QUORATE_BENCH_KILLS"); v != "" {
		var err error
		if kills, err = strconv.Atoi(v); err != nil || kills < 1 || kills > 1000 {
			b.Fatalf("QUORATE_BENCH_KILLS is %q: give a number, 1 to 1000", v)
		}
	}
	c, load := failoverCluster(b)
	b.ResetTimer()
	takeovers, failed := killLeaders(b, c, load, b.N*kills)
	b.StopTimer()
	for _, p := range partsOf(takeovers) {
		b.Logf("%-38s %v", p.what, p.took)
	}
	judgeFailovers(b, c, load)
	if failed != nil {
		b.Fatalf("after %d kills: %v", len(takeovers), failed)
	}
	took := firstAllows(takeovers)
	b.ReportMetric(float64(took.at(50).Milliseconds()), "ms-p50")
	b.ReportMetric(float64(took.at(99).Milliseconds()), "ms-p99")
	b.ReportMetric(float64(took.at(100).Milliseconds()), "ms-max")
	switch {
	case len(took) < failoverKills:
		b.Logf("%d kills are too few to judge the 99th percentile by: it takes %d", len(took), failoverKills)
	case took.at(99) > failoverBound:
		b.Errorf("the 99th percentile of %d failovers is %v: the bound is %v", len(took), took.at(99), failoverBound)
	}
}

// failoverCluster is three nodes and one partition, and a load that reaches the cap of every tenth principal.
func failoverCluster(b *testing.B) (*Cluster, *Load) {
	b.Helper()
	binary, err := process.Program()
	must(b, err)
	room := []history.Limit{{Name: "brief", Max: 3, Window: history.Window(5 * time.Second)}, {Name: "all", Max: 1_000_000, Window: history.Window(24 * time.Hour)}}
	c, err := NewCluster(within(b, time.Minute), b.TempDir(), Options{
		Binary: binary, Nodes: 3, First: 3, Partitions: 1,
		Policy: history.Policy{Version: failoverClass, Default: history.Class{Limits: room}, Classes: map[string]history.Class{failoverClass: {
			Limits: room, Timeout: history.Window(failoverTimeout), ReplayHorizon: history.Window(failoverHorizon),
		}}},
	})
	must(b, err)
	b.Cleanup(func() {
		must(b, c.Close())
		mustKeepLogs(b, c)
	})
	seed, _ := mustSeed(b)
	load, err := c.StartLoad(b.Context(), LoadOptions{
		Seed: seed, Clients: 64, Principals: 1000, Hot: 100, Classes: []string{failoverClass},
		Pause: 160 * time.Millisecond, Timeout: failoverTimeout, Echo: 20,
	})
	must(b, err)
	b.Cleanup(func() { load.Stop(nil) })
	return c, load
}

// killLeaders kills the leader of p0 so many times, and starts it again each time. It returns what it has measured
// when it fails, too.
func killLeaders(b *testing.B, c *Cluster, load *Load, kills int) (takeovers []takeover, err error) {
	b.Helper()
	ctx := within(b, max(2*time.Minute, time.Duration(kills)*killWithin))
	for k := range kills {
		began := load.Now()
		if err := c.awaitCaughtUp(ctx); err != nil {
			return takeovers, err
		}
		calm := load.Now()
		if _, err := load.AwaitAnswers(ctx, calm, calmAllows, "an allow", newAllow); err != nil {
			return takeovers, err
		}
		from := load.Now()
		t, err := killLeader(ctx, c, load)
		if err != nil {
			return takeovers, err
		}
		takeovers = append(takeovers, t)
		b.Logf("kill %d at %.3f s: %v; before it the replicas followed again in %v, and %.0f allows a second were made",
			k+1, t.at.Seconds(), t, (calm - began).Round(time.Millisecond), calmAllows/(from-calm).Seconds())
	}
	return takeovers, c.awaitCaughtUp(ctx)
}

// killLeader kills the leader of p0, waits for the first allow, and starts the node again.
func killLeader(ctx context.Context, c *Cluster, load *Load) (t takeover, err error) {
	leader, err := c.Leader(ctx, "p0")
	if err != nil {
		return t, err
	}
	logs, err := c.marks()
	if err != nil {
		return t, err
	}
	killed, clock := load.Now(), time.Now()
	if err := leader.Kill(); err != nil {
		return t, err
	}
	// What was sent before the process had ended it may have decided itself.
	ended := load.Now()
	waiting, cancel := context.WithTimeout(ctx, allowWithin)
	defer cancel()
	at, err := load.AwaitAnswers(waiting, ended, 1, "an allow", newAllow)
	if err != nil {
		return t, err
	}
	t, err = c.takeoverOf("p0", leader.ID, logs, clock, at-killed)
	t.at = killed
	return t, errors.Join(err, leader.Start())
}

// newAllow reports whether an answer is an allow that was not decided before.
func newAllow(a *history.Answer) bool { return a.Allowed && !a.Replayed }

// awaitCaughtUp waits until each group has its three voters, and each of them has applied what its leader had.
func (c *Cluster) awaitCaughtUp(ctx context.Context) error {
	upTo := map[string]uint64{}
	var last error
	err := process.Await(ctx, "all replicas follow", func() bool {
		var s *Status
		if s, last = c.Status(ctx); last != nil {
			return false
		}
		for _, g := range s.groups() {
			last = errors.Join(last, g.behind(upTo))
		}
		return last == nil
	})
	for _, n := range c.Nodes {
		if n.Ended() {
			last = errors.Join(last, fmt.Errorf("node %s has ended by itself", n.ID))
		}
	}
	return errors.Join(err, last)
}

// behind is why not all three replicas of a group follow. upTo is how far its leader was when they first could.
func (g *GroupState) behind(upTo map[string]uint64) error {
	if err := g.wanting(3); err != nil {
		return err
	}
	if upTo[g.ID] == 0 {
		for _, r := range g.Replicas {
			upTo[g.ID] = max(upTo[g.ID], r.AppliedIndex)
		}
	}
	for _, r := range g.Replicas {
		if r.AppliedIndex < upTo[g.ID] || r.AppliedIndex == 0 {
			return fmt.Errorf("%s has applied up to %d on %s, and %d elsewhere", g.ID, r.AppliedIndex, r.Node, upTo[g.ID])
		}
	}
	return nil
}

// judgeFailovers shows that every allow that was answered counts: those of the last horizon are answered alike, and
// the room of each principal lacks them all, beside what Examine finds.
func judgeFailovers(b *testing.B, c *Cluster, load *Load) {
	b.Helper()
	ctx := within(b, 3*time.Minute)
	err := load.Quiet(func() error {
		n, err := askAgainFor(ctx, load)
		b.Logf("%d allows of the last %v were asked for again", n, askedAgain)
		// Whoever asks now is told what is left of a day's room.
		return errors.Join(err, load.AskEach(ctx, failoverClass, rand.New(rand.NewPCG(1, 1)), true))
	})
	if err != nil {
		b.Error(err) // what Examine finds is worth knowing all the same
	}
	r := check.Examine(load.Stop(NewPolicies(c, load.Now).Revisions()))
	b.Logf("%v", r)
	for _, w := range longestWaits(load.history(nil).Checks) {
		b.Logf("among the longest waits: %v", w)
	}
	if err := r.Err(); err != nil {
		b.Error(err)
	}
	if !worth(r) || r.Sums < r.Admitted {
		b.Errorf("the history shows too little to be worth anything: %v", r)
	}
	must(b, c.AwaitAgreement(ctx))
}

// askAgainFor asks for every allow of the last time once more, the oldest first, and fails unless each is answered
// from its record, as it was.
func askAgainFor(ctx context.Context, load *Load) (asked int, err error) {
	var due []*history.Check
	for _, check := range load.history(nil).Checks {
		if check.Allowed() && load.Now()-check.First() < askedAgain {
			due = append(due, check)
		}
	}
	if len(due) == 0 {
		return 0, errors.New("nothing was allowed in the last time")
	}
	var next atomic.Int64
	var clients sync.WaitGroup
	errs := make([]error, load.options.Clients)
	for k := range errs {
		r := rand.New(rand.NewPCG(load.options.Seed, uint64(1000+k)))
		clients.Go(func() {
			for errs[k] == nil && ctx.Err() == nil {
				i := int(next.Add(1)) - 1
				if i >= len(due) {
					return
				}
				errs[k] = askAgainForOne(ctx, load, due[i], r)
			}
		})
	}
	clients.Wait()
	return min(int(next.Load()), len(due)), errors.Join(errors.Join(errs...), ctx.Err())
}

func askAgainForOne(ctx context.Context, load *Load, check *history.Check, r *rand.Rand) error {
	var first history.Answer
	for _, a := range check.Attempts {
		if a.Answer.Allowed {
			first = a.Answer
		}
	}
	for load.Now()-check.First() < failoverHorizon-failoverTimeout {
		a := load.attempt(ctx, check, load.pick(r)).Answer
		switch {
		case !a.Decided():
			<-time.After(retryPause)
		case !a.Allowed, !a.Replayed, a.Revision != first.Revision, a.Remaining != first.Remaining:
			return fmt.Errorf("%s was allowed as %+v, and is answered %+v", check.ID, first, a)
		default:
			return nil
		}
	}
	return fmt.Errorf("%s could not be asked for again within its horizon: the machine is too slow for the load", check.ID)
}

// manyWaits is how many waits are told of.
const manyWaits = 5

// wait is a check that got a decision late.
type wait struct {
	check *history.Check
	took  time.Duration
}

func (w wait) String() string {
	out := fmt.Sprintf("%s, sent at %.3f s, decided after %v, by its attempts", w.check.ID, w.check.First().Seconds(),
		w.took.Round(time.Millisecond))
	for _, a := range w.check.Attempts {
		answered := "without an answer"
		if a.Received != history.Never {
			answered = fmt.Sprintf("%s after %v", a.Answer.Reason, (a.Received - a.Sent).Round(time.Millisecond))
		}
		out += fmt.Sprintf("; %.3f s at %s, %s", a.Sent.Seconds(), a.Node, answered)
	}
	return out
}

// longestWaits are the checks that waited longest for their decision.
func longestWaits(checks []*history.Check) []wait {
	var waits []wait
	for _, check := range checks {
		decided := history.Never
		for _, a := range check.Attempts {
			if a.Answer.Decided() {
				decided = min(decided, a.Received)
			}
		}
		if decided != history.Never {
			waits = append(waits, wait{check, decided - check.First()})
		}
	}
	slices.SortFunc(waits, func(a, b wait) int { return cmp.Compare(b.took, a.took) })
	return waits[:min(len(waits), manyWaits)]
}
