package main

import (
	"strings"
	"testing"
)

// settledView is the status of three nodes that have three partitions, all that there is to wait for.
func settledView() clusterView {
	group := func(id, leader string, first, last uint32) partitionView {
		p := partitionView{ID: id, Leader: leader, PolicyRevision: 1, Ranges: []rangeView{{first, last, 1}}}
		for _, n := range []string{"n0", "n1", "n2"} {
			p.ReplicaStates = append(p.ReplicaStates, replicaView{Node: n, Reachable: true})
		}
		return p
	}
	control := group("control", "n0", 0, 0)
	return clusterView{
		Control: &control,
		Nodes:   []nodeView{{ID: "n0", State: nodeActive}, {ID: "n1", State: nodeActive}, {ID: "n2", State: nodeActive}},
		Partitions: []partitionView{
			group("p0", "n0", 0, 5000), group("p1", "n1", 5001, 10000), group("p2", "n2", 10001, 16383),
		},
	}
}

// Shows what dev waits for before it says that the cluster is ready: each thing alone, and what is none.
func TestWhatDevWaitsFor(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(v *clusterView)
		want   string // empty: ready
	}{
		"whole":                {func(*clusterView) {}, ""},
		"no control group":     {func(v *clusterView) { v.Control = nil }, "control group to have a leader"},
		"leaderless control":   {func(v *clusterView) { v.Control.Leader = "" }, "control group to have a leader"},
		"control has learners": {func(v *clusterView) { v.Control.ReplicaStates[1].Learner = true }, "control group to have its voters"},
		"leaderless":           {func(v *clusterView) { v.Partitions[1].Leader = "" }, "p1 to have a leader"},
		"no policy":            {func(v *clusterView) { v.Partitions[2].PolicyRevision = 0 }, "p2 to have the policy"},
		"a learner":            {func(v *clusterView) { v.Partitions[0].ReplicaStates[2].Learner = true }, "p0 to have its replicas"},
		"two replicas": {func(v *clusterView) {
			v.Partitions[0].ReplicaStates = v.Partitions[0].ReplicaStates[:2]
		}, "p0 to have its replicas"},
		"two nodes are active": {func(v *clusterView) {
			v.Nodes[2].State = nodeDraining
			v.Partitions[0].ReplicaStates = v.Partitions[0].ReplicaStates[:2]
		}, ""},
		"a partition is missing": {func(v *clusterView) { v.Partitions = v.Partitions[:2] }, "all slots"},
		"no partition":           {func(v *clusterView) { v.Partitions = nil }, "all slots"},
		"leaders on one node":    {func(v *clusterView) { v.Partitions[1].Leader = "n0" }, "leaders to be spread"},
	} {
		v := settledView()
		tt.change(&v)
		if got := v.wanting(); (got == "") != (tt.want == "") || !strings.Contains(got, tt.want) {
			t.Errorf("%s: %q, want %q", name, got, tt.want)
		}
	}
}
