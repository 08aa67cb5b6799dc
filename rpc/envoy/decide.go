package envoy

import (
	"context"
	"errors"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/quorate/quorate/policy"
	quoratev1 "github.com/quorate/quorate/proto/quorate/v1"
	"github.com/quorate/quorate/quotaerr"
	"github.com/quorate/quorate/router"
)

// decide does what the plan says, until something is denied. With an error there is no answer.
func (a *answer) decide(ctx context.Context, p *plan) error {
	for _, i := range p.unlimited {
		a.statuses[i] = unlimited()
	}
	for _, i := range p.passed {
		a.statuses[i] = through()
	}
	for _, i := range p.unmatched {
		a.statuses[i] = denied()
	}
	if len(p.unmatched) > 0 {
		a.deny(over{reason: reasonUnmatched, at: p.unmatched[0]})
	}
	for _, l := range p.looks {
		if a.over != nil {
			return nil
		}
		if err := a.look(ctx, l); err != nil {
			return err
		}
	}
	for _, g := range p.groups {
		if a.over != nil {
			return nil
		}
		if err := a.check(ctx, g); err != nil {
			return err
		}
	}
	if ctx.Err() != nil { // it would come too late
		return errLate(ctx)
	}
	return nil
}

// look answers descriptors that consume nothing: they are within the limit where a cost of 1 would be.
func (a *answer) look(ctx context.Context, l look) error {
	resolved, class := a.policy.ClassOf(l.class)
	a.asking = []string{resolved}
	asking, cancel, err := within(ctx, time.Duration(class.TimeoutNanos))
	if err != nil {
		return err
	}
	defer cancel()
	u, err := a.service.desk.Peek(asking, &quoratev1.PeekRequest{Principal: l.principal, ApiClass: l.class, Tier: l.tier})
	if err != nil {
		return a.failed(err, l.members)
	}
	d := standingOf(u)
	if allowed(d) {
		a.show(d)
		for _, i := range l.members {
			a.statuses[i] = statusOf(d, d.GetLimits())
		}
		return nil
	}
	o := over{decision: d, at: l.members[0]}
	if d.GetReason() != string(quotaerr.EndpointDisabled) {
		o.limit = tightest(d.GetLimits())
	}
	if d.GetReason() != string(quotaerr.QuotaExhausted) {
		o.reason = d.GetReason()
	}
	a.refuse(o, l.members)
	return nil
}

// standingOf is what a look has found, as a decision has it: an allow where there is room for a cost of 1. When there
// is room again is not told: what frees the first of it is, and that may not be enough after a limit was lowered.
func standingOf(u *quoratev1.PeekResponse) *quoratev1.Decision {
	d := &quoratev1.Decision{Outcome: quoratev1.Outcome_OUTCOME_ALLOWED, Remaining: u.GetRemaining()}
	room := !u.GetDisabled() && u.GetRemaining() > 0
	for _, l := range u.GetLimits() {
		d.Limits = append(d.Limits, &quoratev1.LimitState{
			Name: l.GetName(), Limit: l.GetLimit(), Window: l.GetWindow(), Remaining: l.GetRemaining(), ResetMs: l.GetResetMs(),
		})
		room = room && l.GetRemaining() > 0
	}
	switch {
	case u.GetDisabled():
		d.Outcome, d.Reason = quoratev1.Outcome_OUTCOME_DENIED, string(quotaerr.EndpointDisabled)
	case !room:
		d.Outcome, d.Reason = quoratev1.Outcome_OUTCOME_DENIED, string(quotaerr.QuotaExhausted)
		switch t := tightest(d.GetLimits()); {
		case t == nil:
		case t.GetLimit() == 0:
			d.Reason = string(quotaerr.Blocked)
		default:
			d.Limit = t.GetName()
		}
	}
	return d
}

// check gets the descriptors of a group decided.
func (a *answer) check(ctx context.Context, g *group) error {
	a.asking = a.classesOf(g)
	asking, cancel, err := within(ctx, g.timeout(a.policy))
	if err != nil {
		return err
	}
	defer cancel()
	d, err := a.service.desk.Check(asking, g.request())
	if quotaerr.ReasonOf(err) == quotaerr.CostExceedsLimit {
		// It never fits. As an error it would be let through where the filter lets errors through.
		d, err = denial(quotaerr.CostExceedsLimit), nil
	}
	if err != nil {
		return a.failed(err, g.members)
	}
	if !allowed(d) {
		a.refuse(a.denialOf(g, d), g.members)
		return nil
	}
	a.show(d)
	for i, at := range g.members {
		a.statuses[at] = statusOf(d, a.limitsOf(g, i, d))
	}
	if !d.GetReplayed() {
		a.admitted += len(g.members)
	}
	return nil
}

