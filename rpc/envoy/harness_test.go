package envoy

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	commonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/quorate/quorate/policy"
	quoratev1 "github.com/quorate/quorate/proto/quorate/v1"
	"github.com/quorate/quorate/quotaerr"
)

// fakeDesk decides by the policy's limits, over a window that never moves, and notes what it was asked. It is apart from
// what decides in a node, and as strict: what it has allowed is what it counts.
type fakeDesk struct {
	mu       sync.Mutex // guards the rest
	policy   *policy.Policy
	noPolicy error
	barred   map[string]bool                // classes that the caller may not ask for
	failing  map[string]error               // by class: instead of an answer
	used     map[string]map[string]int64    // by principal, then class
	records  map[string]*quoratev1.Decision // by principal and decision id
	payloads map[string]string
	asked    []string
	ids      []string
	granted  map[string]int // how often an answer said that a subject has room for a cost
	answer   *quoratev1.Decision
	deadline []time.Duration // of checks and peeks, from when they came
	hang     bool            // answer only when the caller gives up
}

var _ Desk = (*fakeDesk)(nil)

func newDesk(p *policy.Policy) *fakeDesk {
	return &fakeDesk{
		policy: p, barred: map[string]bool{}, failing: map[string]error{}, used: map[string]map[string]int64{},
		records: map[string]*quoratev1.Decision{}, payloads: map[string]string{}, granted: map[string]int{},
	}
}

func (f *fakeDesk) Policy(context.Context) (*policy.Policy, error) { return f.policy, f.noPolicy }

func (f *fakeDesk) MayAsk(_ context.Context, class string) error {
	if f.barred[class] {
		return quotaerr.New(quotaerr.PermissionDenied, "not %s", class)
	}
	return nil
}

func (f *fakeDesk) note(ctx context.Context, format string, args ...any) {
	f.asked = append(f.asked, fmt.Sprintf(format, args...))
	if end, ok := ctx.Deadline(); ok {
		f.deadline = append(f.deadline, time.Until(end))
	}
}

// limits are those of a charge, and the classes whose usage counts.
func (f *fakeDesk) limits(principal, class, tier string) (limits []policy.Limit, classes [][]string) {
	resolved, _ := f.policy.ClassOf(class)
	limits = append(limits, f.policy.RuleFor(principal, resolved, tier)...)
	for range limits {
		classes = append(classes, []string{resolved})
	}
	if g := f.policy.GroupOf(resolved); g != nil {
		limits = append(limits, g.Limits...)
		for range g.Limits {
			classes = append(classes, g.Classes)
		}
	}
	return limits, classes
}

func (f *fakeDesk) sum(principal string, classes []string, more map[string]int64) (n int64) {
	for _, c := range classes {
		n += f.used[principal][c] + more[c]
	}
	return n
}

// wait is what a denial asks for.
const wait = 42_500 * time.Millisecond

