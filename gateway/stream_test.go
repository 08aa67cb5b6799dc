package gateway

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
)

const streamRoutes = `
callers: {address: [{client_ip: {}}]}
fallback: {charges: [{class: default}]}
`

// Shows that bytes of a body are passed on as they come, both ways, while neither body has ended, and trailers too.
func TestBodiesStream(t *testing.T) {
	r := mustRig(t, streamRoutes, func(w http.ResponseWriter, q *http.Request) {
		rc := http.NewResponseController(w)
		if err := rc.EnableFullDuplex(); err != nil {
			t.Error(err)
		}
		w.Header().Set("Trailer", "X-End")
		b := make([]byte, 1)
		for {
			_, err := q.Body.Read(b)
			if err != nil {
				break
			}
			_, _ = w.Write(b)
			if err := rc.Flush(); err != nil {
				t.Error(err)
			}
		}
		w.Header().Set("X-End", "yes")
	})
	l := r.dial(t)
	l.mustWrite(t, "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n")
	resp := l.answer(t)
	if resp == nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("%+v", resp)
	}
	b := make([]byte, 1)
	for i := range 5 {
		if _, err := io.ReadFull(resp.Body, b); err != nil || b[0] != 'a'+byte(i) {
			t.Fatalf("byte %d: %q %v", i, b, err)
		}
		if i < 4 {
			l.mustWrite(t, "1\r\n"+string(rune('b'+i))+"\r\n")
		}
	}
	l.mustWrite(t, "0\r\n\r\n")
	if rest, err := io.ReadAll(resp.Body); len(rest) > 0 || err != nil || resp.trailer().Get("X-End") != "yes" {
		t.Errorf("%q %v %v", rest, err, resp.trailer())
	}
}

// echo changes to a protocol in which each line comes back.
func echo(w http.ResponseWriter, q *http.Request) {
	if q.Header.Get("Upgrade") == "" {
		return
	}
	c, rw, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return
	}
	defer c.Close()
	fmt.Fprint(rw, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: "+q.Header.Get("Upgrade")+"\r\n\r\n")
	_ = rw.Flush()
	for {
		line, err := rw.ReadString('\n')
		if err != nil {
			return
		}
		_, _ = rw.WriteString("echo " + line)
		_ = rw.Flush()
	}
}

func (r *rig) mustUpgrade(t *testing.T) *line {
	t.Helper()
	l := r.dial(t)
	l.mustWrite(t, "GET /ws HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: x\r\n\r\n")
	resp := l.answer(t)
	if resp == nil || resp.StatusCode != http.StatusSwitchingProtocols || resp.Header.Get("Upgrade") != "websocket" ||
		!strings.HasPrefix(resp.Header.Get("RateLimit"), `"default";r=`) {
		t.Fatalf("%+v", resp)
	}
	return l
}

func (l *line) mustEcho(t *testing.T, text string) {
	t.Helper()
	l.mustWrite(t, text)
	if got, err := l.r.ReadString('\n'); err != nil || got != "echo "+text {
		t.Errorf("%q %v", got, err)
	}
}

// Shows that after a change of protocol any bytes pass, such as no HTTP has, and that each end closing ends the other.
func TestUpgrade(t *testing.T) {
	ended := make(chan bool, 1)
	r := mustRig(t, streamRoutes, func(w http.ResponseWriter, q *http.Request) {
		echo(w, q)
		ended <- true
	})
	l := r.mustUpgrade(t)
	l.mustEcho(t, "\x00\xff\r bare\n")
	l.mustEcho(t, "Content-Length : x\n")
	if got := r.metric(t, "quorate_gateway_in_flight"); got != "1" {
		t.Errorf("%q under way", got)
	}
	_ = l.Close()
	<-ended
	until(t, "nothing is under way", func() bool { return r.underWay.Load() == 0 })
	if got := r.metric(t, `quorate_gateway_requests_total{route="fallback",status="101"}`); got != "1" {
		t.Errorf("%q upgrades", got)
	}
}

// Shows that a stopping gateway says so at /readyz while it still serves, finishes what is under way, and cuts off at
// its bound what does not end, a changed protocol too.
func TestDrain(t *testing.T) {
	begun, release := make(chan bool), make(chan bool)
	r := mustRig(t, streamRoutes+"drain: {delay: 300ms, timeout: 1s}\n", func(w http.ResponseWriter, q *http.Request) {
		switch q.URL.Path {
		case "/ws":
			echo(w, q)
		case "/slow":
			begun <- true
			<-release
			fmt.Fprint(w, "done")
		}
	})
	ws := r.mustUpgrade(t)
	slow := r.dial(t)
	slow.mustWrite(t, "GET /slow HTTP/1.1\r\nHost: a\r\n\r\n")
	<-begun
	ended := make(chan error, 1)
	go func() { ended <- r.stop() }()
	until(t, "it is not ready", func() bool {
		status, body := r.probe(t, "/readyz")
		return status == http.StatusServiceUnavailable && strings.Contains(body, "stopping")
	})
	r.do(t, http.MethodGet, "/other").mustBe(t, "while it is drained", http.StatusOK, "")
	until(t, "it does not listen", func() bool {
		c, err := r.web.Get("http://" + r.Addr().String() + "/other") //nolint:noctx // bounded by the client's timeout
		if err == nil {
			_ = c.Body.Close()
		}
		return err != nil
	})
	close(release)
	if resp := slow.answer(t); resp == nil || resp.StatusCode != http.StatusOK {
		t.Errorf("what was under way: %+v", resp)
	}
	ws.mustEcho(t, "still here\n")
	ws.mustEnd(t, "the changed protocol")
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if !strings.Contains(r.log.String(), "requests are cut off") {
		t.Error("nothing is said of what was cut off")
	}
}

