package rpc

import (
	"encoding/json"
	"math"
	"net/http/httptest"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"
	"pgregory.net/rapid"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/internal/errtable"
	quoratev1 "github.com/quorate/quorate/proto/quorate/v1"
	"github.com/quorate/quorate/quotaerr"
)

// Shows over both protocols how a wait is told: milliseconds and seconds rounded up, never negative,
// Retry-After at least a second, and retry_at as the wall clock plus the exact wait.
func TestWaitsOnTheWire(t *testing.T) {
	wall := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for _, c := range []struct {
		nanos, millis int64
		retryAfter    string
		at            string
	}{
		{-1, 0, "1", "2026-01-02T03:04:05Z"},
		{math.MinInt64, 0, "1", "2026-01-02T03:04:05Z"},
		{0, 0, "1", "2026-01-02T03:04:05Z"},
		{1, 1, "1", "2026-01-02T03:04:05.000000001Z"},
		{1_000_000, 1, "1", "2026-01-02T03:04:05.001Z"},
		{1_000_001, 2, "1", "2026-01-02T03:04:05.001000001Z"},
		{1_000_000_000, 1000, "1", "2026-01-02T03:04:06Z"},
		{1_000_000_001, 1001, "2", "2026-01-02T03:04:06.000000001Z"},
		{59_999_999_999, 60_000, "60", "2026-01-02T03:05:04.999999999Z"},
		{366 * 86_400_000_000_000, 366 * 86_400_000, "31622400", "2027-01-03T03:04:05Z"},
	} {
		n := mustNode(t, "n1", answering(Answer{RetryAfterNanos: c.nanos, Decision: fsm.Decision{
			Reason: fsm.ReasonQuotaExhausted, Limit: "per-minute"}}, nil))
		n.desk.wall = func() time.Time { return wall }
		d, err := quoratev1.NewQuotaClient(n.conn).CheckAndConsume(within(t, 5*time.Second), aCheck())
		if err != nil {
			t.Fatal(err)
		}
		at := d.GetRetryAt().AsTime().Format(time.RFC3339Nano)
		if d.GetRetryAfterMs() != c.millis || at != c.at || d.GetLimit() != "per-minute" {
			t.Errorf("%d ns: %d ms, at %s, limit %q", c.nanos, d.GetRetryAfterMs(), at, d.GetLimit())
		}
		r := n.mustPost(t, aBody)
		if r.status != 429 || r.header.Get("Retry-After") != c.retryAfter ||
			!strings.Contains(r.body, `"retry_after_ms":`+strconv.FormatInt(c.millis, 10)+",") ||
			!strings.Contains(r.body, `"retry_at":"`+c.at+`"`) {
			t.Errorf("%d ns: %d, Retry-After %q, %s", c.nanos, r.status, r.header.Get("Retry-After"), r.body)
		}
	}
}

// Shows that integers beyond what a double can hold leave as plain JSON numbers, digit for digit, and
// that room below 0 reads as 0.
func TestLargeIntegersAreExact(t *testing.T) {
	n := mustNode(t, "n1", answering(Answer{
		ResetAfterNanos: []int64{math.MaxInt64, 1},
		Decision: fsm.Decision{Reason: fsm.ReasonAllowed, Remaining: 1<<53 + 1, Revision: 1<<64 - 1,
			Limits: []fsm.LimitState{
				{Name: "a", Max: 1 << 53, WindowNanos: 60e9, Remaining: 1<<53 - 1},
				{Name: "b", Max: math.MaxInt64, WindowNanos: 1e6, Remaining: math.MinInt64}}}}, nil))
	r := n.mustPost(t, aBody)
	for _, want := range []string{`"remaining":9007199254740993,"policy_version"`,
		`"policy_revision":18446744073709551615,`,
		`{"name":"a","limit":9007199254740992,"window":"60s","remaining":9007199254740991,`,
		`{"name":"b","limit":9223372036854775807,"window":"0.001s","remaining":0,"reset_ms":1}`,
	} {
		if !strings.Contains(r.body, want) {
			t.Errorf("the body lacks %s: %s", want, r.body)
		}
	}
}

