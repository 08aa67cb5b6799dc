package envoy

import (
	"math"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/quorate/quorate/policy"
	quoratev1 "github.com/quorate/quorate/proto/quorate/v1"
	"github.com/quorate/quorate/quotaerr"
)

// The public names of where an answer tells why it is over the limit, unless a limit is exhausted, of which the status
// and the RateLimit headers tell all.
const (
	// reasonHeader is the header of the response, and reasonField the field of the dynamic metadata.
	reasonHeader = "quorate-reason"
	reasonField  = "reason"
	// descriptorField is the number, from 0, of the descriptor that was denied.
	descriptorField = "descriptor"
)

// Why an answer is over the limit, beside the reasons of decisions and of a cost that never fits.
const (
	reasonUnmatched = "unmatched" // no rule matches, and the domain says that this is denied
	reasonUnknown   = "unknown"   // a denial that says nothing of itself
)

// over is a denial that is told: the limit that it comes of, if it comes of one, and why.
type over struct {
	decision *quoratev1.Decision
	limit    *quoratev1.LimitState // nil for none
	reason   string                // empty where the limit is exhausted
	at       int                   // the descriptor that was denied
}

// deny notes the denial that the answer tells of. It is the first: nothing is asked after it.
func (a *answer) deny(o over) {
	a.over, a.shown = &o, o.decision
	if o.limit != nil && len(o.decision.GetLimits()) == 0 { // the headers tell of it as the status does
		a.shown = proto.CloneOf(o.decision)
		a.shown.Limits = []*quoratev1.LimitState{o.limit}
	}
}

// status is that of each descriptor that shares in the denial.
func (o *over) status() *status {
	out := denied()
	if o.limit != nil {
		out.CurrentLimit, out.LimitRemaining = limitOf(o.limit), clamp(o.limit.GetRemaining())
		if o.limit.GetResetMs() > 0 {
			out.DurationUntilReset = millis(o.limit.GetResetMs())
		}
	}
	if o.decision.GetRetryAt() != nil {
		out.DurationUntilReset = millis(o.decision.GetRetryAfterMs())
	}
	return out
}

// metadata is what a reader of Envoy's access logs is told: nothing where the status has told it.
func (o *over) metadata() *structpb.Struct {
	if o == nil || o.reason == "" {
		return nil
	}
	return &structpb.Struct{Fields: map[string]*structpb.Value{
		reasonField:     structpb.NewStringValue(o.reason),
		descriptorField: structpb.NewNumberValue(float64(o.at)),
	}}
}

// denialOf is what a group's denial comes of. A decision that denies names its limit, and may not have its state; of
// limits of 0, and of costs above a limit, it is the policy that tells which one it is.
func (a *answer) denialOf(g *group, d *quoratev1.Decision) over {
	o := over{decision: d, at: g.members[0], reason: d.GetReason()}
	var charge int
	switch quotaerr.Reason(d.GetReason()) {
	case quotaerr.QuotaExhausted:
		o.limit, charge = a.exhausted(g, d)
		o.reason = ""
	case quotaerr.Blocked:
		o.limit, charge = a.find(g, func(l *policy.Limit, _ int64) bool { return l.Max == 0 })
	case quotaerr.CostExceedsLimit:
		o.limit, charge = a.find(g, func(l *policy.Limit, cost int64) bool { return cost > l.Max })
	case quotaerr.EndpointDisabled:
		for i, c := range g.charges {
			if _, class := a.policy.ClassOf(c.Class); class.Disabled {
				charge = i
				break
			}
		}
	default:
		o.reason = reasonUnknown
	}
	o.at = g.members[charge]
	return o
}

// exhausted is the limit that a decision names, and the charge that has it first. Of several of one name, as the
// charges of different classes have, it is the one with the least room.
func (a *answer) exhausted(g *group, d *quoratev1.Decision) (limit *quoratev1.LimitState, charge int) {
	named, charge := a.find(g, func(l *policy.Limit, _ int64) bool { return l.Name == d.GetLimit() })
	for _, l := range d.GetLimits() {
		if l.GetName() == d.GetLimit() && (limit == nil || l.GetRemaining() < limit.GetRemaining()) {
			limit = l
		}
	}
	if limit == nil {
		limit = named
	}
	if limit == nil { // a limit of an earlier policy, which this one has not
		return &quoratev1.LimitState{Name: d.GetLimit()}, 0
	}
	if same, at := a.find(g, func(l *policy.Limit, _ int64) bool {
		return l.Name == limit.GetName() && l.Max == limit.GetLimit() &&
			time.Duration(l.WindowNanos) == limit.GetWindow().AsDuration()
	}); same != nil {
		charge = at
	}
	return limit, charge
}

// find is the first limit of a group's charges that is one by is, which is told what the charges up to there would take
// from it together, and the charge that has it. Nothing is claimed of the room in it.
func (a *answer) find(g *group, is func(l *policy.Limit, cost int64) bool) (*quoratev1.LimitState, int) {
	type home struct {
		group bool
		name  string
	}
	taken := map[home]int64{}
	add := func(to home, cost int64) {
		taken[to] = min(taken[to], math.MaxInt64-cost) + cost
	}
	for i, c := range g.charges {
		resolved, _ := a.policy.ClassOf(c.Class)
		class := home{false, resolved}
		add(class, c.Cost)
		rules := a.policy.RuleFor(g.principal, resolved, c.Tier)
		for k := range rules {
			if is(&rules[k], taken[class]) {
				return stateOf(&rules[k]), i
			}
		}
		of := a.policy.GroupOf(resolved)
		if of == nil {
			continue
		}
		all := home{true, of.Name}
		add(all, c.Cost)
		for k := range of.Limits {
			if is(&of.Limits[k], taken[all]) {
				return stateOf(&of.Limits[k]), i
			}
		}
	}
	return nil, 0
}

// stateOf is a limit of the policy, with no room told.
func stateOf(l *policy.Limit) *quoratev1.LimitState {
	return &quoratev1.LimitState{Name: l.Name, Limit: l.Max, Window: durationpb.New(time.Duration(l.WindowNanos))}
}