// Shows each bound in time: an answer that does not begin is 504, one that stands still is broken off, so is one that
// nobody reads, an upload that stands still, 408, and the rest of a refused request's body.
func TestTimes(t *testing.T) {
	unblock := make(chan bool)
	r := mustRig(t, `
callers: {account: [{api_key: {file: keys.yaml}}]}
bounds: {header_timeout: 300ms}
upstreams: {api: {url: URL, timeout: 300ms, idle_timeout: 300ms}}
routes:
  - {match: /refused, charges: [{class: default}]}
  - {match: /, unlimited: true}
`, func(w http.ResponseWriter, q *http.Request) {
		switch q.URL.Path {
		case "/never":
			<-unblock
		case "/still":
			fmt.Fprint(w, "a")
			_ = http.NewResponseController(w).Flush()
			<-unblock
		case "/flood":
			for q.Context().Err() == nil {
				if _, err := w.Write(make([]byte, 1<<20)); err != nil {
					return
				}
			}
		default:
			_, _ = io.Copy(io.Discard, q.Body)
		}
	})
	t.Cleanup(func() { close(unblock) })
	r.do(t, http.MethodGet, "/never").mustBe(t, "never", http.StatusGatewayTimeout, "upstream_timeout")

	still := r.dial(t)
	still.mustWrite(t, "GET /still HTTP/1.1\r\nHost: a\r\n\r\n")
	if resp := still.answer(t); resp == nil || resp.StatusCode != http.StatusOK {
		t.Errorf("still: %+v", resp)
	} else if b, err := io.ReadAll(resp.Body); string(b) != "a" || !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("still: %q %v", b, err)
	}
	flood := r.dial(t)
	flood.mustWrite(t, "GET /flood HTTP/1.1\r\nHost: a\r\n\r\n")
	until(t, "the flood has begun", func() bool { return r.underWay.Load() == 1 })
	until(t, "the flood is cut off", func() bool { return r.underWay.Load() == 0 })

	upload := r.dial(t)
	upload.mustWrite(t, "POST /upload HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\na")
	if resp := upload.answer(t); resp == nil || resp.StatusCode != http.StatusRequestTimeout {
		t.Errorf("upload: %+v", resp)
	}
	upload.mustEnd(t, "upload")
	refused := r.dial(t)
	refused.mustWrite(t, "POST /refused HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\na")
	if resp := refused.answer(t); resp == nil || resp.StatusCode != http.StatusUnauthorized {
		t.Errorf("refused: %+v", resp)
	}
	refused.mustEnd(t, "refused")
	silent := r.dial(t)
	silent.mustWrite(t, "GET / HTTP/1.1\r\nHo")
	silent.mustEnd(t, "half a header")
}

// Shows the bounds in number: requests beyond theirs are 503 at once, connections beyond theirs wait for one to end,
// bodies beyond theirs are 413, with a length and without, and the bound of all time ends what goes on and on.
func TestNumbers(t *testing.T) {
	begun, release := make(chan bool, 4), make(chan bool)
	r := mustRig(t, `
bounds: {max_requests: 2, max_connections: 3, max_connections_per_address: 3}
callers: {address: [{client_ip: {}}]}
upstreams: {api: {url: URL, max_body_bytes: 10}}
fallback: {unlimited: true}
`, func(w http.ResponseWriter, q *http.Request) {
		if q.URL.Path == "/hold" {
			begun <- true
			<-release
			return
		}
		_, _ = io.Copy(io.Discard, q.Body)
	})
	r.send(t, http.MethodPost, "/", strings.NewReader("0123456789")).mustBe(t, "10 bytes", http.StatusOK, "")
	r.send(t, http.MethodPost, "/", strings.NewReader("0123456789a")).mustBe(t, "11 bytes", 413, "body_too_large")
	l := r.dial(t)
	l.mustWrite(t, "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nb\r\n0123456789a\r\n0\r\n\r\n")
	if resp := l.answer(t); resp == nil || resp.StatusCode != http.StatusRequestEntityTooLarge {
		t.Errorf("11 bytes in a chunk: %+v", resp)
	}
	_ = l.Close()
	r.web.CloseIdleConnections()
	until(t, "no connection is open", func() bool { return r.metric(t, "quorate_gateway_connections") == "0" })
	lines := []*line{r.dial(t), r.dial(t), r.dial(t)}
	for _, l := range lines[:2] {
		l.mustWrite(t, "GET /hold HTTP/1.1\r\nHost: a\r\n\r\n")
		<-begun
	}
	lines[2].mustWrite(t, "GET / HTTP/1.1\r\nHost: a\r\n\r\n")
	if resp := lines[2].answer(t); resp == nil || resp.StatusCode != http.StatusServiceUnavailable || resp.Header.Get("Retry-After") != "1" {
		t.Errorf("the third request: %+v", resp)
	}
	fourth := r.dial(t) // the kernel takes it, the gateway does not
	fourth.mustWrite(t, "GET /hold HTTP/1.1\r\nHost: a\r\n\r\n")
	if got := r.metric(t, "quorate_gateway_connections"); got != "3" {
		t.Errorf("%q connections", got)
	}
	close(release)
	until(t, "those under way have ended", func() bool { return r.underWay.Load() == 0 })
	_ = lines[2].Close()
	if resp := fourth.answer(t); resp == nil || resp.StatusCode != http.StatusOK {
		t.Errorf("the fourth connection: %+v", resp)
	}
}

