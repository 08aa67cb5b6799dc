package check

import "github.com/quorate/quorate/jepsen/history"

// judgeDurability checks that what was answered as an allow is in the logs, as that.
func judgeDurability(r *run, o *outcome) error {
	for _, c := range r.History.Checks {
		for _, a := range admissionsOf(c) {
			o.Counts["allows"]++
			r.judgeDurable(o, a)
		}
	}
	return nil
}

// judgeDurable looks for one admission in the logs.
func (r *run) judgeDurable(o *outcome, a admission) {
	c := a.check
	var early *decision
	for _, d := range r.log.by[idName{c.Principal, c.Gateway, c.ID}] {
		if !d.allowed() || d.Class != c.Class || d.Cost != c.Cost || d.Revision != a.revision {
			continue
		}
		if a.from <= d.entry.hi {
			return
		}
		early = d
	}
	switch {
	case early != nil:
		o.violated([]Item{a.item(), early.item("")}, "%s of %s was admitted before it was asked for", c.ID, c.Principal)
	case r.log.lost(a):
		o.Counts["lines_lost"]++
	default:
		o.violated([]Item{a.item()}, "%s of %s, class %s, cost %d, was answered as allowed under revision %d, and no log "+
			"has that", c.ID, c.Principal, c.Class, c.Cost, a.revision)
	}
}

// lost reports whether the lines that told of an admission may have been lost with their writers.
func (l *log) lost(a admission) bool {
	for _, g := range l.sorted {
		for _, h := range g.holes {
			if a.from <= h.to && a.to >= h.from {
				return true
			}
		}
	}
	return false
}

// definite are the errors that say that nothing was consumed.
var definite = map[string]bool{
	"invalid_argument": true, "cost_exceeds_limit": true, "decision_id_conflict": true, "unauthenticated": true,
	"permission_denied": true, "policy_stale": true, "policy_behind": true, "wrong_epoch": true, "not_leader": true,
	"frozen": true, "overloaded": true, "capacity": true, "no_quorum": true, "policy_lease_expired": true,
}

// judgeDefinite checks that what was admitted has an attempt that was answered so, or whose fate was said to be
// unknown: no denial, and no error that says that nothing was consumed, was an admission.
func judgeDefinite(r *run, o *outcome) error {
	o.took(r.report, brokenAnswer)
	if r.log == nil {
		return nil
	}
	for _, of := range r.log.lineages() {
		for _, d := range of.decisions {
			if !d.allowed() || d.check == nil || d.check.Class != d.Class || d.check.Cost != d.Cost {
				continue
			}
			o.Counts["admissions"]++
			if told, ok := toldOtherwise(d); ok {
				o.violated([]Item{d.item("")}, "%s of %s was admitted, and each attempt at it was answered otherwise: %s by %s",
					d.ID, d.Principal, told.Answer.Reason, told.Node)
			}
		}
	}
	return nil
}

// toldOtherwise reports whether all attempts that can have led to an admission were told that there was none.
func toldOtherwise(d *decision) (told *history.Attempt, ok bool) {
	for i := range d.check.Attempts {
		a := &d.check.Attempts[i]
		if a.Sent > d.entry.hi {
			continue
		}
		if !denied[a.Answer.Reason] && !definite[a.Answer.Reason] {
			return nil, false
		}
		told = a
	}
	return told, told != nil
}
