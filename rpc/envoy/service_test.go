package envoy

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/quorate/quorate/policy"
	quoratev1 "github.com/quorate/quorate/proto/quorate/v1"
	"github.com/quorate/quorate/quotaerr"
)

const servicePolicy = `
version: p1
default: {limits: [{name: m, limit: 9, window: 60s}]}
classes:
  slow: {limits: [{name: m, limit: 9, window: 60s}], timeout: 2s, replay_horizon: 20s}
  lenient: {limits: [{name: m, limit: 9, window: 60s}], timeout: 2s, replay_horizon: 20s, on_unavailable: allow}
  tight: {limits: [{name: m, limit: 9, window: 60s}], timeout: 50ms, replay_horizon: 1s}
envoy:
  edge:
    rules:
      - {match: [{key: u}], class: default, principal: [u]}
      - {match: [{key: slow}], class: slow, principal: [slow]}
      - {match: [{key: lenient}], class: lenient, principal: [lenient]}
      - {match: [{key: tight}], class: tight, principal: [tight]}
`

func mustService(t testing.TB, text string) (*Service, *fakeDesk, *prometheus.Registry) {
	t.Helper()
	desk, registry := newDesk(mustPolicy(t, text)), prometheus.NewRegistry()
	return New(desk, registry), desk, registry
}

// Shows that no number of descriptors is too many to be refused, from one above the bound, and that those within it are
// all decided.
func TestManyDescriptors(t *testing.T) {
	s, desk, _ := mustService(t, servicePolicy)
	for _, n := range []int{1, MaxDescriptors, MaxDescriptors + 1, 10_000} {
		desk.asked = nil
		req := ask("edge")
		for i := range n {
			req.Descriptors = append(req.Descriptors, descriptorWith("u", fmt.Sprint(n, "-", i)))
		}
		out, err := s.ShouldRateLimit(t.Context(), req)
		if n > MaxDescriptors {
			if reasonOf(t, err) != quotaerr.InvalidArgument || len(desk.asked) != 0 {
				t.Errorf("%d: %v, asked %v", n, err, desk.asked)
			}
			continue
		}
		if err != nil || out.GetOverallCode() != codeOK || len(out.GetStatuses()) != n || len(desk.asked) != n {
			t.Errorf("%d: %v, %v, asked %d", n, out, err, len(desk.asked))
		}
	}
}

// Shows that a class which the caller may not ask for refuses the whole request before anything is asked, whether its
// descriptor is charged or only looked up.
func TestBarredClasses(t *testing.T) {
	s, desk, _ := mustService(t, servicePolicy)
	desk.barred["slow"] = true
	look := ask("edge", []string{"u", "a"}, []string{"slow", "a"})
	look.Descriptors[1].HitsAddend = wrapperspb.UInt64(0)
	for _, req := range []*ratelimitv3.RateLimitRequest{
		ask("edge", []string{"u", "a"}, []string{"slow", "b"}), ask("edge", []string{"u", "a"}, []string{"slow", "a"}), look,
	} {
		_, err := s.ShouldRateLimit(t.Context(), req)
		if reasonOf(t, err) != quotaerr.PermissionDenied || len(desk.asked) != 0 {
			t.Errorf("%v: %v, asked %v", req, err, desk.asked)
		}
	}
}

// Shows that without a policy there is no answer, and for which reason.
func TestNoPolicy(t *testing.T) {
	s, desk, registry := mustService(t, servicePolicy)
	desk.policy, desk.noPolicy = nil, quotaerr.New(quotaerr.PolicyBehind, "not yet")
	_, err := s.ShouldRateLimit(t.Context(), ask("edge", []string{"u", "a"}))
	if reasonOf(t, err) != quotaerr.PolicyBehind {
		t.Error(err)
	}
	if diff := cmp.Diff(map[string]float64{"answers error": 1}, counts(t, registry)); diff != "" {
		t.Error(diff)
	}
}

// Shows that whatever the desk answers that is no plain allow is over the limit: an empty decision, an outcome that is
// not known.
func TestNoAllowByZeroValue(t *testing.T) {
	s, desk, registry := mustService(t, servicePolicy)
	for i, d := range []*quoratev1.Decision{{}, {Outcome: 99, Reason: "allowed"}, {Reason: "allowed", Remaining: 5}} {
		desk.answer = d
		out, err := s.ShouldRateLimit(t.Context(), ask("edge", []string{"u", "a"}))
		if err != nil || out.GetOverallCode() != codeOver || out.GetStatuses()[0].GetCode() != codeOver {
			t.Errorf("%d: %v %v", i, out, err)
		}
	}
	if got := counts(t, registry)["answers over_limit"]; got != 3 {
		t.Errorf("%v counted", got)
	}
}

