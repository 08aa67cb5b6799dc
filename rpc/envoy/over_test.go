package envoy

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	commonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/quorate/quorate/internal/errtable"
	"github.com/quorate/quorate/policy"
	quoratev1 "github.com/quorate/quorate/proto/quorate/v1"
	"github.com/quorate/quorate/quotaerr"
)

const overPolicy = `
version: p1
default: {limits: [{name: m, limit: 9, window: 60s}]}
classes:
  a: {limits: [{name: per-minute, limit: 10, window: 60s}, {name: wide, limit: 40, window: 1h}]}
  b: {limits: [{name: per-minute, limit: 3, window: 60s}]}
  shut: {limits: [{name: open, limit: 5, window: 1s}, {name: never, limit: 0, window: 60s}]}
  closed: {limits: [{name: m, limit: 5, window: 60s}], disabled: true}
groups:
  ab: {classes: [a, b], limits: [{name: both, limit: 11, window: 1h}]}
envoy:
  edge:
    rules:
      - {match: [{key: a}], class: a, principal: [a]}
      - {match: [{key: b}], class: b, principal: [b]}
      - {match: [{key: shut}], class: shut, principal: [shut]}
      - {match: [{key: closed}], class: closed, principal: [closed]}
      - {match: [{key: one}], class: default, principal: [one]}
      - {match: [{key: free}], unlimited: true}
`

// costing is a descriptor with a cost of its own.
func costing(cost uint64, entries ...string) *commonv3.RateLimitDescriptor {
	d := descriptorWith(entries...)
	d.HitsAddend = wrapperspb.UInt64(cost)
	return d
}

// limitsTold are the names of the limits that the statuses of an answer come of: "-" for none, "ok" for those allowed.
func limitsTold(out *ratelimitv3.RateLimitResponse) string {
	var names []string
	for _, s := range out.GetStatuses() {
		switch {
		case s.GetCode() == codeOK:
			names = append(names, "ok")
		case s.GetCurrentLimit() == nil:
			names = append(names, "-")
		default:
			names = append(names, fmt.Sprintf("%s/%d", s.GetCurrentLimit().GetName(), s.GetCurrentLimit().GetRequestsPerUnit()))
		}
	}
	return strings.Join(names, " ")
}

// Shows, for every way in which an answer is over the limit, which limit each status names, which reason and descriptor
// the answer tells, and that its headers are not empty.
func TestOverLimitTellsWhy(t *testing.T) {
	type ds = []*commonv3.RateLimitDescriptor
	for name, c := range map[string]struct {
		before, ask ds
		limits      string
		reason      string
		at          float64
	}{
		"exhausted":              {ds{costing(3, "b", "u")}, ds{costing(1, "b", "u")}, "per-minute/3", "", 0},
		"exhausted group":        {ds{costing(10, "a", "u")}, ds{costing(2, "b", "u")}, "both/11", "", 0},
		"the second of two":      {ds{costing(3, "b", "u")}, ds{costing(1, "a", "u"), costing(1, "b", "u")}, "per-minute/3 per-minute/3", "", 0},
		"the first of two":       {ds{costing(3, "b", "u")}, ds{costing(1, "b", "u"), costing(1, "a", "u")}, "per-minute/3 per-minute/3", "", 0},
		"of another, then none":  {ds{costing(3, "b", "u")}, ds{costing(1, "one", "v"), costing(1, "b", "u"), costing(1, "a", "w")}, "ok per-minute/3 -", "", 0},
		"limit of 0":             {nil, ds{costing(1, "shut", "u")}, "never/0", "blocked", 0},
		"limit of 0 beside":      {nil, ds{costing(1, "a", "u"), costing(1, "shut", "u")}, "never/0 never/0", "blocked", 1},
		"cost":                   {nil, ds{costing(4, "b", "u")}, "per-minute/3", "cost_exceeds_limit", 0},
		"costs together":         {nil, ds{costing(2, "b", "u"), costing(2, "b", "u")}, "per-minute/3 per-minute/3", "cost_exceeds_limit", 1},
		"costs of a group":       {nil, ds{costing(9, "a", "u"), costing(3, "b", "u")}, "both/11 both/11", "cost_exceeds_limit", 1},
		"switched off":           {nil, ds{costing(1, "closed", "u")}, "-", "endpoint_disabled", 0},
		"switched off beside":    {nil, ds{costing(1, "a", "u"), costing(1, "closed", "u")}, "- -", "endpoint_disabled", 1},
		"unmatched":              {nil, ds{costing(1, "x", "u")}, "-", "unmatched", 0},
		"unmatched beside":       {nil, ds{costing(1, "a", "u"), costing(1, "free", "u"), costing(0, "a", "u"), costing(1, "x", "u")}, "- ok - -", "unmatched", 3},
		"look":                   {ds{costing(3, "b", "u")}, ds{costing(0, "b", "u")}, "per-minute/3", "", 0},
		"look twice":             {ds{costing(3, "b", "u")}, ds{costing(0, "b", "u"), costing(0, "b", "u")}, "per-minute/3 per-minute/3", "", 0},
		"look at a limit of 0":   {nil, ds{costing(0, "shut", "u")}, "never/0", "blocked", 0},
		"look at what is off":    {nil, ds{costing(0, "closed", "u")}, "-", "endpoint_disabled", 0},
		"look, then not charged": {ds{costing(3, "b", "u")}, ds{costing(1, "a", "u"), costing(0, "b", "u")}, "- per-minute/3", "", 0},
	} {
		s, _, _ := mustService(t, overPolicy)
		if len(c.before) > 0 {
			if out, err := s.ShouldRateLimit(t.Context(), &ratelimitv3.RateLimitRequest{Domain: "edge", Descriptors: c.before}); err != nil ||
				out.GetOverallCode() != codeOK {
				t.Fatalf("%s: before: %v %v", name, out, err)
			}
		}
		out, err := s.ShouldRateLimit(t.Context(), &ratelimitv3.RateLimitRequest{Domain: "edge", Descriptors: c.ask})
		if err != nil || out.GetOverallCode() != codeOver {
			t.Errorf("%s: %v %v", name, out, err)
			continue
		}
		f := out.GetDynamicMetadata().GetFields()
		if got := limitsTold(out); got != c.limits || f[reasonField].GetStringValue() != c.reason ||
			f[descriptorField].GetNumberValue() != c.at || len(out.GetResponseHeadersToAdd()) == 0 {
			t.Errorf("%s: limits %s, want %s: %v", name, got, c.limits, out)
		}
		wantTold(t, out)
	}
}

