package rpc

import (
	"context"

	"github.com/quorate/quorate/fsm"
	quoratev1 "github.com/quorate/quorate/proto/quorate/v1"
	"github.com/quorate/quorate/quotaerr"
)

// What a desk answers where a guard is off. The product has no such place, and nothing of this is in its program.

// deniedUnknown makes a denial of not knowing what became of a check: see guard.UnknownIsTold.
func deniedUnknown(c *fsm.Check) *quoratev1.Decision {
	return &quoratev1.Decision{
		Outcome: quoratev1.Outcome_OUTCOME_DENIED, Reason: string(quotaerr.QuotaExhausted), DecisionId: c.DecisionID,
	}
}

// peekHere answers a peek by what this node has, whoever leads: see guard.LoggedPeek.
func (d *desk) peekHere(ctx context.Context, p fsm.Peek) (*quoratev1.PeekResponse, error) {
	if p.RouteEpoch == 0 {
		p.RouteEpoch = d.backend.Leader(p.Principal).Epoch
	}
	return d.tell(ctx, p)
}
