package rpc

import (
	"fmt"
	"math"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/quorate/quorate/fsm"
	quoratev1 "github.com/quorate/quorate/proto/quorate/v1"
	"github.com/quorate/quorate/quotaerr"
)

// checkOf turns a request into a check for gateway and refuses a malformed one.
func checkOf(req *quoratev1.CheckRequest, gateway string) (fsm.Check, error) {
	if req == nil {
		return fsm.Check{}, quotaerr.New(quotaerr.InvalidArgument, "check is missing")
	}
	c := fsm.Check{
		Principal:      req.GetPrincipal(),
		Gateway:        gateway,
		DecisionID:     req.GetDecisionId(),
		Charge:         fsm.Charge{Class: req.GetApiClass(), Tier: req.GetTier(), Cost: costOf(req.Cost)},
		PolicyRevision: fsm.Revision(req.GetPolicyRevision()),
		RouteEpoch:     fsm.Epoch(req.GetRouteEpoch()),
	}
	for _, a := range req.GetAlso() {
		c.Also = append(c.Also, fsm.Charge{
			Class: a.GetApiClass(), Tier: a.GetTier(), Cost: costOf(chargeCost(a)),
		})
	}
	if err := fsm.ValidateCheck(&c); err != nil {
		return fsm.Check{}, quotaerr.New(quotaerr.InvalidArgument, "%v", err)
	}
	return c, nil
}

func chargeCost(a *quoratev1.Charge) *int64 {
	if a == nil {
		return nil
	}
	return a.Cost
}

func costOf(c *int64) int64 {
	if c == nil {
		return 1
	}
	return *c
}

// peekOf turns a request into a peek and refuses a malformed one.
func peekOf(req *quoratev1.PeekRequest) (fsm.Peek, error) {
	p := fsm.Peek{
		Principal:  req.GetPrincipal(),
		Class:      req.GetApiClass(),
		Tier:       req.GetTier(),
		RouteEpoch: fsm.Epoch(req.GetRouteEpoch()),
	}
	if err := fsm.ValidatePeek(&p); err != nil {
		return fsm.Peek{}, quotaerr.New(quotaerr.InvalidArgument, "%v", err)
	}
	return p, nil
}

// publicReason is the public name of a state machine's reason. What happened to a whole entry is
// not_leader: it was refused, so nothing was consumed, and the next leadership decides.
func publicReason(r fsm.Reason) quotaerr.Reason {
	switch r {
	case fsm.ReasonUnspecified:
		return quotaerr.Internal
	case fsm.ReasonStaleTerm, fsm.ReasonUnborn:
		return quotaerr.NotLeader
	default:
		if p := quotaerr.Reason(r.String()); p.Known() {
			return p
		}
		return quotaerr.Internal
	}
}

func refusal(r fsm.Reason, detail string, epoch fsm.Epoch) error {
	e := &quotaerr.Error{Reason: publicReason(r), Message: detail}
	if r == fsm.ReasonWrongEpoch {
		e.Epoch = uint64(epoch)
	}
	if e.Reason.IsDecision() {
		e.Reason = quotaerr.Internal
	}
	return e
}

// decisionOf renders an answer to the check named id, with wall as this node's wall clock. What is
// neither an allow nor a denial becomes an error.
func decisionOf(a *Answer, id string, wall time.Time) (*quoratev1.Decision, error) {
	d := &quoratev1.Decision{
		Reason:         string(publicReason(a.Reason)),
		Remaining:      max(0, a.Remaining),
		PolicyVersion:  a.Version,
		PolicyRevision: uint64(a.Revision),
		DecisionId:     id,
		Replayed:       a.Replayed,
		Recorded:       a.Recorded,
		Limits:         limitsOf(a.Limits, a.ResetAfterNanos),
	}
	switch {
	case a.Reason == fsm.ReasonAllowed:
		d.Outcome = quoratev1.Outcome_OUTCOME_ALLOWED
	case a.Reason.Denied():
		d.Outcome = quoratev1.Outcome_OUTCOME_DENIED
	default:
		return nil, refusal(a.Reason, a.Detail, a.Epoch)
	}
	if a.Reason == fsm.ReasonQuotaExhausted {
		wait := max(0, a.RetryAfterNanos)
		d.Limit = a.Limit
		d.RetryAfterMs = ceilDiv(wait, int64(time.Millisecond))
		d.RetryAt = timestamppb.New(wall.Add(time.Duration(wait)))
	}
	return d, nil
}

func limitsOf(limits []fsm.LimitState, resets []int64) []*quoratev1.LimitState {
	out := make([]*quoratev1.LimitState, 0, len(limits))
	for i := range limits {
		out = append(out, &quoratev1.LimitState{
			Name:      limits[i].Name,
			Limit:     limits[i].Max,
			Window:    durationpb.New(time.Duration(limits[i].WindowNanos)),
			Remaining: max(0, limits[i].Remaining),
			ResetMs:   resetMillis(resets, i),
		})
	}
	return out
}

func resetMillis(resets []int64, i int) int64 {
	if i >= len(resets) {
		return 0
	}
	return ceilDiv(max(0, resets[i]), int64(time.Millisecond))
}

// peekResponseOf renders the answer to a peek.
func peekResponseOf(a *UsageAnswer, wall time.Time) (*quoratev1.PeekResponse, error) {
	if a.Reason != fsm.ReasonAllowed {
		return nil, refusal(a.Reason, a.Detail, a.Epoch)
	}
	r := &quoratev1.PeekResponse{
		ApiClass:       a.Class,
		Remaining:      max(0, a.Remaining),
		AsOf:           timestamppb.New(wall),
		PolicyVersion:  a.Version,
		PolicyRevision: uint64(a.Revision),
		Disabled:       a.Disabled,
	}
	for i := range a.Limits {
		l := &a.Limits[i]
		room := min(max(0, l.Remaining), l.Max)
		r.Limits = append(r.Limits, &quoratev1.LimitUsage{
			Name: l.Name, Limit: l.Max, Window: durationpb.New(time.Duration(l.WindowNanos)),
			Used: max(0, l.Used), Remaining: room, ResetMs: resetMillis(a.ResetAfterNanos, i),
		})
	}
	return r, nil
}

// soundDecision refuses a decision of another node that is neither a plain allow nor a plain denial.
func soundDecision(d *quoratev1.Decision) error {
	r := quotaerr.Reason(d.GetReason())
	switch d.GetOutcome() {
	case quoratev1.Outcome_OUTCOME_ALLOWED:
		if r == quotaerr.Allowed {
			return nil
		}
	case quoratev1.Outcome_OUTCOME_DENIED:
		if r.IsDecision() && r != quotaerr.Allowed {
			return nil
		}
	}
	return quotaerr.Wrap(quotaerr.Internal,
		fmt.Errorf("outcome %v with reason %q is no decision", d.GetOutcome(), d.GetReason()), "")
}

// ceilDiv is a/b rounded up, for a at least 0 and b above 0.
func ceilDiv(a, b int64) int64 {
	if a > math.MaxInt64-(b-1) {
		return a / b
	}
	return (a + b - 1) / b
}
