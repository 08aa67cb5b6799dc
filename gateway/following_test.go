package gateway

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
)

// held is an upstream that answers when it is let, and says how each request has ended.
type held struct {
	begun, release chan bool
	ended          chan string
}

func newHeld() *held {
	return &held{make(chan bool, 8), make(chan bool, 8), make(chan string, 8)}
}

func (h *held) serve(w http.ResponseWriter, q *http.Request) {
	if q.URL.Path == "/other" {
		return
	}
	_, _ = io.Copy(io.Discard, q.Body)
	h.begun <- true
	select {
	case <-h.release:
		fmt.Fprint(w, "served")
		h.ended <- "served"
	case <-q.Context().Done():
		h.ended <- "cut"
	}
}

// mustAnswer wants the next answer to have a status, and reads it to its end.
func (l *line) mustAnswer(t *testing.T, what string, status int) *incoming {
	t.Helper()
	resp := l.answer(t)
	if resp == nil || resp.StatusCode != status {
		t.Errorf("%s: %+v, want %d", what, resp, status)
		return resp
	}
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		t.Errorf("%s: %v", what, err)
	}
	return resp
}

const bare = "GET / HTTP/1.1\r\nHost: a\r\n\r\n"

// closed is where a test wants the connection to end without a further answer.
const closed = -1

// Shows that a request which was sent is answered, whatever bytes follow it and whenever, and that these are judged
// after its answer: an empty line is skipped, a request is served, and what is malformed is 400, or, within its first
// four bytes, has the connection closed.
func TestAnsweredFirst(t *testing.T) {
	h := newHeld()
	r := mustRig(t, streamRoutes, h.serve)
	front := map[string]string{
		"GET": bare, "POST": "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc",
		"chunked": "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\n\r\n",
	}
	for follows, status := range map[string]int{
		"\r\n": 0, "\r\n" + bare: 200, bare: 200, "x": 0, "\x00": 0, "\n": closed, "\r\n\r\n": closed, "\n\n\n\n": closed,
		"GET /\r\n": 400, "\r\nGET /\r\n": 400, "GET / HTTP/1.1\r\nHost : a\r\n\r\n" + bare: 400,
		"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n": 400,
	} {
		for name, front := range front {
			for _, later := range []bool{false, true} {
				what := fmt.Sprintf("%q after %s, later: %v", follows, name, later)
				l := r.dial(t)
				if later {
					l.mustWrite(t, front)
					<-h.begun
					l.mustWrite(t, follows)
					r.do(t, http.MethodGet, "/other").mustBe(t, "meanwhile", http.StatusOK, "")
				} else {
					l.mustWrite(t, front+follows)
					<-h.begun
				}
				h.release <- true
				l.mustAnswer(t, what, http.StatusOK)
				if got := <-h.ended; got != "served" {
					t.Fatalf("%s: the request was %s", what, got)
				}
				if status == http.StatusOK {
					<-h.begun
					h.release <- true
					<-h.ended
				}
				if status > 0 {
					l.mustAnswer(t, what+", then", status)
				}
				if status == http.StatusBadRequest || status == closed {
					l.mustEnd(t, what)
				}
				_ = l.Close()
			}
		}
	}
}

// Shows that what a caller sends of another protocol before he is told that it has changed is not lost.
func TestEarlyBytes(t *testing.T) {
	r := mustRig(t, streamRoutes, echo)
	l := r.dial(t)
	l.mustWrite(t, "GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n\x00early\n")
	if resp := l.answer(t); resp == nil || resp.StatusCode != http.StatusSwitchingProtocols {
		t.Fatalf("%+v", resp)
	}
	if got, err := l.r.ReadString('\n'); err != nil || got != "echo \x00early\n" {
		t.Errorf("%q %v", got, err)
	}
	l.mustEcho(t, "later\n")
}

