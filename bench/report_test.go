package bench

import (
	"encoding/json"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

var rewrite = flag.Bool("rewrite", false, "write the golden files")

// mustGolden compares with a file under testdata.
func mustGolden(t *testing.T, name string, got []byte) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *rewrite {
		if err := os.WriteFile(path, got, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("%s (-want +got):\n%s", path, diff)
	}
}

// scripted counts what it is told.
type scripted struct {
	stalling
	counters Counters
}

func (s *scripted) Counters() Counters { return s.counters }

// Shows what is measured, and how it is written: of a recording of checks before, within and after the measured time,
// with each outcome, the report's JSON is as in the golden file; the checks outside do not count.
func TestReportJSON(t *testing.T) {
	begin := time.Unix(1000, 0)
	at := func(ms int) time.Time { return begin.Add(time.Duration(ms) * time.Millisecond) }
	l := &Load{
		Target: &scripted{}, Keys: Keys{N: 100, ZipfS: 1.1, ExhaustedShare: 0.25}, Clients: 8, RatePerS: 7,
		WarmUp: time.Second, Duration: 2 * time.Second,
	}
	r := newRecorder(at(1000), at(3000), true)
	add := func(dueMs, lagMs, tookMs int, o Outcome, err error) {
		r.add(dueMs, &event{due: at(dueMs), sent: at(dueMs + lagMs), answered: at(dueMs + tookMs), outcome: o, err: err})
	}
	add(999, 0, 1500, Allowed, nil)
	for i := range 10 {
		add(1000+100*i, 1, 2+i, Allowed, nil)
	}
	add(2000, 0, 1, Denied, nil)
	add(2001, 0, 1, Denied, nil)
	add(2002, 0, 1, Hinted, nil)
	add(2003, 0, 1, Bypassed, errors.New("nobody could decide"))
	add(2004, 0, 100, Unavailable, errors.New("nobody could decide"))
	add(2005, 0, 1, Overloaded, errors.New("nobody could decide"))
	add(2999, 0, 501, Failed, errors.New("nobody could decide"))
	add(3000, 0, 1, Allowed, nil)
	r.add(0, &event{due: at(2500), sent: at(2500), answered: at(2501), outcome: Allowed, exhausted: true})
	first := usage{own: time.Second, nodes: 2 * time.Second, counters: Counters{Sends: 100, Retries: 5, Frames: 50}}
	last := usage{
		own: time.Second + 140*time.Microsecond, nodes: 2*time.Second + 280*time.Microsecond,
		counters: Counters{Sends: 115, Retries: 8, RetriesWithheld: 1, Frames: 56},
	}
	got, err := json.MarshalIndent(l.report(r, at(3000), first, last), "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	mustGolden(t, "report.json", append(got, '\n'))
}

// Shows that a closed loop counts what was answered in the measured time, whenever it was sent.
func TestClosedLoopCountsAnswers(t *testing.T) {
	begin := time.Unix(1000, 0)
	r := newRecorder(begin, begin.Add(time.Second), false)
	for _, ms := range []int{-1, 0, 999, 1000} {
		answered := begin.Add(time.Duration(ms) * time.Millisecond)
		r.add(0, &event{due: answered.Add(-5 * time.Second), sent: answered, answered: answered, outcome: Allowed})
	}
	l := &Load{Keys: Keys{N: 1}, Clients: 1, Duration: time.Second}
	if got := l.report(r, r.to, usage{}, usage{}); got.Allowed != 2 || got.DecisionsPerS != 2 || got.Mode != "closed" {
		t.Errorf("%+v", got)
	}
}

// Shows what a report warns of: each row is a report, and words of each of its warnings.
func TestAdvice(t *testing.T) {
	for name, row := range map[string]struct {
		report Report
		want   []string
	}{
		"all well":      {Report{Mode: "open", RatePerS: 100, DecisionsPerS: 99, Allowed: 99}, nil},
		"bounds":        {Report{Allowed: 90, Unavailable: 10, Overloaded: 10}, []string{"10.0 % of the checks met a bound"}},
		"unavailable":   {Report{Allowed: 50, Unavailable: 50}, []string{"50.0 % of the checks got no decision"}},
		"bypassed":      {Report{Allowed: 50, Bypassed: 50}, []string{"let through by the class's failure mode"}},
		"errors":        {Report{Errors: 1}, []string{"100.0 % of the checks failed"}},
		"came back":     {Report{Allowed: 5, Denied: 9, ExhaustedShare: 1, Refilled: 5}, []string{"5 checks of exhausted keys"}},
		"mostly denied": {Report{Allowed: 1, Denied: 3}, []string{"75.0 % of the checks were denied"}},
		"a queue":       {Report{Mode: "open", RatePerS: 100, DecisionsPerS: 90, Allowed: 9}, []string{"growing queue"}},
		"cut short":     {Report{Mode: "open", RatePerS: 100, DecisionsPerS: 90, Allowed: 9, Interrupted: true}, nil},
		"several":       {Report{Allowed: 8, Bypassed: 1, Errors: 1}, []string{"let through", "failed"}},
	} {
		got := row.report.Advice()
		if len(got) != len(row.want) {
			t.Errorf("%s: %q", name, got)
			continue
		}
		for i, want := range row.want {
			if !strings.Contains(got[i], want) {
				t.Errorf("%s: %q does not say %q", name, got[i], want)
			}
		}
	}
}

// Shows that a load names all that is wrong with it, and that NaN is wrong everywhere.
func TestValidateNamesAll(t *testing.T) {
	nan := func() float64 { var zero float64; return zero / zero }()
	for name, row := range map[string]struct {
		load Load
		want []string
	}{
		"empty":  {Load{}, []string{"0 keys", "0 clients", "duration"}},
		"beyond": {Load{Keys: Keys{N: MaxKeys + 1}, Clients: MaxClients + 1, RatePerS: MaxRatePerS + 1, Duration: -1}, []string{"keys", "clients", "rate", "duration"}},
		"zipf":   {Load{Keys: Keys{N: 1, ZipfS: nan}, Clients: 1, Duration: 1}, []string{"zipf"}},
		"share":  {Load{Keys: Keys{N: 1, ExhaustedShare: nan}, Clients: 1, Duration: 1}, []string{"exhausted share"}},
		"rate":   {Load{Keys: Keys{N: 1}, Clients: 1, RatePerS: nan, Duration: 1}, []string{"rate"}},
	} {
		err := row.load.Validate()
		for _, want := range row.want {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v does not name %q", name, err, want)
			}
		}
	}
	good := Load{Target: &scripted{}, Keys: Keys{N: 1, ExhaustedShare: 0.5}, Clients: 1, Duration: 1}
	if _, err := good.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "cannot exhaust") {
		t.Errorf("a target that cannot exhaust: %v", err)
	}
}
