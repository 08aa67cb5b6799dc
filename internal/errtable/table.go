package errtable

import (
	"net/http"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/quorate/quorate/quotaerr"
)

// Consumed says whether the check's cost may have been taken.
type Consumed uint8

// The three answers. The zero value claims nothing.
const (
	ConsumedMaybe Consumed = iota
	ConsumedNo
	ConsumedYes
)

// Action says what the asking client does.
type Action uint8

// The actions.
const (
	// ActionFix: the same request fails again; change it.
	ActionFix Action = iota
	// ActionNone: it is a decision; obey it.
	ActionNone
	// ActionRefresh: fetch the present policy revision, then retry with the same decision id.
	ActionRefresh
	// ActionReroute: ask the leader, or wait, and retry with the same decision id.
	ActionReroute
	// ActionBackOff: wait; unavailable to the public caller whatever the failure mode.
	ActionBackOff
	// ActionFailureMode: apply the class's failure mode.
	ActionFailureMode
	// ActionRetryThenFailureMode: retry with the same decision id, then apply the failure mode.
	ActionRetryThenFailureMode
)

// Row is what a reason means on the wire.
type Row struct {
	Reason   quotaerr.Reason
	Code     codes.Code
	HTTP     int
	Consumed Consumed
	Action   Action
	// Wait is what a caller is told to wait when nothing better is known; 0: it is told nothing.
	Wait time.Duration
}

const (
	shortWait    = 100 * time.Millisecond
	backOffWait  = time.Second
	disabledWait = 30 * time.Second
)

var rows = [...]Row{
	{quotaerr.Allowed, codes.OK, http.StatusOK, ConsumedYes, ActionNone, 0},
	{quotaerr.QuotaExhausted, codes.OK, http.StatusTooManyRequests, ConsumedNo, ActionNone, 0},
	{quotaerr.Blocked, codes.OK, http.StatusForbidden, ConsumedNo, ActionNone, 0},
	{quotaerr.EndpointDisabled, codes.OK, http.StatusServiceUnavailable, ConsumedNo, ActionNone,
		disabledWait},
	{quotaerr.InvalidArgument, codes.InvalidArgument, http.StatusBadRequest, ConsumedNo, ActionFix, 0},
	{quotaerr.CostExceedsLimit, codes.InvalidArgument, http.StatusBadRequest, ConsumedNo, ActionFix, 0},
	{quotaerr.DecisionIDConflict, codes.AlreadyExists, http.StatusConflict, ConsumedNo, ActionFix, 0},
	{quotaerr.Unauthenticated, codes.Unauthenticated, http.StatusUnauthorized, ConsumedNo, ActionFix, 0},
	{quotaerr.PermissionDenied, codes.PermissionDenied, http.StatusForbidden, ConsumedNo, ActionFix, 0},
	{quotaerr.PolicyStale, codes.FailedPrecondition, http.StatusServiceUnavailable, ConsumedNo,
		ActionRefresh, shortWait},
	{quotaerr.PolicyBehind, codes.Unavailable, http.StatusServiceUnavailable, ConsumedNo,
		ActionReroute, shortWait},
	{quotaerr.WrongEpoch, codes.Unavailable, http.StatusServiceUnavailable, ConsumedNo,
		ActionReroute, shortWait},
	{quotaerr.NotLeader, codes.Unavailable, http.StatusServiceUnavailable, ConsumedNo,
		ActionReroute, shortWait},
	{quotaerr.Frozen, codes.Unavailable, http.StatusServiceUnavailable, ConsumedNo,
		ActionReroute, shortWait},
	{quotaerr.Overloaded, codes.ResourceExhausted, http.StatusServiceUnavailable, ConsumedNo,
		ActionBackOff, backOffWait},
	{quotaerr.Capacity, codes.ResourceExhausted, http.StatusServiceUnavailable, ConsumedNo,
		ActionBackOff, backOffWait},
	{quotaerr.NoQuorum, codes.Unavailable, http.StatusServiceUnavailable, ConsumedNo,
		ActionFailureMode, backOffWait},
	{quotaerr.PolicyLeaseExpired, codes.Unavailable, http.StatusServiceUnavailable, ConsumedNo,
		ActionFailureMode, backOffWait},
	{quotaerr.OutcomeUnknown, codes.Unavailable, http.StatusServiceUnavailable, ConsumedMaybe,
		ActionRetryThenFailureMode, shortWait},
	{quotaerr.Internal, codes.Internal, http.StatusInternalServerError, ConsumedMaybe,
		ActionRetryThenFailureMode, 0},
}

var byReason = func() map[quotaerr.Reason]Row {
	m := make(map[quotaerr.Reason]Row, len(rows))
	for _, r := range rows {
		m[r.Reason] = r
	}
	return m
}()

// Rows returns the whole table.
func Rows() []Row { return append([]Row(nil), rows[:]...) }

// Lookup returns the row of r. A reason without one is a defect and reads as Internal.
func Lookup(r quotaerr.Reason) Row {
	if row, ok := byReason[r]; ok {
		return row
	}
	return byReason[quotaerr.Internal]
}

// Retryable reports whether the same request with the same decision id may get a decision later.
func (r Row) Retryable() bool {
	switch r.Action {
	case ActionRefresh, ActionReroute, ActionBackOff, ActionFailureMode, ActionRetryThenFailureMode:
		return r.Reason != quotaerr.Internal
	default:
		return false
	}
}