// Check decides.
func (f *fakeDesk) Check(ctx context.Context, req *quoratev1.CheckRequest) (*quoratev1.Decision, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	charges := append([]*quoratev1.Charge{{ApiClass: req.GetApiClass(), Tier: req.GetTier(), Cost: req.Cost}}, req.GetAlso()...)
	what := make([]string, len(charges))
	for i, c := range charges {
		what[i] = strings.TrimSpace(fmt.Sprintf("%d %s %s", c.GetCost(), c.GetApiClass(), c.GetTier()))
	}
	payload := strings.Join(what, " + ")
	f.note(ctx, "check %q: %s", req.GetPrincipal(), payload)
	f.ids = append(f.ids, req.GetDecisionId())
	if f.hang {
		<-ctx.Done()
		return nil, quotaerr.Wrap(quotaerr.NoQuorum, ctx.Err(), "no leader")
	}
	for _, c := range charges {
		if err := f.failing[c.GetApiClass()]; err != nil {
			return nil, err
		}
	}
	if f.answer != nil {
		return f.answer, nil
	}
	record := fmt.Sprintf("%q %q", req.GetPrincipal(), req.GetDecisionId())
	if d := f.records[record]; d != nil {
		if f.payloads[record] != payload {
			return nil, quotaerr.New(quotaerr.DecisionIDConflict, "another payload")
		}
		again := proto.CloneOf(d)
		again.Replayed = true
		again.Limits, again.Remaining = f.states(req.GetPrincipal(), charges)
		f.grant(req.GetPrincipal(), charges, again)
		return again, nil
	}
	d, more, at, err := f.judge(req.GetPrincipal(), charges)
	if err != nil {
		return nil, err
	}
	if d.GetOutcome() == quoratev1.Outcome_OUTCOME_ALLOWED {
		if f.used[req.GetPrincipal()] == nil {
			f.used[req.GetPrincipal()] = map[string]int64{}
		}
		for class, n := range more {
			f.used[req.GetPrincipal()][class] += n
		}
	}
	f.grant(req.GetPrincipal(), charges, d)
	switch quotaerr.Reason(d.GetReason()) { // as the owner does: a limit of 0, or a class that is off, shows no limits
	case quotaerr.Allowed:
		d.Limits, d.Remaining = f.states(req.GetPrincipal(), charges)
	case quotaerr.QuotaExhausted:
		d.Limits, d.Remaining = f.states(req.GetPrincipal(), charges[at:at+1])
	default:
		return d, nil
	}
	f.records[record], f.payloads[record] = d, payload
	return d, nil
}

// grant notes what an allow says.
func (f *fakeDesk) grant(principal string, charges []*quoratev1.Charge, d *quoratev1.Decision) {
	if d.GetOutcome() == quoratev1.Outcome_OUTCOME_ALLOWED {
		for _, c := range charges {
			f.granted[subjectText(principal, c.GetApiClass(), c.GetTier(), c.GetCost())]++
		}
	}
}

func subjectText(principal, class, tier string, cost int64) string {
	return fmt.Sprintf("%q %q %q %d", principal, class, tier, cost)
}

// judge is the decision about charges, what they take, and which of them is refused.
func (f *fakeDesk) judge(
	principal string, charges []*quoratev1.Charge,
) (d *quoratev1.Decision, more map[string]int64, at int, err error) {
	refusal := func(r quotaerr.Reason) *quoratev1.Decision {
		return &quoratev1.Decision{Outcome: quoratev1.Outcome_OUTCOME_DENIED, Reason: string(r)}
	}
	more = map[string]int64{}
	for at, c := range charges {
		resolved, class := f.policy.ClassOf(c.GetApiClass())
		if class.Disabled {
			return refusal(quotaerr.EndpointDisabled), nil, at, nil
		}
		limits, classes := f.limits(principal, c.GetApiClass(), c.GetTier())
		for _, l := range limits {
			if l.Max == 0 {
				return refusal(quotaerr.Blocked), nil, at, nil
			}
		}
		for i, l := range limits {
			switch {
			case sumOfClasses(more, classes[i])+c.GetCost() > l.Max:
				return nil, nil, at, quotaerr.New(quotaerr.CostExceedsLimit, "never")
			case f.sum(principal, classes[i], more)+c.GetCost() > l.Max:
				d := refusal(quotaerr.QuotaExhausted)
				d.Limit, d.RetryAfterMs, d.RetryAt = l.Name, wait.Milliseconds(), timestamppb.New(time.Unix(0, int64(wait)))
				return d, nil, at, nil
			}
		}
		more[resolved] += c.GetCost()
	}
	return &quoratev1.Decision{Outcome: quoratev1.Outcome_OUTCOME_ALLOWED, Reason: string(quotaerr.Allowed)}, more, 0, nil
}

func sumOfClasses(more map[string]int64, classes []string) (n int64) {
	for _, c := range classes {
		n += more[c]
	}
	return n
}

