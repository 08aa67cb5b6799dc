package state

import (
	"fmt"

	"github.com/quorate/quorate/quotaerr"
)

// Code says why a command was refused. The numbers are durable.
type Code uint8

// The codes.
const (
	CodeNone     Code = 0 // not refused
	CodeInvalid  Code = 1 // the command is malformed or cannot be meant
	CodeUnborn   Code = 2 // there is no cluster yet
	CodeStale    Code = 3 // it was made against an older policy revision than Current
	CodeConflict Code = 4 // what it compares with has changed; Current is the version now
	CodeNotFound Code = 5 // what it names is not there
	CodeBusy     Code = 6 // another plan, or a replica, is in the way
	CodeBound    Code = 7 // a bound is reached
	CodeNotHeld  Code = 8 // no majority is known to hold the body
	lastCode          = CodeNotHeld
)

// String is the code as the audit trail writes it.
func (c Code) String() string {
	names := [...]string{"done", "invalid", "unborn", "stale", "conflict", "not_found", "busy", "bound", "not_held"}
	if int(c) < len(names) {
		return names[c]
	}
	return "unknown"
}

// Refusal is why a command changed nothing.
type Refusal struct {
	Code    Code
	Message string // says what to do
	// Current is the policy revision in force (CodeStale), or the version compared with (CodeConflict).
	Current uint64
}

func refuse(c Code, format string, args ...any) *Refusal {
	return &Refusal{Code: c, Message: fmt.Sprintf(format, args...)}
}

// Error is the message.
func (r *Refusal) Error() string { return r.Message }

// Reason is the public reason that fits best. A caller that can say more looks at Code.
func (r *Refusal) Reason() quotaerr.Reason {
	switch r.Code {
	case CodeStale:
		return quotaerr.PolicyStale
	case CodeBound:
		return quotaerr.Capacity
	case CodeNotHeld:
		return quotaerr.NoQuorum
	case CodeInvalid, CodeUnborn, CodeConflict, CodeNotFound, CodeBusy:
		return quotaerr.InvalidArgument
	case CodeNone:
	}
	return quotaerr.Internal
}