// Shows that a denial without the states of its limits, or whose limit the policy in force here does not have, names its
// limit nonetheless; and that a denial which says nothing is told as that.
func TestOverLimitWithoutStates(t *testing.T) {
	s, desk, _ := mustService(t, overPolicy)
	at := timestamppb.New(time.Unix(9, 0))
	for _, c := range []struct {
		d            *quoratev1.Decision
		want, reason string
	}{
		{&quoratev1.Decision{Reason: "quota_exhausted", Limit: "wide", RetryAt: at, RetryAfterMs: 500}, "wide/40", ""},
		{&quoratev1.Decision{Reason: "quota_exhausted", Limit: "gone", RetryAt: at, RetryAfterMs: 500}, "gone/0", ""},
		{&quoratev1.Decision{Reason: "quota_exhausted", Limit: "gone", Limits: []*quoratev1.LimitState{
			{Name: "per-minute", Limit: 10, Window: durationpb.New(time.Minute)}, // has no room either
			{Name: "gone", Limit: 7, Window: durationpb.New(time.Hour)},
		}}, "gone/7", ""},
		{&quoratev1.Decision{Reason: "blocked"}, "-", "blocked"}, // by a policy that is not here yet
		{&quoratev1.Decision{Reason: "allowed", Limits: []*quoratev1.LimitState{{Name: "x"}}}, "-", "unknown"},
		{&quoratev1.Decision{}, "-", "unknown"},
	} {
		if c.d.GetReason() != "allowed" {
			c.d.Outcome = quoratev1.Outcome_OUTCOME_DENIED
		}
		desk.answer = c.d
		out, err := s.ShouldRateLimit(t.Context(), ask("edge", []string{"a", "u"}))
		reason := out.GetDynamicMetadata().GetFields()[reasonField].GetStringValue()
		if err != nil || limitsTold(out) != c.want || reason != c.reason {
			t.Errorf("%v: %v, %v", c.d, out, err)
		}
	}
}

