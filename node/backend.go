package node

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/quorate/quorate/control/state"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/partition"
	"github.com/quorate/quorate/partition/group"
	"github.com/quorate/quorate/quotaerr"
	"github.com/quorate/quorate/router"
	"github.com/quorate/quorate/rpc"
)

// backend is what the doors of a node see of it.
type backend Node

var _ rpc.Backend = (*backend)(nil)

// Admin answers operators.
func (b *backend) Admin() rpc.Admin { return b.admin }

// Interior answers other nodes.
func (b *backend) Interior() rpc.Interior { return (*interior)(b) }

// route is where a principal's checks go, and this node's replica of that partition, nil when it has none.
func (n *Node) route(principal string) (router.Route, *partition.Partition, error) {
	route, ok := n.routes.Lookup(principal)
	switch {
	case !ok:
		return route, nil, n.errNotMade()
	case route.Partition == "":
		return route, nil, quotaerr.New(quotaerr.NoQuorum, "no partition owns this principal's slot yet")
	}
	if r := n.hosted.of(route.Partition); r != nil {
		return route, r.partition.Load(), nil
	}
	return route, nil, nil
}

// elsewhere says that this node has no replica of the partition, and who may lead it.
func (n *Node) elsewhere(route router.Route) error {
	e := quotaerr.New(quotaerr.NotLeader, "this node has no replica of partition %s", route.Partition)
	e.Leader = n.leaderElsewhere(route)
	return e
}

// leaderElsewhere is who leads a partition of which this node has no replica: who says so itself, else whom an answer
// has named, or the map.
func (n *Node) leaderElsewhere(route router.Route) string {
	if g := n.neighbours.leading(route.Partition, time.Now()); g != nil {
		return g.leader
	}
	return route.Node.ID
}

func (b *backend) Check(ctx context.Context, c fsm.Check) (rpc.Answer, error) {
	n := (*Node)(b)
	route, p, err := n.route(c.Principal)
	switch {
	case err != nil:
		return rpc.Answer{}, err
	case p == nil:
		return rpc.Answer{}, n.elsewhere(route)
	}
	a, err := p.Check(ctx, c)
	return rpc.Answer(a), err
}

func (b *backend) Peek(ctx context.Context, peek fsm.Peek) (rpc.UsageAnswer, error) {
	n := (*Node)(b)
	route, p, err := n.route(peek.Principal)
	switch {
	case err != nil:
		return rpc.UsageAnswer{}, err
	case p == nil:
		return rpc.UsageAnswer{}, n.elsewhere(route)
	}
	a, err := p.Peek(ctx, peek)
	return rpc.UsageAnswer(a), err
}

// Leader tells who leads the partition of a principal: by this node's own replica, else by what was learned.
func (b *backend) Leader(principal string) rpc.Leadership {
	n := (*Node)(b)
	route, p, err := n.route(principal)
	if err != nil {
		return rpc.Leadership{}
	}
	if p == nil {
		return rpc.Leadership{Node: n.leaderElsewhere(route), Epoch: fsm.Epoch(route.Epoch)}
	}
	leader, leading, epoch, changed := p.Role(principal)
	if leader == "" || epoch == 0 {
		// A replica that has stopped, or is only a learner yet, hears of no leader; the node still passes checks on.
		if g := n.neighbours.leading(route.Partition, time.Now()); g != nil && !leading {
			leader = g.leader
		}
		epoch = max(epoch, fsm.Epoch(route.Epoch))
	}
	return rpc.Leadership{Node: leader, Local: leading, Epoch: epoch, Changed: changed}
}

// Learn takes what another node's answer says about where to look.
func (b *backend) Learn(principal, asked string, e *quotaerr.Error) {
	n := (*Node)(b)
	if route, ok := n.routes.Lookup(principal); ok {
		n.routes.Learn(route, asked, router.Failure{
			Reason: string(e.Reason), Epoch: e.Epoch, Leader: e.Leader, LeaderAddr: e.LeaderAddr,
		})
	}
}

// ControlLeader is who leads the control group, as this node knows it.
func (b *backend) ControlLeader() string {
	if r := b.hosted.of(controlID); r != nil {
		return r.leader()
	}
	return ""
}

