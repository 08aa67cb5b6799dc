package rpc

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	commonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/internal/errtable"
	"github.com/quorate/quorate/internal/identity"
	"github.com/quorate/quorate/policy"
	"github.com/quorate/quorate/quotaerr"
)

const envoyPolicy = `
version: p1
default: {limits: [{name: m, limit: 5000000000, window: 60s}]}
classes:
  convert: {limits: [{name: m, limit: 9, window: 60s}], timeout: 2s, replay_horizon: 20s}
  login: {limits: [{name: m, limit: 9, window: 60s}], timeout: 2s, replay_horizon: 20s}
  lenient: {limits: [{name: m, limit: 9, window: 60s}], on_unavailable: allow}
envoy:
  edge:
    request_id: request_id
    rules:
      - {match: [{key: convert}], class: convert, principal: [convert]}
      - {match: [{key: convert}, {key: plan}], class: convert, principal: [convert], tier: plan}
      - {match: [{key: login}], class: login, principal: [login]}
      - {match: [{key: lenient}], class: lenient, principal: [lenient]}
`

// withEnvoy gives a backend a policy with a domain.
func withEnvoy(t testing.TB, b *fakeBackend) *fakeBackend {
	t.Helper()
	p, err := policy.Parse("test", []byte(envoyPolicy))
	if err != nil {
		t.Fatal(err)
	}
	b.policy = func() (*policy.Policy, error) { return p, nil }
	return b
}

func envoyDescriptor(entries ...string) *commonv3.RateLimitDescriptor {
	d := &commonv3.RateLimitDescriptor{}
	for i := 0; i+1 < len(entries); i += 2 {
		d.Entries = append(d.Entries, &commonv3.RateLimitDescriptor_Entry{Key: entries[i], Value: entries[i+1]})
	}
	return d
}

func envoyAsk(descriptors ...*commonv3.RateLimitDescriptor) *ratelimitv3.RateLimitRequest {
	return &ratelimitv3.RateLimitRequest{Domain: "edge", Descriptors: descriptors}
}

