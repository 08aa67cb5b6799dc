package gateway

import (
	"io"
	"net/http"
	"strings"
	"testing"
)

const shapeRoutes = `
hosts: [a.example, 127.0.0.1]
bounds: {max_header_bytes: 8192}
callers: {address: [{client_ip: {}}]}
fallback: {charges: [{class: default}]}
`

// Shows that each shape that has two readings, or that is no business of this gateway, is refused with the status for
// it, that the connection is closed where its framing cannot be trusted, and that none of them reaches the upstream.
func TestRefusedShapes(t *testing.T) {
	r := mustRig(t, shapeRoutes, nil)
	const host = "Host: a.example\r\n"
	hidden := "GET /hidden HTTP/1.1\r\n" + host + "\r\n"
	for name, tt := range map[string]struct {
		text   string
		status int
		closes bool
	}{
		"CL and TE":          {"POST / HTTP/1.1\r\n" + host + "Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + hidden, 400, true},
		"TE and CL":          {"POST / HTTP/1.1\r\n" + host + "Transfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n5c\r\n" + hidden, 400, true},
		"two lengths":        {"POST / HTTP/1.1\r\n" + host + "Content-Length: 0\r\nContent-Length: 44\r\n\r\n" + hidden, 400, true},
		"one length twice":   {"POST / HTTP/1.1\r\n" + host + "Content-Length: 3\r\nContent-Length: 3\r\n\r\nabc" + hidden, 400, true},
		"list of lengths":    {"POST / HTTP/1.1\r\n" + host + "Content-Length: 3, 3\r\n\r\nabc", 400, true},
		"odd coding":         {"POST / HTTP/1.1\r\n" + host + "Transfer-Encoding: xchunked\r\n\r\n" + hidden, 400, true},
		"coding in 1.0":      {"POST / HTTP/1.0\r\n" + host + "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400, true},
		"space before colon": {"POST / HTTP/1.1\r\n" + host + "Content-Length : 44\r\n\r\n" + hidden, 400, true},
		"bare LF":            {"GET / HTTP/1.1\n" + host + "\r\n", 400, true},
		"bare LF in headers": {"GET / HTTP/1.1\r\n" + host + "X: y\nContent-Length: 44\r\n\r\n" + hidden, 400, true},
		"bare CR":            {"GET / HTTP/1.1\r\n" + host + "X: y\rContent-Length: 44\r\n\r\n" + hidden, 400, true},
		"folded":             {"GET / HTTP/1.1\r\n" + host + "X: y\r\n Content-Length: 44\r\n\r\n", 400, true},
		"no host":            {"GET / HTTP/1.1\r\n\r\n", 400, true},
		"two hosts":          {"GET / HTTP/1.1\r\n" + host + "Host: b.example\r\n\r\n", 400, true},
		"NUL":                {"GET / HTTP/1.1\r\n" + host + "X: \x00\r\n\r\n", 400, true},
		"empty lines first":  {"\r\n\r\nGET / HTTP/1.1\r\n" + host + "\r\n", 400, true},
		"garbage":            {"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\r\n\r\n", 400, true},
		"HTTP/0.9":           {"GET /\r\n", 400, true},
		"HTTP/2 at once":     {"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400, true},
		"large headers":      {"GET / HTTP/1.1\r\n" + host + "X: " + strings.Repeat("a", 20<<10) + "\r\n\r\n", 431, true},
		"many headers":       {"GET / HTTP/1.1\r\n" + host + strings.Repeat("X: y\r\n", 4<<10) + "\r\n", 431, true},
		"long target":        {"GET /" + strings.Repeat("a", 20<<10) + " HTTP/1.1\r\n" + host + "\r\n", 431, true},
		"another host":       {"GET http://b.example/ HTTP/1.1\r\n" + host + "\r\n", 400, false},
		"another scheme":     {"GET ftp://a.example/ HTTP/1.1\r\n" + host + "\r\n", 400, false},
		"host of no route":   {"GET / HTTP/1.1\r\nHost: b.example\r\n\r\n", 421, false},
		"CONNECT":            {"CONNECT b.example:443 HTTP/1.1\r\nHost: b.example:443\r\n\r\n", 405, false},
		"CONNECT here":       {"CONNECT a.example:80 HTTP/1.1\r\n" + host + "\r\n", 405, false},
		"TRACE":              {"TRACE / HTTP/1.1\r\n" + host + "\r\n", 405, false},
		"invented method":    {"PROPFIND / HTTP/1.1\r\n" + host + "\r\n", 405, false},
		"method in small":    {"get / HTTP/1.1\r\n" + host + "\r\n", 405, false},
		"method of signs":    {"G\"T / HTTP/1.1\r\n" + host + "\r\n", 400, true},
		"asterisk":           {"OPTIONS * HTTP/1.1\r\n" + host + "\r\n", 400, false},
		"dots":               {"GET /a/../../b HTTP/1.1\r\n" + host + "\r\n", 400, false},
		"encoded dots":       {"GET /%2e%2e/b HTTP/1.1\r\n" + host + "\r\n", 400, false},
		"encoded separator":  {"GET /..%2fb HTTP/1.1\r\n" + host + "\r\n", 400, false},
		"dots and semicolon": {"GET /..;x/b HTTP/1.1\r\n" + host + "\r\n", 400, false},
		"dots and backslash": {"GET /..\\b HTTP/1.1\r\n" + host + "\r\n", 400, false},
		"upgrade with body":  {"GET / HTTP/1.1\r\n" + host + "Connection: Upgrade\r\nUpgrade: websocket\r\nContent-Length: 3\r\n\r\nabc", 400, false},
		"upgrade by POST":    {"POST / HTTP/1.1\r\n" + host + "Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n", 400, false},
	} {
		l := r.dial(t)
		if _, err := io.WriteString(l, tt.text); err != nil && !tt.closes {
			t.Errorf("%s: %v", name, err)
		}
		resp := l.answer(t)
		if resp == nil || resp.StatusCode != tt.status {
			t.Errorf("%s: %+v, want %d", name, resp, tt.status)
			continue
		}
		if tt.closes {
			l.mustEnd(t, name)
		}
		_ = l.Close()
		if n := r.reached.Swap(0); n != 0 {
			t.Errorf("%s: %d requests came to the upstream", name, n)
		}
	}
	if got := r.metric(t, `quorate_gateway_malformed_total{shape="length_and_coding"}`); got != "2" {
		t.Errorf("%q connections with length and coding", got)
	}
}

// Shows that a malformed request after good ones that are answered takes none of them with it, and that what stands
// behind it is never read as a request.
func TestPipelined(t *testing.T) {
	r := mustRig(t, shapeRoutes, nil)
	l := r.dial(t)
	good := "POST /good HTTP/1.1\r\nHost: a.example\r\nContent-Length: 3\r\n\r\nabc"
	l.mustWrite(t, good)
	if resp := l.answer(t); resp == nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("%+v", resp)
	}
	if _, err := io.CopyN(io.Discard, l.r, int64(len("served"))-int64(0)); err != nil {
		t.Fatal(err)
	}
	l.mustWrite(t, "POST / HTTP/1.1\r\nHost: a.example\r\nContent-Length: 0\r\nContent-Length: 5\r\n\r\n"+good)
	if resp := l.answer(t); resp == nil || resp.StatusCode != http.StatusBadRequest {
		t.Fatalf("%+v", resp)
	}
	l.mustEnd(t, "malformed")
	if n := r.reached.Load(); n != 1 {
		t.Errorf("%d requests came to the upstream", n)
	}
}

// Shows that a whole URL of a listed host is served as its path, and that other upgrades than the listed are not asked
// for at the upstream.
func TestAcceptedShapes(t *testing.T) {
	upgrade := make(chan string, 2)
	r := mustRig(t, shapeRoutes, func(w http.ResponseWriter, q *http.Request) {
		upgrade <- q.Header.Get("Upgrade") + q.Header.Get("Connection") + q.URL.String()
	})
	for _, text := range []string{
		"GET http://a.example/x HTTP/1.1\r\nHost: b.example\r\n\r\n",
		"GET /x HTTP/1.1\r\nHost: A.example.:80\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: x\r\n\r\n",
	} {
		l := r.dial(t)
		l.mustWrite(t, text)
		if resp := l.answer(t); resp == nil || resp.StatusCode != http.StatusOK {
			t.Errorf("%q: %+v", text, resp)
			continue
		}
		if got := <-upgrade; got != "/x" {
			t.Errorf("%q: the upstream got %q", text, got)
		}
	}
}

// Shows that with a fallback alone a path that another server could read as another is refused as with routes.
func TestFallbackAlone(t *testing.T) {
	r := mustRig(t, "callers: {address: [{client_ip: {}}]}\nfallback: {charges: [{class: default}]}\n", nil)
	for path, status := range map[string]int{
		"/": 200, "/a": 200, "/a/B%20c": 200, "/a%2fb": 400, "//a": 400, "/a/%2e%2e/b": 400, "/a%5cb": 400, "/a%252fb": 400,
	} {
		r.do(t, http.MethodGet, path).mustBe(t, path, status, "")
	}
}

// Shows that who sends far more than the headers may have gets his refusal and then the end, though most of it was not
// read: a connection that is reset instead can lose the refusal on its way.
func TestRefusalIsNotLost(t *testing.T) {
	r := mustRig(t, shapeRoutes, nil)
	for range 20 {
		l := r.dial(t)
		l.mustWrite(t, "GET / HTTP/1.1\r\nHost: a.example\r\nX: "+strings.Repeat("a", 64<<10))
		got, err := io.ReadAll(l)
		if err != nil || !strings.HasPrefix(string(got), "HTTP/1.1 431 ") {
			t.Fatalf("%v after %.40q", err, got)
		}
	}
}
