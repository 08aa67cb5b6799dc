package reference

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/quorate/quorate/fsm"
)

// A few hundred generated histories reach every outcome that a partition without bounds and frozen
// slots can have, and the rare ways to it; otherwise a property over them would show little.
func TestSessionsReachEveryOutcome(t *testing.T) {
	seen := map[string]int{}
	for seed := range 200 {
		s := rapid.Custom(NewSession).Example(seed)
		entries := rapid.Custom(func(t *rapid.T) int {
			for range 100 {
				e := s.Next(t)
				note(seen, e, s.Apply(e))
			}
			return 0
		})
		entries.Example(seed)
	}
	for _, what := range []string{
		"allowed", "quota_exhausted", "blocked", "endpoint_disabled", "invalid_argument",
		"cost_exceeds_limit", "decision_id_conflict", "policy_stale", "policy_behind", "wrong_epoch",
		"replayed allowed", "replayed quota_exhausted", "quota_exhausted without a record",
		"allowed under a carried limit", "carried limit denies", "group limit denies",
		"allowed with also", "quota_exhausted with also", "policy change",
		"usage forgiven", "no usage to forgive", "forgive refused",
	} {
		if seen[what] == 0 {
			t.Errorf("never seen: %s", what)
		}
		delete(seen, what)
	}
	if len(seen) != 0 {
		t.Errorf("seen beyond what is listed: %v", seen)
	}
}

func note(seen map[string]int, e *fsm.Entry, a fsm.Answers) {
	if e.Kind == fsm.KindInstall {
		seen["policy change"]++
	}
	switch f := a.Forgiven; {
	case f == nil:
	case f.Reason != fsm.ReasonAllowed:
		seen["forgive refused"]++
	case len(f.Amounts) == 0:
		seen["no usage to forgive"]++
	default:
		seen["usage forgiven"]++
	}
	for i, d := range a.Decisions {
		name := d.Reason.String()
		if d.Replayed {
			seen["replayed "+name]++
			continue
		}
		seen[name]++
		if d.Reason != fsm.ReasonQuotaExhausted && !d.Allowed() {
			continue
		}
		if !d.Recorded {
			seen[name+" without a record"]++
		}
		if len(e.Checks[i].Also) > 0 {
			seen[name+" with also"]++
		}
		denier := fsm.LimitState{}
		for _, l := range d.Limits {
			if d.Allowed() && l.Carried {
				seen["allowed under a carried limit"]++
			}
			if l.Name == d.Limit {
				denier = l
			}
		}
		if denier.Carried {
			seen["carried limit denies"]++
		}
		if d.Limit != "" && (d.Limit[0] == 'g' || d.Limit[0] == 'h') {
			seen["group limit denies"]++
		}
	}
}
