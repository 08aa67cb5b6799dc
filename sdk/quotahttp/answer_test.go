package quotahttp

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/quorate/quorate/quotaerr"
	"github.com/quorate/quorate/sdk"
	"github.com/quorate/quorate/sdk/caller"
)

// problem is the text of a refusal.
func problem(status int, headers, body string) string {
	text := strconv.Itoa(status) + "\nCache-Control: no-store\nContent-Length: " + strconv.Itoa(len(body)+1) +
		"\nContent-Type: application/problem+json\n"
	return text + headers + "X-Content-Type-Options: nosniff\n\n" + body + "\n"
}

const unavailableBody = `{"type":"about:blank","title":"Service Unavailable","status":503,` +
	`"detail":"whether this request is within its limits could not be decided","reason":"unavailable"}`

// Shows each answer byte for byte, headers included: every decision, every failure of the cluster, of the gateway and of
// the caller's credential; that none has a node, a leader, an id, a revision or a principal in it; and that only an
// allow reaches the handler.
func TestAnswersGolden(t *testing.T) {
	allow := oneAllow
	allow.Remaining, allow.Limits, allow.ID, allow.PolicyRevision = 1, minuteAndDay, "secret-id", 7
	allow.Limits[0].Remaining = 0
	secret := errors.New("secret: node n2 at 10.1.2.3:7070")
	fixed := func(r quotaerr.Reason) *fake {
		return failing(fmt.Errorf("asking: %w", &sdk.Error{Reason: r, Message: "secret", ID: "secret-id"}))
	}
	const internalBody = `{"type":"about:blank","title":"Internal Server Error","status":500,` +
		`"detail":"this service is not set up to count this request","reason":"internal"}`
	const reducedBody = `{"type":"https://iana.org/assignments/http-problem-types#temporary-reduced-capacity",` +
		`"title":"Temporarily reduced capacity","status":503,"detail":"there is too much to do at present",` +
		`"reason":"unavailable"}`
	for name, c := range map[string]struct {
		checker *fake
		key     string
		want    string
	}{
		"allowed": {deciding(allow), "acme", "200\nContent-Type: text/plain; charset=utf-8\n" +
			`Ratelimit: "per-minute";r=0;t=31, "per-day";r=480;t=7200` + "\n" +
			`Ratelimit-Policy: "per-minute";q=3;w=60, "per-day";q=500;w=86400` + "\n\nserved\n"},
		"bypass": {deciding(sdk.Decision{Allowed: true, Source: sdk.SourceBypass, Cause: secret}), "acme",
			"200\nContent-Type: text/plain; charset=utf-8\n\nserved\n"},
		"local": {deciding(sdk.Decision{Allowed: true, Source: sdk.SourceLocal, Cause: secret}), "acme",
			"200\nContent-Type: text/plain; charset=utf-8\n\nserved\n"},
		"exhausted": {deciding(exhausted()), "acme", problem(429,
			`Ratelimit: "per-minute";r=0;t=42`+"\n"+
				`Ratelimit-Policy: "per-minute";q=3;w=60, "per-day";q=500;w=86400`+"\nRetry-After: 42\n",
			`{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","title":"Quota exceeded",`+
				`"status":429,"reason":"quota_exhausted","violated-policies":["per-minute"]}`)},
		"hint": {deciding(sdk.Decision{Source: sdk.SourceHint, Reason: "quota_exhausted", Limit: "per-minute",
			RetryAfter: 300 * time.Millisecond}), "acme", problem(429, "Retry-After: 1\n",
			`{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","title":"Quota exceeded",`+
				`"status":429,"reason":"quota_exhausted","violated-policies":["per-minute"]}`)},
		"blocked": {deciding(sdk.Decision{Source: sdk.SourceOwner, Reason: "blocked"}), "acme", problem(403, "",
			`{"type":"about:blank","title":"Forbidden","status":403,"detail":"this caller may not use this endpoint",`+
				`"reason":"blocked"}`)},
		"disabled": {deciding(sdk.Decision{Source: sdk.SourceConfig, Reason: "endpoint_disabled"}), "acme",
			problem(503, "Retry-After: 30\n", `{"type":"about:blank","title":"Service Unavailable","status":503,`+
				`"detail":"this endpoint is switched off","reason":"endpoint_disabled"}`)},

		"no quorum":       {fixed(quotaerr.NoQuorum), "acme", problem(503, "Retry-After: 1\n", unavailableBody)},
		"outcome unknown": {fixed(quotaerr.OutcomeUnknown), "acme", problem(503, "Retry-After: 1\n", unavailableBody)},
		"not understood":  {fixed(quotaerr.Internal), "acme", problem(503, "Retry-After: 1\n", unavailableBody)},
		"sentinel":        {failing(sdk.ErrUnavailable), "acme", problem(503, "Retry-After: 1\n", unavailableBody)},
		"unknown error":   {failing(secret), "acme", problem(503, "Retry-After: 1\n", unavailableBody)},
		"closed":          {failing(sdk.ErrClosed), "acme", problem(503, "Retry-After: 1\n", unavailableBody)},
		"local, full": {failing(&sdk.Error{Reason: quotaerr.NoQuorum, RetryAfter: 2001 * time.Millisecond}), "acme",
			problem(503, "Retry-After: 3\n", unavailableBody)},
		"overloaded":          {fixed(quotaerr.Overloaded), "acme", problem(503, "Retry-After: 1\n", reducedBody)},
		"capacity":            {fixed(quotaerr.Capacity), "acme", problem(503, "Retry-After: 1\n", reducedBody)},
		"overloaded sentinel": {failing(sdk.ErrOverloaded), "acme", problem(503, "Retry-After: 1\n", reducedBody)},
		"cost": {fixed(quotaerr.CostExceedsLimit), "acme", problem(400, "",
			`{"type":"about:blank","title":"Bad Request","status":400,"detail":"this request costs more than its limit`+
				` ever allows: make it smaller","reason":"cost_exceeds_limit"}`)},
		"malformed check": {fixed(quotaerr.InvalidArgument), "acme", problem(400, "",
			`{"type":"about:blank","title":"Bad Request","status":400,"detail":"this request cannot be counted as it is",`+
				`"reason":"invalid_argument"}`)},
		"gateway may not": {fixed(quotaerr.PermissionDenied), "acme", problem(500, "", internalBody)},
		"gateway unknown": {fixed(quotaerr.Unauthenticated), "acme", problem(500, "", internalBody)},
		"refused":         {failing(sdk.ErrRefused), "acme", problem(500, "", internalBody)},

		"no key": {allowing(), "", problem(401, "Www-Authenticate: ApiKey\n",
			`{"type":"about:blank","title":"Unauthorized","status":401,"detail":"send the header X-Api-Key",`+
				`"reason":"unauthenticated"}`)},
		"unknown key": {allowing(), "unknown", problem(401, "Www-Authenticate: ApiKey\n",
			`{"type":"about:blank","title":"Unauthorized","status":401,"detail":"send a credential that this service`+
				` knows","reason":"unauthenticated"}`)},
		"long principal": {allowing(), strings.Repeat("k", 513), problem(400, "",
			`{"type":"about:blank","title":"Bad Request","status":400,"detail":"the request names a caller in more`+
				` than 512 bytes","reason":"invalid_argument"}`)},
		"NUL": {allowing(), "a\x00b", problem(400, "",
			`{"type":"about:blank","title":"Bad Request","status":400,"detail":"the request names a caller in bytes`+
				` that no name has","reason":"invalid_argument"}`)},
	} {
		rec := httptest.NewRecorder()
		mustGuard(t, c.checker, oneRule()).wrap(served).ServeHTTP(rec, mustRequest(t, http.MethodGet, "/", c.key))
		mustEqual(t, name, dump(rec), c.want)
		if strings.Contains(rec.Body.String(), "secret") {
			t.Errorf("%s: the public is told a secret", name)
		}
		if asked := len(c.checker.seen()); (c.key != "acme") != (asked == 0) {
			t.Errorf("%s: asked %d times", name, asked)
		}
	}
}

