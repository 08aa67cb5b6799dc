package rpc

import (
	"context"
	"errors"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/quorate/quorate/fsm"
	quoratev1 "github.com/quorate/quorate/proto/quorate/v1"
	"github.com/quorate/quorate/quotaerr"
)

func mustEqual(t *testing.T, got, want any) {
	t.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// Shows an allow and a denial over HTTP byte for byte, headers included, as the contract has them.
func TestAnswersGolden(t *testing.T) {
	limits := []fsm.LimitState{
		{Name: "per-minute", Max: 3, WindowNanos: 60e9, Remaining: 1},
		{Name: "burst", Max: 2, WindowNanos: 500e6, Remaining: 1},
		{Name: "per-day", Max: 500, WindowNanos: 86400e9, Remaining: 480},
	}
	resets := []int64{30_000_000_001, 0, 7_200e9}
	allow := Answer{ResetAfterNanos: resets, Decision: fsm.Decision{Reason: fsm.ReasonAllowed, Remaining: 1,
		Revision: 7, Version: "p7", Recorded: true, Limits: limits}}
	n := mustNode(t, "n1", answering(allow, nil))
	r := n.mustPost(t, aBody)
	mustEqual(t, r.status, 200)
	mustEqual(t, r.body, `{"allowed":true,"outcome":"allowed","reason":"allowed","remaining":1,`+
		`"policy_version":"p7","policy_revision":7,"decision_id":"d1","replayed":false,"recorded":true,"limits":[`+
		`{"name":"per-minute","limit":3,"window":"60s","remaining":1,"reset_ms":30001},`+
		`{"name":"burst","limit":2,"window":"0.5s","remaining":1,"reset_ms":0},`+
		`{"name":"per-day","limit":500,"window":"86400s","remaining":480,"reset_ms":7200000}]}`+"\n")
	mustEqual(t, r.header.Get("Content-Type"), "application/json")
	mustEqual(t, r.header.Get("Cache-Control"), "no-store")
	mustEqual(t, r.header.Get("RateLimit-Policy"), `"per-minute";q=3;w=60, "per-day";q=500;w=86400`)
	mustEqual(t, r.header.Get("RateLimit"), `"per-minute";r=1;t=31, "per-day";r=480;t=7200`)
	mustEqual(t, r.header.Get("Retry-After"), "")
	mustEqual(t, r.header.Get("X-RateLimit-Limit"), "")

	deny := Answer{ResetAfterNanos: resets, RetryAfterNanos: 41_000_000_001, Decision: fsm.Decision{
		Reason: fsm.ReasonQuotaExhausted, Limit: "per-minute", Revision: 7, Version: "p7", Replayed: true,
		Limits: limits[:1]}}
	n = mustNode(t, "n1", answering(deny, nil), func(c *Config) { c.LegacyHeaders = true })
	n.desk.wall = func() time.Time { return time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC) }
	r = n.mustPost(t, aBody)
	mustEqual(t, r.status, 429)
	mustEqual(t, r.body, `{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded",`+
		`"title":"Quota exceeded","status":429,"violated-policies":["per-minute"],`+
		`"allowed":false,"outcome":"denied","reason":"quota_exhausted","limit":"per-minute","remaining":0,`+
		`"retry_at":"2026-01-02T03:04:46.000000001Z","retry_after_ms":41001,`+
		`"policy_version":"p7","policy_revision":7,"decision_id":"d1","replayed":true,"recorded":false,"limits":[`+
		`{"name":"per-minute","limit":3,"window":"60s","remaining":1,"reset_ms":30001}]}`+"\n")
	mustEqual(t, r.header.Get("Content-Type"), "application/problem+json")
	mustEqual(t, r.header.Get("Retry-After"), "42")
	mustEqual(t, r.header.Get("RateLimit"), `"per-minute";r=1;t=42`)
	mustEqual(t, r.header.Get("X-RateLimit-Limit"), "3")
	mustEqual(t, r.header.Get("X-RateLimit-Remaining"), "1")
	mustEqual(t, r.header.Get("X-RateLimit-Reset"), "42")
}

