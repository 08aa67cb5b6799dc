package bench

import (
	"encoding/json"
	"errors"
	"os"
	"testing"
	"time"

	"github.com/quorate/quorate/sdk"
	"github.com/quorate/quorate/sdk/quotatest"
)

const quotaPolicy = `version: p1
default:
  limits: [{name: wide, limit: 1000000, window: 1h}]
  timeout: 2s
classes:
  tight:
    limits: [{name: tight, limit: 7, window: 1h}]
    timeout: 2s
  gone:
    limits: [{name: none, limit: 7, window: 1h}]
    disabled: true
`

func mustQuota(t *testing.T, class string, options ...sdk.Option) *Quota {
	t.Helper()
	server := quotatest.Start(t, quotaPolicy)
	client, err := sdk.New(server.Addrs(), append([]sdk.Option{sdk.WithPrincipalCeiling(0)}, options...)...)
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
	return &Quota{Clients: []*sdk.Client{client}, Class: class}
}

// Shows, against a fake node, that exhausting leaves no room, that the SDK then answers from a hint only if it may,
// and that a switched-off class is an error that says what to do.
func TestQuotaOutcomes(t *testing.T) {
	q := mustQuota(t, "tight", sdk.WithHintCapacity(0))
	mustDo(t, q, "fresh", Allowed)
	for range 2 { // the second time there is nothing to take
		if err := q.Exhaust(t.Context(), "spent"); err != nil {
			t.Fatal(err)
		}
		mustDo(t, q, "spent", Denied)
		mustDo(t, q, "spent", Denied)
	}
	hinting := mustQuota(t, "tight")
	if err := hinting.Exhaust(t.Context(), "spent"); err != nil {
		t.Fatal(err)
	}
	mustDo(t, hinting, "spent", Denied)
	mustDo(t, hinting, "spent", Hinted)
	off := mustQuota(t, "gone")
	if o, err := off.Do(t.Context(), 0, "any"); o != Failed || err == nil {
		t.Errorf("switched off: %d %v", o, err)
	}
	if err := off.Exhaust(t.Context(), "any"); err == nil {
		t.Error("a class that is switched off was exhausted")
	}
	if c := q.Counters(); c.Sends < 6 || c.Frames == 0 {
		t.Errorf("%+v", c)
	}
}

func mustDo(t *testing.T, q *Quota, principal string, want Outcome) {
	t.Helper()
	if o, err := q.Do(t.Context(), 3, principal); o != want || err != nil {
		t.Fatalf("%s: outcome %d, want %d: %v", principal, o, want, err)
	}
}

// Shows each way in which the SDK says that nobody decided, and that it is never taken for a decision.
func TestUndecided(t *testing.T) {
	for _, row := range []struct {
		err  error
		want Outcome
	}{
		{sdk.ErrUnavailable, Unavailable}, {sdk.ErrOverloaded, Overloaded}, {sdk.ErrRefused, Failed},
		{sdk.ErrClosed, Failed}, {errors.New("other"), Failed},
	} {
		if o, err := failure(row.err); o != row.want || !errors.Is(err, row.err) {
			t.Errorf("%v: outcome %d, %v", row.err, o, err)
		}
	}
	for source, want := range map[sdk.Source]Outcome{
		sdk.SourceBypass: Bypassed, sdk.SourceLocal: Bypassed, sdk.SourceConfig: Failed, sdk.SourceNone: Failed,
	} {
		if o, _ := decided(&sdk.Decision{Allowed: true, Source: source}); o != want {
			t.Errorf("%s: outcome %d", source, o)
		}
	}
}

// Shows a whole run against a fake node, with half of the keys exhausted before: some are allowed, some denied, none
// of the exhausted is allowed, and the processors' time of this process and of another, which is this one too, is
// told.
func TestLoadOnQuota(t *testing.T) {
	var stages []string
	l := Load{
		Target: mustQuota(t, "tight", sdk.WithHintCapacity(0)), Clients: 16, WarmUp: time.Millisecond,
		Duration: 200 * time.Millisecond, PIDs: []int{os.Getpid()}, Progress: func(p Progress) { stages = append(stages, p.Stage) },
		Keys: Keys{N: 20_000, Prefix: "p", ExhaustedShare: 0.5},
	}
	r, err := l.Run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if r.Allowed == 0 || r.Denied == 0 || r.Refilled != 0 || r.Errors+r.Unavailable+r.Hinted+r.Bypassed != 0 {
		text, _ := json.Marshal(r)
		t.Errorf("%s", text)
	}
	for _, s := range stages {
		if s != "exhausting" && s != "warm-up" && s != "measuring" {
			t.Errorf("stage %q", s)
		}
	}
	if r.ClientCPUUs < 0 || r.P50Us <= 0 || r.MaxUs < r.P999Us || r.P999Us < r.P50Us {
		t.Errorf("%+v", r)
	}
}

// Shows that the picture of a sweep has a point per step and line.
func TestSweep(t *testing.T) {
	s := Sweep{FromPerS: 100, ToPerS: 300, Steps: 3}
	rs, err := s.Run(t.Context(), Load{
		Target: mustQuota(t, "default"), Clients: 4, Duration: 50 * time.Millisecond, Keys: Keys{N: 10},
	})
	if err != nil || len(rs) != 3 {
		t.Fatalf("%v %v", rs, err)
	}
	for i, r := range rs {
		if r.RatePerS != float64(100*(i+1)) || r.Allowed == 0 || r.Mode != "open" {
			t.Errorf("%+v", r)
		}
	}
	if best := Best(rs); best == nil || Best(nil) != nil {
		t.Error(best)
	}
	for _, bad := range []Sweep{{}, {1, 1, 2}, {2, 1, 2}, {1, 2, 1}, {1, 2, MaxSteps + 1}, {1, MaxRatePerS + 1, 2}} {
		if _, err := bad.Run(t.Context(), Load{}); err == nil {
			t.Errorf("%+v ran", bad)
		}
	}
}