// Shows which unit a window has, and that numbers are cut to what Envoy has room for, never stated as more.
func TestLimitsAsEnvoyHasThem(t *testing.T) {
	for window, want := range map[time.Duration]string{
		time.Second: "SECOND", time.Minute: "MINUTE", time.Hour: "HOUR", day: "DAY", 7 * day: "WEEK", 30 * day: "MONTH",
		365 * day: "YEAR", 2 * time.Minute: "UNKNOWN", time.Millisecond: "UNKNOWN", 366 * day: "UNKNOWN", 31 * day: "UNKNOWN",
	} {
		got := limitOf(&quoratev1.LimitState{Name: "n", Limit: 1 << 40, Window: durationpb.New(window)})
		if got.GetUnit().String() != want || got.GetRequestsPerUnit() != 1<<32-1 || got.GetName() != "n" {
			t.Errorf("%s: %v, want %s", window, got, want)
		}
	}
	for in, want := range map[int64]uint32{-1 << 63: 0, -1: 0, 0: 0, 7: 7, 1<<32 - 1: 1<<32 - 1, 1 << 32: 1<<32 - 1, 1<<63 - 1: 1<<32 - 1} {
		if got := clamp(in); got != want {
			t.Errorf("%d: %d, want %d", in, got, want)
		}
	}
	for in, want := range map[int64]time.Duration{-1: 0, 5: 5 * time.Millisecond, 1<<63 - 1: time.Duration(policy.MaxWindowNanos)} {
		if got := millis(in).AsDuration(); got != want {
			t.Errorf("%d ms: %s, want %s", in, got, want)
		}
	}
}

// Shows how long a question may take: its classes' shortest timeout, and a little less than the call's
// deadline.
func TestTimeouts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, desk, _ := mustService(t, servicePolicy)
		for _, c := range []struct {
			entries [][]string
			call    time.Duration
			want    []time.Duration
		}{
			{[][]string{{"u", "a"}}, time.Hour, []time.Duration{100 * time.Millisecond}},
			{[][]string{{"slow", "a"}}, time.Hour, []time.Duration{2 * time.Second}},
			{[][]string{{"slow", "a"}, {"u", "b"}}, time.Hour, []time.Duration{2 * time.Second, 100 * time.Millisecond}},
			{[][]string{{"slow", "a"}, {"tight", "a"}}, time.Hour, []time.Duration{50 * time.Millisecond}},
			{[][]string{{"slow", "b"}}, time.Second, []time.Duration{900 * time.Millisecond}},
			{[][]string{{"slow", "c"}}, 1500 * time.Millisecond, []time.Duration{1400 * time.Millisecond}},
			{[][]string{{"slow", "d"}}, 5 * time.Millisecond, []time.Duration{4 * time.Millisecond}},
		} {
			desk.deadline = nil
			ctx, cancel := context.WithTimeout(t.Context(), c.call)
			_, err := s.ShouldRateLimit(ctx, ask("edge", c.entries...))
			cancel()
			if diff := cmp.Diff(c.want, desk.deadline); diff != "" || err != nil {
				t.Errorf("%v within %s: %v\n%s", c.entries, c.call, err, diff)
			}
		}
	})
}

// Shows that with no time left to ask in nobody is asked, and nothing is let through: a call that came too late says
// nothing of the owner.
func TestNoTimeToAsk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, desk, registry := mustService(t, servicePolicy)
		for _, descriptor := range [][]string{{"lenient", "a"}, {"u", "a"}} {
			ctx, cancel := context.WithTimeout(t.Context(), 900*time.Microsecond)
			out, err := s.ShouldRateLimit(ctx, ask("edge", descriptor))
			if quotaerr.ReasonOf(err) != quotaerr.OutcomeUnknown || out != nil {
				t.Errorf("%v: %v, %v", descriptor, out, err)
			}
			cancel()
		}
		if n := counts(t, registry)["bypasses lenient"]; n != 0 || len(desk.deadline) != 0 {
			t.Errorf("%v bypasses, and asked %d times", n, len(desk.deadline))
		}
	})
}

