//go:build chaos

package sim

import (
	"testing"

	"github.com/quorate/quorate/internal/guard"
	"github.com/quorate/quorate/jepsen/mutants"
)

// mostSeeds is how many seeds a missing guard may go unnoticed.
const mostSeeds = 1000

// Without any one of the guards that the catalogue has for it, the cluster breaks the invariant that is named there, so
// the simulation sees what each is for.
func TestGuards(t *testing.T) {
	for _, m := range mutants.Catalogue {
		if m.Layer == mutants.Sim {
			mustCatch(t, m)
		}
	}
}

func mustCatch(t *testing.T, m mutants.Mutant) {
	t.Helper()
	d := m.Kill(t, mutants.Switched(func(t *testing.T, seed uint64) (out []mutants.Finding) {
		t.Helper()
		for _, f := range Play(t, seed, m.Scenario) {
			out = append(out, mutants.Finding{Checker: f.Invariant, Text: f.Text})
		}
		return out
	}), mostSeeds)
	if d.Seed == 0 {
		t.Errorf("guard %s was switched off, and %s did not break in %d seeds of %s, but %v",
			m.Guard, m.Checker, mostSeeds, m.Scenario, d.Others)
		return
	}
	t.Logf("%-20s %-22s seed %-4d %s: %.90s", m.Guard, m.Scenario, d.Seed, d.By.Checker, d.By.Text)
}

func init() {
	without = func(t *testing.T, g guard.Guard, f profile) {
		t.Helper()
		for _, m := range mutants.Catalogue {
			if m.Guard == g && m.Layer == mutants.Sim && m.Scenario == f.name {
				mustCatch(t, m)
			}
		}
	}
}
