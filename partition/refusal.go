package partition

import (
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/quotaerr"
)

// refusal is the error that a check or peek gets which the state machine refused; nil for a decision.
func refusal(r fsm.Reason, detail string, epoch fsm.Epoch, revision fsm.Revision) error {
	switch r {
	case fsm.ReasonAllowed, fsm.ReasonQuotaExhausted, fsm.ReasonBlocked, fsm.ReasonEndpointDisabled:
		return nil
	case fsm.ReasonInvalidArgument:
		return quotaerr.New(quotaerr.InvalidArgument, "%s", detail)
	case fsm.ReasonCostExceedsLimit:
		return quotaerr.New(quotaerr.CostExceedsLimit, "%s", detail)
	case fsm.ReasonDecisionIDConflict:
		return quotaerr.New(quotaerr.DecisionIDConflict, "%s", detail)
	case fsm.ReasonCapacity:
		return quotaerr.New(quotaerr.Capacity, "%s: back off", detail)
	case fsm.ReasonPolicyStale:
		return quotaerr.New(quotaerr.PolicyStale,
			"the partition is at policy revision %d: refresh, then retry with the same decision id", revision)
	case fsm.ReasonPolicyBehind:
		return quotaerr.New(quotaerr.PolicyBehind,
			"the partition is at policy revision %d: wait, then retry with the same decision id", revision)
	case fsm.ReasonWrongEpoch:
		e := quotaerr.New(quotaerr.WrongEpoch,
			"the principal's slot is not owned here under this epoch: re-route, with the same decision id")
		e.Epoch = uint64(epoch)
		return e
	case fsm.ReasonFrozen:
		return quotaerr.New(quotaerr.Frozen, "the principal's slot is being moved: retry with the same decision id")
	case fsm.ReasonUnspecified, fsm.ReasonStaleTerm, fsm.ReasonUnborn, fsm.ReasonPlanEnded, fsm.ReasonPlanConflict:
	}
	return quotaerr.New(quotaerr.Internal, "the state machine answered %s", r)
}
