package placement_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/quorate/quorate/control/placement"
	"github.com/quorate/quorate/control/state"
)

// Shows that a new partition comes to nodes that can take it, as many as are wanted, spread over zones and then to
// where there are the fewest replicas, and that who leads the fewest founds it.
func TestPlace(t *testing.T) {
	node := func(id, zone string) placement.Node {
		return placement.Node{ID: id, Zone: zone, State: state.NodeActive}
	}
	low, down, draining := node("n6", "z"), node("n7", "z"), node("n8", "z")
	low.DiskLow, down.DownNanos, draining.State = true, 1, state.NodeDraining
	in := placement.Input{
		Replicas: 3, ReplaceAfterNanos: replaceAfter,
		Nodes: []placement.Node{node("n1", "x"), node("n2", "x"), node("n3", "y"), node("n4", "z"), low, down, draining},
		Partitions: []placement.Partition{
			{ID: 0, Leader: "n1", Members: []placement.Member{{Node: "n1"}, {Node: "n3"}, {Node: "n4"}}},
			{ID: 1, Leader: "n3", Members: []placement.Member{{Node: "n1"}, {Node: "n3"}, {Node: "n4"}}},
		},
	}
	for _, tt := range []struct {
		replicas int
		want     []string
	}{{1, []string{"n2"}}, {3, []string{"n2", "n4", "n3"}}, {9, []string{"n2", "n4", "n1", "n3"}}} {
		in.Replicas = tt.replicas
		if diff := cmp.Diff(tt.want, placement.Place(in)); diff != "" {
			t.Errorf("%d replicas: %s", tt.replicas, diff)
		}
	}
	in.Nodes = in.Nodes[4:]
	if got := placement.Place(in); got != nil {
		t.Errorf("without a node that can take it: %v", got)
	}
}

// Shows that placing partitions one after the other leaves no node with two more than another in one zone, and that
// what was placed is nothing that Next would move, whatever there was before.
func TestPlaceIsBalanced(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := placement.Input{Replicas: rapid.IntRange(1, 5).Draw(t, "replicas"), ReplaceAfterNanos: replaceAfter}
		for i := range rapid.IntRange(1, 7).Draw(t, "nodes") {
			in.Nodes = append(in.Nodes, placement.Node{ID: fmt.Sprint("n", i), State: state.NodeActive})
		}
		in.Replicas = min(in.Replicas, len(in.Nodes))
		load := map[string]int{}
		for id := range rapid.IntRange(1, 9).Draw(t, "partitions") {
			at := placement.Place(in)
			p := placement.Partition{ID: state.PartitionID(id), Leader: at[0]}
			for _, node := range at {
				p.Members = append(p.Members, placement.Member{Node: node})
				load[node]++
			}
			if len(at) != in.Replicas || len(slices.Compact(slices.Sorted(slices.Values(at)))) != len(at) {
				t.Fatalf("%d replicas on %v", in.Replicas, at)
			}
			in.Partitions = append(in.Partitions, p)
		}
		for _, a := range in.Nodes {
			for _, b := range in.Nodes {
				if load[a.ID] >= load[b.ID]+2 {
					t.Fatalf("loads %v", load)
				}
			}
		}
		if step, ok := placement.Next(in); ok && step.Kind != placement.TransferLeader {
			t.Fatalf("what was placed is moved: %v", step)
		}
	})
}

// Shows that the partition is split that is furthest above a mark, none while there is no mark or something else is
// under way, and none that cannot be split.
func TestNextSplit(t *testing.T) {
	load := func(id state.PartitionID, keys, rate int64) placement.Load {
		return placement.Load{
			Partition: placement.Partition{ID: id, Leader: "n1"}, Splittable: true, Keys: keys, DecisionsPerSecond: rate,
		}
	}
	whole, busy, headless := load(3, 900, 900), load(3, 0, 0), load(3, 0, 0)
	whole.Splittable, busy.Busy, headless.Leader = false, true, ""
	for name, tt := range map[string]struct {
		loads      []placement.Load
		keys, rate int64
		want       state.PartitionID // 0: none
	}{
		"no mark":            {loads: []placement.Load{load(1, 1<<40, 1<<40)}},
		"below":              {loads: []placement.Load{load(1, 99, 9)}, keys: 100, rate: 10},
		"keys":               {loads: []placement.Load{load(1, 99, 1<<40), load(2, 100, 0)}, keys: 100, want: 2},
		"rate":               {loads: []placement.Load{load(1, 1<<40, 9), load(2, 0, 10)}, rate: 10, want: 2},
		"the furthest above": {loads: []placement.Load{load(1, 200, 0), load(2, 0, 30)}, keys: 100, rate: 10, want: 2},
		"equal":              {loads: []placement.Load{load(2, 100, 0), load(1, 0, 10)}, keys: 100, rate: 10, want: 1},
		"not that one":       {loads: []placement.Load{whole, load(1, 100, 0)}, keys: 100, want: 1},
		"another is busy":    {loads: []placement.Load{busy, load(1, 100, 0)}, keys: 100},
		"another is unknown": {loads: []placement.Load{headless, load(1, 100, 0)}, keys: 100},
	} {
		got, ok := placement.NextSplit(tt.loads, tt.keys, tt.rate)
		if ok != (tt.want != 0) || got.ID != tt.want {
			t.Errorf("%s: %v %t, want %v", name, got.ID, ok, tt.want)
		}
	}
}