// Shows that a class which is let through when nobody can decide is let through before Envoy gives up, also when Envoy
// waits for less than the class's timeout, and that a call whose caller has gone is not counted as let through.
func TestBypassInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, desk, registry := mustService(t, servicePolicy)
		desk.hang = true
		for _, c := range []struct{ call, want time.Duration }{
			{time.Hour, 2 * time.Second}, {time.Second, 900 * time.Millisecond}, {100 * time.Millisecond, 90 * time.Millisecond},
		} {
			ctx, cancel := context.WithTimeout(t.Context(), c.call)
			start := time.Now()
			out, err := s.ShouldRateLimit(ctx, ask("edge", []string{"lenient", "a"}, []string{"lenient", "a"}))
			if took := time.Since(start); err != nil || out.GetOverallCode() != codeOK || took != c.want {
				t.Errorf("within %s: %v, %v after %s", c.call, out, err, took)
			}
			cancel()
		}
		if got := counts(t, registry)["bypasses lenient"]; got != 6 {
			t.Errorf("%v bypasses counted, want 6", got)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if out, err := s.ShouldRateLimit(ctx, ask("edge", []string{"lenient", "a"})); err == nil {
			t.Errorf("a caller that has gone is told %v", out)
		}
		if got := counts(t, registry)["bypasses lenient"]; got != 6 {
			t.Errorf("%v bypasses counted, want 6", got)
		}
	})
}

// Shows that an error is one for failure modes only if nothing in its chain is of an owner that is there: what was in
// doubt first, and then met a move or an overload, is none.
func TestForFailureMode(t *testing.T) {
	both := func(r quotaerr.Reason) error {
		return quotaerr.Wrap(quotaerr.OutcomeUnknown,
			errors.Join(quotaerr.New(quotaerr.OutcomeUnknown, ""), quotaerr.New(r, "")), "may have been counted")
	}
	away := []quotaerr.Reason{
		quotaerr.NoQuorum, quotaerr.PolicyLeaseExpired, quotaerr.OutcomeUnknown, quotaerr.NotLeader,
	}
	for _, r := range quotaerr.All() {
		if r.IsDecision() {
			continue
		}
		if got, want := forFailureMode(quotaerr.New(r, "")), slices.Contains(away, r); got != want {
			t.Errorf("%s: %t", r, got)
		}
		if got, want := forFailureMode(both(r)), slices.Contains(away, r); got != want {
			t.Errorf("%s after an outcome that is unknown: %t", r, got)
		}
	}
	if forFailureMode(errors.New("a defect")) {
		t.Error("a defect is let through")
	}
}

// Shows that no two requests have decisions of one name but those that repeat each other: not where separators move, not
// without a request id, and that no name is too long.
func TestDecisionIDsDiffer(t *testing.T) {
	seen := map[string]string{}
	long := strings.Repeat("r", MaxRequestIDBytes)
	for i, c := range []struct {
		domain, id string
		d          []descriptor
	}{
		{"a", "r", []descriptor{{[]string{"k"}, []string{"v"}, 1}}},
		{"a", "r", []descriptor{{[]string{"k"}, []string{"v"}, 2}}},
		{"a", "r", []descriptor{{[]string{"kv"}, []string{""}, 1}}},
		{"a", "r", []descriptor{{[]string{"", "k"}, []string{"v", ""}, 1}}},
		{"a", "r", []descriptor{{[]string{"k"}, []string{"v"}, 1}, {[]string{"k"}, []string{"v"}, 1}}},
		{"a", "r", []descriptor{{[]string{"k", "k"}, []string{"v", "v"}, 1}}},
		{"ak", "r", []descriptor{{[]string{""}, []string{"v"}, 1}}},
		{"a", "r/0", []descriptor{{[]string{"k"}, []string{"v"}, 1}}},
		{"a", long, []descriptor{{[]string{"k"}, []string{"v"}, 1}}},
		{"a", "", []descriptor{{[]string{"k"}, []string{"v"}, 1}}},
		{"a", "", []descriptor{{[]string{"k"}, []string{"v"}, 1}}},
	} {
		ids := decisionIDs(c.domain, c.id, c.d)
		for position := range MaxDescriptors {
			id := ids(position)
			at := fmt.Sprint(i, "-", position)
			if was, taken := seen[id]; taken || len(id) > 128 {
				t.Errorf("%s and %s are %q", at, was, id)
			}
			seen[id] = at
			if c.id != "" && id != decisionIDs(c.domain, c.id, c.d)(position) {
				t.Errorf("%s is another one when repeated", at)
			}
		}
	}
}
