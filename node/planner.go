package node

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/quorate/quorate/control"
	"github.com/quorate/quorate/control/placement"
	"github.com/quorate/quorate/control/state"
	"github.com/quorate/quorate/node/admin"
	"github.com/quorate/quorate/partition"
)

const (
	// planInterval is between two plans of the node that leads the control group.
	planInterval = 300 * time.Millisecond
	// balanceInterval is the least time between two hand-overs of leadership for the sake of balance.
	balanceInterval = time.Second
	// balanceBackoff is how much longer it is after one that failed.
	balanceBackoff = 10 * time.Second
	// sweepInterval is how often policy bodies that nobody wants any more are dropped.
	sweepInterval = time.Hour
)

// plan keeps replicas where they should be while this node leads the control group, until ctx ends. It says what
// is to be; the leaders of the partitions make it so.
func (n *Node) plan(ctx context.Context) {
	tick := time.NewTicker(planInterval)
	defer tick.Stop()
	swept := time.Now()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if r := n.hosted.of(controlID); r == nil || !r.leads() {
			swept = time.Now()
			continue
		}
		n.takeIn(ctx)
		n.planStep(ctx)
		if time.Since(swept) >= sweepInterval {
			swept = time.Now()
			if err := n.control().Sweep(ctx); err != nil {
				n.logger.Warn("policy bodies were not swept", "error", err)
			}
		}
	}
}

// planStep makes one step at most.
func (n *Node) planStep(ctx context.Context) {
	c := n.control()
	s := c.State()
	in := n.placementInput(s)
	err := n.dropLost(ctx, c, s)
	step, ok := placement.Next(in)
	switch {
	case err != nil:
	case ok:
		err = n.carryOut(ctx, c, s, step)
	default:
		err = n.splitStep(ctx, c, s)
	}
	if err != nil && ctx.Err() == nil {
		n.logger.Warn("a step of the plan failed", "error", err)
	}
}

// placementInput is the cluster as it stands.
func (n *Node) placementInput(s *state.State) placement.Input {
	in := placement.Input{
		Nodes: n.placementNodes(s), Replicas: n.cfg.Placement.Replicas,
		ReplaceAfterNanos: int64(n.cfg.Placement.ReplaceAfter),
	}
	now := time.Now()
	for _, p := range s.Partitions {
		in.Partitions = append(in.Partitions, n.placementPartition(p, now))
	}
	return in
}

// placementNodes are the nodes as they stand.
func (n *Node) placementNodes(s *state.State) (out []placement.Node) {
	for _, known := range s.Nodes {
		if known.State == state.NodeRemoved || known.Instance == "" {
			continue
		}
		out = append(out, placement.Node{
			ID: known.ID, Zone: known.Zone, State: known.State, DownNanos: int64(n.down(known.ID)),
			DiskLow: n.diskLowOf(known.ID),
		})
	}
	return out
}

// diskLowOf reports that a node's disk has too little room, as it said last.
func (n *Node) diskLowOf(id string) bool {
	if id == n.cfg.ID {
		return n.diskLow.Load()
	}
	a := n.neighbours.of(id, time.Now())
	return a != nil && a.DiskLow
}

// stoppedAt reports that a node's replica of a group has stopped for good, as the node said last.
func (n *Node) stoppedAt(groupID, id string) bool {
	if id == n.cfg.ID {
		r := n.hosted.of(groupID)
		return r != nil && r.stopped() != ""
	}
	a := n.neighbours.of(id, time.Now())
	return a != nil && a.Groups[groupID] != nil && a.Groups[groupID].Stopped != ""
}

// placementPartition is a partition as its leader says that it stands.
func (n *Node) placementPartition(p *state.Partition, now time.Time) placement.Partition {
	out := placement.Partition{ID: p.ID, Busy: p.Plan != 0}
	g := n.leading(p.ID.String(), now)
	if g == nil {
		return out
	}
	out.Leader = g.leader
	members := map[string]bool{}
	for _, m := range g.Members {
		out.Members = append(out.Members, placement.Member{
			Node: m.Node, Learner: m.Learner, CaughtUp: m.CaughtUp, Stopped: n.stoppedAt(p.ID.String(), m.Node),
		})
		members[m.Node] = true
		out.Busy = out.Busy || !slices.Contains(p.Replicas, m.Node)
	}
	for _, id := range p.Replicas {
		out.Busy = out.Busy || !members[id]
	}
	return out
}

// carryOut has one step made.
func (n *Node) carryOut(ctx context.Context, c *control.Control, s *state.State, step placement.Step) error {
	p, ok := s.Partition(step.Partition)
	if !ok {
		return nil
	}
	replicas := slices.Clone(p.Replicas)
	switch step.Kind {
	case placement.AddLearner:
		replicas = append(replicas, step.Node)
	case placement.Remove:
		replicas = slices.DeleteFunc(replicas, func(id string) bool { return id == step.Node })
	case placement.TransferLeader:
		if time.Since(n.balanced) < balanceInterval {
			return nil
		}
		n.balanced = time.Now()
		err := n.transferAt(ctx, p.ID.String(), step.Node)
		if err != nil {
			n.balanced = n.balanced.Add(balanceBackoff)
			return fmt.Errorf("%s: %w", step, err)
		}
		n.logger.Info("leadership was moved", "partition", p.ID.String(), "to", step.Node)
		return nil
	case placement.Promote, placement.Demote:
		return nil // by the partition's leader itself
	}
	return n.setReplicas(ctx, c, p, replicas, step.String())
}

func (n *Node) setReplicas(ctx context.Context, c *control.Control, p *state.Partition, to []string, why string) error {
	_, err := c.Propose(ctx, &state.Command{
		Kind: state.KindReplicas, Actor: admin.ItselfName, Partition: p.ID, Difference: why,
		Replicas: &state.Replicas{ConfVersion: p.ConfVersion, Nodes: to},
	})
	if err != nil {
		return fmt.Errorf("%s: %w", why, err)
	}
	n.logger.Info("replicas are to change", "why", why)
	return nil
}

// dropLost takes a node whose data directory was given up off the partitions that it was to hold, once their leaders
// no longer count its replica: another replica is made wherever there is room, on that node too once it is back.
func (n *Node) dropLost(ctx context.Context, c *control.Control, s *state.State) error {
	for _, p := range s.Partitions {
		g := n.leading(p.ID.String(), time.Now())
		for _, id := range p.Replicas {
			known, ok := s.Node(id)
			if g == nil || ok && known.Instance != "" || len(p.Replicas) == 1 {
				continue
			}
			if _, listed := g.lists(id); !listed {
				rest := slices.DeleteFunc(slices.Clone(p.Replicas), func(r string) bool { return r == id })
				return n.setReplicas(ctx, c, p, rest, p.ID.String()+": forget "+id)
			}
		}
	}
	return nil
}

// led is a group as its leader says that it stands.
type led struct {
	*groupAnswer
	leader string
}

// leading is a group as its leader says that it stands, this node or another; nil when none is known.
func (n *Node) leading(id string, now time.Time) *led {
	if r := n.hosted.of(id); r != nil && r.leads() {
		return &led{r.standing(n.member()), n.cfg.ID}
	}
	return n.neighbours.leading(id, now)
}

// ledHere are the partitions that this node leads.
func (n *Node) ledHere() map[string]*partition.Partition {
	out := map[string]*partition.Partition{}
	for _, r := range n.hosted.all() {
		if p := r.partition.Load(); p != nil && r.leads() {
			out[r.id] = p
		}
	}
	return out
}
