package quotahttp

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/quorate/quorate/internal/httpanswer"
	"github.com/quorate/quorate/sdk"
	"github.com/quorate/quorate/sdk/caller"
	"github.com/quorate/quorate/sdk/internal/verdict"
)

// Checker decides, by its method CheckAll(context.Context, []sdk.Identity) (sdk.Decisions, error). *sdk.Client does.
type Checker = verdict.Checker

// Option changes how the middleware answers.
type Option func(*guard)

// WithRetryJitter adds between 0 and most, in whole seconds, to each Retry-After, so that those who were refused at one
// time do not come back at one time. It only adds: nobody is told to come before there is room. Up to 1 hour; default
// none.
func WithRetryJitter(most time.Duration) Option { return func(g *guard) { g.jitter = most } }

// WithLegacyHeaders adds X-RateLimit-Limit, -Remaining and -Reset to the headers of the draft.
func WithLegacyHeaders() Option { return func(g *guard) { g.legacy = true } }

// WithOnError calls f, on the request's goroutine, with the cause of each refusal that is no decision: what the public
// is not told, in one line. It is where to log and to count; the causes of 400 and 401 are as many as strangers like.
func WithOnError(f func(r *http.Request, err error)) Option { return func(g *guard) { g.onError = f } }

// guard stands before one handler.
type guard struct {
	checker Checker
	routes  *table
	jitter  time.Duration
	legacy  bool
	onError func(*http.Request, error)
	intn    func(int64) int64 // nil: random
}

// New makes the middleware. The error names all that is wrong with its arguments.
func New(checker Checker, rules Rules, options ...Option) (func(http.Handler) http.Handler, error) {
	g, err := newGuard(checker, rules, options)
	if err != nil {
		return nil, err
	}
	return g.wrap, nil
}

func newGuard(checker Checker, rules Rules, options []Option) (*guard, error) {
	g := &guard{checker: checker, onError: func(*http.Request, error) {}}
	for _, o := range options {
		o(g)
	}
	var problems []error
	if checker == nil {
		problems = append(problems, errors.New("quotahttp: no checker: give an *sdk.Client"))
	}
	if g.onError == nil {
		problems = append(problems, errors.New("quotahttp: WithOnError needs a function"))
	}
	if g.jitter < 0 || g.jitter > verdict.MaxJitter {
		problems = append(problems, fmt.Errorf("quotahttp: the jitter %s must be 0 to %s", g.jitter, verdict.MaxJitter))
	}
	var err error
	if g.routes, err = newTable(rules); err != nil {
		problems = append(problems, err)
	}
	return g, errors.Join(problems...)
}

func (g *guard) wrap(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		rule, err := g.routes.rule(r)
		if err != nil {
			g.refuse(w, r, verdict.Of(err))
			return
		}
		if rule.Unlimited {
			next.ServeHTTP(w, r)
			return
		}
		ds, refusal := verdict.Ask(r.Context(), g.checker, rule, caller.FromHTTP(r))
		if refusal != nil {
			g.refuse(w, r, refusal)
			return
		}
		tightest := ds.Tightest()
		httpanswer.SetRateLimit(w.Header(), tightest.Proto(), g.legacy)
		next.ServeHTTP(w, r.WithContext(verdict.With(r.Context(), ds)))
	})
}

// answer is the body of a refusal.
type answer struct {
	httpanswer.Problem
	Reason           string   `json:"reason"`
	ViolatedPolicies []string `json:"violated-policies,omitempty"`
}

func (g *guard) refuse(w http.ResponseWriter, r *http.Request, why *verdict.Refusal) {
	if why.Cause != nil {
		g.onError(r, verdict.OneLine(why.Cause))
	}
	why.Spread(g.jitter, time.Second, g.intn)
	body := answer{Problem: httpanswer.NewProblem(why.HTTP), Reason: why.Reason}
	h := w.Header()
	switch {
	case why.Denied != nil:
		body.Problem = httpanswer.QuotaExceeded(why.HTTP)
		body.ViolatedPolicies = []string{why.Denied.GetLimit()}
		httpanswer.SetRateLimit(h, why.Denied, g.legacy)
	case why.Reduced:
		body.Problem = httpanswer.ReducedCapacity(why.HTTP)
	}
	body.Detail = why.Detail
	if why.Wait > 0 {
		httpanswer.SetRetryAfter(h, why.Wait)
	}
	if why.Challenge != "" {
		h.Set("WWW-Authenticate", why.Challenge)
	}
	httpanswer.WriteProblem(w, why.HTTP, body)
}

// DecisionFrom is, in a handler, the decision that let its request pass: the first that the owner has not made, if
// there is one (Source says bypass or local, Cause why), else that with the least room. False where none was asked for.
func DecisionFrom(ctx context.Context) (sdk.Decision, bool) { return verdict.One(ctx) }

// DecisionsFrom is one decision for each charge of the request's rule, in order.
func DecisionsFrom(ctx context.Context) (sdk.Decisions, bool) { return verdict.All(ctx) }
