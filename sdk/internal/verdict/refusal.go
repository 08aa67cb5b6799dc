package verdict

import (
	"context"
	"errors"
	"maps"
	"math"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/quorate/quorate/internal/errtable"
	quoratev1 "github.com/quorate/quorate/proto/quorate/v1"
	"github.com/quorate/quorate/quotaerr"
	"github.com/quorate/quorate/sdk"
	"github.com/quorate/quorate/sdk/caller"
)

// ReasonUnavailable is what the public is told whenever nobody could decide, for whichever reason.
const ReasonUnavailable = "unavailable"

// MaxJitter bounds what is added to a wait.
const MaxJitter = time.Hour

// defaultWait is what the public is told to wait when nothing better is known.
const defaultWait = time.Second

// Refusal is what the public caller of a refused request is told.
type Refusal struct {
	HTTP   int
	Code   codes.Code
	Reason string // public
	Detail string // public; may be empty
	// Reduced: the service has too much to do.
	Reduced bool
	// Wait until it is worth another try; 0: nothing is told.
	Wait time.Duration
	// Challenge is the authentication scheme to name; empty for none.
	Challenge string
	// Denied is the denial with the limits to show; nil unless a limit denied.
	Denied *quoratev1.Decision
	// Cause is for the operator; nil where the answer is a decision.
	Cause error
}

// denial is what is told of a decision that denies. What the reason does not explain is unavailability.
func denial(ds *sdk.Decisions, d *sdk.Decision) *Refusal {
	if d.Allowed {
		return Of(quotaerr.New(quotaerr.Internal, "the denial is an allow: nothing was let through; report this"))
	}
	row := errtable.Lookup(quotaerr.Reason(d.Reason))
	r := &Refusal{HTTP: row.HTTP, Reason: d.Reason, Wait: max(d.RetryAfter, ds.RetryAfter)}
	switch row.Reason {
	case quotaerr.QuotaExhausted:
		r.Code, r.Denied, r.Wait = codes.ResourceExhausted, d.Proto(), max(time.Millisecond, r.Wait)
	case quotaerr.Blocked:
		r.Code, r.Wait, r.Detail = codes.PermissionDenied, 0, "this caller may not use this endpoint"
	case quotaerr.EndpointDisabled:
		r.Code, r.Wait, r.Detail = codes.Unavailable, max(row.Wait, r.Wait), "this endpoint is switched off"
	default:
		return Of(quotaerr.New(quotaerr.Internal, "a denial for the unknown reason %.64q", d.Reason))
	}
	return r
}

// Of is what is told when there is no decision.
func Of(err error) *Refusal {
	if known := new(caller.Error); errors.As(err, &known) {
		return ofCaller(known)
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		r := unavailable(err, "the request ended before it was decided", defaultWait)
		if r.Code = codes.DeadlineExceeded; errors.Is(err, context.Canceled) {
			r.Code = codes.Canceled
		}
		return r
	}
	reason, wait := quotaerr.Reason(""), time.Duration(0)
	if e := new(sdk.Error); errors.As(err, &e) {
		reason, wait = e.Reason, e.RetryAfter
	}
	if wait <= 0 && reason.Known() {
		wait = errtable.Lookup(reason).Wait
	}
	switch reason {
	case quotaerr.InvalidArgument:
		return &Refusal{HTTP: http.StatusBadRequest, Code: codes.InvalidArgument, Reason: string(reason), Cause: err,
			Detail: "this request cannot be counted as it is"}
	case quotaerr.CostExceedsLimit:
		return &Refusal{HTTP: http.StatusBadRequest, Code: codes.InvalidArgument, Reason: string(reason), Cause: err,
			Detail: "this request costs more than its limit ever allows: make it smaller"}
	case quotaerr.Unauthenticated, quotaerr.PermissionDenied, quotaerr.DecisionIDConflict:
		return internal(err) // it is the gateway that may not ask, not its caller
	}
	switch {
	case errors.Is(err, sdk.ErrRefused):
		return internal(err)
	case errors.Is(err, sdk.ErrOverloaded), reason == quotaerr.Overloaded, reason == quotaerr.Capacity:
		r := unavailable(err, "there is too much to do at present", wait)
		r.Reduced = true
		return r
	}
	return unavailable(err, "whether this request is within its limits could not be decided", wait)
}

func ofCaller(e *caller.Error) *Refusal {
	switch {
	case errors.Is(e.Kind, caller.ErrMissing), errors.Is(e.Kind, caller.ErrInvalid):
		return &Refusal{HTTP: http.StatusUnauthorized, Code: codes.Unauthenticated, Cause: e, Detail: e.Detail,
			Reason: string(quotaerr.Unauthenticated), Challenge: e.Challenge}
	case errors.Is(e.Kind, caller.ErrMalformed):
		return &Refusal{HTTP: http.StatusBadRequest, Code: codes.InvalidArgument, Cause: e, Detail: e.Detail,
			Reason: string(quotaerr.InvalidArgument)}
	}
	return unavailable(e, "who is calling could not be told at present", defaultWait)
}

func unavailable(cause error, detail string, wait time.Duration) *Refusal {
	if wait <= 0 {
		wait = defaultWait
	}
	return &Refusal{HTTP: http.StatusServiceUnavailable, Code: codes.Unavailable, Reason: ReasonUnavailable,
		Detail: detail, Wait: wait, Cause: cause}
}

func internal(cause error) *Refusal {
	return &Refusal{HTTP: http.StatusInternalServerError, Code: codes.Internal, Reason: string(quotaerr.Internal),
		Detail: "this service is not set up to count this request", Cause: cause}
}

// Spread rounds the wait up to whole units and adds 0 to jitter of them, jitter itself rounded up, so that the rounding
// does not bring together again what the jitter has spread. intn is a number below its argument; nil: a random one. It
// never shortens a wait; no wait stays none.
func (r *Refusal) Spread(jitter, unit time.Duration, intn func(int64) int64) {
	if r.Wait <= 0 {
		return
	}
	if intn == nil {
		intn = rand.Int64N
	}
	units := ceil(r.Wait, unit)
	if jitter > 0 {
		units += intn(ceil(min(jitter, MaxJitter), unit) + 1)
	}
	r.Wait = time.Duration(min(units, math.MaxInt64/int64(unit))) * unit
	if r.Denied != nil { // what the limits' headers tell is the same instant
		r.Denied.RetryAfterMs = ceil(r.Wait, time.Millisecond)
		r.Denied.RetryAt = timestamppb.New(time.Now().Add(r.Wait))
	}
}

// OneLine is err with its text in one line, for a log; it is err in every other respect.
func OneLine(err error) error {
	if !strings.ContainsAny(err.Error(), "\r\n") {
		return err
	}
	return inLine{err}
}

type inLine struct{ error }

// Error is the text, its lines put behind one another.
func (e inLine) Error() string {
	lines := strings.FieldsFunc(e.error.Error(), func(r rune) bool { return r == '\r' || r == '\n' })
	return strings.Join(lines, "; ")
}

// Unwrap is the error itself.
func (e inLine) Unwrap() error { return e.error }

func ceil(d, unit time.Duration) int64 {
	n := int64(d / unit)
	if d%unit > 0 {
		n++
	}
	return n
}

func sorted(rules map[string]caller.Rule) []string { return slices.Sorted(maps.Keys(rules)) }