// Shows the older headers where they are asked for, with the same instant as Retry-After, jitter included.
func TestLegacyHeaders(t *testing.T) {
	rec := httptest.NewRecorder()
	g := mustGuard(t, deciding(exhausted()), oneRule(), WithLegacyHeaders(), WithRetryJitter(10*time.Second))
	g.wrap(served).ServeHTTP(rec, mustRequest(t, http.MethodGet, "/", "acme"))
	for name, want := range map[string]string{
		"Retry-After": "52", "RateLimit": `"per-minute";r=0;t=52`,
		"X-RateLimit-Limit": "3", "X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "52",
	} {
		mustEqual(t, name, rec.Header().Get(name), want)
	}
}

// Shows, for any wait and jitter, that Retry-After is never earlier than the room, at most the jitter later, and that
// a jitter below the header's resolution still spreads.
func TestRetryJitterOnlyAdds(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		wait := time.Duration(rapid.Int64Range(1, int64(1000*time.Hour)).Draw(rt, "wait"))
		jitter := time.Duration(rapid.Int64Range(0, int64(time.Hour)).Draw(rt, "jitter"))
		d := exhausted()
		d.RetryAfter = wait
		whole := int64((wait + time.Second - 1) / time.Second)
		most := int64((jitter + time.Second - 1) / time.Second)
		seen := map[int64]bool{}
		for _, draw := range []func(int64) int64{nil, func(int64) int64 { return 0 }, func(n int64) int64 { return n - 1 }} {
			g := mustGuard(t, deciding(d), oneRule(), WithRetryJitter(jitter))
			g.intn = draw
			rec := httptest.NewRecorder()
			g.wrap(served).ServeHTTP(rec, mustRequest(t, http.MethodGet, "/", "acme"))
			got, err := strconv.ParseInt(rec.Header().Get("Retry-After"), 10, 64)
			if err != nil || got < whole || got > whole+most {
				rt.Fatalf("Retry-After %d (%v) for %s with jitter %s", got, err, wait, jitter)
			}
			seen[got] = true
		}
		if jitter > 0 && len(seen) < 2 {
			rt.Fatalf("a jitter of %s spreads nothing", jitter)
		}
	})
}

