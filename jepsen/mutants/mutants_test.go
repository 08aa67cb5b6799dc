//go:build chaos

package mutants_test

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/quorate/quorate/internal/guard"
	"github.com/quorate/quorate/jepsen/model"
	"github.com/quorate/quorate/jepsen/mutants"
	"github.com/quorate/quorate/jepsen/mutants/process"
	"github.com/quorate/quorate/jepsen/sim"
)

// budget is how many seeds a mutant may live, by layer; clean is how many a product with all guards is put through.
var (
	budget = map[mutants.Layer]uint64{mutants.Model: 2000, mutants.Sim: 200, mutants.Process: 3}
	clean  = map[mutants.Layer]uint64{mutants.Model: 60, mutants.Sim: 4, mutants.Process: 1}
)

// scenarioOf is what a mutant is played by; nil when there is none of that name.
func scenarioOf(layer mutants.Layer, name string) mutants.Scenario {
	switch layer {
	case mutants.Model:
		p, ok := model.Named(name)
		if !ok {
			return nil
		}
		return mutants.Switched(func(_ *testing.T, seed uint64) (out []mutants.Finding) {
			for _, v := range model.Run(seed, p).Violations {
				out = append(out, mutants.Finding{Checker: string(v.Invariant), Text: v.Text})
			}
			return out
		})
	case mutants.Sim:
		if !slices.Contains(sim.Profiles(), name) {
			return nil
		}
		return mutants.Switched(func(t *testing.T, seed uint64) (out []mutants.Finding) {
			t.Helper()
			for _, f := range sim.Play(t, seed, name) {
				out = append(out, mutants.Finding{Checker: f.Invariant, Text: f.Text})
			}
			return out
		})
	default:
		return process.Scenarios[name]
	}
}

// wanted reports whether a mutant is to be played: by QUORATE_LAYER, which is model and sim if it is not set, and by
// QUORATE_MUTANT, which is an id or the beginning of one.
func wanted(m *mutants.Mutant) bool {
	layers := strings.Fields(strings.ReplaceAll(os.Getenv("QUORATE_LAYER"), ",", " "))
	if len(layers) == 0 {
		layers = []string{string(mutants.Model), string(mutants.Sim)}
	}
	return slices.Contains(layers, string(m.Layer)) && strings.HasPrefix(m.ID, os.Getenv("QUORATE_MUTANT"))
}

func most(t *testing.T, otherwise uint64) uint64 {
	t.Helper()
	s := os.Getenv("QUORATE_SEEDS")
	if s == "" {
		return otherwise
	}
	n, err := strconv.ParseUint(s, 10, 64)
	if err != nil {
		t.Fatalf("QUORATE_SEEDS: %v", err)
	}
	return n
}

// Each mutant of the catalogue breaks the invariant that is named there, and with all guards in place the same
// scenarios break none.
func TestMutantsAreKilled(t *testing.T) {
	table := []string{fmt.Sprintf("%-5s %-40s %-7s %-22s %-18s %6s %8s  %s",
		"id", "what is wrong", "layer", "scenario", "checker", "seed", "time", "found")}
	played := map[string]uint64{} // the most seeds, by layer and scenario
	for i := range mutants.Catalogue {
		m := &mutants.Catalogue[i]
		if !wanted(m) {
			continue
		}
		play := scenarioOf(m.Layer, m.Scenario)
		if play == nil {
			t.Errorf("%s: there is no scenario %q of layer %s", m.ID, m.Scenario, m.Layer)
			continue
		}
		var d mutants.Death
		if played := t.Run(m.ID+" "+m.Scenario, func(t *testing.T) {
			d.Skipped = true
			d = m.Kill(t, play, most(t, budget[m.Layer]))
		}); !played || d.Skipped {
			continue // which has been said
		}
		found := d.By.Text
		if d.Seed == 0 {
			found = fmt.Sprintf("SURVIVES; others complained: %v", d.Others)
			t.Errorf("%s (%s) survives %d seeds of %s: %s does not break, but %v",
				m.ID, m.Guard, most(t, budget[m.Layer]), m.Scenario, m.Checker, d.Others)
		}
		key := string(m.Layer) + " " + m.Scenario
		played[key] = max(played[key], d.Seed)
		table = append(table, fmt.Sprintf("%-5s %-40s %-7s %-22s %-18s %6d %8s  %.90s",
			m.ID, m.Rule, m.Layer, m.Scenario, m.Checker, d.Seed, d.Took.Round(10*time.Millisecond), found))
	}
	t.Log("mutants:\n" + strings.Join(table, "\n"))
	mustBeClean(t, played)
}

// mustBeClean plays at least the seeds that killed mutants with all guards in place.
func mustBeClean(t *testing.T, played map[string]uint64) {
	t.Helper()
	keys := make([]string, 0, len(played))
	for key := range played {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	began, seeds := time.Now(), uint64(0)
	for _, key := range keys {
		layer, scenario, _ := strings.Cut(key, " ")
		play := scenarioOf(mutants.Layer(layer), scenario)
		t.Run("whole "+scenario, func(t *testing.T) {
			for seed := uint64(1); seed <= max(played[key], clean[mutants.Layer(layer)]); seed++ {
				seeds++
				for _, f := range play(t, "", seed) {
					t.Errorf("with all guards in place, seed %d of %s breaks %s: %s", seed, key, f.Checker, f.Text)
				}
			}
		})
	}
	t.Logf("with all guards in place: %d seeds of %d scenarios in %v", seeds, len(keys), time.Since(began).Round(time.Second))
}

// The catalogue has every guard, a mutant for each invariant of the model, all ids from m01 to m28 and t1 to t7, and no mutant whose guard there is not.
func TestCatalogueIsComplete(t *testing.T) {
	ids, guards := map[string]bool{}, map[guard.Guard]bool{}
	for _, m := range mutants.Catalogue {
		ids[strings.TrimRight(m.ID, "abc")], guards[m.Guard] = true, true
		if !slices.Contains(guard.All, m.Guard) {
			t.Errorf("%s: %q is no guard", m.ID, m.Guard)
		}
	}
	for _, g := range guard.All {
		if !guards[g] {
			t.Errorf("guard %s has no mutant", g)
		}
	}
	for _, i := range model.Invariants {
		found := func(m mutants.Mutant) bool { return m.Layer == mutants.Model && m.Checker == string(i) }
		if i != model.NoPanic && !slices.ContainsFunc(mutants.Catalogue, found) { // which the run itself would show
			t.Errorf("no mutant shows that the model can find %s broken", i)
		}
	}
	for n := 1; n <= 28; n++ {
		if id := fmt.Sprintf("m%02d", n); !ids[id] {
			t.Errorf("there is no mutant %s", id)
		}
	}
	for n := 1; n <= 7; n++ {
		if id := fmt.Sprintf("t%d", n); !ids[id] {
			t.Errorf("there is no mutant %s", id)
		}
	}
}
