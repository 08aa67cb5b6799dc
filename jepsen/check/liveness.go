package check

import (
	"cmp"
	"slices"
	"time"

	"github.com/quorate/quorate/jepsen/history"
)

// decidedWithin is how long a workload may ask without a decision when nothing is wrong, or when nothing is wrong with
// a majority.
const decidedWithin = 10 * time.Second

// livePhases are the phases of a run in which checks have to be decided.
var livePhases = map[string]bool{"healed": true, "core": true}

// judgeLiveness checks that after the faults, and when only a core of the nodes lives, each workload gets decisions.
func judgeLiveness(r *run, o *outcome) error {
	by := map[string][]*history.Attempt{}
	for _, c := range r.History.Checks {
		for i := range c.Attempts {
			by[c.Workload] = append(by[c.Workload], &c.Attempts[i])
		}
	}
	for _, attempts := range by {
		slices.SortStableFunc(attempts, func(a, b *history.Attempt) int { return cmp.Compare(a.Sent, b.Sent) })
	}
	workloads := sortedKeys(by)
	for i := range r.Events {
		e := &r.Events[i]
		if e.Kind != "phase" || !livePhases[e.What] {
			continue
		}
		o.Counts["phases"]++
		phase := *e
		if phase.Until == 0 {
			phase.Until = r.nextPhase(i)
		}
		for _, name := range workloads {
			judgeLive(o, &phase, name, by[name])
		}
	}
	if o.Counts["phases"] == 0 {
		o.Skipped = "the run had no phase without faults"
	}
	return nil
}

// nextPhase is when the phase after an event begins.
func (r *run) nextPhase(i int) time.Duration {
	for _, e := range r.Events[i+1:] {
		if e.Kind == "phase" {
			return e.At
		}
	}
	return history.Never
}

// judgeLive looks for a time without decisions, while there were attempts at nodes that live. attempts are in the order
// of their sending.
func judgeLive(o *outcome, phase *history.Event, workload string, attempts []*history.Attempt) {
	const none = history.Never
	since, undecided, decided := none, 0, 0
	for _, a := range attempts {
		if a.Sent < phase.At || a.Sent >= phase.Until || slices.Contains(phase.Nodes, a.Node) {
			continue
		}
		if a.Answer.Decided() {
			since, undecided = none, 0
			decided++
			continue
		}
		since = min(since, a.Sent)
		if undecided++; a.Sent-since > decidedWithin {
			o.violated([]Item{{
				Text: "the first attempt without a decision, and the last", From: since, To: a.Sent,
			}}, "phase %s: workload %s got no decision from %s to %s, of %d attempts; the last answer was %q by %s", phase.What,
				workload, once(since), once(a.Sent), undecided, a.Answer.Reason, a.Node)
			return
		}
	}
	if decided > 0 {
		o.Counts["workloads_live"]++
	} else {
		o.Counts["workloads_idle"]++
	}
}
