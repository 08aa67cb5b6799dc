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
		a.statuses[i], a.over = denied(), true
	}
	for _, l := range p.looks {
		if a.over {
			return nil
		}
		if err := a.look(ctx, l); err != nil {
			return err
		}
	}
	for _, g := range p.groups {
		if a.over {
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
	_, class := a.policy.ClassOf(l.class)
	asking, cancel, err := within(ctx, time.Duration(class.TimeoutNanos))
	if err != nil {
		return err
	}
	defer cancel()
	u, err := a.service.desk.Peek(asking, &quoratev1.PeekRequest{Principal: l.principal, ApiClass: l.class, Tier: l.tier})
	if err != nil {
		return a.failed(err, []string{l.class}, l.members)
	}
	d := standingOf(u)
	a.show(d)
	for _, i := range l.members {
		a.statuses[i] = statusOf(d, d.GetLimits())
	}
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
		d.Outcome = quoratev1.Outcome_OUTCOME_DENIED
		if t := tightest(d.GetLimits()); t != nil {
			d.Limit = t.GetName()
		}
	}
	return d
}

// check gets the descriptors of a group decided.
func (a *answer) check(ctx context.Context, g *group) error {
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
		classes := make([]string, len(g.charges))
		for i := range g.charges {
			classes[i] = g.charges[i].Class
		}
		return a.failed(err, classes, g.members)
	}
	a.show(d)
	for i, at := range g.members {
		a.statuses[at] = statusOf(d, a.limitsOf(g, i, d))
	}
	if allowed(d) && !d.GetReplayed() {
		a.admitted += len(g.members)
	}
	return nil
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

// failed answers descriptors that could not be decided, where their classes say how, else it returns the error. A class
// that was switched off is denied whatever it says of failures.
func (a *answer) failed(err error, classes []string, members []int) error {
	if !forFailureMode(err) {
		return err
	}
	var bypassed []string
	disabled, strict := false, false
	for _, name := range classes {
		resolved, class := a.policy.ClassOf(name)
		disabled, strict = disabled || class.Disabled, strict || class.OnUnavailable != policy.FailAllow
		bypassed = append(bypassed, resolved)
	}
	switch {
	case disabled:
		d := denial(quotaerr.EndpointDisabled)
		a.show(d)
		for _, i := range members {
			a.statuses[i] = statusOf(d, nil)
		}
		return nil
	case strict:
		return err
	}
	for _, i := range members {
		a.statuses[i] = through()
	}
	for range len(members) / len(classes) { // one class stands for all members of a look
		a.bypassed = append(a.bypassed, bypassed...)
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

// show takes a decision for the headers: the denial, else the one with the least room. A denial ends the asking.
func (a *answer) show(d *quoratev1.Decision) {
	if !allowed(d) {
		a.shown, a.over = d, true
	} else if a.shown == nil || d.GetRemaining() < a.shown.GetRemaining() {
		a.shown = d
	}
}

// millis is a duration of milliseconds, within what one can be.
func millis(n int64) *durationpb.Duration {
	return durationpb.New(time.Duration(min(max(0, n), policy.MaxWindowNanos/int64(time.Millisecond))) *
		time.Millisecond)
}
