package node

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/quorate/quorate/control/state"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/internal/identity"
	quoratev1 "github.com/quorate/quorate/proto/quorate/v1"
	"github.com/quorate/quorate/rpc"
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

// mustDecide has a check decided by whoever leads, and tells whether it was allowed.
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

// Shows that a node which comes back with other addresses is found again, by a cluster that was up meanwhile, and that
// its replicas go on.
func TestMovedNode(t *testing.T) {
	configs := mustConfigs(t, 3)
	var nodes []*running
	for _, cfg := range configs {
		nodes = append(nodes, mustRun(t, cfg))
	}
	mustInit(t, nodes, 2)
	untilReady(t, nodes...)
	moved, elsewhere := *configs[2], mustConfigs(t, 1)[0] // while the old ports are taken
	mustEnd(t, nodes[2])
	moved.GRPC, moved.HTTP, moved.Raft, moved.Gossip = elsewhere.GRPC, elsewhere.HTTP, elsewhere.Raft, elsewhere.Gossip
	moved.Advertise = elsewhere.Advertise
	nodes[2] = mustRun(t, &moved)
	for _, n := range nodes {
		eventually(t, n.cfg.ID+" knows the new addresses", func() bool {
			if n.control() == nil {
				return false
			}
			known, ok := n.control().State().Node("n2")
			return ok && known.Raft == moved.Raft && known.GRPC == moved.GRPC
		}, func() any { return n.ready() })
	}
	untilReady(t, nodes...)
	for _, n := range nodes[:2] {
		eventually(t, n.cfg.ID+" has it as a member at its new address", func() bool {
			for _, r := range n.hosted.all() {
				g := r.group.Load()
				if g == nil {
					return false
				}
				m, ok := memberOf(g.Members(), "n2")
				if !ok || m.Addr != moved.Raft {
					return false
				}
			}
			return true
		}, func() any { return nil })
	}
	mustEnd(t, nodes...)
}

// Shows that a stranger waits until it is added; that a node which is drained loses its replicas and leaderships, and one
// that is removed ends, and does not come back with its old directory.
func TestAddDrainRemove(t *testing.T) {
	configs := mustConfigs(t, 4)
	var nodes []*running
	for _, cfg := range configs[:3] {
		cfg.Join = cfg.Join[:3]
		nodes = append(nodes, mustRun(t, cfg))
	}
	mustInit(t, nodes, 3)
	untilReady(t, nodes...)
	ops := rpc.Actor{Name: "test", Role: identity.Admin}
	leader := func() *running {
		for _, n := range nodes {
			if n.hosted.of(controlID).leads() {
				return n
			}
		}
		return nodes[0]
	}
	nodes = append(nodes, mustRun(t, configs[3]))
	eventually(t, "n3 waits", func() bool {
		_, err := leader().admin.AddNode(t.Context(), ops, &quoratev1.AddNodeRequest{Node: "n3"})
		return err == nil
	}, func() any { return (*backend)(nodes[3].Node).Waiting() })
	eventually(t, "n3 takes part", nodes[3].isReady, func() any { return nodes[3].ready() })
	eventually(t, "n1 is to be drained", func() bool {
		_, err := leader().admin.DrainNode(t.Context(), ops, &quoratev1.DrainNodeRequest{Node: "n1"})
		return err == nil
	}, func() any { return nil })
	eventually(t, "n1 can be removed", func() bool {
		_, err := leader().admin.RemoveNode(t.Context(), ops, &quoratev1.RemoveNodeRequest{Node: "n1"})
		return err == nil
	}, func() any { return standings(leader()) })
	if err := <-nodes[1].ended; err == nil || !strings.Contains(err.Error(), "quorate node add n1") {
		t.Errorf("the removed node ends: %v", err)
	}
	nodes[1].cancel()
	again := mustRun(t, configs[1])
	if err := <-again.ended; err == nil || !strings.Contains(err.Error(), "empty data directory") {
		t.Errorf("the removed node started again: %v", err)
	}
	again.cancel()
	nodes = append(nodes[:1], nodes[2:]...)
	eventually(t, "three voters each", func() bool { return settled(leader(), 3, 3) }, func() any { return standings(leader()) })
	for p := range 4 {
		for k := range 4 {
			if allowed := mustDecide(t, nodes, fmt.Sprint("v", p), fmt.Sprint(k)); allowed != (k < 3) {
				t.Errorf("v%d: the check %d is allowed: %v", p, k, allowed)
			}
		}
	}
	mustEnd(t, nodes...)
}

// Shows that the replicas of a node which has not answered for the configured time are made anew on another, in another
// zone than the rest, and that the dead node comes back as a member without one.
func TestDeadNodeIsReplaced(t *testing.T) {
	configs := mustConfigs(t, 4)
	var nodes []*running
	for k, cfg := range configs {
		cfg.Placement.ReplaceAfter = downAfter + time.Second
		cfg.Zone = string("xyzz"[k])
		nodes = append(nodes, mustRun(t, cfg))
	}
	mustInit(t, nodes, 4)
	untilReady(t, nodes...)
	mustEnd(t, nodes[3])
	alive := nodes[:3]
	without := func(id string) func() bool {
		return func() bool {
			for _, n := range alive {
				if n.hosted.of(controlID).leads() {
					s := n.control().State()
					return settled(n, 4, 3) && !slices.ContainsFunc(s.Partitions, func(p *state.Partition) bool {
						return slices.Contains(p.Replicas, id)
					})
				}
			}
			return false
		}
	}
	eventually(t, "its replicas are elsewhere", without("n3"), func() any { return standings(alive[0]) })
	for p := range 4 {
		for k := range 4 {
			if allowed := mustDecide(t, alive, fmt.Sprint("w", p), fmt.Sprint(k)); allowed != (k < 3) {
				t.Errorf("w%d: the check %d is allowed: %v", p, k, allowed)
			}
		}
	}
	nodes[3] = mustRun(t, configs[3])
	untilReady(t, nodes...)
	mustEnd(t, nodes...)
}