// states are the limits of all charges, each once, as they stand.
func (f *fakeDesk) states(principal string, charges []*quoratev1.Charge) (out []*quoratev1.LimitState, least int64) {
	least = policy.MaxLimit
	seen := map[string]bool{}
	for _, c := range charges {
		limits, classes := f.limits(principal, c.GetApiClass(), c.GetTier())
		for i, l := range limits {
			if key := fmt.Sprint(classes[i], l); !seen[key] {
				seen[key] = true
				used := f.sum(principal, classes[i], nil)
				s := &quoratev1.LimitState{
					Name: l.Name, Limit: l.Max, Window: durationpb.New(time.Duration(l.WindowNanos)), Remaining: max(0, l.Max-used),
				}
				if used > 0 {
					s.ResetMs = l.WindowNanos / 1e6 / 2
				}
				out = append(out, s)
				least = min(least, s.GetRemaining())
			}
		}
	}
	return out, least
}

// Peek tells.
func (f *fakeDesk) Peek(ctx context.Context, req *quoratev1.PeekRequest) (*quoratev1.PeekResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.note(ctx, "peek %q: %s", req.GetPrincipal(), strings.TrimSpace(req.GetApiClass()+" "+req.GetTier()))
	if err := f.failing[req.GetApiClass()]; err != nil {
		return nil, err
	}
	resolved, class := f.policy.ClassOf(req.GetApiClass())
	states, least := f.states(req.GetPrincipal(), []*quoratev1.Charge{{ApiClass: req.GetApiClass(), Tier: req.GetTier()}})
	out := &quoratev1.PeekResponse{ApiClass: resolved, Remaining: least, Disabled: class.Disabled}
	for _, s := range states {
		out.Limits = append(out.Limits, &quoratev1.LimitUsage{
			Name: s.GetName(), Limit: s.GetLimit(), Window: s.GetWindow(), Used: s.GetLimit() - s.GetRemaining(),
			Remaining: s.GetRemaining(), ResetMs: s.GetResetMs(),
		})
	}
	if least > 0 && !class.Disabled {
		f.granted[subjectText(req.GetPrincipal(), req.GetApiClass(), req.GetTier(), 0)]++
	}
	return out, nil
}

func mustPolicy(t testing.TB, text string) *policy.Policy {
	t.Helper()
	p, err := policy.Parse("test", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// counts are a service's metrics, those that are not 0.
func counts(t testing.TB, r *prometheus.Registry) map[string]float64 {
	t.Helper()
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			name := strings.TrimSuffix(strings.TrimPrefix(f.GetName(), "quorate_envoy_"), "_total")
			for _, l := range m.GetLabel() {
				name += " " + l.GetValue()
			}
			if v := m.GetCounter().GetValue(); v != 0 {
				out[name] = v
			}
		}
	}
	return out
}

// reasonOf is the reason of an error, which must be one of the product's.
func reasonOf(t testing.TB, err error) quotaerr.Reason {
	t.Helper()
	var e *quotaerr.Error
	if err != nil && !errors.As(err, &e) {
		t.Fatalf("%v has no reason", err)
	}
	return quotaerr.ReasonOf(err)
}

// ask is a request of one descriptor per list of keys and values.
func ask(domain string, entries ...[]string) *ratelimitv3.RateLimitRequest {
	req := &ratelimitv3.RateLimitRequest{Domain: domain}
	for _, e := range entries {
		req.Descriptors = append(req.Descriptors, descriptorWith(e...))
	}
	return req
}

// descriptorWith is one of keys and values.
func descriptorWith(entries ...string) *commonv3.RateLimitDescriptor {
	d := &commonv3.RateLimitDescriptor{}
	for i := 0; i+1 < len(entries); i += 2 {
		d.Entries = append(d.Entries, &commonv3.RateLimitDescriptor_Entry{Key: entries[i], Value: entries[i+1]})
	}
	return d
}