// Shows that not_leader and no_quorum, which the node waits out first, have their status and a
// Retry-After over HTTP too, and that a defect's cause stays inside.
func TestErrorBodies(t *testing.T) {
	api := &httpAPI{}
	for _, reason := range []quotaerr.Reason{quotaerr.NotLeader, quotaerr.NoQuorum} {
		rec := httptest.NewRecorder()
		api.writeError(rec, &quotaerr.Error{Reason: reason, RetryAfterNanos: int64(1500 * time.Millisecond)})
		if rec.Code != 503 || rec.Header().Get("Retry-After") != "2" ||
			!strings.Contains(rec.Body.String(), `"reason":"`+string(reason)+`"`) {
			t.Errorf("%s: %d %v %s", reason, rec.Code, rec.Header(), rec.Body)
		}
	}
	rec := httptest.NewRecorder()
	api.writeError(rec, quotaerr.Wrap(quotaerr.Internal, errors.New("secret"), "secret too"))
	if rec.Code != 500 || strings.Contains(rec.Body.String(), "secret") {
		t.Errorf("%d %s", rec.Code, rec.Body)
	}
	rec = httptest.NewRecorder()
	api.writeDecision(rec, &quoratev1.Decision{Outcome: 99, Reason: "allowed"})
	if rec.Code != 500 || strings.Contains(rec.Body.String(), `"allowed":true`) {
		t.Errorf("an unknown outcome is rendered as %d %s", rec.Code, rec.Body)
	}
}

// Shows that other methods get 405 with Allow, that pages of other sites are refused, and what the
// probes answer.
func TestMethodsAndProbes(t *testing.T) {
	var conditions atomic.Pointer[[]Condition]
	conditions.Store(&[]Condition{{Name: "partition p1", Ready: true, Detail: "led by n1"}})
	backend := allowing()
	n := mustNode(t, "n1", backend, func(c *Config) { c.Ready = func() []Condition { return *conditions.Load() } })
	for _, method := range []string{"GET", "HEAD", "PUT", "DELETE", "OPTIONS", "PATCH"} {
		if r := n.mustDo(t, method, "/v1/check", nil); r.status != 405 || r.header.Get("Allow") != "POST" {
			t.Errorf("%s /v1/check: %d, Allow %q", method, r.status, r.header.Get("Allow"))
		}
	}
	if r := n.mustDo(t, "POST", "/metrics", nil); r.status != 405 {
		t.Errorf("POST /metrics: %d", r.status)
	}
	if r := n.mustPost(t, aBody, "Sec-Fetch-Site", "cross-site", "Origin", "https://evil.example"); r.status != 403 {
		t.Errorf("a page of another site gets %d", r.status)
	}
	if len(backend.seen()) != 0 {
		t.Error("one of these reached the backend")
	}
	mustEqual(t, n.mustDo(t, "GET", "/livez", nil).body, "ok\n")
	mustEqual(t, n.mustDo(t, "GET", "/readyz", nil).body, "ok\n")
	mustEqual(t, n.mustDo(t, "GET", "/readyz?verbose", nil).body, "[+] serving \n[+] partition p1 led by n1\nok\n")
	conditions.Store(&[]Condition{{Name: "partition p1", Detail: "no leader is known"}})
	if r := n.mustDo(t, "GET", "/readyz", nil); r.status != 503 || r.body != "not ready\n" {
		t.Errorf("without a leader /readyz says %d %q", r.status, r.body)
	}
}

// Shows that /metrics counts decisions by reason and holds no name that a caller chose.
func TestMetricsNameNobody(t *testing.T) {
	n := mustNode(t, "n1", allowing())
	n.mustPost(t, `{"principal":"p-secret","api_class":"c-secret","decision_id":"d-secret"}`)
	n.mustPost(t, `{"principal":"","api_class":"c-secret","decision_id":"d-secret"}`)
	text := n.mustDo(t, "GET", "/metrics", nil).body
	for _, want := range []string{
		`quorate_decisions_total{outcome="allowed",reason="allowed"} 1`,
		`quorate_decisions_total{outcome="error",reason="invalid_argument"} 1`,
		`quorate_check_duration_seconds_count{protocol="http"} 2`,
		"quorate_checks_in_flight 0",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("/metrics lacks %s", want)
		}
	}
	if strings.Contains(text, "secret") {
		t.Error("/metrics shows a caller's name")
	}
}

// Shows that everything but loopback is refused without TLS, by name, and that a listener made
// elsewhere is refused as well.
func TestPlaintextIsLoopbackOnly(t *testing.T) {
	ctx := context.Background()
	for _, addr := range []string{":0", "0.0.0.0:0", "[::]:0", "192.0.2.1:0", "127.0.0.1"} {
		l, err := ListenPlaintext(ctx, addr)
		if err == nil {
			_ = l.Close()
			t.Errorf("%s is served", addr)
		}
	}
	l := mustListen(t)
	defer l.Close()
	if err := mustBeLoopback(l); err != nil {
		t.Error(err)
	}
	if _, err := New(Config{}); err == nil || strings.Count(err.Error(), "\n") < 4 {
		t.Errorf("an empty configuration gives %v, want all problems", err)
	}
}
