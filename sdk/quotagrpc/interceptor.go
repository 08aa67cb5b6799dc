package quotagrpc

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/quorate/quorate/internal/errtable"
	"github.com/quorate/quorate/internal/httpanswer"
	"github.com/quorate/quorate/sdk"
	"github.com/quorate/quorate/sdk/caller"
	"github.com/quorate/quorate/sdk/internal/verdict"
)

// Checker decides, by its method CheckAll(context.Context, []sdk.Identity) (sdk.Decisions, error). *sdk.Client does.
type Checker = verdict.Checker

// Rules say what each call takes. They are a closed set: no part of a call becomes a class.
type Rules struct {
	// Methods are by full method, "/package.Service/Method", or "/package.Service/*" for those of a service that are
	// not named themselves.
	Methods map[string]caller.Rule
	// Fallback is the rule of every call that Methods does not name.
	Fallback caller.Rule
}

// Option changes how the interceptors answer.
type Option func(*Limiter)

// WithRetryJitter adds between 0 and most, in whole milliseconds, to each RetryInfo, so that those who were refused at
// one time do not come back at one time. It only adds. Up to 1 hour; default none.
func WithRetryJitter(most time.Duration) Option { return func(l *Limiter) { l.jitter = most } }

// WithOnError calls f with the cause of each refusal that is no decision, in one line: what the public is not told.
func WithOnError(f func(ctx context.Context, fullMethod string, err error)) Option {
	return func(l *Limiter) { l.onError = f }
}

// Limiter has the interceptors.
type Limiter struct {
	checker Checker
	rules   Rules
	jitter  time.Duration
	onError func(context.Context, string, error)
	intn    func(int64) int64 // nil: random
}

// New makes the interceptors. The error names all that is wrong with its arguments.
func New(checker Checker, rules Rules, options ...Option) (*Limiter, error) {
	l := &Limiter{
		checker: checker, onError: func(context.Context, string, error) {},
		rules: Rules{Methods: maps.Clone(rules.Methods), Fallback: rules.Fallback},
	}
	for _, o := range options {
		o(l)
	}
	problems := verdict.CheckRules(rules.Methods, rules.Fallback)
	for _, m := range slices.Sorted(maps.Keys(rules.Methods)) {
		service, method, ok := strings.Cut(strings.TrimPrefix(m, "/"), "/")
		if !ok || service == "" || method == "" || m[0] != '/' || strings.Contains(method, "/") ||
			method != "*" && strings.Contains(m, "*") {
			problems = append(problems, fmt.Errorf("%q must be /package.Service/Method or /package.Service/*", m))
		}
	}
	if checker == nil {
		problems = append(problems, errors.New("no checker: give an *sdk.Client"))
	}
	if l.onError == nil {
		problems = append(problems, errors.New("WithOnError needs a function"))
	}
	if l.jitter < 0 || l.jitter > verdict.MaxJitter {
		problems = append(problems, fmt.Errorf("the jitter %s must be 0 to %s", l.jitter, verdict.MaxJitter))
	}
	if err := errors.Join(problems...); err != nil {
		return nil, fmt.Errorf("quotagrpc: %w", err)
	}
	return l, nil
}

// rule is the rule of a full method. Some servers hand on what the client wrote, without its slash.
func (l *Limiter) rule(fullMethod string) caller.Rule {
	name := "/" + strings.TrimPrefix(fullMethod, "/")
	if r, ok := l.rules.Methods[name]; ok && !strings.HasSuffix(name, "/*") {
		return r
	}
	if r, ok := l.rules.Methods[name[:strings.LastIndexByte(name, '/')]+"/*"]; ok {
		return r
	}
	return l.rules.Fallback
}

// Unary is the interceptor of unary calls.
func (l *Limiter) Unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
	ctx, err := l.ask(ctx, info.FullMethod, req, func(md metadata.MD) error { return grpc.SetHeader(ctx, md) })
	if err != nil {
		return nil, err
	}
	return next(ctx, req)
}

// Stream is the interceptor of streams. It asks once, before the handler starts.
func (l *Limiter) Stream(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) error {
	ctx, err := l.ask(ss.Context(), info.FullMethod, nil, ss.SetHeader)
	if err != nil {
		return err
	}
	return next(srv, &stream{ServerStream: ss, ctx: ctx})
}

// stream is a stream whose context knows the decision.
type stream struct {
	grpc.ServerStream
	ctx context.Context
}

func (s *stream) Context() context.Context { return s.ctx }

// ask decides a call: the context to go on with, or the status to end with.
func (l *Limiter) ask(
	ctx context.Context, fullMethod string, message any, setHeader func(metadata.MD) error,
) (context.Context, error) {
	rule := l.rule(fullMethod)
	if rule.Unlimited {
		return ctx, nil
	}
	ds, refusal := verdict.Ask(ctx, l.checker, rule, caller.FromGRPC(ctx, fullMethod, message))
	h := http.Header{}
	if refusal == nil {
		tightest := ds.Tightest()
		httpanswer.SetRateLimit(h, tightest.Proto(), false)
		sendHeaders(h, setHeader)
		return verdict.With(ctx, ds), nil
	}
	if refusal.Cause != nil {
		l.onError(ctx, fullMethod, verdict.OneLine(refusal.Cause))
	}
	refusal.Spread(l.jitter, time.Millisecond, l.intn)
	if refusal.Denied != nil {
		httpanswer.SetRateLimit(h, refusal.Denied, false)
		sendHeaders(h, setHeader)
	}
	return nil, statusOf(refusal).Err()
}

// sendHeaders adds what was set to the call's headers. Where they have been sent already, they are left as they are.
func sendHeaders(h http.Header, setHeader func(metadata.MD) error) {
	md := metadata.MD{}
	for name, values := range h {
		md.Append(name, values...)
	}
	if len(md) > 0 {
		_ = setHeader(md) // the headers are out, and the decision stands
	}
}

// statusOf is the status that a refused call ends with.
func statusOf(r *verdict.Refusal) *status.Status {
	message := r.Detail
	if r.Denied != nil {
		message = "quota exceeded"
	} else if message == "" {
		message = r.Reason
	}
	details := []protoadapt.MessageV1{&errdetails.ErrorInfo{Reason: r.Reason, Domain: errtable.Domain}}
	if r.Wait > 0 {
		details = append(details, &errdetails.RetryInfo{RetryDelay: durationpb.New(r.Wait)})
	}
	if r.Denied != nil {
		name := strings.ToValidUTF8(r.Denied.GetLimit(), "?")
		v := &errdetails.QuotaFailure_Violation{
			Subject: "caller", QuotaId: name, Description: "the limit " + name + " has no room at present",
		}
		for _, limit := range r.Denied.GetLimits() {
			if limit.GetName() == r.Denied.GetLimit() {
				v.QuotaValue = limit.GetLimit()
			}
		}
		details = append(details, &errdetails.QuotaFailure{Violations: []*errdetails.QuotaFailure_Violation{v}})
	}
	st := status.New(r.Code, message)
	if with, err := st.WithDetails(details...); err == nil {
		return with
	}
	return st
}

// DecisionFrom is, in a handler, the decision that let its call pass: the first that the owner has not made, if there
// is one (Source says bypass or local, Cause why), else that with the least room. False where none was asked for.
func DecisionFrom(ctx context.Context) (sdk.Decision, bool) { return verdict.One(ctx) }

// DecisionsFrom is one decision for each charge of the call's rule, in order.
func DecisionsFrom(ctx context.Context) (sdk.Decisions, bool) { return verdict.All(ctx) }
