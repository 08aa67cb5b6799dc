package rpc

import (
	"encoding/json"
	"math"
	"net/http"
	"strconv"
	"time"

	"github.com/quorate/quorate/internal/errtable"
	"github.com/quorate/quorate/internal/httpanswer"
	quoratev1 "github.com/quorate/quorate/proto/quorate/v1"
	"github.com/quorate/quorate/quotaerr"
)

// jsonDecision is a decision as JSON. retry_at and retry_after_ms are absent where no time is known.
type jsonDecision struct {
	Allowed        bool        `json:"allowed"`
	Outcome        string      `json:"outcome"`
	Reason         string      `json:"reason"`
	Limit          string      `json:"limit,omitempty"`
	Remaining      int64       `json:"remaining"`
	RetryAt        string      `json:"retry_at,omitempty"`
	RetryAfterMs   *int64      `json:"retry_after_ms,omitempty"`
	PolicyVersion  string      `json:"policy_version"`
	PolicyRevision uint64      `json:"policy_revision"`
	DecisionID     string      `json:"decision_id"`
	Replayed       bool        `json:"replayed"`
	Recorded       bool        `json:"recorded"`
	Limits         []jsonLimit `json:"limits"`
}

type jsonLimit struct {
	Name      string `json:"name"`
	Limit     int64  `json:"limit"`
	Window    string `json:"window"` // seconds with an s, as "60s" or "0.5s"
	Remaining int64  `json:"remaining"`
	ResetMs   int64  `json:"reset_ms"`
}

type jsonDenial struct {
	httpanswer.Problem
	ViolatedPolicies []string `json:"violated-policies,omitempty"`
	jsonDecision
}

type jsonError struct {
	httpanswer.Problem
	Allowed bool   `json:"allowed"` // always false
	Reason  string `json:"reason"`
	Leader  string `json:"leader,omitempty"`
	Epoch   uint64 `json:"epoch,omitempty"`
}

// MarshalDecision writes d as JSON in the fields of the HTTP API: 64-bit integers as numbers, and
// allowed, true for a plain allow only, beside outcome.
func MarshalDecision(d *quoratev1.Decision) ([]byte, error) { return json.Marshal(jsonOf(d)) }

// Allowed reports whether d is an allow: by its outcome and by its reason. An answer in which the two
// differ is none.
func Allowed(d *quoratev1.Decision) bool {
	return d.GetOutcome() == quoratev1.Outcome_OUTCOME_ALLOWED && d.GetReason() == string(quotaerr.Allowed)
}

func jsonOf(d *quoratev1.Decision) jsonDecision {
	out := jsonDecision{
		Allowed: Allowed(d), Outcome: outcomeName(d),
		Reason: d.GetReason(), Limit: d.GetLimit(), Remaining: d.GetRemaining(),
		PolicyVersion: d.GetPolicyVersion(), PolicyRevision: d.GetPolicyRevision(),
		DecisionID: d.GetDecisionId(), Replayed: d.GetReplayed(), Recorded: d.GetRecorded(),
		Limits: make([]jsonLimit, 0, len(d.GetLimits())),
	}
	if at := d.GetRetryAt(); at != nil {
		out.RetryAt = at.AsTime().UTC().Format(time.RFC3339Nano)
		ms := max(0, d.GetRetryAfterMs())
		out.RetryAfterMs = &ms
	}
	for _, l := range d.GetLimits() {
		out.Limits = append(out.Limits, jsonLimit{
			Name: l.GetName(), Limit: l.GetLimit(), Window: seconds(l.GetWindow().AsDuration()),
			Remaining: l.GetRemaining(), ResetMs: l.GetResetMs(),
		})
	}
	return out
}

// seconds writes a duration as its decimal seconds, exactly.
func seconds(d time.Duration) string {
	s := strconv.FormatInt(int64(d/time.Second), 10)
	if frac := int64(d % time.Second); frac != 0 {
		digits := strconv.FormatInt(int64(time.Second)+frac, 10)[1:]
		for digits[len(digits)-1] == '0' {
			digits = digits[:len(digits)-1]
		}
		s += "." + digits
	}
	return s + "s"
}

// writeDecision answers with d. What is neither a plain allow nor a plain denial is an internal error.
func (h *httpAPI) writeDecision(w http.ResponseWriter, d *quoratev1.Decision) {
	if err := soundDecision(d); err != nil {
		h.writeError(w, err)
		return
	}
	row := errtable.Lookup(quotaerr.Reason(d.GetReason()))
	httpanswer.SetRateLimit(w.Header(), d, h.legacyHeaders)
	if row.Reason == quotaerr.Allowed {
		httpanswer.WriteJSON(w, row.HTTP, jsonOf(d))
		return
	}
	body := jsonDenial{Problem: httpanswer.NewProblem(row.HTTP), jsonDecision: jsonOf(d)}
	switch row.Reason {
	case quotaerr.QuotaExhausted:
		body.Problem = httpanswer.QuotaExceeded(row.HTTP)
		body.ViolatedPolicies = []string{d.GetLimit()}
		httpanswer.SetRetryAfter(w.Header(), wait(d))
	case quotaerr.EndpointDisabled:
		body.Detail = "this endpoint is switched off"
		httpanswer.SetRetryAfter(w.Header(), row.Wait)
	case quotaerr.Blocked:
		body.Detail = "this caller may not use this endpoint"
	}
	httpanswer.WriteProblem(w, row.HTTP, body)
}

// writeError answers with what err's row says.
func (h *httpAPI) writeError(w http.ResponseWriter, err error) {
	e := quotaerr.As(err)
	row := errtable.Lookup(e.Reason)
	body := jsonError{
		Problem: httpanswer.NewProblem(row.HTTP), Reason: string(e.Reason), Leader: e.Leader, Epoch: e.Epoch,
	}
	if e.Reason == quotaerr.Overloaded || e.Reason == quotaerr.Capacity {
		body.Problem = httpanswer.ReducedCapacity(row.HTTP)
	}
	body.Detail = errtable.PublicMessage(e)
	if row.HTTP == http.StatusServiceUnavailable {
		httpanswer.SetRetryAfter(w.Header(), errtable.Wait(e))
	}
	httpanswer.WriteProblem(w, row.HTTP, body)
}

// wait is a denial's wait.
func wait(d *quoratev1.Decision) time.Duration {
	const most = int64(math.MaxInt64 / time.Millisecond)
	return time.Duration(min(d.GetRetryAfterMs(), most)) * time.Millisecond
}
