package quotahttp

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/quorate/quorate/sdk"
)

// Shows that the handler gets the very ResponseWriter that the server made, so that whatever it can do is still there.
func TestWriterIsUntouched(t *testing.T) {
	rec := httptest.NewRecorder()
	var got http.ResponseWriter
	handler := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { got = w })
	mustGuard(t, allowing(), oneRule()).wrap(handler).ServeHTTP(rec, mustRequest(t, http.MethodGet, "/", "acme"))
	if got != http.ResponseWriter(rec) {
		t.Errorf("the handler writes to a %T", got)
	}
}

func mustServe(t *testing.T, h http.Handler) *httptest.Server {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return s
}

// Shows over a real connection that a protocol switch passes: the handler hijacks the connection and both ends talk.
func TestHijackPasses(t *testing.T) {
	handler := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		c, rw, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer c.Close()
		_, _ = rw.WriteString("HTTP/1.1 101 Switching Protocols\r\nUpgrade: echo\r\nConnection: Upgrade\r\n\r\n")
		_ = rw.Flush()
		line, _ := rw.ReadString('\n')
		_, _ = rw.WriteString("echo " + line)
		_ = rw.Flush()
	})
	s := mustServe(t, mustGuard(t, allowing(), oneRule()).wrap(handler))
	var dialer net.Dialer
	c, err := dialer.DialContext(t.Context(), "tcp", s.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_, _ = io.WriteString(c, "GET /ws HTTP/1.1\r\nHost: x\r\nX-Api-Key: acme\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
	r := bufio.NewReader(c)
	resp, err := http.ReadResponse(r, nil)
	if err != nil || resp.StatusCode != http.StatusSwitchingProtocols {
		t.Fatalf("%v, %v", resp, err)
	}
	defer resp.Body.Close()
	_, _ = io.WriteString(c, "hello\n")
	if line, err := r.ReadString('\n'); line != "echo hello\n" || err != nil {
		t.Errorf("%q, %v", line, err)
	}
}

// Shows over a real connection that what the handler flushes arrives while it still runs, that HEAD has the headers and
// no body, allowed or refused, and that a handler's panic ends its connection as it would without the middleware.
func TestFlushHeadAndPanic(t *testing.T) {
	release := make(chan struct{})
	mux := http.NewServeMux()
	mux.HandleFunc("/flush", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "first\n")
		_ = http.NewResponseController(w).Flush()
		<-release
	})
	mux.HandleFunc("/panic", func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })
	mux.HandleFunc("/", served)
	s := mustServe(t, mustGuard(t, allowing(), oneRule()).wrap(mux))
	do := func(method, path, key string) (*http.Response, error) {
		r, err := http.NewRequestWithContext(t.Context(), method, s.URL+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("X-Api-Key", key)
		return s.Client().Do(r)
	}
	resp, err := do(http.MethodGet, "/flush", "acme")
	if err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(resp.Body).ReadString('\n')
	if line != "first\n" || err != nil {
		t.Errorf("%q, %v", line, err)
	}
	close(release)
	resp.Body.Close()

	for key, want := range map[string]int{"acme": http.StatusOK, "unknown": http.StatusUnauthorized} {
		resp, err := do(http.MethodHead, "/", key)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if resp.StatusCode != want || len(body) != 0 || err != nil || resp.ContentLength <= 0 {
			t.Errorf("HEAD by %s: %d, %q, %v, length %d", key, resp.StatusCode, body, err, resp.ContentLength)
		}
	}

	if resp, err := do(http.MethodGet, "/panic", "acme"); !errors.Is(err, io.EOF) {
		if err == nil {
			resp.Body.Close()
		}
		t.Errorf("a panicking handler: %v, %v", resp, err)
	}
}

// Shows that a handler's panic reaches whoever wraps the middleware, as the same value.
func TestPanicPassesThrough(t *testing.T) {
	defer func() {
		if p := recover(); p != "oops" {
			t.Errorf("recovered %v", p)
		}
	}()
	handler := http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic("oops") })
	mustGuard(t, allowing(), oneRule()).wrap(handler).ServeHTTP(httptest.NewRecorder(), mustRequest(t, "GET", "/", "acme"))
	t.Error("the panic was swallowed")
}

// Shows that a client that has gone is not charged, and that one which goes during the check does not reach the handler.
func TestClientGone(t *testing.T) {
	handler := http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("the handler ran") })
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	checker := allowing()
	rec := httptest.NewRecorder()
	mustGuard(t, checker, oneRule()).wrap(handler).ServeHTTP(rec, mustRequest(t, "GET", "/", "acme").WithContext(ctx))
	if len(checker.seen()) != 0 || rec.Code != http.StatusServiceUnavailable {
		t.Errorf("asked %d times, answered %d", len(checker.seen()), rec.Code)
	}

	ctx, cancel = context.WithCancel(t.Context())
	checker = &fake{answer: func([]sdk.Identity) (sdk.Decisions, error) {
		cancel()
		return sdk.Decisions{Denied: -1}, ctx.Err()
	}}
	rec = httptest.NewRecorder()
	mustGuard(t, checker, oneRule()).wrap(handler).ServeHTTP(rec, mustRequest(t, "GET", "/", "acme").WithContext(ctx))
	if len(checker.seen()) != 1 || rec.Code != http.StatusServiceUnavailable || !strings.Contains(rec.Body.String(), "ended") {
		t.Errorf("asked %d times, answered %d %s", len(checker.seen()), rec.Code, rec.Body)
	}
}
