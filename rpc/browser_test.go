package rpc

import (
	"net/http"
	"strings"
	"testing"
)

// Shows that a browser may post under a loopback name only, whatever it says of its origin, and that other
// programs may use any name.
func TestBrowsersUseLoopbackNames(t *testing.T) {
	n := mustNode(t, "n1", allowing())
	for _, c := range []struct {
		host, header string
		want         int
	}{
		{"127.0.0.1:7071", "Origin", http.StatusOK},
		{"localhost:7071", "Origin", http.StatusOK},
		{"[::1]:7071", "Origin", http.StatusOK},
		{"[::1]", "Sec-Fetch-Site", http.StatusOK},
		{"127.1.2.3", "Sec-Fetch-Site", http.StatusOK},
		{"rebound.example:7071", "Origin", http.StatusForbidden},
		{"rebound.example:7071", "Sec-Fetch-Site", http.StatusForbidden},
		{"127.0.0.1.rebound.example", "Origin", http.StatusForbidden},
		{"10.0.0.1:7071", "Origin", http.StatusForbidden},
		{"rebound.example:7071", "", http.StatusOK},
	} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, n.url+"/v1/check", strings.NewReader(aBody))
		if err != nil {
			t.Fatal(err)
		}
		req.Host = c.host
		switch c.header {
		case "Origin":
			req.Header.Set("Origin", "http://"+c.host)
		case "Sec-Fetch-Site":
			req.Header.Set("Sec-Fetch-Site", "same-origin")
		}
		resp, err := n.http.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		if err := resp.Body.Close(); err != nil {
			t.Fatal(err)
		}
		if resp.StatusCode != c.want {
			t.Errorf("Host %s with %q: %s, want %d", c.host, c.header, resp.Status, c.want)
		}
	}
}
