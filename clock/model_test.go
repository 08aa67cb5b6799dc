package clock_test

import (
	"testing"

	"github.com/quorate/quorate/policy"
)

const (
	// modelSeeds is how many clusters the model tries.
	modelSeeds = 3000
	// certainSeeds is how long a caller that broke the cap is looked at further, for a break that no
	// choice of instants explains away.
	certainSeeds = 800
)

func mustModelPolicy(t testing.TB) *policy.Policy {
	t.Helper()
	p, err := policy.Parse("model", []byte(`
version: m
default: {limits: [{name: all, limit: 3, window: 10s}], replay_horizon: 1s}
`))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// Shows on random clusters, with leaders that come, go stale and come back, held stamps, lost and
// inherited entries, snapshots, restarts and bad clocks within the drift bound, that the offset between
// partition time and true time never grows along the log, and that no window of true time holds more
// admissions than the limit.
func TestModelKeepsTheCaps(t *testing.T) {
	seeds := uint64(modelSeeds)
	if testing.Short() {
		seeds = 300
	}
	p := mustModelPolicy(t)
	var sum counts
	for seed := range seeds {
		c := newCluster(seed, wrong{}, p)
		c.run()
		for claim, what := range c.claims.broken {
			t.Errorf("seed %d: %s: %s", seed, claim, what)
		}
		sum.add(&c.counts)
	}
	t.Logf("%d seeds: %+v", seeds, sum)
	n := int(seeds)
	for _, least := range []struct {
		what      string
		got, want int
	}{
		{"leader changes", sum.leaders, 5 * n},
		{"nodes that won again with nothing but their own entries", sum.again, n},
		{"stamps that reached the log in a later term", sum.held, n / 4},
		{"entries of stale leaders that were lost", sum.dropped, n},
		{"entries that a later leader committed", sum.inherited, n},
		{"snapshot installs", sum.installs, n},
		{"restarts", sum.restarts, n},
		{"outages of all nodes", sum.outages, n / 2},
		{"leaderships that wall clocks gave time to", sum.bridges, n / 4},
		{"denials by a full window", sum.saturated, 10 * n},
		{"admissions close to breaking the cap", sum.tight, n / 5},
	} {
		if least.got < least.want {
			t.Errorf("the model is too tame: %d %s in %d seeds, want %d", least.got, least.what, n, least.want)
		}
	}
	if sum.clamped != 0 {
		t.Errorf("%d stamps were behind the partition time before them", sum.clamped)
	}
}

// Shows that the same clusters break the cap in true time when any one of the rules T1 to T5 is left
// out by the caller, or wall clocks are trusted that are not as they say, so that each of the rules is
// needed and the model can see it.
func TestModelNeedsEachRule(t *testing.T) {
	p := mustModelPolicy(t)
	for _, c := range []struct {
		rule string
		wrong
	}{
		{"T1: entries are relabelled with the log's term", wrong{relabels: true}},
		{"T2: stamps before an own entry is applied", wrong{leadsEarly: true}},
		{"T2: the first leadership's timeline survives", wrong{survives: true}},
		{"T3: foreign entries do not replace the anchor", wrong{ignoresForeign: true}},
		{"T3: snapshots do not replace the anchor", wrong{ignoresSnapshot: true}},
		{"T3: the best of several anchors", wrong{best: true}},
		{"T3: the anchor survives a restart", wrong{persists: true}},
		{"T4: checks join after the stamp is drawn", wrong{joinsLate: true}},
		{"T5: the larger clock counts", wrong{larger: true}},
		{"T5: CLOCK_MONOTONIC alone counts", wrong{slewed: true}},
		{"T5: a slewed clock that catches up counts in full", wrong{givesBack: true}},
		{"T5: no slow-down by the drift bound", wrong{unslowed: true}},
		{"trust_wall: bounds leave out the error", wrong{boundEarly: true}},
		{"trust_wall: wall clocks are off by more than they say", wrong{wallLies: true}},
	} {
		t.Run(c.rule, func(t *testing.T) {
			found := map[string]bool{}
			for seed := range uint64(modelSeeds) {
				if found[claimCap] && (found[claimCertain] || seed >= certainSeeds || testing.Short()) {
					break
				}
				m := newCluster(seed, c.wrong, p)
				m.run()
				for _, claim := range []string{claimOffset, claimAdmission, claimCap, claimCertain} {
					if what := m.claims.broken[claim]; what != "" && !found[claim] {
						found[claim] = true
						t.Logf("%s → seed %d → %s: %s", c.rule, seed, claim, what)
					}
				}
			}
			if !found[claimCap] {
				t.Errorf("%s: %d seeds and the cap holds", c.rule, modelSeeds)
			}
		})
	}
}

// Shows that a seed is all that a run depends on: two clusters of one seed end at the same true time,
// with the same state and the same counts.
func TestModelSeedReproduces(t *testing.T) {
	p := mustModelPolicy(t)
	for seed := range uint64(20) {
		a, b := newCluster(seed, wrong{}, p), newCluster(seed, wrong{}, p)
		a.run()
		b.run()
		if a.now != b.now || a.counts != b.counts || a.state.Digest() != b.state.Digest() {
			t.Errorf("seed %d: two runs differ: %+v and %+v", seed, a.counts, b.counts)
		}
	}
}
