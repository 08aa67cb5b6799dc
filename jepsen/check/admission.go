package check

import (
	"time"

	"github.com/quorate/quorate/jepsen/history"
)

// admission is an allow, and between which instants it was decided.
type admission struct {
	check    *history.Check
	from, to time.Duration
	revision uint64
}

// admissionOf is the check's, if it was allowed. An answer that is not a repetition was decided by its own attempt; a
// repetition tells of an attempt before.
func admissionOf(c *history.Check) (admission, bool) {
	out := admission{check: c, from: c.First(), to: history.Never}
	for _, a := range c.Attempts {
		if !a.Answer.Allowed {
			continue
		}
		out.to, out.revision = min(out.to, a.Received), a.Answer.Revision
		if !a.Answer.Replayed {
			out.from = max(out.from, a.Sent)
		}
	}
	return out, out.to != history.Never
}