// Shows over both protocols how every refusal of the state machine reads, that the owner's epoch goes
// with wrong_epoch, and that none of them, nor a number without a name, is an allow.
func TestRefusalsOfTheStateMachine(t *testing.T) {
	for reason := fsm.Reason(0); reason < 32; reason++ {
		if reason == fsm.ReasonAllowed || reason.Denied() {
			continue
		}
		want := quotaerr.Internal
		switch reason {
		case fsm.ReasonStaleTerm, fsm.ReasonUnborn: // the next leadership decides
			want = quotaerr.NotLeader
		case fsm.ReasonUnspecified, fsm.ReasonPlanEnded, fsm.ReasonPlanConflict: // no answer to a check
		default:
			if reason.String() != "unknown" {
				want = quotaerr.Reason(reason.String())
			}
		}
		t.Run(reason.String(), func(t *testing.T) {
			t.Parallel()
			n := mustNode(t, "n1", answering(Answer{
				Decision: fsm.Decision{Reason: reason, Detail: "do this", Epoch: 1<<63 + 9}}, nil))
			req := aCheck()
			req.RouteEpoch = 7
			_, err := quoratev1.NewQuotaClient(n.conn).CheckAndConsume(within(t, 2*time.Second), req)
			e := errtable.FromStatus(err)
			if e == nil || e.Reason != want || status.Code(err) == codes.OK {
				t.Fatalf("%v, want %s", err, want)
			}
			if (e.Epoch == 1<<63+9) != (want == quotaerr.WrongEpoch) {
				t.Errorf("epoch %d", e.Epoch)
			}
			r := n.mustImpatient(t, 300*time.Millisecond).mustPost(t, `{"route_epoch":7,`+aBody[1:])
			var body struct {
				Allowed bool
				Reason  string
				Epoch   json.Number
			}
			if err := json.Unmarshal([]byte(r.body), &body); err != nil {
				t.Fatal(err)
			}
			if r.status != errtable.Lookup(want).HTTP || body.Allowed || body.Reason != string(want) ||
				(body.Epoch == "9223372036854775817") != (want == quotaerr.WrongEpoch) {
				t.Errorf("HTTP %d %s", r.status, r.body)
			}
		})
	}
}

// Shows that not_leader and no_quorum, once waited out, arrive over HTTP with status, leader, epoch
// and Retry-After, like the other rows.
func TestWaitedOutErrorsOverHTTP(t *testing.T) {
	for _, reason := range []quotaerr.Reason{quotaerr.NotLeader, quotaerr.NoQuorum} {
		n := mustNode(t, "n1", answering(Answer{}, &quotaerr.Error{Reason: reason, Message: "do this",
			Leader: "n2", Epoch: 9}))
		r := n.mustImpatient(t, 200*time.Millisecond).mustPost(t, aBody)
		mustEqual(t, r.status, 503)
		mustEqual(t, r.body, `{"type":"about:blank","title":"Service Unavailable","status":503,`+
			`"detail":"do this","allowed":false,"reason":"`+string(reason)+`","leader":"n2","epoch":9}`+"\n")
		if r.header.Get("Retry-After") != "1" || r.header.Get("Cache-Control") != "no-store" {
			t.Errorf("%s: %v", reason, r.header)
		}
	}
}

// Shows that a known wait goes before the row's own, over both protocols.
func TestKnownWaitIsTold(t *testing.T) {
	n := mustNode(t, "n1", answering(Answer{}, &quotaerr.Error{Reason: quotaerr.Overloaded,
		RetryAfterNanos: 2_000_000_001}))
	_, err := quoratev1.NewQuotaClient(n.conn).CheckAndConsume(within(t, 5*time.Second), aCheck())
	if e := errtable.FromStatus(err); e.RetryAfterNanos != 2_000_000_001 {
		t.Errorf("%+v", e)
	}
	r := n.mustPost(t, aBody)
	if r.header.Get("Retry-After") != "3" ||
		!strings.Contains(r.body, `"type":"https://iana.org/assignments/http-problem-types#temporary-reduced-capacity"`) {
		t.Errorf("Retry-After %q, %s", r.header.Get("Retry-After"), r.body)
	}
}

