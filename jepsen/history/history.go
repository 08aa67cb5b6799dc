package history

import (
	"math"
	"slices"
	"time"
)

// Never is when an attempt was answered that was not.
const Never = time.Duration(math.MaxInt64)

// History is what was asked, what was answered, and which policies there were. Its instants count from its beginning,
// by a monotonic clock.
type History struct {
	Checks    []*Check
	Revisions []Revision // in order
	Peeks     []*Check   // questions of how much is used, which cost nothing; see Asked.Peek
}

// Check is one decision that was asked for.
type Check struct {
	ID        string
	Principal string
	Class     string
	Cost      int64
	Attempts  []Attempt // in no order; they may overlap
	Gateway   string    // who asked, where several identities do
	Workload  string
}

// Attempt is one sending of a check.
type Attempt struct {
	Client   string
	Node     string
	Sent     time.Duration
	Received time.Duration // never, without an answer
	Answer   Answer
}

// Answer is what a node said. The zero value is none.
type Answer struct {
	Allowed   bool          `json:"allowed"`
	Reason    string        `json:"reason"`
	Detail    string        `json:"detail"` // of an error
	Revision  uint64        `json:"policy_revision"`
	Version   string        `json:"policy_version"`
	Remaining int64         `json:"remaining"`
	Replayed  bool          `json:"replayed"`
	Recorded  bool          `json:"recorded"`
	Limits    []LimitAnswer `json:"limits"`
	// Limit names the limit that denied, and RetryAfterMS is for how long; of a denial, and 0 where nothing was told.
	Limit        string `json:"limit,omitempty"`
	RetryAfterMS int64  `json:"retry_after_ms,omitempty"`
}

// LimitAnswer is how a limit stands.
type LimitAnswer struct {
	Name      string `json:"name"`
	Limit     int64  `json:"limit"`
	Remaining int64  `json:"remaining"`
}

// Decided reports whether the answer is a decision, rather than an error or none.
func (a *Answer) Decided() bool {
	switch a.Reason {
	case "allowed", "quota_exhausted", "blocked", "endpoint_disabled":
		return true
	}
	return false
}

// Revision is a policy that was put in force.
type Revision struct {
	Number uint64        `json:"number"`
	Policy Policy        `json:"policy"`
	Began  time.Duration `json:"began_ns"` // before which it cannot have been in force
	// Active is when it was said that nobody decides under an older revision any more; never, when that was not said.
	Active time.Duration `json:"active_ns"`
}

// First is when a check was first sent.
func (c *Check) First() time.Duration {
	first := Never
	for _, a := range c.Attempts {
		first = min(first, a.Sent)
	}
	return first
}

// Allowed reports whether anybody was told that the check is allowed.
func (c *Check) Allowed() bool {
	return slices.ContainsFunc(c.Attempts, func(a Attempt) bool { return a.Answer.Allowed })
}