// Shows every field of Envoy's protocol over the wire, with Envoy's own client: what a request brings reaches the
// owner, under the caller's identity, and each field of the answer comes back.
func TestEnvoyOnTheWire(t *testing.T) {
	backend := withEnvoy(t, allowing())
	limits := []fsm.LimitState{{Name: "m", Max: 1 << 40, WindowNanos: int64(time.Minute), Remaining: 1 << 35}}
	backend.check = func(_ context.Context, c fsm.Check) (Answer, error) {
		a := Answer{Decision: fsm.Decision{Reason: fsm.ReasonAllowed, Remaining: 1 << 35, Limits: limits},
			ResetAfterNanos: []int64{int64(1500 * time.Millisecond)}}
		if c.Class == "login" {
			a.Reason, a.Limit, a.RetryAfterNanos = fsm.ReasonQuotaExhausted, "m", int64(2500*time.Millisecond)
			a.Limits = []fsm.LimitState{{Name: "m", Max: 9, WindowNanos: int64(time.Minute)}}
		}
		return a, nil
	}
	backend.peek = func(_ context.Context, p fsm.Peek) (UsageAnswer, error) {
		return UsageAnswer{Usage: fsm.Usage{Reason: fsm.ReasonAllowed, Class: p.Class, Remaining: 4,
			Limits: []fsm.LimitState{{Name: "m", Max: 9, WindowNanos: int64(time.Minute), Used: 5, Remaining: 4}}}}, nil
	}
	ca := mustCA(t, tlsCluster)
	n := mustSecure(t, ca, "n1", backend)
	client := ratelimitv3.NewRateLimitServiceClient(mustDial(t, n.grpcAddr, ca.must(t, identity.Gateway, "envoy-1")))

	look := envoyDescriptor("lenient", "acme")
	look.HitsAddend = wrapperspb.UInt64(0)
	own := envoyDescriptor("convert", "acme", "plan", "pro")
	own.HitsAddend = wrapperspb.UInt64(7)
	denied := envoyDescriptor("login", "other")
	req := envoyAsk(envoyDescriptor("convert", "acme", "request_id", "r-1"), own, look, denied, envoyDescriptor("convert", "z"))
	req.HitsAddend = 1<<32 - 1
	got, err := client.ShouldRateLimit(within(t, 5*time.Second), req)
	if err != nil {
		t.Fatal(err)
	}
	unit := ratelimitv3.RateLimitResponse_RateLimit_MINUTE
	wide := &ratelimitv3.RateLimitResponse_DescriptorStatus{
		Code:           ratelimitv3.RateLimitResponse_OK,
		CurrentLimit:   &ratelimitv3.RateLimitResponse_RateLimit{Name: "m", RequestsPerUnit: 1<<32 - 1, Unit: unit},
		LimitRemaining: 1<<32 - 1, DurationUntilReset: durationpb.New(1500 * time.Millisecond),
	}
	nine := &ratelimitv3.RateLimitResponse_RateLimit{Name: "m", RequestsPerUnit: 9, Unit: unit}
	want := &ratelimitv3.RateLimitResponse{
		OverallCode: ratelimitv3.RateLimitResponse_OVER_LIMIT,
		Statuses: []*ratelimitv3.RateLimitResponse_DescriptorStatus{
			wide, wide,
			{Code: ratelimitv3.RateLimitResponse_OK, CurrentLimit: nine, LimitRemaining: 4, DurationUntilReset: durationpb.New(0)},
			{Code: ratelimitv3.RateLimitResponse_OVER_LIMIT, CurrentLimit: nine, DurationUntilReset: durationpb.New(2500 * time.Millisecond)},
			{Code: ratelimitv3.RateLimitResponse_OVER_LIMIT},
		},
		ResponseHeadersToAdd: []*corev3.HeaderValue{
			{Key: "ratelimit", Value: `"m";r=0;t=3`}, {Key: "ratelimit-policy", Value: `"m";q=9;w=60`},
			{Key: "retry-after", Value: "3"},
		},
	}
	if !proto.Equal(got, want) {
		t.Errorf("got %v,\nwant %v", got, want)
	}
	checks := backend.seen()
	if len(checks) != 2 {
		t.Fatalf("%+v", checks)
	}
	for i, c := range checks {
		if c.Gateway != "envoy-1" || !strings.HasPrefix(c.DecisionID, "r-1/") || !strings.HasSuffix(c.DecisionID, fmt.Sprint("/", i)) {
			t.Errorf("check %d is %+v", i, c)
		}
	}
	if c := checks[0]; c.Charge != (fsm.Charge{Class: "convert", Cost: 1<<32 - 1}) || len(c.Also) != 1 ||
		c.Also[0] != (fsm.Charge{Class: "convert", Tier: "pro", Cost: 7}) {
		t.Errorf("the first principal's check is %+v", c)
	}
	if got := n.metric(t, "quorate_envoy_wasted_admissions_total"); got != 2 {
		t.Errorf("%v wasted, want 2", got)
	}
}

// Shows that no error of an owner is an answer of Envoy's protocol: each has the code and the ErrorInfo of its row, but
// for a cost that can never fit, which is over the limit.
func TestEveryErrorToEnvoy(t *testing.T) {
	for _, row := range errtable.Rows() {
		// What is waited out here is shown elsewhere.
		if row.Reason.IsDecision() || row.Reason == quotaerr.NotLeader || row.Reason == quotaerr.OutcomeUnknown {
			continue
		}
		t.Run(string(row.Reason), func(t *testing.T) {
			t.Parallel()
			n := mustNode(t, "n1", withEnvoy(t, answering(Answer{}, &quotaerr.Error{Reason: row.Reason, Message: "m"})))
			client := ratelimitv3.NewRateLimitServiceClient(n.conn)
			out, err := client.ShouldRateLimit(telling(t, time.Second), envoyAsk(envoyDescriptor("convert", "a")))
			if row.Reason == quotaerr.CostExceedsLimit {
				if err != nil || out.GetOverallCode() != ratelimitv3.RateLimitResponse_OVER_LIMIT {
					t.Errorf("%v %v", out, err)
				}
				return
			}
			if e := errtable.FromStatus(err); out != nil || e == nil || status.Code(err) != row.Code || e.Reason != row.Reason {
				t.Errorf("%v %v, want %s", out, err, row.Code)
			}
		})
	}
}

