package gateways

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"time"
)

// TestJudgeOfPassed shows that one too many within a window is blamed when it must have been decided within it, and not
// when it may have been decided outside; and that what merely came together is told apart.
func TestJudgeOfPassed(t *testing.T) {
	const window = 20 * time.Second
	at := func(caller int, sent, took time.Duration) Passed { return Passed{caller, sent, sent + took} }
	for name, tt := range map[string]struct {
		all           []Passed
		full, bunched int
		shortest      time.Duration
		want          string
	}{
		"two of two": {[]Passed{at(1, 0, time.Second), at(1, time.Second, time.Second)}, 1, 0, window, ""},
		"of others":  {[]Passed{at(1, 0, 0), at(1, 1, 0), at(2, 2, 0), at(3, 3, 0)}, 1, 0, window, ""},
		"three":      {[]Passed{at(1, 2, 0), at(1, 0, 0), at(1, 1, 0)}, 1, 1, 2, "caller 1 was let through 3 times"},
		"just within": {
			[]Passed{at(1, 0, time.Second), at(1, time.Second, 0), at(1, window-time.Second, time.Second-1)}, 1, 1, window - time.Second - 1, "3 times",
		},
		"just outside": {
			[]Passed{at(1, 0, 0), at(1, time.Second, 0), at(1, window-time.Second, time.Second)}, 2, 0, window, "",
		},
		"decided early, come late": {
			[]Passed{at(1, 0, 2*time.Second), at(1, 1, 2*time.Second), at(1, window-time.Second, 2*time.Second)}, 1, 1, window - time.Second, "",
		},
	} {
		full, err := PassedCaps(tt.all, 2, window)
		wantFault(t, name, err, tt.want)
		n, shortest := Bunched(tt.all, 2, window)
		if full != tt.full || n != tt.bunched || shortest != tt.shortest {
			t.Errorf("%s: %d full, %d within %v and more; want %d, %d within %v", name, full, n, shortest, tt.full, tt.bunched, tt.shortest)
		}
	}
}

// TestJudgeOfUpstream shows that a request of the crowd is noted as let through, and that one which nobody has sent like
// this, as it was hidden behind another, is another's, or pays with another's allowance, is blamed.
func TestJudgeOfUpstream(t *testing.T) {
	for name, tt := range map[string]struct {
		method, path, payer, asked, want string
	}{
		"as sent":        {"POST", "/convert", forwardedFor(7), "7 5", ""},
		"hidden":         {"POST", "/convert", "203.0.113.9", "", "paid by [203.0.113.9]"},
		"another pays":   {"POST", "/convert", forwardedFor(8), "7 5", "paid by"},
		"another path":   {"POST", "/hidden", forwardedFor(7), "7 5", "/hidden"},
		"another method": {"GET", "/convert", forwardedFor(7), "7 5", "GET"},
		"a stranger":     {"POST", "/convert", forwardedFor(proxyCallers), "400 5", "paid by"},
	} {
		u := &upstream{w: &world{begun: 2}}
		r := httptest.NewRequest(tt.method, tt.path, http.NoBody)
		r.Header.Set("X-Forwarded-For", tt.payer)
		r.Header.Set(asked, tt.asked)
		u.ServeHTTP(httptest.NewRecorder(), r)
		let, err := u.noted()
		wantFault(t, name, err, tt.want)
		if err == nil && (len(let) != 1 || let[0].Caller != 7 || let[0].Sent != 3 || let[0].Received <= 3) {
			t.Errorf("%s: noted as %v", name, let)
		}
	}
}
