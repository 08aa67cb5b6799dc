package sdk

import (
	"errors"
	"time"

	"github.com/quorate/quorate/internal/errtable"
	"github.com/quorate/quorate/quotaerr"
)

// What a check's error is, for errors.Is.
var (
	// ErrUnavailable: nobody could decide, and the class's failure mode does not let the request pass. Also while a
	// slot is moved or a policy changes and that did not end in time, and after an answer that is not understood.
	ErrUnavailable = errors.New("sdk: nobody could decide: answer 503, and look at the cluster if it lasts")
	// ErrOverloaded: the owner or this client has too much to do, or is at one of its bounds.
	ErrOverloaded = errors.New("sdk: too much to do: answer 503, and send less")
	// ErrRefused: the request is at fault, or this gateway may not ask. The same one fails again.
	ErrRefused = errors.New("sdk: the check was refused: fix it")
	// ErrClosed: the client was closed, before the check or during it.
	ErrClosed = errors.New("sdk: the client is closed")
)

// Error is a check that got no decision.
type Error struct {
	// Reason is the public reason; Internal after an answer that was not understood.
	Reason quotaerr.Reason
	// Message tells the gateway's operator what to do. It is not for the public caller.
	Message string
	// MaybeConsumed: an attempt was sent whose fate is not known. The same id, given with WithID, would get its
	// decision.
	MaybeConsumed bool
	// RetryAfter is how long waiting is worth it; 0 when not known.
	RetryAfter time.Duration
	// Attempts is how often the check was sent.
	Attempts int
	// ID is the decision id; empty when none was made.
	ID string

	kind  error // one of the sentinels
	cause error
}

// Error is the reason, the message and the cause.
func (e *Error) Error() string {
	s := "sdk: " + string(e.Reason)
	if e.Message != "" {
		s += ": " + e.Message
	}
	if e.cause != nil {
		s += ": " + e.cause.Error()
	}
	return s
}

// Unwrap returns the cause; nil when there is none.
func (e *Error) Unwrap() error { return e.cause }

// Is reports whether target is the sentinel of e's kind, or an Error or quotaerr.Error of the same reason.
func (e *Error) Is(target error) bool {
	if target == e.kind {
		return true
	}
	switch t := target.(type) {
	case *Error:
		return t.Reason == e.Reason
	case *quotaerr.Error:
		return t.Reason == e.Reason
	}
	return false
}

// kindOf is the sentinel of a reason. What is not known is unavailable.
func kindOf(r quotaerr.Reason) error {
	switch r {
	case quotaerr.InvalidArgument, quotaerr.CostExceedsLimit, quotaerr.DecisionIDConflict, quotaerr.Unauthenticated,
		quotaerr.PermissionDenied:
		return ErrRefused
	case quotaerr.Overloaded, quotaerr.Capacity:
		return ErrOverloaded
	}
	return ErrUnavailable
}

// newError is an error whose wait is that of its reason, until a better one is known.
func newError(r quotaerr.Reason, message string) *Error {
	return &Error{Reason: r, Message: message, RetryAfter: errtable.Lookup(r).Wait, kind: kindOf(r)}
}
