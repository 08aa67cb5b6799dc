package check

import (
	"fmt"
	"time"

	"github.com/quorate/quorate/jepsen/history"
)

// admission is an allow, and between which instants it was decided.
type admission struct {
	check    *history.Check
	from, to time.Duration
	revision uint64
	class    string // in which it was counted when it was made
}

// admissionsOf are the check's; several only where its record has ended, or is lost, between them. An answer that is
// not a repetition was decided by its own attempt; a repetition tells of an attempt before.
func admissionsOf(c *history.Check) (out []admission) {
	for i := range c.Attempts {
		if a := &c.Attempts[i]; a.Answer.Allowed && !a.Answer.Replayed {
			out = append(out, admission{check: c, from: a.Sent, to: a.Received, revision: a.Answer.Revision})
		}
	}
	before := admission{check: c, from: c.First(), to: history.Never} // of which only repetitions tell
	for i := range c.Attempts {
		a := &c.Attempts[i]
		if !a.Answer.Allowed || !a.Answer.Replayed {
			continue
		}
		if len(out) == 1 && a.Received >= out[0].from {
			out[0].to = min(out[0].to, a.Received)
		} else if len(out) < 2 && a.Received < before.to {
			before.to, before.revision = a.Received, a.Answer.Revision
		}
	}
	if before.to != history.Never {
		out = append(out, before)
	}
	return out
}

// admissionOf is the check's, if it was allowed: one of them.
func admissionOf(c *history.Check) (admission, bool) {
	if of := admissionsOf(c); len(of) > 0 {
		return of[0], true
	}
	return admission{}, false
}

// item is a step of a proof.
func (a *admission) item() Item {
	node := ""
	for _, t := range a.check.Attempts {
		if t.Answer.Allowed && t.Received == a.to {
			node = t.Node
		}
	}
	return Item{
		Text: fmt.Sprintf("%s of %s, class %s, cost %d: admitted between %s and %s, answered by %s, revision %d",
			a.check.ID, a.check.Principal, a.check.Class, a.check.Cost, once(a.from), once(a.to), node, a.revision),
		ID: a.check.ID, Principal: a.check.Principal, Class: a.check.Class, Cost: a.check.Cost, Node: node,
		Revision: a.revision, From: a.from, To: a.to,
	}
}
