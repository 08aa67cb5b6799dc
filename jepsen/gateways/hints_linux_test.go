package gateways

import (
	"testing"
	"time"

	"github.com/quorate/quorate/jepsen/cluster"
	"github.com/quorate/quorate/jepsen/gateways/talk"
	"github.com/quorate/quorate/jepsen/history"
)

const (
	hotPrincipals = 20
	hotWindow     = 2 * time.Second
	// hotPerSecond has each of them ask well over a hundred times in a window, which has room for one.
	hotPerSecond = hotPrincipals * 60
	// minHinted is the share of the denials that are made from hints.
	minHinted = 0.95
	// minDenied is how many denials there are for each allow.
	minDenied = 100
)

func hotPolicy(version string, limit int64) history.Policy {
	hot := []history.Limit{{Name: "hot", Max: limit, Window: history.Window(hotWindow)}}
	return history.Policy{
		Version: version, Default: history.Class{Limits: hot},
		Classes: map[string]history.Class{"hot": {Limits: hot, Timeout: history.Window(time.Second)}},
	}
}

// TestHints shows that of a hundred denials for each allow over 95 % are made from hints, none of them after a check
// would have been allowed, nor, once a limit was raised, after the new revision has come; and that whoever comes back
// exactly when told is allowed each time.
func TestHints(t *testing.T) {
	w := mustWorld(t, cluster.Options{Partitions: 2, Policy: hotPolicy("v1", 1)}, 2)
	hammer, patient := w.gateways[0], w.gateways[1]
	must(t, hammer.Load(t.Context(), talk.Load{
		Seed: 1, Workers: 60, PerSecond: hotPerSecond, Prefix: "hot", Principals: hotPrincipals, Classes: []string{"hot"},
	}))
	must(t, patient.Load(t.Context(), talk.Load{
		Workers: 10, Prefix: "patient", Principals: 10, Classes: []string{"hot"}, Obey: true,
	}))
	w.run(15 * time.Second)
	changing := talk.Now()
	must(t, w.policies.Apply(within(t, 20*time.Second), hotPolicy("v2", 3)))
	w.say("the limit is raised")
	w.run(6 * time.Second)
	checks, stats := w.stop()
	w.mustHold(checks, stats)

	var allowed, denied, hinted float64
	var f faults
	for _, c := range between(checks[hammer.Name], 0, changing) {
		switch {
		case c.Failed:
			f.add("nothing is wrong, and a check fails: %+v", c)
		case c.Allowed:
			allowed++
		case c.Source == byHint:
			hinted++
			denied++
		default:
			denied++
		}
	}
	w.say("%.0f denied for %.0f allowed, %.2f %% of them from hints; in all %v", denied, allowed, 100*hinted/denied,
		outcomes(checks))
	if denied < minDenied*allowed || allowed == 0 || hinted <= minHinted*denied {
		t.Errorf("%.0f denied for %.0f allowed, %.0f of them from hints: want %d for each, %v from hints",
			denied, allowed, hinted, minDenied, minHinted)
	}
	if err := f.err(); err != nil {
		t.Error(err)
	}
	arrivals := hammer.Arrivals()
	if len(arrivals) != 2 {
		t.Errorf("the revisions came so: %v", arrivals)
	}
	if err := Hints(w.policies.Revisions(), checks[hammer.Name], arrivals); err != nil {
		t.Error(err)
	}
	w.mustComeBackInTime(checks[patient.Name])
}

// mustComeBackInTime judges those that come back when they are told.
func (w *world) mustComeBackInTime(all []talk.Check) {
	w.t.Helper()
	told := 0
	var f faults
	for _, c := range all {
		if c.Told == 0 {
			continue
		}
		told++
		if !c.Allowed {
			f.add("told to wait %v, and then denied: %+v", time.Duration(c.Told), c)
		}
	}
	if err := f.err(); err != nil {
		w.t.Error(err)
	}
	w.say("%d times a caller came back when told, and was allowed", told)
	if told < 50 {
		w.t.Errorf("only %d have come back when told", told)
	}
}
