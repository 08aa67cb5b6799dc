package httpanswer

import (
	"encoding/json"
	"net/http"
	"strconv"
	"time"
)

// The problem types that the RateLimit draft registers.
const (
	problemBase            = "https://iana.org/assignments/http-problem-types#"
	TypeQuotaExceeded      = problemBase + "quota-exceeded"
	TypeReducedCapacity    = problemBase + "temporary-reduced-capacity"
	contentTypeJSON        = "application/json"
	contentTypeProblemJSON = "application/problem+json"
)

// Problem has the members that RFC 9457 defines.
type Problem struct {
	Type   string `json:"type"`
	Title  string `json:"title"`
	Status int    `json:"status"`
	Detail string `json:"detail,omitempty"`
}

// NewProblem is a problem of which its status says all.
func NewProblem(status int) Problem {
	return Problem{Type: "about:blank", Title: http.StatusText(status), Status: status}
}

// QuotaExceeded is the problem of a caller that has used its quota up.
func QuotaExceeded(status int) Problem {
	return Problem{Type: TypeQuotaExceeded, Title: "Quota exceeded", Status: status}
}

// ReducedCapacity is the problem of a service that has too much to do.
func ReducedCapacity(status int) Problem {
	return Problem{Type: TypeReducedCapacity, Title: "Temporarily reduced capacity", Status: status}
}

// SetRetryAfter sets Retry-After: whole seconds, rounded up, at least one, so that nobody reads a short wait as none.
func SetRetryAfter(h http.Header, wait time.Duration) {
	h.Set("Retry-After", strconv.FormatInt(max(1, wholeSeconds(int64(wait), int64(time.Second))), 10))
}

// WriteJSON answers with body, which is not to be stored.
func WriteJSON(w http.ResponseWriter, status int, body any) { write(w, contentTypeJSON, status, body) }

// WriteProblem answers with body, which has a Problem's members and maybe more, and is not to be stored.
func WriteProblem(w http.ResponseWriter, status int, body any) {
	write(w, contentTypeProblemJSON, status, body)
}

func write(w http.ResponseWriter, contentType string, status int, body any) {
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

// wholeSeconds is n, of which one second has so many, in seconds, rounded up; 0 when negative.
func wholeSeconds(n, ofOneSecond int64) int64 {
	n = max(0, n)
	s := n / ofOneSecond
	if n%ofOneSecond > 0 {
		s++
	}
	return s
}
