package verdict

import (
	"context"
	"errors"
	"fmt"

	"github.com/quorate/quorate/quotaerr"
	"github.com/quorate/quorate/sdk"
	"github.com/quorate/quorate/sdk/caller"
)

// Checker decides; *sdk.Client does.
type Checker interface {
	CheckAll(ctx context.Context, identities []sdk.Identity) (sdk.Decisions, error)
}

var _ Checker = (*sdk.Client)(nil)

// Ask decides req by rule, which has charges. Without a Refusal it may go on, and the decisions say by whose word.
func Ask(ctx context.Context, c Checker, rule caller.Rule, req *caller.Request) (sdk.Decisions, *Refusal) {
	if err := ctx.Err(); err != nil { // the caller has gone: do not spend his allowance on it
		return sdk.Decisions{}, Of(err)
	}
	identities, err := rule.Identities(req)
	if err != nil {
		return sdk.Decisions{}, Of(err)
	}
	undated, stop := withoutDeadline(ctx)
	defer stop()
	ds, err := c.CheckAll(undated, identities)
	if err != nil {
		return ds, Of(err)
	}
	if denied := ds.Denied; !ds.Allowed && denied >= 0 && denied < len(ds.Decisions) {
		return ds, denial(&ds, &ds.Decisions[denied])
	}
	if err := sound(&ds, len(identities)); err != nil {
		return ds, Of(err)
	}
	return ds, nil
}

// withoutDeadline is ctx without its deadline, which a public caller may have set: one that ends before the class's
// timeout counts as the timeout, so that he would choose when the failure mode decides. If he goes away it ends all
// the same.
func withoutDeadline(ctx context.Context) (context.Context, context.CancelFunc) {
	undated, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		if !errors.Is(ctx.Err(), context.DeadlineExceeded) {
			cancel()
		}
	})
	return undated, func() {
		stop()
		cancel()
	}
}

// sound refuses what is not plainly an allow of every identity.
func sound(ds *sdk.Decisions, identities int) error {
	allowed := ds.Allowed && identities > 0 && len(ds.Decisions) == identities
	for i := range ds.Decisions {
		allowed = allowed && ds.Decisions[i].Allowed && ds.Decisions[i].Source != sdk.SourceNone
	}
	if allowed {
		return nil
	}
	return quotaerr.New(quotaerr.Internal, "of %d identities %d were decided, and not all allowed: %s",
		identities, len(ds.Decisions), "nothing was let through; report this")
}

type contextKey struct{}

// With puts decisions into the context of the request that they let pass.
func With(ctx context.Context, ds sdk.Decisions) context.Context {
	return context.WithValue(ctx, contextKey{}, ds)
}

// All are the decisions that let the request of ctx pass; false where none were asked for.
func All(ctx context.Context) (sdk.Decisions, bool) {
	ds, ok := ctx.Value(contextKey{}).(sdk.Decisions)
	return ds, ok
}

// One is the decision that says most of how the request of ctx came to pass: the first that the owner has not made,
// if there is one, so that a bypass never hides behind an admission; else the tightest.
func One(ctx context.Context) (sdk.Decision, bool) {
	ds, ok := All(ctx)
	if !ok || len(ds.Decisions) == 0 {
		return sdk.Decision{}, false
	}
	for i := range ds.Decisions {
		if !ds.Decisions[i].Verified() {
			return ds.Decisions[i], true
		}
	}
	return ds.Tightest(), true
}

// CheckRules are the problems of a set of rules, each with its route; every one of them.
func CheckRules(rules map[string]caller.Rule, fallback caller.Rule) []error {
	var problems []error
	for _, route := range sorted(rules) {
		if err := rules[route].Err(); err != nil {
			problems = append(problems, fmt.Errorf("%q: %w", route, err))
		}
	}
	if err := fallback.Err(); err != nil {
		problems = append(problems, fmt.Errorf("fallback, the rule of what no route names: %w", err))
	}
	return problems
}
