package history

import "time"

// Only is the history with the attempts that keep says, and as it changes them.
func (h *History) Only(keep func(*Attempt) bool) *History {
	out := &History{Revisions: h.Revisions}
	for _, c := range h.Checks {
		kept := *c
		kept.Attempts = nil
		for _, a := range c.Attempts {
			if keep(&a) {
				kept.Attempts = append(kept.Attempts, a)
			}
		}
		if len(kept.Attempts) > 0 {
			out.Checks = append(out.Checks, &kept)
		}
	}
	return out
}

// Without is the history without what was decided from an instant on and before another, which is lost. What was
// asked for before saved, while the backup was made, may be in it or not.
func (h *History) Without(from, saved, until time.Duration) *History {
	return h.Only(func(a *Attempt) bool {
		if a.Received < from || a.Sent >= until {
			return true
		}
		a.Received, a.Answer = Never, Answer{}
		return a.Sent < saved
	})
}

// Until is the history up to an instant.
func (h *History) Until(end time.Duration) *History {
	return h.Only(func(a *Attempt) bool { return a.Sent < end })
}

// Bare is the history without what answers told of limits: after a loss they say that nothing is left, whatever was
// used.
func (h *History) Bare() *History {
	return h.Only(func(a *Attempt) bool {
		a.Answer.Limits = nil
		return true
	})
}