// Shows that an upstream that is not there is 502.
func TestNoUpstream(t *testing.T) {
	r := mustRig(t, streamRoutes, nil)
	r.upstream.Close()
	r.do(t, http.MethodGet, "/").mustBe(t, "no upstream", http.StatusBadGateway, "upstream_failed")
}

// Shows that when an upstream answers before it has read a body, nothing behind what was read of it is taken for a
// request: the answer comes whole, and the connection ends.
func TestUnreadBody(t *testing.T) {
	r := mustRig(t, streamRoutes, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Connection", "close")
		w.WriteHeader(http.StatusTeapot)
		fmt.Fprint(w, "no")
	})
	hidden := "GET /hidden HTTP/1.1\r\nHost: a\r\n\r\n"
	for name, head := range map[string]string{
		"length": "Content-Length: 1000000\r\n\r\n", "chunked": "Transfer-Encoding: chunked\r\n\r\nF4240\r\n",
	} {
		l := r.dial(t)
		l.mustWrite(t, "POST / HTTP/1.1\r\nHost: a\r\n"+head+strings.Repeat(hidden, 100))
		resp := l.answer(t)
		if resp == nil || resp.StatusCode != http.StatusTeapot {
			t.Fatalf("%s: %+v", name, resp)
		}
		if b, err := io.ReadAll(resp.Body); string(b) != "no" || err != nil {
			t.Errorf("%s: %q %v", name, b, err)
		}
		l.mustEnd(t, name)
		if n := r.reached.Swap(0); n != 1 {
			t.Errorf("%s: %d requests came to the upstream", name, n)
		}
	}
}

// Shows that a connection goes on after requests with bodies that were served, denied, and refused, and that
// trailers of a request do not reach the upstream.
func TestConnectionGoesOn(t *testing.T) {
	trailers := make(chan http.Header, 2)
	r := mustRig(t, accountRoutes+"principal_header: X-Who\n", func(w http.ResponseWriter, q *http.Request) {
		_, _ = io.Copy(io.Discard, q.Body)
		if q.Method == http.MethodPut {
			trailers <- q.Trailer
		}
	})
	l := r.dial(t)
	post := func(key string) string {
		return "POST /convert HTTP/1.1\r\nHost: a\r\nX-Api-Key: " + key + "\r\nContent-Length: 3\r\n\r\nabc"
	}
	for i, want := range []int{200, 200, 401, 200, 429, 429, 401, 200} {
		text := post(keyAcme)
		switch i {
		case 2, 6:
			text = post("guessed")
		case 7:
			text = "PUT / HTTP/1.1\r\nHost: a\r\nX-Api-Key: " + keyAcme + "\r\nTrailer: X-Who\r\n" +
				"Transfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\nX-Who: forged\r\nX-Other: forged\r\n\r\n"
		}
		l.mustWrite(t, text)
		resp := l.answer(t)
		if resp == nil || resp.StatusCode != want {
			t.Fatalf("request %d: %+v, want %d", i, resp, want)
		}
		if _, err := io.Copy(io.Discard, resp.Body); err != nil {
			t.Fatal(err)
		}
	}
	if got := <-trailers; len(got) > 0 {
		t.Errorf("the upstream got trailers: %v", got)
	}
}

// Shows that events pass one by one.
func TestEvents(t *testing.T) {
	more := make(chan bool)
	r := mustRig(t, streamRoutes, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		for i := range 3 {
			fmt.Fprintf(w, "data: %d\n\n", i)
			_ = http.NewResponseController(w).Flush()
			<-more
		}
	})
	l := r.dial(t)
	l.mustWrite(t, "GET / HTTP/1.1\r\nHost: a\r\n\r\n")
	resp := l.answer(t)
	if resp == nil {
		t.Fatal("no answer")
	}
	events := bufio.NewReader(resp.Body)
	for i := range 3 {
		if got, err := events.ReadString('\n'); err != nil || got != fmt.Sprintf("data: %d\n", i) {
			t.Errorf("event %d: %q %v", i, got, err)
		}
		if _, err := events.ReadString('\n'); err != nil {
			t.Error(err)
		}
		more <- true
	}
}