// Shows that a class which Envoy's certificate does not list is refused before anything is decided, and that a panic is
// no answer.
func TestEnvoyMayAskForItsClasses(t *testing.T) {
	ca := mustCA(t, tlsCluster)
	backend := withEnvoy(t, allowing())
	n := mustSecure(t, ca, "n1", backend)
	client := ratelimitv3.NewRateLimitServiceClient(mustDial(t, n.grpcAddr, ca.must(t, identity.Gateway, "envoy-1", "convert")))
	_, err := client.ShouldRateLimit(within(t, 5*time.Second), envoyAsk(envoyDescriptor("convert", "a"), envoyDescriptor("login", "b")))
	if e := errtable.FromStatus(err); e == nil || e.Reason != quotaerr.PermissionDenied || len(backend.seen()) != 0 {
		t.Errorf("%v, decided %+v", err, backend.seen())
	}
	out, err := client.ShouldRateLimit(within(t, 5*time.Second), envoyAsk(envoyDescriptor("convert", "a")))
	if err != nil || out.GetOverallCode() != ratelimitv3.RateLimitResponse_OK {
		t.Errorf("%v %v", out, err)
	}
	backend.check = func(context.Context, fsm.Check) (Answer, error) { panic("broken invariant") }
	out, err = client.ShouldRateLimit(within(t, 5*time.Second), envoyAsk(envoyDescriptor("convert", "a")))
	if e := errtable.FromStatus(err); out != nil || e == nil || e.Reason != quotaerr.Internal || n.metric(t, "quorate_panics_total") != 1 {
		t.Errorf("%v %v", out, err)
	}
}

// Shows what Envoy is told without a policy, with more descriptors than anybody has, and with more requests under way
// than the node takes: errors, and never an answer.
func TestEnvoyWithoutAnAnswer(t *testing.T) {
	n := mustNode(t, "n1", allowing())
	client := ratelimitv3.NewRateLimitServiceClient(n.conn)
	_, err := client.ShouldRateLimit(within(t, 5*time.Second), envoyAsk(envoyDescriptor("convert", "a")))
	if e := errtable.FromStatus(err); e == nil || e.Reason != quotaerr.PolicyBehind {
		t.Errorf("without a policy: %v", err)
	}
	many := envoyAsk()
	for i := range 10_000 {
		many.Descriptors = append(many.Descriptors, envoyDescriptor("convert", fmt.Sprint(i)))
	}
	_, err = client.ShouldRateLimit(within(t, 5*time.Second), many)
	mustBeInvalid(t, "10,000 descriptors", err)

	entered, leave := make(chan struct{}), make(chan struct{})
	backend := withEnvoy(t, allowing())
	p, _ := backend.policy()
	backend.policy = func() (*policy.Policy, error) {
		entered <- struct{}{}
		<-leave
		return p, nil
	}
	full := mustNode(t, "n1", backend, func(c *Config) { c.MaxInFlight = 1 })
	client = ratelimitv3.NewRateLimitServiceClient(full.conn)
	first := make(chan error, 1)
	go func() {
		_, err := client.ShouldRateLimit(within(t, 5*time.Second), envoyAsk(envoyDescriptor("convert", "a")))
		first <- err
	}()
	<-entered
	_, err = client.ShouldRateLimit(within(t, 5*time.Second), envoyAsk(envoyDescriptor("convert", "a")))
	if e := errtable.FromStatus(err); e == nil || e.Reason != quotaerr.Overloaded {
		t.Errorf("above the bound: %v", err)
	}
	close(leave)
	if err := <-first; err != nil {
		t.Errorf("within the bound: %v", err)
	}
}