// Shows that a caller who sends a request and then no more, on a connection that he still reads, is answered.
func TestHalfClosed(t *testing.T) {
	h := newHeld()
	ca := mustCA(t)
	cert, key := ca.issue(t, "server")
	for _, secure := range []bool{false, true} {
		config := streamRoutes
		if secure {
			config += "tls: {cert: server.pem, key: server-key.pem}\n"
		}
		r := mustRig(t, config, h.serve, "server.pem", cert, "server-key.pem", key)
		for _, text := range []string{
			bare, bare + "\r\n", bare + "x", "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc",
			"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\n\r\n",
		} {
			l := r.dial(t)
			if secure {
				l = l.secured(t, ca)
			}
			l.mustWrite(t, text)
			<-h.begun
			if err := l.Conn.(interface{ CloseWrite() error }).CloseWrite(); err != nil {
				t.Fatal(err)
			}
			r.twice(t, secure, ca)
			h.release <- true
			l.mustAnswer(t, text, http.StatusOK)
			if got := <-h.ended; got != "served" {
				t.Errorf("%q: the request was %s", text, got)
			}
			l.mustEnd(t, text)
		}
	}
}

// twice makes requests on other connections, so that what came before them has come.
func (r *rig) twice(t *testing.T, secure bool, ca *authority) {
	t.Helper()
	for range 2 {
		l := r.dial(t)
		if secure {
			l = l.secured(t, ca)
		}
		l.mustWrite(t, strings.Replace(bare, "/ ", "/other ", 1))
		l.mustAnswer(t, "meanwhile", http.StatusOK)
		_ = l.Close()
	}
}

// secured shakes hands.
func (l *line) secured(t *testing.T, ca *authority) *line {
	t.Helper()
	roots := x509.NewCertPool()
	roots.AddCert(ca.cert)
	c := tls.Client(l.Conn, &tls.Config{RootCAs: roots, ServerName: "127.0.0.1", MinVersion: tls.VersionTLS12})
	if err := c.HandshakeContext(t.Context()); err != nil {
		t.Fatal(err)
	}
	l.r.Reset(c)
	return &line{c, l.r}
}

// Shows that a caller who has gone ends his request at the upstream: at once when his connection breaks, or ends over
// TLS; without TLS, where one who has gone looks like one who still reads, when something is written to him, and at the
// upstream's bound in time at the latest.
func TestGone(t *testing.T) {
	h := newHeld()
	ca := mustCA(t)
	cert, key := ca.issue(t, "server")
	r := mustRig(t, streamRoutes, h.serve)
	l := r.dial(t)
	l.mustWrite(t, bare)
	<-h.begun
	if err := l.Conn.(*net.TCPConn).SetLinger(0); err != nil {
		t.Fatal(err)
	}
	_ = l.Close()
	if got := <-h.ended; got != "cut" {
		t.Errorf("broken: %s", got)
	}

	s := mustRig(t, streamRoutes+"tls: {cert: server.pem, key: server-key.pem}\n", h.serve, "server.pem", cert,
		"server-key.pem", key)
	for _, abrupt := range []bool{false, true} {
		under := s.dial(t)
		l := under.secured(t, ca)
		l.mustWrite(t, bare)
		<-h.begun
		if abrupt {
			_ = under.Close()
		} else {
			_ = l.Close()
		}
		if got := <-h.ended; got != "cut" {
			t.Errorf("over TLS: %s", got)
		}
	}

	bounded := mustRig(t, streamRoutes+"upstreams: {api: {url: URL, timeout: 300ms}}\n", h.serve)
	l = bounded.dial(t)
	l.mustWrite(t, bare)
	<-h.begun
	_ = l.Close()
	if got := <-h.ended; got != "cut" {
		t.Errorf("at the bound: %s", got)
	}

	written := make(chan bool, 1)
	flood := mustRig(t, streamRoutes, func(w http.ResponseWriter, q *http.Request) {
		for q.Context().Err() == nil {
			if _, err := w.Write(make([]byte, 1<<10)); err != nil {
				break
			}
			_ = http.NewResponseController(w).Flush()
		}
		written <- true
	})
	l = flood.dial(t)
	l.mustWrite(t, bare)
	if resp := l.answer(t); resp == nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("%+v", resp)
	}
	_ = l.Close()
	<-written
}
