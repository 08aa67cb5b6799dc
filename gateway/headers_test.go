package gateway

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
)

// Shows that headers by which a server may take a request for another are removed, however they are written, unless
// the configuration keeps them, and that no sign in a header's name makes it the principal's.
func TestOverridesAreRemoved(t *testing.T) {
	got := make(chan http.Header, 1)
	upstream := func(_ http.ResponseWriter, q *http.Request) { got <- q.Header.Clone() }
	names := []string{
		"X-HTTP-Method-Override", "X-Http-Method", "X-Method-Override", "X-Original-Url", "X-Rewrite-URL", "X_Rewrite.Url",
		"X.Who", "X!Who", "X~Api+Key", "X.Forwarded.For", "X.Real_Ip",
	}
	var headers []string
	for _, name := range names {
		headers = append(headers, name, "forged")
	}
	for keep, want := range map[string]int{"": 0, "keep_headers: [X-HTTP-Method-Override]\n": 1} {
		r := mustRig(t, accountRoutes+"principal_header: X-Who\n"+keep, upstream)
		r.do(t, http.MethodGet, "/free/a", headers...).mustBe(t, "forged", http.StatusOK, "")
		passed := 0
		for name, values := range <-got {
			if values[0] == "forged" {
				passed++
				t.Log(name)
			}
		}
		if passed != want {
			t.Errorf("%q: %d forged headers passed, want %d", keep, passed, want)
		}
	}
}

// Shows that the header in which proxies write addresses has that which was found, and nothing when none was.
func TestProxiesHeader(t *testing.T) {
	const config = `
callers: {address: [{client_ip: {}}]}
routes: [{match: /free, unlimited: true}]
fallback: {charges: [{class: default}]}
`
	got := make(chan string, 1)
	upstream := func(_ http.ResponseWriter, q *http.Request) {
		got <- fmt.Sprint(q.Header["X-Client-Ip"], q.Header["X_client_ip"], q.Header["X-Forwarded-For"])
	}
	r := mustRig(t, "proxies: {trusted_hops: 1, header: X-Client-Ip, from: [127.0.0.0/8]}\n"+config, upstream)
	r.do(t, http.MethodGet, "/", "X-Client-Ip", "6.6.6.6, 192.0.2.1", "X_client_ip", "6.6.6.6").mustBe(t, "/", http.StatusOK, "")
	if s := <-got; s != "[192.0.2.1] [] [192.0.2.1]" {
		t.Error(s)
	}
	r = mustRig(t, "proxies: {trusted_hops: 1, header: X-Client-Ip, from: [10.0.0.0/8]}\n"+config, upstream)
	r.do(t, http.MethodGet, "/free", "X-Client-Ip", "6.6.6.6").mustBe(t, "/free", http.StatusOK, "")
	if s := <-got; strings.Contains(s, "6.6.6.6") {
		t.Error(s)
	}
}

// Shows that a query is passed on byte by byte, and that over HTTP/2 one that would be no query in HTTP/1 is refused.
func TestQuery(t *testing.T) {
	ca := mustCA(t)
	cert, key := ca.issue(t, "server")
	r := mustRig(t, "tls: {cert: server.pem, key: server-key.pem}\ncallers: {address: [{client_ip: {}}]}\n"+
		"fallback: {charges: [{class: default}]}\n",
		func(w http.ResponseWriter, q *http.Request) { fmt.Fprint(w, q.URL.RawQuery) },
		"server.pem", cert, "server-key.pem", key)
	for query, status := range map[string]int{
		"a=1;b=2&c=3": 200, "%zz&a=%20&&=": 200, "x HTTP/1.0": 400, "x\u00a0": 400,
	} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+r.Addr().String()+"/", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.URL.RawQuery = query
		resp, err := ca.client(t, true).Do(req)
		if err != nil {
			if status == http.StatusOK || !strings.Contains(err.Error(), "invalid") {
				t.Errorf("%q: %v", query, err)
			}
			continue
		}
		b, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if err != nil || resp.ProtoMajor != 2 || resp.StatusCode != status || status == 200 && string(b) != query {
			t.Errorf("%q: %s %d %q %v", query, resp.Proto, resp.StatusCode, b, err)
		}
	}
}