func (b *backend) ReplayHorizon(apiClass string) time.Duration {
	for _, p := range b.hosted.partitions() {
		if horizon := p.Horizon(apiClass); horizon != 0 {
			return horizon
		}
	}
	if v := b.view.Load(); v != nil && v.inForce != nil {
		_, class := v.inForce.ClassOf(apiClass)
		return time.Duration(class.ReplayHorizonNanos)
	}
	return 0
}

// Members lists the cluster's nodes; this one alone before there is a cluster.
func (b *backend) Members() (out []rpc.Member) {
	n := (*Node)(b)
	if c := n.control(); c != nil {
		for _, known := range c.State().Nodes {
			if known.State == state.NodeRemoved {
				continue
			}
			out = append(out, rpc.Member{
				ID: known.ID, GRPC: known.GRPC, HTTP: known.HTTP, Raft: known.Raft, Zone: known.Zone,
				State: known.State.String(),
			})
		}
	}
	if !slices.ContainsFunc(out, func(m rpc.Member) bool { return m.ID == n.cfg.ID }) {
		a := n.cfg.Advertise
		out = append(out, rpc.Member{ID: n.cfg.ID, GRPC: a.GRPC, HTTP: a.HTTP, Raft: a.Raft, Zone: n.cfg.Zone})
	}
	return out
}

// KnowsNode reports that a node may speak. While this node cannot know that its list of nodes is the present one, a
// node that is not on it may have been added meanwhile.
func (b *backend) KnowsNode(id string) bool {
	c := (*Node)(b).control()
	if c == nil || !c.State().Born {
		return true
	}
	s := c.State()
	known, ok := s.Node(id)
	if !ok {
		return !b.lease.covers(b.source.Read(), s.Version)
	}
	return known.State != state.NodeRemoved
}

func (b *backend) Waiting() string {
	if why := b.waiting.Load(); why != nil {
		return *why
	}
	return ""
}

// Replicas are this node's replicas, that of the control group among them.
func (b *backend) Replicas(context.Context) (out []rpc.Replica, err error) {
	n := (*Node)(b)
	for _, r := range n.hosted.all() {
		if p := r.partition.Load(); p != nil {
			out = append(out, n.partitionReplica(r, p))
		}
		if c, g := r.control.Load(), r.group.Load(); c != nil && g != nil {
			s := c.State()
			digest := s.Digest()
			own := rpc.Replica{
				Partition: r.id, Leader: r.leader(), Term: g.Status().Term, AppliedIndex: g.AppliedIndex(), Digest: digest[:],
				FeatureLevel: uint32(s.Level), DiskLow: n.diskLow.Load(), Instance: n.claim.Instance(), Stopped: r.stopped(),
			}
			if rev := s.InForce(); rev != nil {
				own.Revision, own.PolicyVersion = rev.Number, rev.Label
			}
			n.complete(&own, g.Members(), r.leads())
			out = append(out, own)
		}
	}
	return out, nil
}

func (n *Node) partitionReplica(r *replica, p *partition.Partition) rpc.Replica {
	s := p.Status()
	own := rpc.Replica{
		Partition: r.id, Leader: s.Leader, Term: s.RaftTerm,
		AppliedIndex: s.AppliedIndex, Digest: s.Digest[:], Ranges: s.Owned,
		Revision: s.Revision, PolicyVersion: s.Version,
		Stopped: s.Diverged, FeatureLevel: uint32(s.Level), DiskLow: s.DiskLow, Instance: n.claim.Instance(),
	}
	n.complete(&own, s.Members, s.Leadership.Ready)
	return own
}

// complete fills in members and role.
func (n *Node) complete(r *rpc.Replica, members []group.Member, leads bool) {
	self := false
	for _, m := range members {
		r.Members = append(r.Members, rpc.ReplicaMember{Node: m.ID, Instance: m.Instance, Learner: m.Learner})
		self = self || m.ID == n.cfg.ID && !m.Learner
	}
	r.Role = rpc.RoleFollower
	switch {
	case r.Stopped != "":
		r.Role = rpc.RoleStopped
	case !self:
		r.Role = rpc.RoleLearner // or is to become one
	case leads:
		r.Role = rpc.RoleLeader
	case r.Leader == "":
		r.Role = rpc.RoleCandidate
	}
}

func (b *backend) ReportPace(_ context.Context, r rpc.Pace) error {
	b.logger.Warn("a follower saw partition time outrun its clock", "follower", r.From, "partition", r.Partition,
		"term", r.Term, "partition_time", time.Duration(r.PartitionNanos), "follower_time", time.Duration(r.LocalNanos))
	if own := b.hosted.of(r.Partition); own != nil {
		if p := own.partition.Load(); p != nil {
			return p.StepDown(r.Term)
		}
	}
	return nil
}

