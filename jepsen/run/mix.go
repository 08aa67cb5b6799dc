package run

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Mix is a choice of faults and workloads that goes by a name.
type Mix struct {
	Name      string
	About     string
	Faults    []string // kinds; none: all
	Workloads []string // none: all
	Duration  time.Duration
}

// The kinds of faults by what they are done to.
var (
	network = []string{
		"cut-leader", "halves", "bridge", "ring", "one-way", "flapping", "held-replies", "slow-link", "cut-control",
		"cut-clients",
	}
	clocks = []string{"wall-step", "wall-jump", "wall-strobe", "drift", "freeze", "skew-next-leader"}
	disks  = []string{
		"power-cut", "disk-error", "disk-full", "slow-sync", "bit-flip", "truncate", "rollback", "delete-data",
	}
	processes  = []string{"kill", "pause", "lagging-follower", "rolling-restart", "mixed-versions"}
	membership = []string{"transfer", "add-node", "drain-node", "remove-node", "replace-node"}
	moves      = []string{"split", "merge", "move"}
	policies   = []string{"tighten", "loosen"}
)

// Kinds are all kinds of faults.
func Kinds() []string {
	return slices.Concat(processes, network, clocks, disks, membership, moves, policies)
}

// Mixes are all.
func Mixes() []Mix {
	with := func(kinds []string, more ...string) []string { return slices.Concat(kinds, more) }
	return []Mix{
		{Name: "mixed", About: "every fault and every workload", Duration: 10 * time.Minute},
		{Name: "smoke", About: "short: the faults that break most, on whatever the machine has", Duration: 70 * time.Second,
			Faults: []string{
				"kill", "pause", "cut-leader", "one-way", "wall-step", "wall-strobe", "transfer", "tighten", "loosen", "move",
				"slow-sync",
			}},
		{Name: "clocks", About: "wrong clocks and leaders that change: no decision may", Duration: 10 * time.Minute,
			Faults: with(clocks, "transfer", "kill")},
		{Name: "network", About: "partitions of every shape, slow and one-way links", Duration: 10 * time.Minute,
			Faults: with(network, "transfer")},
		{Name: "disks", About: "power cuts, full, slow and failing disks, damaged files", Duration: 10 * time.Minute,
			Faults: with(disks, "kill")},
		{Name: "processes", About: "killed, paused and restarted nodes", Duration: 10 * time.Minute, Faults: processes},
		{Name: "membership", About: "nodes that come, go and are replaced, while others are killed and cut off",
			Duration: 10 * time.Minute, Faults: with(membership, "kill", "cut-leader")},
		{Name: "moves", About: "splits, merges and moves while nodes are killed, paused and cut off",
			Duration: 10 * time.Minute, Faults: with(moves, "kill", "pause", "cut-leader", "transfer"),
			Workloads: []string{"move", "replay", "saturate", "hot-key", "groups", "sdk"}},
		{Name: "policies", About: "policies that tighten and loosen while leaders are cut off and paused",
			Duration: 10 * time.Minute, Faults: with(policies, "kill", "pause", "cut-leader", "cut-control"),
			Workloads: []string{"policy-churn", "saturate", "groups", "weighted", "sdk"}},
	}
}

// FindMix is that with a name.
func FindMix(name string) (Mix, error) {
	all := Mixes()
	i := slices.IndexFunc(all, func(m Mix) bool { return m.Name == name })
	if i < 0 {
		var names []string
		for _, m := range all {
			names = append(names, m.Name)
		}
		return Mix{}, fmt.Errorf("there is no mix %q: there are %s", name, strings.Join(names, ", "))
	}
	return all[i], nil
}
