package quotahttp

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/quorate/quorate/quotaerr"
	"github.com/quorate/quorate/sdk"
	"github.com/quorate/quorate/sdk/caller"
	"github.com/quorate/quorate/sdk/quotatest"
)

const clusterPolicy = `
version: v1
default: {limits: [{name: default, limit: 100, window: 60s}]}
classes:
  convert: {limits: [{name: per-minute, limit: 3, window: 60s}]}
  dear:    {limits: [{name: per-minute, limit: 3, window: 60s}]}
  closed:  {limits: [{name: none, limit: 0, window: 60s}]}
  paused:  {limits: [{name: per-minute, limit: 3, window: 60s}], on_unavailable: allow, disabled: true}
  open:    {limits: [{name: per-minute, limit: 3, window: 60s}], on_unavailable: allow}
  own:     {limits: [{name: per-minute, limit: 3, window: 60s}], on_unavailable: local,
            local_limit: {limit: 1, window: 60s}}
`

// mustCluster is a fake cluster, and an API with a path for each class in front of it; /dear costs 4.
func mustCluster(t *testing.T) (*quotatest.Server, http.Handler) {
	t.Helper()
	server := quotatest.Start(t, clusterPolicy, quotatest.InMemory())
	client, err := sdk.New(server.Addrs(), sdk.WithDialOptions(server.DialOptions()...))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := client.Close(); err != nil {
			t.Error(err)
		}
	})
	if err := client.Ready(t.Context()); err != nil {
		t.Fatal(err)
	}
	rules := Rules{Routes: map[string]caller.Rule{}, Fallback: caller.Limit("default", byHeader())}
	for _, class := range []string{"convert", "closed", "paused", "open", "own"} {
		rules.Routes["/"+class] = caller.Limit(class, byHeader())
	}
	rules.Routes["/dear"] = caller.Rule{Charges: []caller.Charge{{
		Class: "dear", Key: byHeader(), Cost: func(*caller.Request) (int64, error) { return 4, nil },
	}}}
	limit, err := New(client, rules)
	if err != nil {
		t.Fatal(err)
	}
	return server, limit(served)
}

// told is the gist of an answer.
type told struct {
	Status     int
	Reason     string // of a refusal
	RetryAfter string
}

func ask(t *testing.T, api http.Handler, path string) told {
	t.Helper()
	rec := httptest.NewRecorder()
	api.ServeHTTP(rec, mustRequest(t, http.MethodGet, path, "acme"))
	got := told{Status: rec.Code, RetryAfter: rec.Header().Get("Retry-After")}
	if rec.Code == http.StatusOK {
		return got
	}
	var body struct{ Reason, Detail string }
	if err := json.Unmarshal(rec.Body.Bytes(), &body); err != nil {
		t.Fatalf("%s: %v", rec.Body, err)
	}
	if strings.Contains(rec.Body.String(), "acme") || strings.Contains(body.Detail, "node") {
		t.Errorf("the public is told %s", rec.Body)
	}
	got.Reason = body.Reason
	return got
}

// Shows with the real client, in virtual time, that a caller who comes back exactly when Retry-After says is served,
// and one who comes a millisecond earlier is not.
func TestRetryAfterIsExact(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, api := mustCluster(t)
		for i := range 3 {
			mustEqual(t, "the first", ask(t, api, "/convert"), told{Status: 200})
			if i == 0 {
				<-time.After(500 * time.Millisecond) // so that the wait is no whole second
			}
		}
		mustEqual(t, "the fourth", ask(t, api, "/convert"), told{429, "quota_exhausted", "60"})
		<-time.After(59500*time.Millisecond - time.Millisecond)
		mustEqual(t, "a millisecond early", ask(t, api, "/convert"), told{429, "quota_exhausted", "1"})
		<-time.After(time.Millisecond)
		mustEqual(t, "in time", ask(t, api, "/convert"), told{Status: 200})
		mustEqual(t, "once more", ask(t, api, "/convert"), told{429, "quota_exhausted", "1"})
	})
}

// Shows what callers see, with the real client, of each outcome and of each failure mode while nobody can decide and
// while the owner has too much to do, which no failure mode lets pass.
func TestOutcomesThroughTheClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server, api := mustCluster(t)
		mustEqual(t, "blocked", ask(t, api, "/closed"), told{403, "blocked", ""})
		mustEqual(t, "disabled", ask(t, api, "/paused"), told{503, "endpoint_disabled", "30"})
		mustEqual(t, "too dear", ask(t, api, "/dear"), told{400, "cost_exceeds_limit", ""})
		mustEqual(t, "open", ask(t, api, "/open"), told{Status: 200})
		mustEqual(t, "own", ask(t, api, "/own"), told{Status: 200})

		server.Refuse(quotaerr.Overloaded)
		for _, path := range []string{"/convert", "/open", "/own"} {
			mustEqual(t, "overloaded, "+path, ask(t, api, path), told{503, "unavailable", "1"})
		}

		server.Unavailable()
		mustEqual(t, "deny", ask(t, api, "/convert"), told{503, "unavailable", "1"})
		mustEqual(t, "allow", ask(t, api, "/open"), told{Status: 200})
		mustEqual(t, "local", ask(t, api, "/own"), told{Status: 200})
		mustEqual(t, "local, full: as deny", ask(t, api, "/own"), told{503, "unavailable", "1"})
		mustEqual(t, "disabled all the same", ask(t, api, "/paused"), told{503, "endpoint_disabled", "30"})

		server.Heal()
		mustEqual(t, "healed", ask(t, api, "/convert"), told{Status: 200})
	})
}
