package node

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/quorate/quorate/fsm"
)

// settled reports that every partition has so many voters and no learner, as its leader says.
func settled(n *running, partitions, voters int) bool {
	s := n.control().State()
	if len(s.Partitions) != partitions {
		return false
	}
	for _, p := range s.Partitions {
		g := n.leading(p.ID.String(), time.Now())
		if g == nil || len(g.Members) != voters || len(p.Replicas) != voters ||
			slices.ContainsFunc(g.Members, func(m memberAnswer) bool { return m.Learner }) {
			return false
		}
	}
	return true
}

func standings(n *running) any {
	var out []string
	for _, p := range n.control().State().Partitions {
		out = append(out, fmt.Sprintf("%s wanted %v", p.ID, p.Replicas))
		if g := n.leading(p.ID.String(), time.Now()); g != nil {
			out = append(out, fmt.Sprintf("led by %s: %+v", g.leader, g.Members))
		}
	}
	return out
}

// mustAllow has checks decided by whoever leads, and returns how many were allowed.
func mustDecide(t *testing.T, nodes []*running, principal, id string) bool {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for {
		for _, n := range nodes {
			lead := (*backend)(n.Node).Leader(principal)
			if !lead.Local {
				continue
			}
			a, err := (*backend)(n.Node).Check(ctx, fsm.Check{
				Principal: principal, Gateway: "g", DecisionID: id, RouteEpoch: lead.Epoch,
				Charge: fsm.Charge{Class: "convert", Cost: 1},
			})
			if err == nil {
				return a.Reason == fsm.ReasonAllowed
			}
		}
		select {
		case <-ctx.Done():
			t.Fatal("no decision in time")
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// Shows the life of a cluster: three nodes do nothing until one is told to make it, then have it, each partition
// with three voters; a cap holds on each of them; a second cluster cannot be made; all of it is there again after a
// restart of all.
func TestCluster(t *testing.T) {
	configs := mustConfigs(t, 3)
	start := func() (nodes []*running) {
		for _, cfg := range configs {
			nodes = append(nodes, mustRun(t, cfg))
		}
		return nodes
	}
	nodes := start()
	mustInit(t, nodes, 3)
	eventually(t, "three voters each", func() bool { return settled(nodes[0], 3, 3) }, func() any { return standings(nodes[0]) })
	untilReady(t, nodes...)
	decide := func(round string) (allowed int) {
		for p := range 8 {
			for k := range 4 {
				if mustDecide(t, nodes, fmt.Sprint("u", p), fmt.Sprintf("%s-%d-%d", round, p, k)) {
					allowed++
				}
			}
		}
		return allowed
	}
	if allowed := decide("before"); allowed != 24 {
		t.Errorf("%d allowed, want 3 for each of 8", allowed)
	}
	for _, n := range nodes {
		if _, _, err := n.makeCluster(t.Context(), 1, "test"); err == nil {
			t.Errorf("%s makes a second cluster", n.cfg.ID)
		}
	}
	mustEnd(t, nodes...)
	nodes = start()
	untilReady(t, nodes...)
	if allowed := decide("after"); allowed != 0 {
		t.Errorf("%d allowed after a restart, want none", allowed)
	}
	mustEnd(t, nodes...)
}
