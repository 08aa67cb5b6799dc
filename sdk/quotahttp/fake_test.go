package quotahttp

import (
	"context"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/quorate/quorate/sdk"
	"github.com/quorate/quorate/sdk/caller"
)

// fake answers every check alike, and keeps what it was asked.
type fake struct {
	answer func([]sdk.Identity) (sdk.Decisions, error)

	mu    sync.Mutex // guards asked
	asked [][]sdk.Identity
}

func (f *fake) CheckAll(ctx context.Context, ids []sdk.Identity) (sdk.Decisions, error) {
	f.mu.Lock()
	f.asked = append(f.asked, slices.Clone(ids))
	f.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return sdk.Decisions{}, err
	}
	return f.answer(ids)
}

func (f *fake) seen() [][]sdk.Identity {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.asked)
}

// deciding answers each identity with the next of the decisions; the first denial ends it.
func deciding(decisions ...sdk.Decision) *fake {
	return &fake{answer: func(ids []sdk.Identity) (sdk.Decisions, error) {
		ds := sdk.Decisions{Decisions: make([]sdk.Decision, len(ids)), Allowed: true, Denied: -1}
		for i := range ids {
			ds.Decisions[i] = decisions[min(i, len(decisions)-1)]
			if !ds.Decisions[i].Allowed {
				ds.Allowed, ds.Denied, ds.RetryAfter = false, i, ds.Decisions[i].RetryAfter
				break
			}
		}
		return ds, nil
	}}
}

func failing(err error) *fake {
	return &fake{answer: func([]sdk.Identity) (sdk.Decisions, error) { return sdk.Decisions{Denied: -1}, err }}
}

var oneAllow = sdk.Decision{Allowed: true, Source: sdk.SourceOwner, Reason: "allowed"}

func allowing() *fake { return deciding(oneAllow) }

// byHeader is a key whose lookup takes every key at its word.
func byHeader() caller.Key {
	return caller.APIKey("X-Api-Key", func(_ context.Context, key string) (string, error) {
		if strings.HasPrefix(key, "unknown") {
			return "", nil
		}
		return key, nil
	})
}

func oneRule() Rules { return Rules{Fallback: caller.Limit("convert", byHeader())} }

func mustGuard(t testing.TB, c Checker, rules Rules, options ...Option) *guard {
	t.Helper()
	g, err := newGuard(c, rules, options)
	if err != nil {
		t.Fatal(err)
	}
	g.intn = func(n int64) int64 { return n - 1 }
	return g
}

func mustRequest(t testing.TB, method, target, key string) *http.Request {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), method, "/", nil)
	u, err := r.URL.Parse("http://example.com" + target)
	if err != nil {
		t.Fatal(err)
	}
	r.URL = u
	if key != "" {
		r.Header.Set("X-Api-Key", key)
	}
	return r
}

// served is a handler that says that it ran.
var served = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
	_, _ = w.Write([]byte("served\n"))
})

// dump is an answer as text: status, headers in order of their names, body.
func dump(rec *httptest.ResponseRecorder) string {
	var b strings.Builder
	b.WriteString(strconv.Itoa(rec.Code) + "\n")
	for _, name := range slices.Sorted(maps.Keys(rec.Header())) {
		for _, v := range rec.Header()[name] {
			b.WriteString(name + ": " + v + "\n")
		}
	}
	return b.String() + "\n" + rec.Body.String()
}

func mustEqual(t *testing.T, what string, got, want any) {
	t.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s: -want +got:\n%s", what, diff)
	}
}

var minuteAndDay = []sdk.LimitState{
	{Name: "per-minute", Limit: 3, Window: time.Minute, Remaining: 0, Reset: 30*time.Second + 1},
	{Name: "burst", Limit: 2, Window: 500 * time.Millisecond, Remaining: 1},
	{Name: "per-day", Limit: 500, Window: 24 * time.Hour, Remaining: 480, Reset: 2 * time.Hour},
}

func exhausted() sdk.Decision {
	return sdk.Decision{
		Source: sdk.SourceOwner, Reason: "quota_exhausted", Limit: "per-minute", RetryAfter: 41*time.Second + 1,
		RetryAt: time.Unix(1_800_000_000, 0), PolicyVersion: "p7", PolicyRevision: 7, ID: "secret-id", Recorded: true,
		Limits: minuteAndDay,
	}
}
