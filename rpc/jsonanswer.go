package rpc

import (
	"encoding/json"
	"net/http"
	"strconv"
	"time"

	quoratev1 "github.com/quorate/quorate/proto/quorate/v1"
	"github.com/quorate/quorate/quotaerr"
	"github.com/quorate/quorate/rpc/errtable"
)

// problemBase is where the problem types of the RateLimit draft are registered.
const problemBase = "https://iana.org/assignments/http-problem-types#"

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

// problem has the members that RFC 9457 defines.
type problem struct {
	Type   string `json:"type"`
	Title  string `json:"title"`
	Status int    `json:"status"`
	Detail string `json:"detail,omitempty"`
}

type jsonDenial struct {
	problem
	ViolatedPolicies []string `json:"violated-policies,omitempty"`
	jsonDecision
}

type jsonError struct {
	problem
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
	setRateLimit(w.Header(), d, h.legacyHeaders)
	if row.Reason == quotaerr.Allowed {
		writeJSON(w, "application/json", row.HTTP, jsonOf(d))
		return
	}
	body := jsonDenial{jsonDecision: jsonOf(d)}
	body.problem = problem{Type: "about:blank", Title: http.StatusText(row.HTTP), Status: row.HTTP}
	switch row.Reason {
	case quotaerr.QuotaExhausted:
		body.Type, body.Title = problemBase+"quota-exceeded", "Quota exceeded"
		body.ViolatedPolicies = []string{d.GetLimit()}
		w.Header().Set("Retry-After", strconv.FormatInt(retryAfterSeconds(d.GetRetryAfterMs()), 10))
	case quotaerr.EndpointDisabled:
		body.Detail = "this endpoint is switched off"
		setRetryAfter(w, row.Wait)
	case quotaerr.Blocked:
		body.Detail = "this caller may not use this endpoint"
	}
	writeJSON(w, "application/problem+json", row.HTTP, body)
}

// writeError answers with what err's row says.
func (h *httpAPI) writeError(w http.ResponseWriter, err error) {
	e := quotaerr.As(err)
	row := errtable.Lookup(e.Reason)
	body := jsonError{Reason: string(e.Reason), Leader: e.Leader, Epoch: e.Epoch}
	body.problem = problem{Type: "about:blank", Title: http.StatusText(row.HTTP), Status: row.HTTP,
		Detail: errtable.PublicMessage(e)}
	if e.Reason == quotaerr.Overloaded || e.Reason == quotaerr.Capacity {
		body.Type, body.Title = problemBase+"temporary-reduced-capacity", "Temporarily reduced capacity"
	}
	if row.HTTP == http.StatusServiceUnavailable {
		setRetryAfter(w, errtable.Wait(e))
	}
	writeJSON(w, "application/problem+json", row.HTTP, body)
}

func setRetryAfter(w http.ResponseWriter, wait time.Duration) {
	millis := ceilDiv(max(0, int64(wait)), int64(time.Millisecond))
	w.Header().Set("Retry-After", strconv.FormatInt(retryAfterSeconds(millis), 10))
}

func writeJSON(w http.ResponseWriter, contentType string, status int, body any) {
	b, err := json.Marshal(body)
	if err != nil { // no body here has a type that JSON lacks
		status, b = http.StatusInternalServerError, []byte(`{"allowed":false,"reason":"internal"}`)
	}
	h := w.Header()
	h.Set("Content-Type", contentType)
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Content-Length", strconv.Itoa(len(b)+1))
	w.WriteHeader(status)
	_, _ = w.Write(append(b, '\n')) // the caller has gone when this fails
}
