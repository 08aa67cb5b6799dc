package trace

import (
	"encoding/json"
	"io"
	"time"

	"github.com/quorate/quorate/fsm"
)

const nanosPerMilli = 1_000_000

// Answer is one answer line. Nil fields are left out: what is given depends on the outcome.
type Answer struct {
	DecisionID string `json:"decision_id"`
	// Error is the reason of a check that was not decided; then nothing else is given.
	Error string `json:"error,omitempty"`
	// PolicyVersion, Replayed, Allowed and Reason are given for every decision.
	PolicyVersion *string `json:"policy_version,omitempty"`
	Replayed      *bool   `json:"replayed,omitempty"`
	Allowed       *bool   `json:"allowed,omitempty"`
	Reason        string  `json:"reason,omitempty"`
	// Limit, RetryAt and RetryAfterMs are given for quota_exhausted, Remaining also for allowed.
	Limit        *string `json:"limit,omitempty"`
	Remaining    *int64  `json:"remaining,omitempty"`
	RetryAt      string  `json:"retry_at,omitempty"`
	RetryAfterMs *int64  `json:"retry_after_ms,omitempty"`
}

// NewAnswer renders the decision on the check with the given id.
func NewAnswer(decisionID string, d *fsm.Decision) Answer {
	a := Answer{DecisionID: decisionID}
	allowed := d.Allowed()
	if !allowed && !d.Reason.Denied() {
		a.Error = d.Reason.String()
		return a
	}
	version, replayed := d.Version, d.Replayed
	a.PolicyVersion, a.Replayed, a.Allowed = &version, &replayed, &allowed
	a.Reason = d.Reason.String()
	if allowed || d.Reason == fsm.ReasonQuotaExhausted {
		remaining := d.Remaining
		a.Remaining = &remaining
	}
	if d.Reason == fsm.ReasonQuotaExhausted {
		limit, wait := d.Limit, RetryAfterMillis(d)
		a.Limit, a.RetryAfterMs = &limit, &wait
		a.RetryAt = FormatTime(d.RetryAt)
	}
	return a
}

// MalformedAnswer is the answer to a check that is malformed.
func MalformedAnswer(decisionID string) Answer {
	return Answer{DecisionID: decisionID, Error: fsm.ReasonInvalidArgument.String()}
}

// RetryAfterMillis is the wait from the answer to its deadline in milliseconds, rounded up and never
// below 0, for a clock that loses nothing against real time.
func RetryAfterMillis(d *fsm.Decision) int64 {
	wait := int64(d.RetryAt - d.AsOf)
	if wait <= 0 {
		return 0
	}
	return (wait-1)/nanosPerMilli + 1
}

// FormatTime renders nanoseconds since 1970 in RFC 3339, UTC, without trailing zeros.
func FormatTime(t fsm.Time) string {
	return time.Unix(0, int64(t)).UTC().Format(time.RFC3339Nano)
}

// Writer writes answers as JSON lines.
type Writer struct {
	to *json.Encoder
}

// NewWriter writes to w, unbuffered: one write per answer.
func NewWriter(w io.Writer) *Writer {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	return &Writer{to: e}
}

// Write writes one answer. The error is that of the underlying writer.
func (w *Writer) Write(a Answer) error { return w.to.Encode(a) }
