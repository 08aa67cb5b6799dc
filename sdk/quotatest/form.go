package quotatest

import (
	"fmt"

	"github.com/quorate/quorate/policy"
	quoratev1 "github.com/quorate/quorate/proto/quorate/v1"
	"github.com/quorate/quorate/quotaerr"
	"github.com/quorate/quorate/sdk/internal/bound"
)

// charge is one class that a check asks for.
type charge struct {
	class, tier string
	cost        int64
}

// chargesOf are those of a check, its own first.
func chargesOf(req *quoratev1.CheckRequest) []charge {
	cost := func(c *int64) int64 {
		if c == nil {
			return 1
		}
		return *c
	}
	out := []charge{{req.GetApiClass(), req.GetTier(), cost(req.Cost)}}
	for _, a := range req.GetAlso() {
		if a == nil {
			a = &quoratev1.Charge{}
		}
		out = append(out, charge{a.GetApiClass(), a.GetTier(), cost(a.Cost)})
	}
	return out
}

// malformed is what is wrong with a check; nil when nothing is.
func malformed(req *quoratev1.CheckRequest) *quotaerr.Error {
	faults := []string{
		nameFault("principal", req.GetPrincipal(), policy.MaxPrincipalBytes),
		nameFault("decision_id", req.GetDecisionId(), bound.DecisionIDBytes),
	}
	if n := len(req.GetAlso()); n > bound.Also {
		faults = append(faults, fmt.Sprintf("also has %d charges: send at most %d", n, bound.Also))
	}
	for _, c := range chargesOf(req) {
		faults = append(faults, nameFault("api_class", c.class, policy.MaxClassBytes), tierFault(c.tier))
		if c.cost < 1 || c.cost > policy.MaxLimit {
			faults = append(faults, fmt.Sprintf("cost is %d: send a whole number from 1 to 2^53", c.cost))
		}
	}
	return invalid(faults...)
}

func malformedPeek(req *quoratev1.PeekRequest) *quotaerr.Error {
	return invalid(
		nameFault("principal", req.GetPrincipal(), policy.MaxPrincipalBytes),
		nameFault("api_class", req.GetApiClass(), policy.MaxClassBytes), tierFault(req.GetTier()),
	)
}

func invalid(faults ...string) *quotaerr.Error {
	for _, fault := range faults {
		if fault != "" {
			return quotaerr.New(quotaerr.InvalidArgument, "%s", fault)
		}
	}
	return nil
}

func tierFault(tier string) string {
	if tier == "" {
		return ""
	}
	return nameFault("tier", tier, policy.MaxTierBytes)
}

func nameFault(field, s string, most int) string {
	switch {
	case s == "":
		return field + " is empty"
	case len(s) > most:
		return fmt.Sprintf("%s has %d bytes: send at most %d", field, len(s), most)
	case !bound.Proper(s, 1, most):
		return field + " is not UTF-8 without NUL"
	}
	return ""
}
