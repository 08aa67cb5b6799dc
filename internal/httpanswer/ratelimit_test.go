package httpanswer

import (
	"math"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	quoratev1 "github.com/quorate/quorate/proto/quorate/v1"
)

// Shows the corners of the RateLimit headers: escaping, names that cannot be written, numbers beyond
// a structured field, windows that are no whole seconds, carried limits, and several limits denied.
func TestRateLimitHeaderCorners(t *testing.T) {
	limit := func(name string, max, remaining int64, window time.Duration, resetMs int64) *quoratev1.LimitState {
		return &quoratev1.LimitState{Name: name, Limit: max, Remaining: remaining,
			Window: durationpb.New(window), ResetMs: resetMs}
	}
	allowed, denied := quoratev1.Outcome_OUTCOME_ALLOWED, quoratev1.Outcome_OUTCOME_DENIED
	for name, c := range map[string]struct {
		d             *quoratev1.Decision
		policy, rooms string
	}{
		"escaped": {&quoratev1.Decision{Outcome: allowed, Limits: []*quoratev1.LimitState{
			limit(`a"b\c`, 5, 5, time.Minute, 0)}}, `"a\"b\\c";q=5;w=60`, `"a\"b\\c";r=5`},
		"not ASCII": {&quoratev1.Decision{Outcome: allowed, Limits: []*quoratev1.LimitState{
			limit("täglich", 5, 5, time.Minute, 0), limit("a\r\nX: y", 5, 5, time.Minute, 0)}}, "", ""},
		"large": {&quoratev1.Decision{Outcome: allowed, Limits: []*quoratev1.LimitState{
			limit("l", 1<<53, 1<<53, time.Minute, 0)}},
			`"l";q=999999999999999;w=60`, `"l";r=999999999999999`},
		"windows": {&quoratev1.Decision{Outcome: allowed, Limits: []*quoratev1.LimitState{
			limit("a", 1, 1, 999*time.Millisecond, 0), limit("b", 1, 1, time.Second, 1),
			limit("c", 1, 1, 1500*time.Millisecond, 1000), limit("d", 1, 1, 2*time.Second+1, 1001)}},
			`"b";q=1;w=1, "c";q=1;w=2, "d";q=1;w=3`, `"b";r=1;t=1, "c";r=1;t=1, "d";r=1;t=2`},
		"carried": {&quoratev1.Decision{Outcome: allowed, Limits: []*quoratev1.LimitState{
			limit("m", 9, 7, time.Minute, 0), limit("m", 3, 1, time.Hour, 0), limit("m", 4, 2, time.Hour, 0)}},
			`"m";q=3;w=3600`, `"m";r=1`},
		"two exhausted": {&quoratev1.Decision{Outcome: denied, Limit: "day", RetryAfterMs: 5000,
			RetryAt: timestamppb.New(time.Unix(5, 0)), Limits: []*quoratev1.LimitState{
				limit("minute", 3, 0, time.Minute, 1000), limit("day", 9, 0, 24*time.Hour, 4000)}},
			`"minute";q=3;w=60, "day";q=9;w=86400`, `"day";r=0;t=5`},
	} {
		h := httptest.NewRecorder().Header()
		SetRateLimit(h, c.d, false)
		if h.Get("RateLimit-Policy") != c.policy || h.Get("RateLimit") != c.rooms {
			t.Errorf("%s: %q and %q, want %q and %q", name,
				h.Get("RateLimit-Policy"), h.Get("RateLimit"), c.policy, c.rooms)
		}
	}
}

// Shows that Retry-After is rounded up, never none, and does not overflow.
func TestRetryAfter(t *testing.T) {
	for wait, want := range map[time.Duration]string{
		-5: "1", 0: "1", time.Millisecond: "1", time.Second: "1", time.Second + 1: "2", 59_999 * time.Millisecond: "60",
		time.Minute: "60", math.MaxInt64: "9223372037",
	} {
		h := http.Header{}
		SetRetryAfter(h, wait)
		if got := h.Get("Retry-After"); got != want {
			t.Errorf("Retry-After for %s is %s, want %s", wait, got, want)
		}
	}
}
