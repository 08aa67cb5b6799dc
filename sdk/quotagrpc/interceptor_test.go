package quotagrpc

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/quorate/quorate/quotaerr"
	"github.com/quorate/quorate/sdk"
	"github.com/quorate/quorate/sdk/caller"
)

// fake answers every check alike, and keeps what it was asked.
type fake struct {
	answer func([]sdk.Identity) (sdk.Decisions, error)

	mu    sync.Mutex // guards asked
	asked [][]sdk.Identity
}

func (f *fake) CheckAll(_ context.Context, ids []sdk.Identity) (sdk.Decisions, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.asked = append(f.asked, slices.Clone(ids))
	return f.answer(ids)
}

func (f *fake) seen() [][]sdk.Identity {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.asked)
}

// deciding answers with one decision for each identity.
func deciding(d sdk.Decision) *fake {
	return &fake{answer: func(ids []sdk.Identity) (sdk.Decisions, error) {
		if d.Allowed {
			return sdk.Decisions{Decisions: slices.Repeat([]sdk.Decision{d}, len(ids)), Allowed: true, Denied: -1}, nil
		}
		ds := sdk.Decisions{Decisions: make([]sdk.Decision, len(ids)), RetryAfter: d.RetryAfter}
		ds.Decisions[0] = d
		return ds, nil
	}}
}

func failing(err error) *fake {
	return &fake{answer: func([]sdk.Identity) (sdk.Decisions, error) { return sdk.Decisions{Denied: -1}, err }}
}

var limits = []sdk.LimitState{
	{Name: "per-minute", Limit: 3, Window: time.Minute, Remaining: 1, Reset: 30*time.Second + 1},
}

func allow() sdk.Decision {
	return sdk.Decision{Allowed: true, Source: sdk.SourceOwner, Reason: "allowed", Remaining: 1, Limits: limits}
}

func exhausted() sdk.Decision {
	return sdk.Decision{Source: sdk.SourceOwner, Reason: "quota_exhausted", Limit: "per-minute", ID: "secret",
		RetryAfter: 41*time.Second + 1, RetryAt: time.Unix(1_800_000_000, 0), Limits: limits}
}

func byKey() caller.Key {
	return caller.APIKey("x-api-key", func(_ context.Context, key string) (string, error) { return key, nil })
}

// health is the service behind the interceptors. It counts the calls that reach it.
type health struct {
	healthpb.UnimplementedHealthServer

	mu       sync.Mutex // guards the rest
	reached  int
	decision sdk.Decision
}

func (h *health) note(ctx context.Context) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.reached++
	h.decision, _ = DecisionFrom(ctx)
}

func (h *health) Check(ctx context.Context, _ *healthpb.HealthCheckRequest) (*healthpb.HealthCheckResponse, error) {
	h.note(ctx)
	return &healthpb.HealthCheckResponse{}, nil
}

func (h *health) Watch(_ *healthpb.HealthCheckRequest, s healthpb.Health_WatchServer) error {
	h.note(s.Context())
	for range 3 {
		if err := s.Send(&healthpb.HealthCheckResponse{}); err != nil {
			return err
		}
	}
	return nil
}

func (h *health) seen() (reached int, from sdk.Source) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.reached, h.decision.Source
}

func mustLimiter(t *testing.T, c Checker, rules Rules, options ...Option) *Limiter {
	t.Helper()
	l, err := New(c, rules, options...)
	if err != nil {
		t.Fatal(err)
	}
	l.intn = func(n int64) int64 { return n - 1 }
	return l
}

