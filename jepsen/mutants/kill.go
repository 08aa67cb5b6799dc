//go:build chaos

package mutants

import (
	"testing"
	"time"

	"github.com/quorate/quorate/internal/guard"
)

// Finding is a broken invariant, by the name of the checker that found it.
type Finding struct {
	Checker, Text string
}

// Scenario plays one seed without a guard, or with all when off is empty, and tells what broke. What keeps it from
// being played at all is a t.Fatal or a t.Skip.
type Scenario func(t *testing.T, off guard.Guard, seed uint64) []Finding

// Switched is a scenario that goes by the guards of this process.
func Switched(play func(t *testing.T, seed uint64) []Finding) Scenario {
	return func(t *testing.T, off guard.Guard, seed uint64) []Finding {
		guard.Switch(off)
		defer guard.Switch("")
		return play(t, seed)
	}
}

// Death is how a mutant was found out.
type Death struct {
	Seed uint64 // 0: it was not
	Took time.Duration
	By   Finding
	// Others are the other checkers that complained up to then.
	Others []string
	// Skipped says that this machine lacks what the scenario takes.
	Skipped bool
}

// Kill plays seeds from 1 on until the checker finds the mutant, at most so many.
func (m *Mutant) Kill(t *testing.T, play Scenario, most uint64) Death {
	t.Helper()
	began, d := time.Now(), Death{}
	others := map[string]bool{}
	for seed := uint64(1); seed <= most && d.Seed == 0; seed++ {
		for _, f := range play(t, m.Guard, seed) {
			if f.Checker != m.Checker {
				if !others[f.Checker] {
					others[f.Checker], d.Others = true, append(d.Others, f.Checker)
				}
			} else if d.Seed == 0 {
				d.Seed, d.By = seed, f
			}
		}
	}
	d.Took = time.Since(began)
	return d
}
