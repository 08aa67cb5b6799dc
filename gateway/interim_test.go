package gateway

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Shows that 1xx answers of the upstream are passed on with its own headers alone, to callers who know them, and that
// the final answer has the gateway's headers all the same: one of the upstream, a refusal for its failure, and a change
// of protocol.
func TestInterim(t *testing.T) {
	r := mustRig(t, streamRoutes, func(w http.ResponseWriter, q *http.Request) {
		w.Header().Set("Link", "</a>")
		w.WriteHeader(http.StatusEarlyHints)
		w.Header().Set("Link", "</b>")
		w.WriteHeader(http.StatusEarlyHints)
		w.Header().Del("Link")
		switch q.URL.Path {
		case "/ws":
			echo(w, q)
			return
		case "/broken":
			panic(http.ErrAbortHandler)
		}
		w.Header().Set("X-Own", "yes")
		fmt.Fprint(w, "served")
	})
	for _, tt := range []struct {
		path, version, more string
		status              int
	}{
		{"/", "1.1", "", 200},
		{"/", "1.0", "", 200},
		{"/broken", "1.1", "", 502},
		{"/ws", "1.1", "Connection: Upgrade\r\nUpgrade: websocket\r\n", 101},
	} {
		l := r.dial(t)
		l.mustWrite(t, "GET "+tt.path+" HTTP/"+tt.version+"\r\nHost: a\r\n"+tt.more+"\r\n")
		for _, link := range []string{"</a>", "</b>"} {
			if tt.version == "1.0" {
				break
			}
			resp := l.answer(t)
			if resp == nil || resp.StatusCode != http.StatusEarlyHints {
				t.Fatalf("%s: %+v", tt.path, resp)
			}
			if diff := cmp.Diff(http.Header{"Link": {link}}, resp.Header); diff != "" {
				t.Errorf("%s: %s", tt.path, diff)
			}
		}
		resp := l.answer(t)
		if resp == nil || resp.StatusCode != tt.status || len(resp.Header["Ratelimit"]) != 1 ||
			len(resp.Header["Ratelimit-Policy"]) != 1 || resp.Header.Get("Link") != "" {
			t.Errorf("%s: %+v", tt.path, resp)
		}
		_ = l.Close()
	}
}

// Shows that a caller who waits to be told to send his body is told so when his request has passed, with the gateway's
// headers in the answer, and is denied without that, without his body being read, and without it being waited for.
func TestExpect(t *testing.T) {
	r := mustRig(t, accountRoutes+"bounds: {header_timeout: 1m}\n", func(w http.ResponseWriter, q *http.Request) {
		b, err := io.ReadAll(q.Body)
		fmt.Fprint(w, string(b), err)
	})
	for i := range 5 {
		l := r.dial(t)
		key := keyAcme
		if i == 4 {
			key = "guessed"
		}
		l.mustWrite(t, "POST /convert HTTP/1.1\r\nHost: a\r\nX-Api-Key: "+key+"\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\n")
		resp := l.answer(t)
		if i >= 3 {
			if want := []int{429, 401}[i-3]; resp == nil || resp.StatusCode != want {
				t.Errorf("%+v, want %d", resp, want)
			}
			l.mustEnd(t, "denied")
			continue
		}
		if resp == nil || resp.StatusCode != http.StatusContinue || len(resp.Header) > 0 {
			t.Fatalf("%+v", resp)
		}
		l.mustWrite(t, "abc")
		for resp != nil && resp.StatusCode == http.StatusContinue { // the upstream's may come too
			resp = l.answer(t)
		}
		if resp == nil || resp.StatusCode != http.StatusOK || !strings.HasPrefix(resp.Header.Get("Ratelimit"), `"per-minute";r=`) {
			t.Fatalf("%+v", resp)
		}
		if b, err := io.ReadAll(resp.Body); err != nil || string(b) != "abc<nil>" {
			t.Errorf("%q %v", b, err)
		}
	}
	if n := r.reached.Load(); n != 3 {
		t.Errorf("%d requests came to the upstream", n)
	}
}
