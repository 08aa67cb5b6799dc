package quotahttp_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"

	"github.com/quorate/quorate/sdk"
	"github.com/quorate/quorate/sdk/caller"
	"github.com/quorate/quorate/sdk/quotahttp"
	"github.com/quorate/quorate/sdk/quotatest"
)

const examplePolicy = `
version: v1
default: {limits: [{name: default, limit: 100, window: 60s}]}
classes:
  convert: {limits: [{name: per-hour, limit: 2, window: 1h}]}
  report: {limits: [{name: per-hour, limit: 2, window: 1h}], on_unavailable: allow, timeout: 100ms}
`

// accounts knows whose each API key is. A real one asks a database, by a digest of the key.
func accounts(_ context.Context, key string) (string, error) {
	return map[string]string{"k-1": "account:acme", "k-2": "account:acme"}[key], nil
}

// An API behind the middleware: two conversions an hour for each account, whichever of its keys it uses.
func ExampleNew() {
	server, err := quotatest.New(examplePolicy)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer server.Close()
	client, err := sdk.New(server.Addrs(), sdk.WithDialOptions(server.DialOptions()...))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer client.Close()

	key := caller.APIKey("X-Api-Key", accounts)
	limit, err := quotahttp.New(client, quotahttp.Rules{
		Routes: map[string]caller.Rule{
			"POST /convert": caller.Limit("convert", key),
			"GET /healthz":  caller.Unlimited(),
		},
		Fallback: caller.Limit("default", key),
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		d, asked := quotahttp.DecisionFrom(r.Context())
		fmt.Fprintln(w, "served; asked:", asked, "verified:", d.Verified())
	})
	api := limit(mux)

	for _, request := range []struct{ method, path, key string }{
		{"POST", "/convert", "k-1"}, {"POST", "/convert", "k-2"}, {"POST", "/convert", "k-1"}, {"POST", "/convert", "k-9"},
		{"POST", "/Convert", "k-1"}, {"GET", "/other", "k-1"}, {"GET", "/healthz", ""},
	} {
		r := httptest.NewRequestWithContext(context.Background(), request.method, request.path, nil)
		if request.key != "" {
			r.Header.Set("X-Api-Key", request.key)
		}
		w := httptest.NewRecorder()
		api.ServeHTTP(w, r)
		fmt.Println(request.method, request.path, w.Code, summary(w))
	}
	// Output:
	// POST /convert 200 served; asked: true verified: true
	// POST /convert 200 served; asked: true verified: true
	// POST /convert 429 quota_exhausted, Retry-After: true
	// POST /convert 401 unauthenticated, Retry-After: false
	// POST /Convert 400 invalid_argument, Retry-After: false
	// GET /other 200 served; asked: true verified: true
	// GET /healthz 200 served; asked: false verified: false
}

// summary is what a caller gets: the handler's line, or why it was refused.
func summary(w *httptest.ResponseRecorder) string {
	var problem struct{ Reason string }
	if err := json.Unmarshal(w.Body.Bytes(), &problem); err != nil {
		return w.Body.String()[:w.Body.Len()-1]
	}
	return fmt.Sprintf("%s, Retry-After: %t", problem.Reason, w.Header().Get("Retry-After") != "")
}

// What a handler sees of a request that nobody could decide, in a class whose failure mode lets it pass.
func ExampleDecisionFrom() {
	server, err := quotatest.New(examplePolicy)
	if err != nil {
		fmt.Println(err)
		return
	}
	client, err := sdk.New(server.Addrs(), sdk.WithDialOptions(server.DialOptions()...))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer client.Close()
	if err := client.Ready(context.Background()); err != nil {
		fmt.Println(err)
		return
	}
	server.Close() // the cluster is gone

	address := caller.ClientIP(caller.Proxies{})
	for _, class := range []string{"convert", "report"} {
		limit, err := quotahttp.New(client, quotahttp.Rules{Fallback: caller.Limit(class, address)})
		if err != nil {
			fmt.Println(err)
			return
		}
		api := limit(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			d, _ := quotahttp.DecisionFrom(r.Context())
			fmt.Fprintf(w, "served; source: %s, verified: %t\n", d.Source, d.Verified())
		}))
		w := httptest.NewRecorder()
		api.ServeHTTP(w, httptest.NewRequestWithContext(context.Background(), http.MethodGet, "/", nil))
		fmt.Println(class, w.Code, summary(w))
	}
	// Output:
	// convert 503 unavailable, Retry-After: true
	// report 200 served; source: bypass, verified: false
}