// Shows the headers of the denials that name no time, and of one by a limit that the headers cannot
// express.
func TestDenialHeadersGolden(t *testing.T) {
	limits := []fsm.LimitState{{Name: "burst", Max: 2, WindowNanos: 999e6},
		{Name: `day "x" \`, Max: 9, WindowNanos: 86_400e9, Remaining: 4}}
	for _, c := range []struct {
		reason                 fsm.Reason
		limits                 []fsm.LimitState
		policy, room, retry, x string
	}{
		{fsm.ReasonQuotaExhausted, limits, `"day \"x\" \\";q=9;w=86400`, "", "1", ""},
		{fsm.ReasonQuotaExhausted, limits[:1], "", "", "1", ""},
		{fsm.ReasonBlocked, limits, `"day \"x\" \\";q=9;w=86400`, "", "", ""},
		{fsm.ReasonEndpointDisabled, nil, "", "", "30", ""},
		{fsm.ReasonAllowed, limits, `"day \"x\" \\";q=9;w=86400`, `"day \"x\" \\";r=4;t=8`, "", "9"},
		{fsm.ReasonAllowed, nil, "", "", "", ""},
	} {
		answer := Answer{ResetAfterNanos: []int64{1, 7_000_000_001}, RetryAfterNanos: 5e6,
			Decision: fsm.Decision{Reason: c.reason, Limit: "burst", Limits: c.limits}}
		for _, legacy := range []bool{false, true} {
			n := mustNode(t, "n1", answering(answer, nil), func(f *Config) { f.LegacyHeaders = legacy })
			h := n.mustPost(t, aBody).header
			for name, want := range map[string]string{"Ratelimit-Policy": c.policy, "Ratelimit": c.room,
				"Retry-After": c.retry, "X-Ratelimit-Limit": c.x} {
				if strings.HasPrefix(name, "X-") && !legacy {
					want = ""
				}
				if got := h.Get(name); got != want || (len(h.Values(name)) > 0) != (want != "") {
					t.Errorf("%v, legacy %v: %s is %q, want %q", c.reason, legacy, name, got, want)
				}
			}
		}
	}
}

var sfItem = regexp.MustCompile(`^("(?:[ !#-\[\]-~]|\\"|\\\\)*");([rq])=(\d{1,15})(?:;([tw])=([1-9]\d{0,14}))?$`)

// sfList reads the members of a RateLimit header into their names and t or w.
func sfList(t *rapid.T, value, kind string) map[string]int64 {
	out := map[string]int64{}
	for _, item := range regexp.MustCompile(`, (?:")`).Split(value, -1) {
		if !strings.HasPrefix(item, `"`) {
			item = `"` + item
		}
		m := sfItem.FindStringSubmatch(item)
		if m == nil || !strings.Contains(kind, m[2]) || m[4] != "" && !strings.Contains(kind, m[4]) {
			t.Fatalf("%q in %q is no member of this header", item, value)
		}
		if _, dup := out[m[1]]; dup {
			t.Fatalf("%s is listed twice in %q", m[1], value)
		}
		n, _ := strconv.ParseInt(m[5], 10, 64)
		out[m[1]] = n
	}
	return out
}

// Shows for any decision that the headers are well-formed structured fields, list no room without its
// policy, and never promise more quota after Retry-After's time than at it.
func TestRateLimitHeadersHold(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := &quoratev1.Decision{Outcome: quoratev1.Outcome_OUTCOME_ALLOWED, Reason: "allowed"}
		names := rapid.SampledFrom([]string{"a", "b", `q"`, `\`, "ä", "x;y=1"})
		for range rapid.IntRange(0, 5).Draw(t, "limits") {
			d.Limits = append(d.Limits, &quoratev1.LimitState{
				Name: names.Draw(t, "name"), Limit: rapid.Int64Min(0).Draw(t, "limit"),
				Remaining: rapid.Int64Min(0).Draw(t, "remaining"),
				Window: durationpb.New(time.Duration(
					rapid.Int64Range(1e6, int64(366*24*time.Hour)).Draw(t, "window"))),
				ResetMs: rapid.OneOf(rapid.Int64Range(0, 100_000), rapid.Int64Range(0, 40_000_000_000)).
					Draw(t, "reset"),
			})
		}
		denied := rapid.Bool().Draw(t, "denied")
		if denied {
			d.Outcome, d.Reason = quoratev1.Outcome_OUTCOME_DENIED, "quota_exhausted"
			d.Limit = names.Draw(t, "denying")
			if len(d.Limits) > 0 { // mostly one that is listed, or there is no room to look at
				d.Limit = d.Limits[rapid.IntRange(0, len(d.Limits)-1).Draw(t, "denying limit")].Name
			}
			d.RetryAfterMs = rapid.Int64Range(0, 100_000).Draw(t, "wait")
			d.RetryAt = timestamppb.New(time.Unix(0, 0))
		}
		rec := httptest.NewRecorder()
		(&httpAPI{}).writeDecision(rec, d)
		h := rec.Header()
		policies, rooms := map[string]int64{}, map[string]int64{}
		if v := h.Get("RateLimit-Policy"); v != "" {
			policies = sfList(t, v, "qw")
		}
		if v := h.Get("RateLimit"); v != "" {
			rooms = sfList(t, v, "rt")
		}
		if (h.Get("Retry-After") != "") != denied {
			t.Fatalf("Retry-After %q, denied: %v", h.Get("Retry-After"), denied)
		}
		for name, w := range policies {
			if w < 1 {
				t.Fatalf("%s has no window", name)
			}
		}
		for name, more := range rooms {
			if _, ok := policies[name]; !ok {
				t.Fatalf("room of %s without its policy", name)
			}
			retry, _ := strconv.ParseInt(h.Get("Retry-After"), 10, 64)
			if denied && more > retry {
				t.Fatalf("%s: t=%d after Retry-After %d", name, more, retry)
			}
		}
	})
}

// Shows that a decision written as JSON for a person or a program reads as allowed, in both of its
// fields, for a plain allow only.
func TestMarshalDecisionAllowsOnlyPlainAllows(t *testing.T) {
	for _, outcome := range []quoratev1.Outcome{0, 1, 2, 3, -1} {
		for _, reason := range []string{"", "allowed", "Allowed", "blocked", "internal", "granted"} {
			d := &quoratev1.Decision{Outcome: outcome, Reason: reason}
			b, err := MarshalDecision(d)
			if err != nil {
				t.Fatal(err)
			}
			var got struct {
				Allowed bool
				Outcome string
			}
			if err := json.Unmarshal(b, &got); err != nil {
				t.Fatal(err)
			}
			want := outcome == quoratev1.Outcome_OUTCOME_ALLOWED && reason == "allowed"
			if got.Allowed != want || (got.Outcome == "allowed") != want {
				t.Errorf("%v with reason %q is written as %s", outcome, reason, b)
			}
		}
	}
	if b, err := MarshalDecision(nil); err != nil || strings.Contains(string(b), "true") {
		t.Errorf("nil is written as %s, %v", b, err)
	}
}
