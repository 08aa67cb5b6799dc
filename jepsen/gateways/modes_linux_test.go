package gateways

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/quorate/quorate/jepsen/cluster"
	"github.com/quorate/quorate/jepsen/gateways/talk"
	"github.com/quorate/quorate/jepsen/history"
)

const (
	modesTimeout    = 200 * time.Millisecond
	modesPrincipals = 60
	modesLocal      = 2               // admitted locally in each modesWindow
	modesWindow     = 6 * time.Second // of the local limit
	// modesDown is for how long the cluster is stopped: longer than the local limit's window.
	modesDown = 10 * time.Second
	// endsWithin is how long failure modes may outlast the cluster's return.
	endsWithin = 2 * time.Second
)

func modesPolicy() history.Policy {
	limit := func(name string) []history.Limit {
		return []history.Limit{{Name: name, Max: 100_000, Window: history.Window(time.Minute)}}
	}
	timeout := history.Window(modesTimeout)
	return history.Policy{
		Version: "v1",
		Default: history.Class{Limits: limit("default")},
		Classes: map[string]history.Class{
			"strict": {Limits: limit("strict"), OnUnavailable: "deny", Timeout: timeout},
			"open":   {Limits: limit("open"), OnUnavailable: "allow", Timeout: timeout},
			"near": {Limits: limit("near"), OnUnavailable: "local", Timeout: timeout,
				LocalLimit: &history.LocalLimit{Max: modesLocal, Window: history.Window(modesWindow)}},
		},
	}
}

// outage is a way in which a whole cluster is away.
type outage struct{ stop, start func(*testing.T, *world) }

var outages = map[string]outage{
	"killed": {
		func(t *testing.T, w *world) {
			for _, n := range w.Nodes {
				must(t, n.SignalKill())
			}
			for _, n := range w.Nodes {
				must(t, n.Kill())
			}
		},
		func(t *testing.T, w *world) {
			for _, n := range w.Nodes {
				must(t, n.Start())
			}
		},
	},
	"stopped": {
		func(t *testing.T, w *world) {
			for _, n := range w.Nodes {
				must(t, n.Pause(within(t, 10*time.Second)))
			}
		},
		func(t *testing.T, w *world) {
			for _, n := range w.Nodes {
				must(t, n.Resume())
			}
		},
	},
}

// TestFailureModes shows what two gateways do while the whole cluster is away, killed or with its connections open and
// all of it standing still: a class that denies answers that it is unavailable, within its timeout; one that allows lets
// through, and counts it; one that is local admits its local limit in each window, no more and no less. Once the cluster
// is back, all of it has ended two seconds later.
func TestFailureModes(t *testing.T) {
	for name, o := range outages {
		t.Run(name, func(t *testing.T) { testFailureModes(t, o) })
	}
}

func testFailureModes(t *testing.T, o outage) {
	w := mustWorld(t, cluster.Options{Partitions: 2, Policy: modesPolicy()}, 2)
	probe, err := w.StartLoad(t.Context(), cluster.LoadOptions{Principals: 8, Timeout: 500 * time.Millisecond})
	must(t, err)
	defer probe.Stop(w.policies.Revisions())
	w.load(talk.Load{
		Workers: 60, PerSecond: 150, Prefix: "p", Principals: modesPrincipals, Classes: []string{"strict", "open", "near"},
	})
	w.run(3 * time.Second)
	going := talk.Now()
	o.stop(t, w)
	gone := talk.Now()
	w.say("the cluster is away")
	w.run(modesDown)
	starting := talk.Now()
	o.start(t, w)
	r := rand.New(rand.NewPCG(3, 4))
	for err = fmt.Errorf("not asked yet"); err != nil; err = probe.AskEach(t.Context(), "default", r, false) {
		if t.Context().Err() != nil || talk.Now()-starting > int64(time.Minute) {
			t.Fatalf("the cluster does not come back: %v", err)
		}
	}
	back := talk.Now()
	w.say("the cluster is back, %v after it was started", time.Duration(back-starting).Round(time.Millisecond))
	w.run(endsWithin + 4*time.Second)
	checks, stats := w.stop()
	w.mustHold(checks, stats)

	var last int64 // that was not decided by an owner
	for _, c := range flat(checks) {
		if c.Sent > gone && (c.Failed || c.Source != byOwner) {
			last = max(last, c.Sent)
		}
	}
	w.say("the last failure mode was applied %v after the return", time.Duration(last-back).Round(time.Millisecond))
	if last > back+int64(endsWithin) {
		t.Errorf("failure modes last until %v after the return", time.Duration(last-back))
	}
	for name, all := range checks {
		before, down := between(all, 0, going), between(all, gone, starting)
		w.say("%s: before %v, down %v", name, outcomes(map[string][]talk.Check{"": before}),
			outcomes(map[string][]talk.Check{"": down}))
		for _, c := range before[len(before)/2:] {
			if c.Received < going && (c.Failed || c.Source != byOwner) {
				t.Fatalf("%s: before: %+v", name, c)
			}
		}
		w.mustFail(name, all, down)
		w.mustBeInTime(name, down)
	}
}

// mustFail judges a gateway's checks while the cluster was down.
func (w *world) mustFail(name string, all, down []talk.Check) {
	w.t.Helper()
	admitted, err := LocalCaps(w.policies.Present(), all)
	if err != nil {
		w.t.Errorf("%s: %v", name, err)
	}
	var f faults
	asked := map[string]int{}
	for _, c := range down {
		asked[c.Class]++
		unavailable := c.Failed && c.Kind == "unavailable"
		right := map[string]bool{
			"strict": unavailable,
			"open":   !c.Failed && c.Source == byBypass,
			"near":   unavailable && c.WaitNanos > 0 || !c.Failed && c.Source == byLocal,
		}
		if !right[c.Class] {
			f.add("%s: while the cluster is away: %+v", name, c)
		}
	}
	if asked["strict"] < 100 || asked["open"] < 100 || asked["near"] < 100 {
		w.t.Errorf("%s: asked %v while the cluster was away: too little to be worth anything", name, asked)
	}
	for k := 2; k < modesPrincipals; k += 3 { // those that ask for class near
		if p := fmt.Sprint("p", k); admitted[p] < modesLocal {
			f.add("%s: %s was admitted %d times locally, want %d in each %v", name, p, admitted[p], modesLocal, modesWindow)
		}
	}
	if err := LocalRoom(w.policies.Present(), all, down); err != nil {
		f.add("%s: %w", name, err)
	}
	if err := f.err(); err != nil {
		w.t.Error(err)
	}
}
