package node

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/quorate/quorate/control/state"
	"github.com/quorate/quorate/policy"
	quoratev1 "github.com/quorate/quorate/proto/quorate/v1"
	"github.com/quorate/quorate/router"
	"github.com/quorate/quorate/rpc"
)

// viewInterval is between two looks who leads, for those who watch the configuration.
const viewInterval = 500 * time.Millisecond

// view is what gateways are told: where partitions are, and what the policy in force says to them. It is
// immutable.
type view struct {
	rpc.ConfigView
	inForce *policy.Policy
	leaders map[string]string
	version uint64 // of the map
	changed chan struct{}
}

// Config is the newest view for gateways.
func (b *backend) Config() (*rpc.ConfigView, <-chan struct{}) {
	v := b.view.Load()
	if v.Map == nil {
		return nil, v.changed
	}
	return &v.ConfigView, v.changed
}

// Confirmed reports whether a policy lease runs that confirmed a state which this node's copy is not older than.
func (b *backend) Confirmed() bool {
	c := (*Node)(b).control()
	return c != nil && b.lease.get(c.State().Version).Lease.Valid(b.source.Read())
}

// changeView makes a newer view; change is given a copy of the present one, and reports whether it changed it.
func (n *Node) changeView(change func(next *view) bool) {
	n.viewing.Lock()
	defer n.viewing.Unlock()
	old := n.view.Load()
	next := *old
	if !change(&next) {
		return
	}
	next.changed = make(chan struct{})
	n.view.Store(&next)
	close(old.changed)
}

// followMap keeps routes and view at the cluster's map, and at who leads, until ctx ends.
func (n *Node) followMap(ctx context.Context) {
	tick := time.NewTicker(viewInterval)
	defer tick.Stop()
	for {
		s, changed := n.control().Changed()
		if s.Born {
			n.lookAtMap(s)
		}
		select {
		case <-ctx.Done():
			return
		case <-changed:
		case <-tick.C:
		}
	}
}

func (n *Node) lookAtMap(s *state.State) {
	leaders := n.leaders(s)
	n.reroute(s, leaders) // before those are woken who wait for it
	n.changeView(func(next *view) bool {
		if s.MapVersion == next.version && maps.Equal(leaders, next.leaders) {
			return false
		}
		next.version, next.leaders, next.Map = s.MapVersion, leaders, routingMap(s, leaders)
		return true
	})
}

// followPolicy keeps the view at the policy in force until ctx ends. A body that is not here holds up nothing else,
// and is given up when another policy is in force.
func (n *Node) followPolicy(ctx context.Context) {
	for ctx.Err() == nil {
		s, changed := n.control().Changed()
		if rev := s.InForce(); rev != nil && n.view.Load().Policy.GetRevision() < uint64(rev.Number) {
			n.takePolicy(ctx, rev)
		}
		select {
		case <-ctx.Done():
		case <-changed:
		}
	}
}

// takePolicy waits for a policy, for as long as it is in force.
func (n *Node) takePolicy(ctx context.Context, rev *state.Revision) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		for s, changed := n.control().Changed(); ctx.Err() == nil; s, changed = n.control().Changed() {
			if now := s.InForce(); now.Number != rev.Number {
				cancel()
			}
			select {
			case <-changed:
			case <-ctx.Done():
			}
		}
	}()
	p, err := n.findPolicy(ctx, rev.Ref())
	if err != nil {
		if ctx.Err() == nil {
			n.logger.Error("the policy in force cannot be used", "revision", rev.Number, "error", err)
		}
		return
	}
	n.changeView(func(next *view) bool {
		next.inForce, next.Policy = p, settingsOf(p, rev)
		return true
	})
}

// leaders are who leads each partition, as far as is known.
func (n *Node) leaders(s *state.State) map[string]string {
	out, now := map[string]string{}, time.Now()
	for _, p := range s.Partitions {
		id := p.ID.String()
		if r := n.hosted.of(id); r != nil && r.leader() != "" {
			out[id] = r.leader()
		} else if g := n.neighbours.leading(id, now); g != nil {
			out[id] = g.leader
		}
	}
	return out
}