// Shows that each error tells an operator of Envoy what Envoy makes of it, and nothing of what is for programs: no
// decision ids to repeat, no text of who could not be asked; and that its reason and its chain stay.
func TestErrorsSpeakToEnvoy(t *testing.T) {
	for _, r := range quotaerr.All() {
		if r.IsDecision() || r == quotaerr.CostExceedsLimit {
			continue
		}
		s, desk, _ := mustService(t, overPolicy)
		cause := quotaerr.New(r, "the leader said so: retry with the same decision id")
		if r == quotaerr.InvalidArgument || r == quotaerr.PermissionDenied || r == quotaerr.Capacity ||
			r == quotaerr.Unauthenticated { // their texts say what is wrong
			cause = quotaerr.New(r, "the thing is wrong")
		}
		desk.failing["b"] = cause
		_, err := s.ShouldRateLimit(t.Context(), ask("edge", []string{"b", "u"}, []string{"b", "u"}))
		if reasonOf(t, err) != r || !slices.Contains(chainOf(err), error(cause)) {
			t.Errorf("%s: %v", r, err)
		}
		text := errtable.ToStatus(t.Context(), err).Message()
		if r == quotaerr.Internal {
			continue // nothing is told but where to look
		}
		if !strings.Contains(text, "failure_mode_deny: true") || strings.Contains(text, "decision id") ||
			strings.Contains(text, "leader") || len(text) > 600 {
			t.Errorf("%s: %s", r, text)
		}
		if errtable.Lookup(r).Retryable() && strings.Count(text, `"b"`) != 1 {
			t.Errorf("%s does not say what it is about, once: %s", r, text)
		}
	}
	s, desk, _ := mustService(t, overPolicy)
	desk.noPolicy = quotaerr.New(quotaerr.PolicyBehind, "ask another node")
	if _, err := s.ShouldRateLimit(t.Context(), ask("edge", []string{"b", "u"})); !strings.Contains(
		errtable.ToStatus(t.Context(), err).Message(), "policy status") {
		t.Errorf("without a policy: %v", err)
	}
}

// chainOf are an error and its causes.
func chainOf(err error) (out []error) {
	for ; err != nil; err = quotaerr.As(err).Cause {
		out = append(out, err)
	}
	return out
}

// Shows what bounds the work for one request: as many questions as descriptors at most, and MaxSpan in time, whatever
// the caller's deadline and the classes' timeouts are.
func TestWorkIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, desk, _ := mustService(t, `
version: p1
default: {limits: [{name: m, limit: 9, window: 60s}]}
classes:
  patient: {limits: [{name: m, limit: 9, window: 60s}], timeout: 90s, replay_horizon: 15m, on_unavailable: allow}
envoy:
  edge: {rules: [{match: [{key: u}, {key: v}], class: patient, principal: [u, v]}]}
`)
		req := ask("edge")
		for i := range MaxDescriptors {
			req.Descriptors = append(req.Descriptors, descriptorWith("u", fmt.Sprint(i), "v", strings.Repeat("v", 100)))
		}
		out, err := s.ShouldRateLimit(t.Context(), req)
		if err != nil || out.GetOverallCode() != codeOK || len(desk.asked) != MaxDescriptors {
			t.Fatalf("%v, %v, asked %d", out, err, len(desk.asked))
		}
		desk.hang, desk.asked = true, nil
		start := time.Now()
		out, err = s.ShouldRateLimit(t.Context(), req)
		if took := time.Since(start); reasonOf(t, err) != quotaerr.OutcomeUnknown || took > MaxSpan || took < 90*time.Second {
			t.Errorf("%v, %v after %s", out, err, took)
		}
		if n := len(desk.asked); n > 8 { // the first for its timeout, the next for what is left, and for the rest of that
			t.Errorf("asked %d times", n)
		}
	})
	if longest := time.Duration(policy.MaxReplayHorizonNanos / policy.MinHorizonTimeouts); MaxSpan <= longest {
		t.Errorf("a class may wait for %s, a request only for %s", longest, MaxSpan)
	}
}

// Shows that a request which is too large is refused before anything is made of it, by its number of descriptors and by
// the entries of one, and that long values are compared with nothing, and name nobody.
func TestLargeRequests(t *testing.T) {
	s, desk, _ := mustService(t, overPolicy)
	desk.noPolicy = quotaerr.New(quotaerr.PolicyBehind, "it was asked for")
	many := ask("edge")
	for i := range 10_000 {
		many.Descriptors = append(many.Descriptors, descriptorWith("a", fmt.Sprint(i)))
	}
	deep := ask("edge", slices.Repeat([]string{"a", "u"}, 10_000))
	for _, req := range []*ratelimitv3.RateLimitRequest{many, deep} {
		if _, err := s.ShouldRateLimit(t.Context(), req); reasonOf(t, err) != quotaerr.InvalidArgument {
			t.Errorf("%v", err)
		}
	}
	desk.noPolicy = nil
	long := ask("edge", []string{"a", strings.Repeat("u", 1<<20)})
	if _, err := s.ShouldRateLimit(t.Context(), long); reasonOf(t, err) != quotaerr.InvalidArgument || len(err.Error()) > 1000 {
		t.Errorf("%.2000v", err)
	}
	if len(desk.asked) != 0 {
		t.Errorf("asked %d times", len(desk.asked))
	}
}