// Shows that nothing but a plain allow of every identity is taken for one: a checker that answers with too few, with
// nobody's decision, with a denial among allows or for an unknown reason lets nothing through.
func TestUnsoundDecisionsAllowNothing(t *testing.T) {
	denied := sdk.Decision{Source: sdk.SourceOwner, Reason: "quota_exhausted", Limit: "l"}
	nobody := sdk.Decision{Allowed: true}
	for name, ds := range map[string]sdk.Decisions{
		"zero":             {},
		"no decisions":     {Allowed: true, Denied: -1},
		"too few":          {Allowed: true, Denied: -1, Decisions: []sdk.Decision{oneAllow}},
		"too many":         {Allowed: true, Denied: -1, Decisions: []sdk.Decision{oneAllow, oneAllow, oneAllow}},
		"nobody decided":   {Allowed: true, Denied: -1, Decisions: []sdk.Decision{oneAllow, nobody}},
		"one denied":       {Allowed: true, Denied: -1, Decisions: []sdk.Decision{oneAllow, denied}},
		"denied by whom":   {Denied: -1, Decisions: []sdk.Decision{oneAllow, oneAllow}},
		"denied beyond":    {Denied: 7, Decisions: []sdk.Decision{oneAllow, oneAllow}},
		"denial allows":    {Denied: 1, Decisions: []sdk.Decision{oneAllow, oneAllow}},
		"unknown reason":   {Denied: 0, Decisions: []sdk.Decision{{Source: sdk.SourceOwner, Reason: "new"}, {}}},
		"reason of allows": {Denied: 0, Decisions: []sdk.Decision{{Source: sdk.SourceOwner, Reason: "allowed"}, {}}},
	} {
		checker := &fake{answer: func([]sdk.Identity) (sdk.Decisions, error) { return ds, nil }}
		told := 0
		g := mustGuard(t, checker, Rules{Fallback: caller.Rule{Charges: []caller.Charge{
			{Class: "a", Key: byHeader()}, {Class: "b", Key: byHeader()},
		}}}, WithOnError(func(*http.Request, error) { told++ }))
		rec := httptest.NewRecorder()
		g.wrap(served).ServeHTTP(rec, mustRequest(t, http.MethodGet, "/", "acme"))
		if rec.Code != http.StatusServiceUnavailable || strings.Contains(rec.Body.String(), "served") || told != 1 {
			t.Errorf("%s: %d %s, told %d times", name, rec.Code, rec.Body, told)
		}
	}
}

