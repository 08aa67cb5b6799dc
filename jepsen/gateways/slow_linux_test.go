package gateways

import (
	"testing"
	"time"

	"github.com/quorate/quorate/jepsen/cluster"
	"github.com/quorate/quorate/jepsen/gateways/talk"
	"github.com/quorate/quorate/jepsen/history"
)

const (
	slowBy  = 200 * time.Millisecond
	slowFor = 20 * time.Second
	// roomyTimeout is longer than the owner is slow, tightTimeout shorter.
	roomyTimeout = time.Second
	tightTimeout = 100 * time.Millisecond
	// maxAttempts is how often a check may be sent on average.
	maxAttempts = 1.1
	// moreGoroutines and moreHeapBytes are what a gateway may take in addition.
	moreGoroutines = 20
	moreHeapBytes  = 4 << 20
)

func slowPolicy() history.Policy {
	limit := func(name string) []history.Limit {
		return []history.Limit{{Name: name, Max: 1_000_000, Window: history.Window(time.Minute)}}
	}
	return history.Policy{
		Version: "v1",
		Default: history.Class{Limits: limit("default")},
		Classes: map[string]history.Class{
			"roomy": {Limits: limit("roomy"), OnUnavailable: "deny", Timeout: history.Window(roomyTimeout)},
			"tight": {Limits: limit("tight"), OnUnavailable: "deny", Timeout: history.Window(tightTimeout)},
		},
	}
}

// TestSlowOwner shows that an owner whose answers take 200 ms more costs a check no more than its class's timeout: where
// that is longer the owner still decides, where it is shorter the check ends in time; that hardly anything is sent twice;
// that goroutines and memory do not grow; that the node is not given up; and that all is as before afterwards.
func TestSlowOwner(t *testing.T) {
	w := mustWorld(t, cluster.Options{Partitions: 2, Policy: slowPolicy(), Cuts: true}, 1)
	g := w.gateways[0]
	w.load(talk.Load{Workers: 200, PerSecond: 300, Prefix: "p", Principals: 500, Classes: []string{"roomy", "tight"}})
	w.run(5 * time.Second)
	before, err := g.Stats(t.Context())
	must(t, err)
	slow, err := w.Leader(within(t, 10*time.Second), "p0")
	must(t, err)
	w.Network.Slow(&slow.Node, slowBy)
	begun := talk.Now()
	w.say("%s, which leads p0, is slow", slow.ID)
	var samples []*talk.Stats
	for range slowFor / time.Second {
		w.run(time.Second)
		s, err := g.Stats(t.Context())
		must(t, err)
		samples = append(samples, s)
	}
	w.Network.Slow(&slow.Node, 0)
	ended := talk.Now()
	w.run(5 * time.Second)
	checks, stats := w.stop()
	w.mustHold(checks, stats)

	last := samples[len(samples)-1]
	sends, retries := last.Sends-before.Sends, last.Retries-before.Retries
	attempts := float64(sends+retries) / float64(sends)
	w.say("before: %s", summary(before))
	w.say("after:  %s", summary(last))
	w.say("attempts per check: %.4f", attempts)
	if attempts >= maxAttempts || sends == 0 {
		t.Errorf("%.3f attempts per check, of %d checks, want less than %v", attempts, sends, maxAttempts)
	}
	goroutines, heap := 0, uint64(0)
	for _, s := range samples {
		goroutines, heap = max(goroutines, s.Goroutines), max(heap, s.HeapBytes)
	}
	w.say("goroutines: %d before, at most %d; heap: %d KiB before, at most %d KiB", before.Goroutines, goroutines,
		before.HeapBytes>>10, heap>>10)
	if goroutines > before.Goroutines+moreGoroutines || heap > before.HeapBytes+moreHeapBytes {
		t.Errorf("%d goroutines and %d bytes before, up to %d and %d while the owner is slow",
			before.Goroutines, before.HeapBytes, goroutines, heap)
	}
	if last.NodesGivenUp > before.NodesGivenUp {
		t.Errorf("a node that is slow is given up")
	}
	w.mustBeSlow(checks[g.Name], begun, ended)
}

// mustBeSlow judges the checks by when they were sent.
func (w *world) mustBeSlow(all []talk.Check, begun, ended int64) {
	w.t.Helper()
	w.mustBeInTime("slow", between(all, begun, ended))
	var f faults
	late, tight := 0, 0
	for _, c := range between(all, begun, ended) {
		took := time.Duration(c.Received - c.Sent)
		switch {
		case c.Class == "roomy" && (c.Failed || c.Source != byOwner):
			f.add("the owner is slow, and has time: %+v", c)
		case c.Class == "roomy" && took >= slowBy:
			late++
		case c.Class == "tight" && c.Failed:
			tight++
		}
	}
	w.say("%d checks were decided late, %d not in time", late, tight)
	if late < 500 || tight < 500 {
		w.t.Errorf("%d checks were decided late, %d not in time: too few to be worth anything", late, tight)
	}
	for _, c := range between(all, ended+int64(2*time.Second), talk.Now()) {
		if c.Failed || c.Source != byOwner {
			f.add("the owner is as quick as before: %+v", c)
		}
	}
	if err := f.err(); err != nil {
		w.t.Error(err)
	}
}
