package main

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/quorate/quorate/policy"
)

// Shows that configurations of Envoy's ratelimit service of ten shapes are imported into policies that validate, and
// that a trace of descriptors through each admits, in no window, more than the limit that the configuration gives.
func TestImportEnvoy(t *testing.T) {
	script, err := os.ReadFile("../../policy/envoyimport/testdata/shapes.txt")
	if err != nil {
		t.Fatal(err)
	}
	shapes := strings.Split(string(script), "\nimport\n")[1:]
	if len(shapes) < 10 {
		t.Fatalf("only %d shapes", len(shapes))
	}
	for i, shape := range shapes {
		text, _, _ := strings.Cut(shape, "----\n")
		t.Run(fmt.Sprint(i+1), func(t *testing.T) {
			args := []string{"policy", "import-envoy"}
			for k, src := range strings.Split(text, "====\n") {
				args = append(args, mustWrite(t, fmt.Sprint("f", k, ".yaml"), src))
			}
			r := mustRun(t, args...)
			if !strings.HasPrefix(r.stderr, "note: windows of the service begin at the turn of their unit") {
				t.Errorf("no notes: %q", r.stderr)
			}
			p, err := policy.Parse("imported", []byte(r.stdout))
			if err != nil {
				t.Fatal(err)
			}
			for domain, d := range p.Envoy {
				mustKeepLimits(t, p, d, domain, mustWrite(t, "policy.yaml", r.stdout))
			}
		})
	}
	if r := runWith(t, "x", "policy", "import-envoy", "-"); r.status != exitError || r.stdout != "" ||
		!strings.HasPrefix(r.stderr, "quorate: stdin: ") || strings.Count(r.stderr, "\n") != 1 {
		t.Errorf("what is no configuration: %+v", r)
	}
}

// mustKeepLimits plays descriptors that the rules match, and those that they nearly match, and counts what is admitted.
func mustKeepLimits(t *testing.T, p *policy.Policy, d *policy.EnvoyDomain, domain, file string) {
	t.Helper()
	rng := rand.New(rand.NewPCG(1, uint64(len(domain))))
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	type admission struct {
		key string
		at  time.Time
	}
	var trace strings.Builder
	var asked []admission
	at := start
	for len(asked) < 600 {
		// Many at one time, and then a step that is short for some limits and long for others.
		if rng.IntN(40) == 0 {
			at = at.Add(time.Duration(rng.ExpFloat64() * float64(2*time.Hour)))
		}
		at = at.Add(time.Duration(rng.IntN(300)) * time.Millisecond)
		keys, values := drawDescriptor(rng, d)
		rule := d.Match(keys, values)
		if rule == nil || rule.Unlimited {
			asked = append(asked, admission{}) // let through without being counted, as by the service
			continue
		}
		principal, _ := rule.Identify(values)
		line, err := json.Marshal(map[string]any{"at": at, "principal": principal, "api_class": rule.Class,
			"decision_id": fmt.Sprint(len(asked))})
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&trace, "%s\n", line)
		asked = append(asked, admission{rule.Class + " " + principal, at})
	}
	r := mustRun(t, "simulate", "--policy", file, "--trace", mustWrite(t, "trace.jsonl", trace.String()))
	admitted, denied := map[string][]time.Time{}, 0
	for _, a := range mustAnswers(t, strings.NewReader(r.stdout)) {
		if a["allowed"] != true {
			denied++
			continue
		}
		var i int
		if _, err := fmt.Sscan(a["decision_id"].(string), &i); err != nil {
			t.Fatal(err)
		}
		admitted[asked[i].key] = append(admitted[asked[i].key], asked[i].at)
	}
	for key, times := range admitted {
		class, _, _ := strings.Cut(key, " ")
		limit := p.Classes[class].Limits[0]
		for i := range times {
			n := 0
			for _, other := range times[i:] {
				if other.Sub(times[i]) < time.Duration(limit.WindowNanos) {
					n++
				}
			}
			if int64(n) > limit.Max {
				t.Fatalf("%s: %d admissions in %s, above %d", key, n, time.Duration(limit.WindowNanos), limit.Max)
			}
		}
	}
	if len(admitted) == 0 || denied == 0 && tight(p) {
		t.Errorf("domain %s: %d keys admitted, %d denied: that shows nothing", domain, len(admitted), denied)
	}
}

// tight reports that a limit is small enough to deny some of a trace.
func tight(p *policy.Policy) bool {
	for _, c := range p.Classes {
		if c.Limits[0].Max > 9 {
			return false
		}
	}
	return true
}

// drawDescriptor makes a descriptor of a rule.
func drawDescriptor(rng *rand.Rand, d *policy.EnvoyDomain) (keys, values []string) {
	for _, e := range d.Rules[rng.IntN(len(d.Rules))].Match {
		keys = append(keys, e.Key)
		switch e.How {
		case policy.MatchValue:
			values = append(values, e.Value)
		case policy.MatchPrefix:
			values = append(values, e.Value+fmt.Sprint(rng.IntN(2)))
		case policy.MatchAny:
			values = append(values, fmt.Sprint("v", rng.IntN(2)))
		}
	}
	return keys, values
}