// Shows that the answer to several identities is that of the one that denied, with its wait, and that of allows that of
// the tightest.
func TestSeveralIdentities(t *testing.T) {
	roomy, tight := oneAllow, oneAllow
	roomy.Remaining, roomy.Limits = 90, []sdk.LimitState{{Name: "ip", Limit: 100, Window: time.Minute, Remaining: 90}}
	tight.Remaining, tight.Limits = 1, []sdk.LimitState{{Name: "account", Limit: 5, Window: time.Hour, Remaining: 1}}
	rules := Rules{Fallback: caller.Rule{Charges: []caller.Charge{
		{Class: "per-ip", Key: caller.ClientIP(caller.Proxies{})}, {Class: "convert", Key: byHeader()},
	}}}
	checker := deciding(roomy, tight)
	rec := httptest.NewRecorder()
	mustGuard(t, checker, rules).wrap(served).ServeHTTP(rec, mustRequest(t, http.MethodGet, "/", "acme"))
	mustEqual(t, "allowed", rec.Header().Get("RateLimit"), `"account";r=1`)
	mustEqual(t, "asked", checker.seen(), [][]sdk.Identity{{
		{Principal: "ip:192.0.2.1", Class: "per-ip", Cost: 1}, {Principal: "acme", Class: "convert", Cost: 1},
	}})

	rec = httptest.NewRecorder()
	mustGuard(t, deciding(roomy, exhausted()), rules).wrap(served).ServeHTTP(rec, mustRequest(t, http.MethodGet, "/", "acme"))
	mustEqual(t, "denied", rec.Code, http.StatusTooManyRequests)
	mustEqual(t, "denied", rec.Header().Get("RateLimit"), `"per-minute";r=0;t=42`)

	checker = deciding(roomy, tight)
	rec = httptest.NewRecorder()
	mustGuard(t, checker, rules).wrap(served).ServeHTTP(rec, mustRequest(t, http.MethodGet, "/", "unknown"))
	if rec.Code != http.StatusUnauthorized || len(checker.seen()) != 0 {
		t.Errorf("a request without an account: %d, and %v was asked", rec.Code, checker.seen())
	}
}

// Shows that a handler learns who let its request pass, and of a bypass even beside an admission.
func TestDecisionFrom(t *testing.T) {
	bypass := sdk.Decision{Allowed: true, Source: sdk.SourceBypass, Cause: sdk.ErrUnavailable}
	rules := Rules{
		Routes: map[string]caller.Rule{"/free": caller.Unlimited()},
		Fallback: caller.Rule{Charges: []caller.Charge{
			{Class: "a", Key: byHeader()}, {Class: "b", Key: byHeader()},
		}},
	}
	for name, c := range map[string]struct {
		checker *fake
		path    string
		want    sdk.Source
		all     int
	}{
		"verified": {allowing(), "/", sdk.SourceOwner, 2},
		"bypassed": {deciding(oneAllow, bypass), "/", sdk.SourceBypass, 2},
		"free":     {allowing(), "/free", sdk.SourceNone, 0},
	} {
		ran := false
		handler := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			ran = true
			one, asked := DecisionFrom(r.Context())
			all, _ := DecisionsFrom(r.Context())
			if one.Source != c.want || asked != (c.all > 0) || len(all.Decisions) != c.all {
				t.Errorf("%s: %+v, %v, %+v", name, one, asked, all)
			}
		})
		mustGuard(t, c.checker, rules).wrap(handler).ServeHTTP(httptest.NewRecorder(), mustRequest(t, http.MethodGet, c.path, "acme"))
		if !ran {
			t.Errorf("%s: the handler did not run", name)
		}
	}
	if _, ok := DecisionFrom(context.Background()); ok {
		t.Error("a context without a request has a decision")
	}
}

// Shows that WithOnError is told each cause in one line, and of a path that has two readings nothing of a credential.
func TestOnErrorIsOneLine(t *testing.T) {
	several := errors.Join(errors.New("one"), errors.New("other"))
	var told []error
	g := mustGuard(t, failing(several), routed("/convert"), WithOnError(func(_ *http.Request, err error) { told = append(told, err) }))
	for _, path := range []string{"/convert", "/convert%20"} {
		g.wrap(served).ServeHTTP(httptest.NewRecorder(), mustRequest(t, http.MethodGet, path, "acme"))
	}
	if len(told) != 2 || told[0].Error() != "one; other" || !errors.Is(told[0], several) ||
		strings.Contains(told[1].Error(), "credential") || !errors.Is(told[1], caller.ErrMalformed) {
		t.Errorf("%v", told)
	}
}
