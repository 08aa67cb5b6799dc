//go:build chaos

package sim

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/quorate/quorate/internal/guard"
)

// mostSeeds is how many seeds a missing guard may go unnoticed.
const mostSeeds = 1000

// caughtBy is the profile that makes the case of a guard likely.
var caughtBy = map[guard.Guard]profile{
	guard.HeartbeatQueue: profileDeposed, guard.CommitClamp: profileRewound, guard.VoteInOneWrite: profileVote,
	guard.ProposalDeadline: profileSlow, guard.WriteWatchdog: profileStuck, guard.StuckTransfer: profileTransfer,
	guard.OwnTermBarrier: profileLate, guard.InstallCheck: profileInstall, guard.FailStop: profileFailing,
	guard.EntryChecksum: profileFlipped, guard.ChainHash: profileLost, guard.DurableFloor: profileCut,
	guard.Instance: profileBlank, guard.Agreement: profileWrong, guard.PolicyLease: profilePolicy,
}

// elsewhere are guards of the product's files, which the simulated disk takes the place of.
var elsewhere = map[guard.Guard]string{guard.SyncedWrite: "jepsen/disk"}

// Without any one of its guards the cluster breaks an invariant, so the simulation sees what each is for.
func TestGuards(t *testing.T) {
	only := os.Getenv("QUORATE_SIM_GUARD")
	var table []string
	for _, g := range guard.All {
		if only != "" && only != string(g) {
			continue
		}
		if where, ok := elsewhere[g]; ok {
			table = append(table, fmt.Sprintf("%-20s %-22s see %s", g, "", where))
			continue
		}
		f, ok := caughtBy[g]
		if !ok {
			t.Errorf("guard %s has no profile", g)
			continue
		}
		r, caught := firstCaught(t, g, f, only != "")
		if caught {
			table = append(table, fmt.Sprintf("%-20s %-22s seed %-4d %s: %.90s", g, f.name, r.seed,
				r.violations[0].invariant, r.violations[0].text))
			if only != "" {
				t.Log("what happened:\n" + r.notes)
			}
		} else {
			table = append(table, fmt.Sprintf("%-20s %-22s not caught in %d seeds", g, f.name, mostSeeds))
			t.Errorf("guard %s was switched off, and nothing broke in %d seeds", g, mostSeeds)
		}
	}
	t.Log("caught by:\n" + strings.Join(table, "\n"))
}

// firstCaught runs seeds without a guard until an invariant breaks.
func firstCaught(t *testing.T, g guard.Guard, f profile, verbose bool) (report, bool) {
	t.Helper()
	guard.Switch(g)
	defer guard.Switch("")
	for seed := uint64(1); seed <= mostSeeds; seed++ {
		if r := inBubble(t, seed, verbose, f); len(r.violations) > 0 {
			return r, true
		}
	}
	return report{}, false
}

func init() {
	without = func(t *testing.T, g guard.Guard, f profile) {
		t.Helper()
		if _, caught := firstCaught(t, g, f, false); !caught {
			t.Errorf("without guard %s nothing broke in %d seeds", g, mostSeeds)
		}
	}
}
