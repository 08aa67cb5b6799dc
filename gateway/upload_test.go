package gateway

import (
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"
)

// Shows that what is wrong with a caller's own body is told to him as that, and is not counted, nor logged, as a fault
// of the upstream: malformed or short 400, slow 408, large 413; and that an upstream which does not read is 504.
func TestFaultsOfBodies(t *testing.T) {
	release := make(chan bool)
	r := mustRig(t, `
bounds: {header_timeout: 1m}
callers: {address: [{client_ip: {}}]}
upstreams: {api: {url: URL, timeout: 500ms, max_body_bytes: 1000}, deaf: {url: URL, timeout: 500ms}}
routes: [{match: /deaf, charges: [{class: default}], upstream: deaf}]
fallback: {charges: [{class: default}], upstream: api}
`, func(_ http.ResponseWriter, q *http.Request) {
		if q.URL.Path == "/deaf" {
			<-release
			return
		}
		_, _ = io.Copy(io.Discard, q.Body)
	})
	t.Cleanup(func() { close(release) })
	const length, chunked = "Content-Length: 10\r\n\r\n", "Transfer-Encoding: chunked\r\n\r\n"
	want := map[string]int{}
	for name, tt := range map[string]struct {
		body   string
		ends   bool
		status int
		reason string
	}{
		"size":           {chunked + "z\r\n", false, 400, "body_malformed"},
		"end of chunk":   {chunked + "1\r\nab\r\n", false, 400, "body_malformed"},
		"line of chunk":  {chunked + "1;" + strings.Repeat("x", 8<<10) + "\r\na\r\n", false, 400, "body_malformed"},
		"trailer":        {chunked + "1\r\na\r\n0\r\nA b\r\n\r\n", false, 400, "body_malformed"},
		"short":          {length + "abc", true, 400, "body_malformed"},
		"nothing":        {length, true, 400, "body_malformed"},
		"short in chunk": {chunked + "5\r\nab", true, 400, "body_malformed"},
		"no last chunk":  {chunked + "1\r\na\r\n", true, 400, "body_malformed"},
		"slow":           {length + "abc", false, 408, "body_timeout"},
		"slow in chunk":  {chunked + "1\r\na\r\n", false, 408, "body_timeout"},
		"large":          {"Content-Length: 1001\r\n\r\n", false, 413, "body_too_large"},
		"large in chunk": {chunked + "3e9\r\n" + strings.Repeat("x", 1001) + "\r\n", false, 413, "body_too_large"},
	} {
		want[tt.reason]++
		l := r.dial(t)
		l.mustWrite(t, "POST / HTTP/1.1\r\nHost: a\r\n"+tt.body)
		if tt.ends {
			if err := l.Conn.(interface{ CloseWrite() error }).CloseWrite(); err != nil {
				t.Fatal(err)
			}
		}
		resp := l.answer(t)
		if resp == nil || resp.StatusCode != tt.status {
			t.Errorf("%s: %+v, want %d", name, resp, tt.status)
			continue
		}
		if b, err := io.ReadAll(resp.Body); err != nil || !strings.Contains(string(b), `"reason":"`+tt.reason+`"`) {
			t.Errorf("%s: %s %v", name, b, err)
		}
		l.mustEnd(t, name)
		_ = l.Close()
	}
	for _, reason := range []string{"body_malformed", "body_timeout", "body_too_large"} {
		if got := r.metric(t, `quorate_gateway_refused_total{reason="`+reason+`"}`); got != strconv.Itoa(want[reason]) {
			t.Errorf("%s: %q, want %d", reason, got, want[reason])
		}
	}
	for _, reason := range []string{refusedUpstream, refusedSlow} {
		if got := r.metric(t, `quorate_gateway_refused_total{reason="`+reason+`"}`); got != "0" {
			t.Errorf("%s: %q", reason, got)
		}
	}
	if log := r.log.String(); strings.Contains(log, "an upstream") {
		t.Error(log)
	}
	l := r.dial(t)
	l.mustWrite(t, "POST /deaf HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000000\r\n\r\n")
	sent := make(chan error, 1)
	go func() {
		_, err := io.Copy(l.Conn, zeros{})
		sent <- err
	}()
	if resp := l.answer(t); resp == nil || resp.StatusCode != http.StatusGatewayTimeout {
		t.Errorf("deaf: %+v", resp)
	}
	_ = l.Close()
	if err := <-sent; err == nil {
		t.Error("all of it was sent")
	}
	if got := r.metric(t, `quorate_gateway_refused_total{reason="`+refusedSlow+`"}`); got != "1" {
		t.Errorf("deaf: %q", got)
	}
}

// zeros has no end.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}
