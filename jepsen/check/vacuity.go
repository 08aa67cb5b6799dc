package check

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/quorate/quorate/jepsen/history"
)

// faultEvery is in how much time for each kind of fault that may be drawn one of each can be expected.
const faultEvery = 30 * time.Second

// disturbsLeaders are the kinds of faults after which there is another leader sooner or later.
var disturbsLeaders = map[string]bool{
	"kill": true, "power-cut": true, "cut-leader": true, "transfer": true, "rolling-restart": true,
}

// moves are the kinds of faults that begin a plan.
var moves = map[string]bool{"split": true, "merge": true, "move": true}

// judgeVacuity checks that there was something to see: allows, denials, full windows, leaders that changed, faults that
// took effect, plans that were done.
func judgeVacuity(r *run, o *outcome) error {
	drawn, injected := map[string]int64{}, map[string]int64{}
	plans := int64(0)
	for i := range r.Events {
		switch e := &r.Events[i]; {
		case e.Kind == "fault":
			drawn[e.What]++
			o.Counts["faults_drawn"]++
			if e.Injected {
				injected[e.What]++
				o.Counts["faults_injected"]++
			}
		case e.Kind == "plan" && e.What == "done":
			plans++
		}
	}
	for kind, n := range injected {
		o.Counts["fault:"+kind] = n
	}
	counts := history.Least{
		Allows: int64(r.report.Admitted), Denials: int64(r.report.Denied), Windows: int64(r.report.Reached),
		Faults: o.Counts["faults_injected"], Moves: max(plans, r.log.moved()), Leaders: r.leaderChanges(),
	}
	least := r.least(drawn)
	for _, c := range []struct {
		what        string
		were, least int64
	}{
		{"allows", counts.Allows, least.Allows}, {"denials", counts.Denials, least.Denials},
		{"full_windows", counts.Windows, least.Windows}, {"leader_changes", counts.Leaders, least.Leaders},
		{"moves", counts.Moves, least.Moves}, {"faults_injected", counts.Faults, least.Faults},
	} {
		o.Counts[c.what] = c.were
		if c.were < c.least {
			o.violated(nil, "the run shows too little: %d %s, at least %d are needed", c.were, c.what, c.least)
		}
	}
	expected := r.Config.Duration >= faultEvery*time.Duration(len(r.Config.Faults))
	for _, kind := range slices.Compact(slices.Sorted(slices.Values(r.Config.Faults))) {
		_, skipped := r.Config.Skipped[kind]
		switch {
		case skipped || injected[kind] > 0:
		case drawn[kind] > 0:
			o.violated(nil, "the run shows too little: %s was begun %d times, and was never seen to be in effect", kind,
				drawn[kind])
		case expected:
			o.violated(nil, "the run shows too little: %s was never begun", kind)
		default:
			o.Counts["kinds_not_drawn"]++
		}
	}
	return nil
}

// least is what the run has to show: what its configuration says, or what its duration lets one expect.
func (r *run) least(drawn map[string]int64) history.Least {
	if r.Config.Least != nil {
		return *r.Config.Least
	}
	seconds := int64(r.Config.Duration / time.Second)
	least := history.Least{Allows: max(1, seconds/2), Denials: max(1, seconds/5), Windows: max(1, seconds/10)}
	if len(r.Config.Faults) > 0 {
		least.Faults = 1
	}
	for kind := range drawn {
		if disturbsLeaders[kind] {
			least.Leaders = 1
		}
		if moves[kind] {
			least.Moves = 1
		}
	}
	return least
}

// moved is how many plans the logs say to have brought slots to their destination.
func (l *log) moved() (n int64) {
	if l == nil {
		return 0
	}
	for _, g := range l.sorted {
		for _, e := range g.entries {
			if e.kind == "activate" && e.refused == "" {
				n++
			}
		}
	}
	return n
}

// leaderChanges is how often a partition had another leader, by the logs' terms or by what was noted.
func (r *run) leaderChanges() (n int64) {
	if r.log != nil {
		for _, g := range r.log.sorted {
			for i, e := range g.entries {
				if i > 0 && e.term > g.entries[i-1].term {
					n++
				}
			}
		}
	}
	last, noted := map[string]uint64{}, int64(0)
	for i := range r.Events {
		if e := &r.Events[i]; e.Kind == "leader" {
			if was, ok := last[e.Group]; ok && e.Value > was {
				noted++
			}
			last[e.Group] = e.Value
		}
	}
	return max(n, noted)
}

// sortedKeys are the keys of a map in order.
func sortedKeys[K cmp.Ordered, V any](m map[K]V) []K { return slices.Sorted(maps.Keys(m)) }

// judgeSums checks that what answers say is left goes with what was admitted.
func judgeSums(r *run, o *outcome) error {
	o.Counts["compared"], o.Counts["exact"] = int64(r.report.Sums), int64(r.report.Exact)
	o.took(r.report, brokenRemaining, brokenSum)
	return nil
}
