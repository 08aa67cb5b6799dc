package gateways

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"time"
)

// upstream is what the reference gateway stands before. It notes what comes to it.
type upstream struct {
	*httptest.Server
	w *world

	mu     sync.Mutex // guards the fields below
	passed []Passed
	odd    faults // requests that nobody has sent like this
}

// mustUpstream starts one. It ends with the test.
func (w *world) mustUpstream() *upstream {
	u := &upstream{w: w}
	u.Server = httptest.NewServer(u)
	w.t.Cleanup(u.Close)
	return u
}

// asked is the header in which a request has its caller, and when it was sent, as talk.Now tells it.
const asked = "Asked"

// forwardedFor is caller's address, by which he pays.
func forwardedFor(caller int) string { return fmt.Sprintf("192.0.%d.%d", caller/250, caller%250+1) }

// ServeHTTP notes who has paid for a request, and when it came.
func (u *upstream) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	received := u.w.now()
	var caller int
	var sent int64
	_, err := fmt.Sscanf(r.Header.Get(asked), "%d %d", &caller, &sent)
	u.mu.Lock()
	if payer := r.Header.Values("X-Forwarded-For"); err != nil || r.Method != http.MethodPost || r.URL.Path != "/convert" ||
		caller < 0 || caller >= proxyCallers || !slices.Equal(payer, []string{forwardedFor(caller)}) {
		u.odd.add("the upstream got %s %s, paid by %v, with %v", r.Method, r.URL, payer, r.Header)
	} else {
		u.passed = append(u.passed, Passed{caller, time.Duration(sent - u.w.begun), received})
	}
	u.mu.Unlock()
	_, _ = io.WriteString(rw, "converted\n") // who has gone needs none
}

// noted is what came: what must be judged as all that was let through, and what must not have come.
func (u *upstream) noted() ([]Passed, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	return slices.Clone(u.passed), u.odd.err()
}