// reroute gives the routes a new map.
func (n *Node) reroute(s *state.State, leaders map[string]string) {
	if m := n.routes.Map(); m != nil && m.Version() == s.MapVersion {
		return
	}
	parts := router.Parts{Cluster: s.Cluster, Version: s.MapVersion, Seed: s.Seed}
	for _, known := range s.Nodes {
		if known.State != state.NodeRemoved {
			parts.Nodes = append(parts.Nodes, router.Node{ID: known.ID, GRPC: known.GRPC})
		}
	}
	for _, p := range s.Partitions {
		id := p.ID.String()
		leader := leaders[id]
		if _, ok := s.Node(leader); !ok {
			leader = ""
		}
		parts.Partitions = append(parts.Partitions, router.Partition{ID: id, Leader: leader, Replicas: p.Replicas})
		for _, r := range p.Ranges {
			parts.Ranges = append(parts.Ranges, router.Range{
				First: uint16(r.First), Last: uint16(r.Last), Epoch: uint64(r.Epoch), Partition: id,
			})
		}
	}
	m, err := router.NewMap(parts)
	if err != nil {
		n.logger.Error("the cluster's state has no usable map", "error", err)
		return
	}
	n.routes.Update(m)
}

// routingMap is the map as gateways are told it.
func routingMap(s *state.State, leaders map[string]string) *quoratev1.RoutingMap {
	out := &quoratev1.RoutingMap{Version: s.MapVersion, Seed: s.Seed[:]}
	for _, known := range s.Nodes {
		if known.State != state.NodeRemoved {
			out.Nodes = append(out.Nodes, &quoratev1.RoutingNode{Id: known.ID, Grpc: known.GRPC, Zone: known.Zone})
		}
	}
	for _, p := range s.Partitions {
		id := p.ID.String()
		out.Partitions = append(out.Partitions, &quoratev1.RoutingPartition{
			Id: id, Leader: leaders[id], Replicas: p.Replicas,
		})
		for _, r := range p.Ranges {
			out.Ranges = append(out.Ranges, &quoratev1.RoutingRange{Partition: id, Slots: &quoratev1.SlotRange{
				FirstSlot: uint32(r.First), LastSlot: uint32(r.Last), Epoch: uint64(r.Epoch),
			}})
		}
	}
	slices.SortFunc(out.Ranges, func(a, b *quoratev1.RoutingRange) int {
		return cmp.Compare(a.GetSlots().GetFirstSlot(), b.GetSlots().GetFirstSlot())
	})
	return out
}

// settingsOf is what a policy says to gateways.
func settingsOf(p *policy.Policy, rev *state.Revision) *quoratev1.PolicySettings {
	out := &quoratev1.PolicySettings{Revision: uint64(rev.Number), Version: rev.Label}
	for _, name := range append([]string{policy.DefaultClass}, p.ClassNames()...) {
		_, class := p.ClassOf(name)
		c := &quoratev1.ClassSettings{
			Name: name, Timeout: durationpb.New(time.Duration(class.TimeoutNanos)),
			ReplayHorizon: durationpb.New(time.Duration(class.ReplayHorizonNanos)), Disabled: class.Disabled,
		}
		switch class.OnUnavailable {
		case policy.FailDeny:
			c.OnUnavailable = quoratev1.FailureMode_FAILURE_MODE_DENY
		case policy.FailAllow:
			c.OnUnavailable = quoratev1.FailureMode_FAILURE_MODE_ALLOW
		case policy.FailLocal:
			c.OnUnavailable = quoratev1.FailureMode_FAILURE_MODE_LOCAL
			c.LocalLimit = class.LocalLimit.Max
			c.LocalWindow = durationpb.New(time.Duration(class.LocalLimit.WindowNanos))
		}
		out.Classes = append(out.Classes, c)
	}
	return out
}