// refuse answers the descriptors that share in a denial: they are one decision, and each comes of the same limit.
func (a *answer) refuse(o over, members []int) {
	a.deny(o)
	for _, i := range members {
		a.statuses[i] = o.status()
	}
}

// classesOf are the classes that a group's charges count as.
func (a *answer) classesOf(g *group) []string {
	classes := make([]string, len(g.charges))
	for i := range g.charges {
		classes[i], _ = a.policy.ClassOf(g.charges[i].Class)
	}
	return classes
}

// denial is one that names no limit and no time.
func denial(r quotaerr.Reason) *quoratev1.Decision {
	return &quoratev1.Decision{Outcome: quoratev1.Outcome_OUTCOME_DENIED, Reason: string(r)}
}

// allowed reports a plain allow. Nothing else is one.
func allowed(d *quoratev1.Decision) bool { return d.GetOutcome() == quoratev1.Outcome_OUTCOME_ALLOWED }

// limitsOf are the limits of one charge of a group, among all those that the decision names: those that the policy has
// for it. Where that tells none apart, as for a moment after a change of the policy, they are all of them.
func (a *answer) limitsOf(g *group, i int, d *quoratev1.Decision) (out []*quoratev1.LimitState) {
	if len(g.charges) == 1 {
		return d.GetLimits()
	}
	resolved, _ := a.policy.ClassOf(g.charges[i].Class)
	rules := a.policy.RuleFor(g.principal, resolved, g.charges[i].Tier)
	if of := a.policy.GroupOf(resolved); of != nil {
		rules = append(rules[:len(rules):len(rules)], of.Limits...)
	}
	for _, l := range d.GetLimits() {
		for _, r := range rules {
			if l.GetName() == r.Name && l.GetLimit() == r.Max && l.GetWindow().AsDuration() == time.Duration(r.WindowNanos) {
				out = append(out, l)
				break
			}
		}
	}
	if len(out) == 0 {
		return d.GetLimits()
	}
	return out
}

// failed answers descriptors that could not be decided, where the classes that were asked about say how, else it
// returns the error. A class that was switched off is denied whatever it says of failures.
func (a *answer) failed(err error, members []int) error {
	if !forFailureMode(err) {
		return err
	}
	disabled, strict := -1, false
	for i, name := range a.asking {
		_, class := a.policy.ClassOf(name)
		if class.Disabled && disabled < 0 {
			disabled = i
		}
		strict = strict || class.OnUnavailable != policy.FailAllow
	}
	switch {
	case disabled >= 0:
		d := denial(quotaerr.EndpointDisabled)
		a.refuse(over{decision: d, reason: d.GetReason(), at: members[disabled]}, members)
		return nil
	case strict:
		return err
	}
	for _, i := range members {
		a.statuses[i] = through()
	}
	for range len(members) / len(a.asking) { // one class stands for all members of a look
		a.bypassed = append(a.bypassed, a.asking...)
	}
	return nil
}

// forFailureMode reports whether an error is one that classes' failure modes are for: nobody could decide, and none of
// the attempts behind it has met an owner that is there. A not_leader comes here only once no leader was found in time.
func forFailureMode(err error) bool {
	e := quotaerr.As(err)
	attempts := router.Attempts{MaybeConsumed: errors.Is(e, quotaerr.ErrOutcomeUnknown)}
	for _, r := range quotaerr.All() {
		if r.IsDecision() || !errors.Is(e, &quotaerr.Error{Reason: r}) {
			continue
		}
		if !router.Next(attempts, router.Failure{Reason: string(r)}).FailureMode {
			return false
		}
	}
	return true
}

// show takes an allow for the headers: the one with the least room.
func (a *answer) show(d *quoratev1.Decision) {
	if a.shown == nil || d.GetRemaining() < a.shown.GetRemaining() {
		a.shown = d
	}
}

// millis is a duration of milliseconds, within what one can be.
func millis(n int64) *durationpb.Duration {
	return durationpb.New(time.Duration(min(max(0, n), policy.MaxWindowNanos/int64(time.Millisecond))) *
		time.Millisecond)
}