// ready says what the node needs to be ready: its part in the cluster, each of its replicas with a leader to pass
// checks on to, or being it, and room on its disk.
func (n *Node) ready() []rpc.Condition {
	disk := rpc.Condition{Name: "disk", Ready: !n.diskLow.Load(), Detail: "has room"}
	if !disk.Ready {
		disk.Detail = fmt.Sprintf("less than %d MiB are free in %s: make room", *n.cfg.Storage.MinFreeMiB, n.cfg.DataDir)
	}
	out := []rpc.Condition{n.controlReady(), disk}
	c := n.control()
	if c == nil {
		return out
	}
	for _, p := range c.State().Partitions {
		if len(p.Ranges) > 0 && slices.Contains(p.Replicas, n.cfg.ID) { // one without slots has nothing to answer yet
			out = append(out, n.partitionReady(p.ID.String()))
		}
	}
	return out
}

func (n *Node) controlReady() rpc.Condition {
	out := rpc.Condition{Name: "control group"}
	c := n.control()
	switch {
	case c == nil:
		out.Detail = (*backend)(n).Waiting()
	case !n.isSelf(c.State()):
		out.Detail = "this node is being taken in"
	case n.hosted.of(controlID).stopped() != "":
		out.Detail = "the replica has stopped for good, replace it: " + n.hosted.of(controlID).stopped()
	case n.hosted.of(controlID).leader() == "":
		out.Detail = "no leader is known"
	case c.State().InForce() == nil:
		out.Detail = "there is no policy yet: run policy apply"
	case !allOwned(c.State()):
		out.Detail = "not all partitions have been made: run " + beginning(c.State()) + " again"
	default:
		out.Ready, out.Detail = true, "led by "+n.hosted.of(controlID).leader()
	}
	return out
}

func (n *Node) partitionReady(id string) rpc.Condition {
	c := rpc.Condition{Name: "partition " + id}
	var p *partition.Partition
	if r := n.hosted.of(id); r != nil {
		p = r.partition.Load()
	}
	if p == nil {
		c.Detail = "the replica is being opened"
		return c
	}
	s := p.Status()
	self := slices.IndexFunc(s.Members, func(m group.Member) bool { return m.Instance == n.claim.Instance() })
	switch {
	case s.Diverged != "":
		c.Detail = "the replica has stopped for good, replace it: " + s.Diverged
	case self < 0:
		c.Detail = "waiting for a leader to add this replica"
	case s.Members[self].Learner:
		// Whoever goes from node to node by this must not take away a voter before this is one.
		c.Detail = "a learner: it gets its vote when it has caught up"
	case s.Leader == "" && s.Leadership.Term == 0:
		c.Detail = "no leader is known"
	case !s.Born:
		c.Detail = "it has not been made yet"
	default:
		c.Ready, c.Detail = true, "led by "+s.Leader
	}
	return c
}

// paceReport is what a follower saw of a leader whose time runs fast.
type paceReport struct {
	partition string
	partition.Ahead
}

// ahead queues a report. One at a time is enough.
func (n *Node) ahead(id string, a partition.Ahead) {
	select {
	case n.reports <- paceReport{id, a}:
	default:
	}
}

// reportTimeout bounds one report to a leader.
const reportTimeout = 2 * time.Second

// sendReports tells leaders whose time runs fast.
func (n *Node) sendReports(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case a := <-n.reports:
			n.logger.Warn("partition time outruns this machine's clock: telling the leader", "partition", a.partition,
				"leader", a.Leader, "term", a.Term, "partition_time", time.Duration(a.PartitionNanos),
				"own_time", time.Duration(a.LocalNanos))
			n.sendReport(ctx, a)
		}
	}
}

func (n *Node) sendReport(ctx context.Context, a paceReport) {
	ctx, cancel := context.WithTimeout(ctx, reportTimeout)
	defer cancel()
	err := n.server.ReportPace(ctx, a.Leader, rpc.Pace{
		From: n.cfg.ID, Partition: a.partition, Term: a.Term,
		PartitionNanos: a.PartitionNanos, LocalNanos: a.LocalNanos,
	})
	if err != nil {
		n.logger.Warn("the leader did not take the report", "leader", a.Leader, "error", err)
	}
}
