package quotaerr

import (
	"errors"
	"fmt"
)

// Error is a check, peek or other request that got no decision.
//
// errors.Is(err, ErrNotLeader) and its like compare reasons only.
type Error struct {
	Reason Reason
	// Message tells the asking gateway's operator what to do. It may be sent to him.
	Message string
	// Leader is the node id of the partition's leader, for NotLeader; empty when not known.
	Leader string
	// LeaderAddr is where that leader serves gRPC, host:port; empty when not known.
	LeaderAddr string
	// Epoch is the slot's epoch where it is owned, for WrongEpoch; 0 when not known.
	Epoch uint64
	// RetryAfterNanos is how long the sender knows that waiting is worth it; 0 when not known.
	RetryAfterNanos int64
	// Cause is for this process's logs and is never sent.
	Cause error
}

// One sentinel per reason of an error, for errors.Is. They are never returned as they are.
var (
	ErrInvalidArgument    = &Error{Reason: InvalidArgument}
	ErrCostExceedsLimit   = &Error{Reason: CostExceedsLimit}
	ErrDecisionIDConflict = &Error{Reason: DecisionIDConflict}
	ErrUnauthenticated    = &Error{Reason: Unauthenticated}
	ErrPermissionDenied   = &Error{Reason: PermissionDenied}
	ErrPolicyStale        = &Error{Reason: PolicyStale}
	ErrPolicyBehind       = &Error{Reason: PolicyBehind}
	ErrWrongEpoch         = &Error{Reason: WrongEpoch}
	ErrNotLeader          = &Error{Reason: NotLeader}
	ErrFrozen             = &Error{Reason: Frozen}
	ErrOverloaded         = &Error{Reason: Overloaded}
	ErrCapacity           = &Error{Reason: Capacity}
	ErrNoQuorum           = &Error{Reason: NoQuorum}
	ErrPolicyLeaseExpired = &Error{Reason: PolicyLeaseExpired}
	ErrOutcomeUnknown     = &Error{Reason: OutcomeUnknown}
	ErrInternal           = &Error{Reason: Internal}
)

// New makes an error of reason r with a message that may be sent to the caller.
func New(r Reason, format string, args ...any) *Error {
	return &Error{Reason: r, Message: fmt.Sprintf(format, args...)}
}

// Wrap makes an error of reason r whose cause stays in this process.
func Wrap(r Reason, cause error, format string, args ...any) *Error {
	return &Error{Reason: r, Message: fmt.Sprintf(format, args...), Cause: cause}
}

// Error returns the reason, the message and, for this process's logs, the cause.
func (e *Error) Error() string {
	if e == nil {
		return string(Internal)
	}
	s := string(e.reason())
	if e.Message != "" {
		s += ": " + e.Message
	}
	if e.Cause != nil {
		s += ": " + e.Cause.Error()
	}
	return s
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Cause }

// Is reports whether target is an Error of the same reason.
func (e *Error) Is(target error) bool {
	t, ok := target.(*Error)
	return ok && t.reason() == e.reason()
}

func (e *Error) reason() Reason {
	if e.Reason == "" || e.Reason.IsDecision() {
		return Internal
	}
	return e.Reason
}

// As returns the outermost Error in err's chain, and Internal wrapping err where there is none; nil
// for nil. A reason that is empty or that of a decision becomes Internal.
func As(err error) *Error {
	if err == nil {
		return nil
	}
	var e *Error
	if !errors.As(err, &e) || e == nil {
		return Wrap(Internal, err, "internal error; see the node's log")
	}
	if r := e.reason(); r != e.Reason {
		c := *e
		c.Reason = r
		return &c
	}
	return e
}

// ReasonOf returns the reason of err: that of its outermost Error, Internal where it has none, and
// the empty reason for nil.
func ReasonOf(err error) Reason {
	if err == nil {
		return ""
	}
	return As(err).Reason
}
