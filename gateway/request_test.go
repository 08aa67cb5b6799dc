package gateway

import (
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func sum(key string) string {
	b := sha256.Sum256([]byte(key))
	return hex.EncodeToString(b[:])
}

// Shows the main job: what has room is served with its headers, the rest is 429 with the wait, whichever of the
// account's keys is used; a tier has its own limit, a cost counts, what is unlimited asks nobody, and nobody's
// allowance is used by a key that is not known.
func TestEnforces(t *testing.T) {
	r := mustRig(t, accountRoutes, nil)
	for i, key := range []string{keyAcme, keyOther, keyAcme} {
		a := r.do(t, http.MethodPost, "/convert", "X-Api-Key", key)
		a.mustBe(t, "convert", http.StatusOK, "")
		if got := a.header.Get("RateLimit"); !strings.HasPrefix(got, `"per-minute";r=`+string(rune('2'-i))+";t=") || a.body != "served" {
			t.Errorf("%q %q", got, a.body)
		}
	}
	a := r.do(t, http.MethodPost, "/convert", "X-Api-Key", keyAcme)
	a.mustBe(t, "the fourth", http.StatusTooManyRequests, "quota_exhausted")
	if a.header.Get("Retry-After") == "" || a.header.Get("RateLimit-Policy") != `"per-minute";q=3;w=60` {
		t.Error(a.header)
	}
	for range 5 {
		r.do(t, http.MethodPost, "/convert", "X-Api-Key", keyPro).mustBe(t, "pro", http.StatusOK, "")
	}
	r.do(t, http.MethodPost, "/convert", "X-Api-Key", keyPro).mustBe(t, "pro's sixth", http.StatusTooManyRequests, "")
	for range 2 {
		r.do(t, http.MethodPost, "/dear", "X-Api-Key", keyAcme).mustBe(t, "dear", http.StatusOK, "")
	}
	r.do(t, http.MethodPost, "/dear", "X-Api-Key", keyAcme).mustBe(t, "dear's third", http.StatusTooManyRequests, "")
	before := r.cluster.Counts().Checks
	r.do(t, http.MethodGet, "/free/x").mustBe(t, "free", http.StatusOK, "")
	r.do(t, http.MethodPost, "/convert", "X-Api-Key", "guessed").mustBe(t, "guessed", http.StatusUnauthorized, "unauthenticated")
	r.do(t, http.MethodPost, "/convert").mustBe(t, "no key", http.StatusUnauthorized, "unauthenticated")
	if after := r.cluster.Counts().Checks; after != before {
		t.Errorf("%d checks for what needs none", after-before)
	}
	if n := r.reached.Load(); n != 3+5+2+1 {
		t.Errorf("%d requests came to the upstream", n)
	}
}

// Shows that when nobody can decide, the class's failure mode does, and readiness stays.
func TestClusterAway(t *testing.T) {
	r := mustRig(t, accountRoutes, nil)
	r.cluster.Unavailable()
	r.do(t, http.MethodPost, "/convert", "X-Api-Key", keyAcme).mustBe(t, "away", http.StatusServiceUnavailable, "unavailable")
	if n := r.reached.Load(); n != 0 {
		t.Errorf("%d requests came to the upstream", n)
	}
	if status, body := r.probe(t, "/readyz?verbose"); status != http.StatusOK || !strings.Contains(body, "nodes connected") {
		t.Errorf("readyz: %d %s", status, body)
	}
	if got := r.metric(t, `quorate_gateway_refused_total{reason="undecided"}`); got != "1" {
		t.Errorf("%q undecided", got)
	}
}

// Shows that what no route names is 404, unasked; that a path which another server could take for a route's is refused;
// and that with a fallback what no route names is the fallback's.
func TestUnrouted(t *testing.T) {
	closed := "callers: {account: [{api_key: {file: keys.yaml}}]}\nroutes: [{match: POST /convert, charges: [{class: convert}]}]\n"
	r := mustRig(t, closed, nil)
	for _, path := range []string{"/", "/other", "/convert/", "/convert/x", "/Convert", "//convert", "/x/../convert", "/convert%2f"} {
		a := r.do(t, http.MethodPost, path, "X-Api-Key", keyAcme)
		if a.status != http.StatusNotFound && a.status != http.StatusBadRequest {
			t.Errorf("%s: %d", path, a.status)
		}
	}
	r.do(t, http.MethodGet, "/convert", "X-Api-Key", keyAcme).mustBe(t, "another method", http.StatusNotFound, "not_found")
	if n := r.cluster.Counts().Checks + int(r.reached.Load()); n != 0 {
		t.Errorf("%d checks and requests", n)
	}
	open := mustRig(t, closed+"fallback: {charges: [{class: default}]}\n", nil)
	open.do(t, http.MethodGet, "/other", "X-Api-Key", keyAcme).mustBe(t, "fallback", http.StatusOK, "")
	open.do(t, http.MethodGet, "/other").mustBe(t, "fallback", http.StatusUnauthorized, "")
	open.do(t, http.MethodPost, "/Convert", "X-Api-Key", keyAcme).mustBe(t, "look-alike", http.StatusBadRequest, "invalid_argument")
	if n := open.reached.Load(); n != 1 {
		t.Errorf("%d requests came to the upstream", n)
	}
}

// Shows that of what a caller says of himself the upstream gets nothing, however the header is written, that it is told
// what the gateway knows, and that all else passes.
func TestHeadersToTheUpstream(t *testing.T) {
	var got http.Header
	r := mustRig(t, accountRoutes+"principal_header: X-Who\nremove_headers: [X-Internal]\n",
		func(_ http.ResponseWriter, q *http.Request) { got = q.Header.Clone() })
	forged := []string{"X-Api-Key", keyAcme}
	for _, name := range []string{
		"X-Who", "x-who", "X_Who", "X-Internal", "X_Internal", "Forwarded", "X-Real-Ip", "X_Real_Ip", "X-Forwarded-For",
		"X-Forwarded-Host", "X-Forwarded-Proto", "X-Forwarded-Port", "X-Forwarded-Prefix", "X_Forwarded_For",
		"X-Forwarded-User",
	} {
		forged = append(forged, name, "forged")
	}
	forged = append(forged, "Connection", "X-Hop", "X-Hop", "forged", "Keep-Alive", "forged", "Proxy-Authorization", "forged",
		"Accept", "text/plain", "Cookie", "a=b", "X-Whole", "w")
	r.do(t, http.MethodGet, "/a", forged...).mustBe(t, "forged", http.StatusOK, "")
	want := http.Header{
		"Accept": {"text/plain"}, "Cookie": {"a=b"}, "X-Whole": {"w"}, "User-Agent": {"Go-http-client/1.1"},
		"X-Forwarded-For": {"127.0.0.1"}, "X-Forwarded-Host": {r.Addr().String()}, "X-Forwarded-Proto": {"http"},
		"X-Who": {"account:acme"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// Shows that with a trusted proxy the caller is whom that one names, and only that one, for the limit and the upstream
// alike, and that a key may be left for the upstream.
func TestTrustedHops(t *testing.T) {
	var got http.Header
	r := mustRig(t, `
callers:
  address: [{client_ip: {}}]
  account: [{api_key: {file: keys.yaml, forward: true}}]
proxies: {trusted_hops: 1, from: [127.0.0.0/8]}
routes:
  - {match: POST /login, charges: [{class: login, by: address}]}
  - {match: POST /both, charges: [{class: login, by: address}, {class: default, by: account}]}
principal_header: X-Who
`, func(_ http.ResponseWriter, q *http.Request) { got = q.Header.Clone() })
	for i := range 4 {
		a := r.do(t, http.MethodPost, "/login", "X-Forwarded-For", string(rune('1'+i))+".1.1.1, 2001:db8:1:2:3::"+string(rune('1'+i)))
		want := http.StatusOK
		if i == 3 {
			want = http.StatusTooManyRequests // all of one /64
		}
		a.mustBe(t, "login", want, "")
	}
	if f := got.Get("X-Forwarded-For"); f != "2001:db8:1:2:3::3" || got.Get("X-Who") != "ip:2001:db8:1:2::/64" {
		t.Errorf("%q %q", f, got.Get("X-Who"))
	}
	r.do(t, http.MethodPost, "/login").mustBe(t, "no hop", http.StatusBadRequest, "invalid_argument")
	r.do(t, http.MethodPost, "/both", "X-Forwarded-For", "192.0.2.1", "X-Api-Key", keyAcme).mustBe(t, "both", http.StatusOK, "")
	if got.Get("X-Who") != "account:acme" || got.Get("X-Api-Key") != keyAcme {
		t.Error(got)
	}
}

// Shows that a principal in any bytes is a header of visible ones.
func TestVisible(t *testing.T) {
	if got := visible("a b%\r\nü"); got != "a%20b%25%0D%0A%C3%BC" {
		t.Error(got)
	}
}

// Shows that neither metrics nor log name a principal or a key, whatever happened, and that series are bounded by the
// configuration.
func TestNobodyIsNamed(t *testing.T) {
	r := mustRig(t, accountRoutes, nil)
	for i := range 5 {
		r.do(t, http.MethodPost, "/convert", "X-Api-Key", keyAcme)
		r.do(t, http.MethodPost, "/x"+strings.Repeat("y", i), "X-Api-Key", "guessed-"+string(rune('a'+i)))
	}
	r.cluster.Unavailable()
	r.do(t, http.MethodPost, "/convert", "X-Api-Key", keyPro)
	_, metrics := r.probe(t, "/metrics")
	for _, secret := range []string{"acme", keyAcme, keyPro, "account:", "guessed", "/xy", sum(keyAcme)} {
		if strings.Contains(metrics, secret) || strings.Contains(r.log.String(), secret) {
			t.Errorf("%q is told", secret)
		}
	}
	if got := r.metric(t, `quorate_gateway_requests_total{route="/",status="401"}`); got != "5" {
		t.Errorf("%q requests", got)
	}
}
