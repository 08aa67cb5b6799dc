package main

import (
	"context"
	"fmt"
	"slices"
	"testing"

	quoratev1 "github.com/quorate/quorate/proto/quorate/v1"
	"github.com/quorate/quorate/router"
)

// controlGroup is the id of the control group among the partitions.
const controlGroup = "control"

// routes is the map of a cluster: which partition has which principal.
func (p *processes) routes(t *testing.T) *quoratev1.RoutingMap {
	t.Helper()
	if p.routing != nil {
		return p.routing // whoever moves slots drops it
	}
	c := mustClient(t, p.rotated(0)...)
	until(t, "a node tells the map", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), askTimeout)
		defer cancel()
		for m, err := range c.WatchConfig(ctx) {
			if err == nil && len(m.GetMap().GetRanges()) > 0 {
				p.routing = m.GetMap()
			}
			break
		}
		return p.routing != nil
	})
	return p.routing
}

// partitionOf is the partition that has a principal.
func (p *processes) partitionOf(t *testing.T, principal string) string {
	t.Helper()
	m := p.routes(t)
	slot := uint32(router.SlotOf([16]byte(m.GetSeed()), principal))
	for _, r := range m.GetRanges() {
		if r.GetSlots().GetFirstSlot() <= slot && slot <= r.GetSlots().GetLastSlot() {
			return r.GetPartition()
		}
	}
	t.Fatalf("no partition has slot %d", slot)
	return ""
}

// principalIn is a principal of a partition, whose name begins with prefix.
func (p *processes) principalIn(t *testing.T, partition, prefix string) string {
	t.Helper()
	for i := 0; ; i++ {
		if name := fmt.Sprint(prefix, i); p.partitionOf(t, name) == partition {
			return name
		}
	}
}

// partition is a partition of the cluster's status, or the control group.
func (v clusterView) partition(id string) (partitionView, bool) {
	i := slices.IndexFunc(v.groups(), func(p partitionView) bool { return p.ID == id })
	if i < 0 {
		return partitionView{}, false
	}
	return v.groups()[i], true
}

// leader is the id of the node that leads a partition.
func (p *processes) leader(t *testing.T, partition string) (id string) {
	t.Helper()
	until(t, partition+" has a leader", func() bool {
		v, _ := p.status(t)
		g, _ := v.partition(partition)
		id = g.Leader
		return id != ""
	})
	return id
}

// leaderOf is the id of the node that leads a principal's partition.
func (p *processes) leaderOf(t *testing.T, principal string) string {
	t.Helper()
	return p.leader(t, p.partitionOf(t, principal))
}

// replica is how a node's replica of a partition stands, as the cluster's status has it.
func (p *processes) replica(t *testing.T, partition, id string) (r replicaView) {
	t.Helper()
	v, _ := p.status(t)
	g, _ := v.partition(partition)
	for _, s := range g.ReplicaStates {
		if s.Node == id {
			r = s
		}
	}
	return r
}

// mustAgree waits until all replicas of each partition, and of the control group, are at the same entry, and checks
// that they hold the same state.
func (p *processes) mustAgree(t *testing.T) {
	t.Helper()
	agreed := map[string]bool{}
	until(t, "all replicas are at the same entry", func() bool {
		v, ok := p.status(t)
		if !ok || v.Control == nil {
			return false
		}
		all := true
		for _, g := range v.groups() {
			if agreed[g.ID] {
				continue
			}
			states := g.ReplicaStates
			if len(states) != len(p.nodes) || slices.ContainsFunc(states, func(r replicaView) bool {
				return !r.Reachable || r.AppliedIndex == 0 || r.AppliedIndex != states[0].AppliedIndex
			}) {
				all = false
				continue
			}
			for _, r := range states {
				if r.Digest == "" || r.Digest != states[0].Digest {
					t.Errorf("the states of %s differ: %+v", g.ID, states)
				}
			}
			agreed[g.ID] = true
		}
		return all
	})
}
