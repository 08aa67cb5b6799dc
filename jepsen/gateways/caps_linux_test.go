package gateways

import (
	"fmt"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/quorate/quorate/jepsen/cluster"
	"github.com/quorate/quorate/jepsen/gateways/talk"
	"github.com/quorate/quorate/jepsen/history"
)

const (
	// capsPrincipals is how many callers there are.
	capsPrincipals = 10_000
	// capsDemand is how many times the caps are asked for at least.
	capsDemand = 3
	// capsWindow is that of most limits. Class strict has one that is longer than the test: whoever has used it up has
	// done so for good, and a denial while nobody has is as wrong as an allow too many.
	capsWindow   = 30 * time.Second
	strictWindow = time.Hour
	// killEvery is how often a leader is killed, and downFor how long it stays down.
	killEvery = 4 * time.Second
	downFor   = 700 * time.Millisecond
	// splitAt is after how many kills a partition is split.
	splitAt = 3
)

// capsPolicy has a class of each failure mode. Principal k asks for one of them.
func capsPolicy() history.Policy {
	limit := func(name string, most int64, window time.Duration) []history.Limit {
		return []history.Limit{{Name: name, Max: most, Window: history.Window(window)}}
	}
	// Class strict waits for the next leader, so that what was decided and not answered is asked for again.
	patient, timeout := history.Window(2500*time.Millisecond), history.Window(250*time.Millisecond)
	return history.Policy{
		Version: "v1",
		Default: history.Class{Limits: limit("default", 1, capsWindow)},
		Classes: map[string]history.Class{
			"strict": {Limits: limit("strict", 2, strictWindow), OnUnavailable: "deny", Timeout: patient},
			"open":   {Limits: limit("open", 1, capsWindow), OnUnavailable: "allow", Timeout: timeout},
			"near": {Limits: limit("near", 1, capsWindow), OnUnavailable: "local", Timeout: timeout,
				LocalLimit: &history.LocalLimit{Max: 1, Window: history.Window(2 * capsWindow)}},
		},
	}
}

// mustSeconds is a time that the environment may set.
func mustSeconds(t *testing.T, name string, without time.Duration) time.Duration {
	t.Helper()
	v := os.Getenv(name)
	if v == "" {
		return without
	}
	n, err := strconv.Atoi(v)
	if err != nil || n < 1 || n > 3600 {
		t.Fatalf("%s is %q: give seconds, 1 to 3600", name, v)
	}
	return time.Duration(n) * time.Second
}

// TestGatewaysKeepCaps shows that what four gateways are allowed by owners keeps every cap of ten thousand callers, who
// ask for three times as much, while leaders are killed every few seconds and a partition is split: whichever gateway
// asked whichever node, and however often it had to ask. What is let through without an owner is of a class that says
// so, and every counter says what happened.
func TestGatewaysKeepCaps(t *testing.T) {
	w := mustWorld(t, cluster.Options{Partitions: 2, Policy: capsPolicy(), Moves: true}, 4)
	w.load(talk.Load{
		Workers: 256, PerSecond: 440, Prefix: "p", Principals: capsPrincipals, Classes: []string{"strict", "open", "near"},
	})
	began := w.now()
	plan := w.mustKillLeaders(mustSeconds(t, "QUORATE_GATEWAYS_SECONDS", 45*time.Second))
	if plan == 0 {
		t.Fatal("no partition was split")
	}
	p, err := w.AwaitPlan(within(t, time.Minute), plan)
	must(t, err)
	w.say("the split has ended: %s", p.Phase)
	asked := w.now() - began
	checks, stats := w.stop()
	must(t, w.AwaitWhole(within(t, time.Minute), 3))

	all := flat(checks)
	demand := w.demand(all, asked)
	for class, times := range demand {
		w.say("class %s: %.1f times the caps were asked for", class, times)
		if times < capsDemand {
			t.Errorf("%.1f times the caps of class %s were asked for, want %d", times, class, capsDemand)
		}
	}
	r := w.mustHold(checks, stats)
	n := outcomes(checks)
	w.say("%d checks in %v: %v", len(all), asked.Round(time.Second), n)
	for name, s := range stats {
		w.say("%s: %s", name, summary(s))
	}
	w.mustBeInTime("all", all)
	if p.Phase != "done" {
		t.Errorf("the split is %s", p.Phase)
	}
	if r.Reached < capsPrincipals/2 || n[byBypass] == 0 || n[byLocal] == 0 || n[byHint] == 0 || n["quota_exhausted"] == 0 {
		t.Errorf("%d full windows, and %v: too little to be worth anything", r.Reached, n)
	}
}

// demand is how many times as much was asked for, in a time, as the callers of each class can be allowed.
func (w *world) demand(checks []talk.Check, asked time.Duration) map[string]float64 {
	sums := map[string]float64{}
	for _, c := range checks {
		sums[c.Class] += float64(c.Cost)
	}
	p := w.policies.Present()
	for class := range sums {
		l := p.Classes[class].Limits[0]
		windows := max(1, float64(asked)/float64(l.Window))
		sums[class] /= float64(capsPrincipals) / float64(len(p.Classes)) * float64(l.Max) * windows
	}
	return sums
}

// summary is a client's counters that are of no class.
func summary(s *talk.Stats) string {
	return fmt.Sprintf("sends %d, retries %d, withheld %d, frames %d, nodes given up %d, goroutines %d, heap %d KiB, skipped %d",
		s.Sends, s.Retries, s.RetriesWithheld, s.Frames, s.NodesGivenUp, s.Goroutines, s.HeapBytes>>10, s.Skipped)
}

// mustKillLeaders kills the leader of a partition every now and then and starts it again, for a while, and splits a
// partition meanwhile. It returns the number of the plan.
func (w *world) mustKillLeaders(d time.Duration) (plan uint64) {
	w.t.Helper()
	kills := 0
	for end := w.now() + d; w.now() < end || plan == 0 && kills < 30; kills++ {
		next := w.now() + killEvery
		partition := fmt.Sprint("p", w.rand.IntN(2))
		n, err := w.Leader(within(w.t, 20*time.Second), partition)
		must(w.t, err)
		w.say("kill -9 %s, which leads %s", n.ID, partition)
		w.killed = append(w.killed, w.begun+int64(w.now()))
		must(w.t, n.Kill())
		w.run(downFor)
		must(w.t, n.Start())
		if kills >= splitAt && plan == 0 {
			if plan, err = w.StartPlan(within(w.t, 20*time.Second), "split", "p0"); err != nil {
				w.say("not split yet: %v", err) // the leader of the control group may have been killed
			} else {
				w.say("p0 is split: plan %d", plan)
			}
		}
		w.run(next - w.now())
	}
	w.say("%d leaders were killed", kills)
	return plan
}