// mustServe serves the health service behind l on loopback.
func mustServe(t *testing.T, l *Limiter) (*health, healthpb.HealthClient) {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer(grpc.UnaryInterceptor(l.Unary), grpc.StreamInterceptor(l.Stream))
	h := &health{}
	healthpb.RegisterHealthServer(server, h)
	done := make(chan error, 1)
	go func() { done <- server.Serve(listener) }()
	t.Cleanup(func() {
		server.Stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	conn, err := grpc.NewClient(listener.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return h, healthpb.NewHealthClient(conn)
}

func oneRule() Rules { return Rules{Fallback: caller.Limit("convert", byKey())} }

func as(t *testing.T, key string) context.Context {
	t.Helper()
	if key == "" {
		return t.Context()
	}
	return metadata.AppendToOutgoingContext(t.Context(), "x-api-key", key)
}

// dump is a status as text.
func dump(err error) string {
	st := status.Convert(err)
	lines := []string{st.Code().String() + ": " + st.Message()}
	for _, d := range st.Details() {
		switch d := d.(type) {
		case *errdetails.ErrorInfo:
			lines = append(lines, fmt.Sprintf("ErrorInfo %s %s %v", d.GetDomain(), d.GetReason(), d.GetMetadata()))
		case *errdetails.RetryInfo:
			lines = append(lines, "RetryInfo "+d.GetRetryDelay().AsDuration().String())
		case *errdetails.QuotaFailure:
			for _, v := range d.GetViolations() {
				lines = append(lines, fmt.Sprintf("QuotaFailure %s %s %d: %s",
					v.GetSubject(), v.GetQuotaId(), v.GetQuotaValue(), v.GetDescription()))
			}
		default:
			lines = append(lines, fmt.Sprintf("%T", d))
		}
	}
	return strings.Join(lines, "\n")
}

const (
	callUnary  = "unary"
	callStream = "stream"
)

// call makes one call and drains it.
func call(ctx context.Context, client healthpb.HealthClient, shape string) (header metadata.MD, err error) {
	if shape == callUnary {
		_, err := client.Check(ctx, &healthpb.HealthCheckRequest{}, grpc.Header(&header))
		return header, err
	}
	s, err := client.Watch(ctx, &healthpb.HealthCheckRequest{})
	if err != nil {
		return nil, err
	}
	messages := 0
	for ; ; messages++ {
		if _, err = s.Recv(); err != nil {
			break
		}
	}
	header, _ = s.Header()
	if messages == 3 {
		return header, nil
	}
	return header, err
}

// Shows each answer to a unary call and to a stream, over a real connection: code, message and details, with nothing of
// the cluster in them; that only an allow reaches the handler; and that each call is one check, however many messages.
func TestAnswersGolden(t *testing.T) {
	secret := errors.New("secret: node n2")
	refused := func(r quotaerr.Reason) *fake { return failing(&sdk.Error{Reason: r, Message: "secret"}) }
	const undecided = "Unavailable: whether this request is within its limits could not be decided\n" +
		"ErrorInfo quorate unavailable map[]\nRetryInfo "
	for name, c := range map[string]struct {
		checker *fake
		key     string
		want    string
	}{
		"allowed": {deciding(allow()), "acme", "OK: "},
		"exhausted": {deciding(exhausted()), "acme", "ResourceExhausted: quota exceeded\n" +
			"ErrorInfo quorate quota_exhausted map[]\nRetryInfo 41.001s\n" +
			"QuotaFailure caller per-minute 3: the limit per-minute has no room at present"},
		"blocked": {deciding(sdk.Decision{Source: sdk.SourceOwner, Reason: "blocked"}), "acme",
			"PermissionDenied: this caller may not use this endpoint\nErrorInfo quorate blocked map[]"},
		"disabled": {deciding(sdk.Decision{Source: sdk.SourceConfig, Reason: "endpoint_disabled"}), "acme",
			"Unavailable: this endpoint is switched off\nErrorInfo quorate endpoint_disabled map[]\nRetryInfo 30s"},
		"no quorum":     {refused(quotaerr.NoQuorum), "acme", undecided + "1s"},
		"frozen":        {refused(quotaerr.Frozen), "acme", undecided + "100ms"},
		"closed":        {failing(sdk.ErrClosed), "acme", undecided + "1s"},
		"unknown error": {failing(secret), "acme", undecided + "1s"},
		"overloaded": {refused(quotaerr.Overloaded), "acme", "Unavailable: there is too much to do at present\n" +
			"ErrorInfo quorate unavailable map[]\nRetryInfo 1s"},
		"cost": {refused(quotaerr.CostExceedsLimit), "acme", "InvalidArgument: this request costs more than its limit " +
			"ever allows: make it smaller\nErrorInfo quorate cost_exceeds_limit map[]"},
		"gateway may not": {refused(quotaerr.PermissionDenied), "acme",
			"Internal: this service is not set up to count this request\nErrorInfo quorate internal map[]"},
		"no key": {deciding(allow()), "",
			"Unauthenticated: send the header x-api-key\nErrorInfo quorate unauthenticated map[]"},
		"long key": {deciding(allow()), strings.Repeat("k", 513), "InvalidArgument: the request names a caller in more " +
			"than 512 bytes\nErrorInfo quorate invalid_argument map[]"},
	} {
		h, client := mustServe(t, mustLimiter(t, c.checker, oneRule()))
		calls := 0
		for _, shape := range []string{callUnary, callStream} {
			_, err := call(as(t, c.key), client, shape)
			if diff := cmp.Diff(c.want, dump(err)); diff != "" {
				t.Errorf("%s, %s: -want +got:\n%s", name, shape, diff)
			}
			calls++
			reached, _ := h.seen()
			if (err == nil) != (reached == calls) {
				t.Errorf("%s, %s: %v, and the handler was reached %d times", name, shape, err, reached)
			}
			if asked := len(c.checker.seen()); c.key == "acme" && asked != calls {
				t.Errorf("%s, %s: %d checks after %d calls", name, shape, asked, calls)
			}
		}
	}
}

// Shows the headers of an allow and of a denial, and none for a bypass, which the handler sees in its context.
func TestHeadersAndContext(t *testing.T) {
	for name, c := range map[string]struct {
		decision     sdk.Decision
		policy, room []string
	}{
		"allowed": {allow(), []string{`"per-minute";q=3;w=60`}, []string{`"per-minute";r=1;t=31`}},
		"denied":  {exhausted(), []string{`"per-minute";q=3;w=60`}, []string{`"per-minute";r=1;t=42`}},
		"bypass":  {sdk.Decision{Allowed: true, Source: sdk.SourceBypass}, nil, nil},
	} {
		for _, shape := range []string{callUnary, callStream} {
			h, client := mustServe(t, mustLimiter(t, deciding(c.decision), oneRule()))
			header, _ := call(as(t, "acme"), client, shape)
			if diff := cmp.Diff([][]string{c.policy, c.room},
				[][]string{header.Get("ratelimit-policy"), header.Get("ratelimit")}); diff != "" {
				t.Errorf("%s, %s: -want +got:\n%s", name, shape, diff)
			}
			if _, source := h.seen(); c.decision.Allowed && source != c.decision.Source {
				t.Errorf("%s, %s: the handler sees %s", name, shape, source)
			}
		}
	}
}

// Shows that a jitter is added to RetryInfo, never taken away, in the draws at both ends.
func TestRetryJitter(t *testing.T) {
	for want, draw := range map[time.Duration]func(int64) int64{
		41001 * time.Millisecond: func(int64) int64 { return 0 },
		41251 * time.Millisecond: func(n int64) int64 { return n - 1 },
	} {
		l := mustLimiter(t, deciding(exhausted()), oneRule(), WithRetryJitter(250*time.Millisecond))
		l.intn = draw
		_, client := mustServe(t, l)
		_, err := call(as(t, "acme"), client, callUnary)
		if !strings.Contains(dump(err), "RetryInfo "+want.String()+"\n") {
			t.Errorf("got %s, want a wait of %s", dump(err), want)
		}
	}
}

// Shows which rule a method gets: its own, its service's, else the fallback, however the client wrote the name.
func TestMethods(t *testing.T) {
	rule := func(class string) caller.Rule { return caller.Limit(class, byKey()) }
	l := mustLimiter(t, deciding(allow()), Rules{
		Methods: map[string]caller.Rule{
			"/media.v1.Convert/Start": rule("start"), "/media.v1.Convert/*": rule("convert"), "/a.B/C": rule("c"),
		},
		Fallback: rule("fallback"),
	})
	for method, want := range map[string]string{
		"/media.v1.Convert/Start": "start", "media.v1.Convert/Start": "start", "/media.v1.Convert/Stop": "convert",
		"/media.v1.Convert/*": "convert", "/media.v1.Convert/": "convert", "/media.v1.Convert": "fallback",
		"/media.v1.Convert/Start/": "fallback", "/media.v1.Convert/x/Start": "fallback", "/a.B/C": "c", "/a.B/c": "fallback",
		"/a.B/D": "fallback", "": "fallback", "/": "fallback", "//": "fallback", "*": "fallback", "/*": "fallback",
	} {
		if got := l.rule(method).Charges[0].Class; got != want {
			t.Errorf("%q is charged to %s, want %s", method, got, want)
		}
	}
}

// Shows that the cost may come from a unary call's message and the address from the connection, and that an unlimited
// method is not asked about.
func TestChargesSeeTheCall(t *testing.T) {
	checker := deciding(allow())
	rules := oneRule()
	rules.Fallback = caller.Rule{Charges: []caller.Charge{{
		Class: "convert", Key: caller.ClientIP(caller.Proxies{}),
		Cost: func(r *caller.Request) (int64, error) {
			m, ok := r.Message.(*healthpb.HealthCheckRequest)
			if !ok || r.Method != "/grpc.health.v1.Health/Check" {
				return 0, fmt.Errorf("%T in %s", r.Message, r.Method)
			}
			return int64(len(m.GetService())), nil
		},
	}}}
	rules.Methods = map[string]caller.Rule{"/grpc.health.v1.Health/Watch": caller.Unlimited()}
	_, client := mustServe(t, mustLimiter(t, checker, rules))
	if _, err := client.Check(t.Context(), &healthpb.HealthCheckRequest{Service: "seven.."}); err != nil {
		t.Fatal(err)
	}
	if _, err := client.Check(t.Context(), &healthpb.HealthCheckRequest{}); status.Code(err) != codes.InvalidArgument {
		t.Errorf("a cost of 0: %v", err)
	}
	if _, err := call(t.Context(), client, callStream); err != nil {
		t.Errorf("the unlimited stream: %v", err)
	}
	want := [][]sdk.Identity{{{Principal: "ip:127.0.0.1", Class: "convert", Cost: 7}}}
	if diff := cmp.Diff(want, checker.seen()); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// Shows that a call which ended before its decision is not charged, that its cause is told to the operator, and that a
// panic of the handler passes.
func TestEndedCallAndPanic(t *testing.T) {
	checker := deciding(allow())
	var told []error
	l := mustLimiter(t, checker, oneRule(), WithOnError(func(_ context.Context, _ string, err error) { told = append(told, err) }))
	ctx, cancel := context.WithCancel(metadata.NewIncomingContext(t.Context(), metadata.Pairs("x-api-key", "acme")))
	info := &grpc.UnaryServerInfo{FullMethod: "/a.B/C"}
	never := func(context.Context, any) (any, error) { t.Error("the handler ran"); return nil, nil }
	cancel()
	_, err := l.Unary(ctx, nil, info, never)
	if status.Code(err) != codes.Canceled || len(checker.seen()) != 0 || len(told) != 1 || !errors.Is(told[0], context.Canceled) {
		t.Errorf("%v after %d checks, told %v", err, len(checker.seen()), told)
	}
	late, cancel := context.WithDeadline(ctx, time.Unix(0, 0))
	defer cancel()
	if _, err := l.Unary(late, nil, info, never); status.Code(err) != codes.Canceled {
		t.Errorf("canceled, then late: %v", err)
	}
	late, cancelLate := context.WithDeadline(context.WithoutCancel(ctx), time.Unix(0, 0))
	defer cancelLate()
	if _, err := l.Unary(late, nil, info, never); status.Code(err) != codes.DeadlineExceeded {
		t.Errorf("late: %v", err)
	}

	defer func() {
		if p := recover(); p != "oops" {
			t.Errorf("recovered %v", p)
		}
	}()
	_, _ = l.Unary(context.WithoutCancel(ctx), nil, info, func(context.Context, any) (any, error) { panic("oops") })
}

// Shows that wrong rules are refused when the interceptors are made, all problems at once.
func TestRulesAreChecked(t *testing.T) {
	for _, m := range []string{"", "/", "//", "/a.B", "a.B/C", "/a.B/C/D", "/*", "/*/C", "/a.B/C*", "/a.B/"} {
		rules := oneRule()
		rules.Methods = map[string]caller.Rule{m: caller.Unlimited()}
		if _, err := New(deciding(allow()), rules); err == nil {
			t.Errorf("%q is accepted", m)
		}
	}
	_, err := New(nil, Rules{}, WithRetryJitter(2*time.Hour), WithOnError(nil))
	if err == nil || strings.Count(err.Error(), "\n") != 3 {
		t.Errorf("got %v, want four problems", err)
	}
}
