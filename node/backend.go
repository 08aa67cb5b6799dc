package node

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/partition"
	"github.com/quorate/quorate/partition/group"
	"github.com/quorate/quorate/quotaerr"
	"github.com/quorate/quorate/rpc"
)

// backend is what the doors of a node see of it.
type backend Node

var _ rpc.Backend = (*backend)(nil)

// absent is why a node without a replica answers nothing.
func (b *backend) absent() error {
	return quotaerr.New(quotaerr.NoQuorum, "this node has no part in the cluster yet: %s", b.Waiting())
}

func (b *backend) Check(ctx context.Context, c fsm.Check) (rpc.Answer, error) {
	p := b.partition.Load()
	if p == nil {
		return rpc.Answer{}, b.absent()
	}
	a, err := p.Check(ctx, c)
	return rpc.Answer(a), err
}

func (b *backend) Peek(ctx context.Context, peek fsm.Peek) (rpc.UsageAnswer, error) {
	p := b.partition.Load()
	if p == nil {
		return rpc.UsageAnswer{}, b.absent()
	}
	a, err := p.Peek(ctx, peek)
	return rpc.UsageAnswer(a), err
}

func (b *backend) Leader(principal string) rpc.Leadership {
	p := b.partition.Load()
	if p == nil {
		return rpc.Leadership{}
	}
	leader, leading, epoch, changed := p.Role(principal)
	if leader == "" {
		// A replica that has stopped hears of no leader; the node still passes checks on.
		leader = b.neighbours.leader(time.Now())
	}
	return rpc.Leadership{Node: leader, Local: leading, Epoch: epoch, Changed: changed}
}

func (b *backend) ReplayHorizon(apiClass string) time.Duration {
	if p := b.partition.Load(); p != nil {
		return p.Horizon(apiClass)
	}
	return 0
}

func (b *backend) Members() []rpc.Member {
	out := make([]rpc.Member, len(b.cfg.Nodes))
	for i, n := range b.cfg.Nodes {
		out[i] = rpc.Member{ID: n.ID, GRPC: n.GRPC, HTTP: n.HTTP, Raft: n.Raft}
	}
	return out
}

func (b *backend) Waiting() string {
	if why := b.waiting.Load(); why != nil {
		return *why
	}
	return ""
}

func (b *backend) Replicas(context.Context) ([]rpc.Replica, error) {
	p := b.partition.Load()
	if p == nil {
		return nil, nil
	}
	s := p.Status()
	r := rpc.Replica{
		Partition: b.cfg.Partition.ID, Role: rpc.RoleFollower, Leader: s.Leader, Term: s.RaftTerm,
		AppliedIndex: s.AppliedIndex, Digest: s.Digest[:], Ranges: s.Owned,
		Revision: s.Revision, PolicyVersion: s.Version,
		Stopped: s.Diverged, FeatureLevel: uint32(s.Level), DiskLow: s.DiskLow, Instance: b.claim.Instance(),
	}
	self := false
	for _, m := range s.Members {
		r.Members = append(r.Members, rpc.ReplicaMember{Node: m.ID, Instance: m.Instance, Learner: m.Learner})
		self = self || m.ID == b.cfg.ID && !m.Learner
	}
	switch {
	case s.Diverged != "":
		r.Role = rpc.RoleStopped
	case !self:
		r.Role = rpc.RoleLearner // or is to become one
	case s.Leadership.Ready:
		r.Role = rpc.RoleLeader
	case s.Leader == "":
		r.Role = rpc.RoleCandidate
	}
	return []rpc.Replica{r}, nil
}

func (b *backend) ReportPace(_ context.Context, r rpc.Pace) error {
	b.logger.Warn("a follower saw partition time outrun its clock", "follower", r.From, "partition", r.Partition,
		"term", r.Term, "partition_time", time.Duration(r.PartitionNanos), "follower_time", time.Duration(r.LocalNanos))
	p := b.partition.Load()
	if p == nil || r.Partition != b.cfg.Partition.ID {
		return nil
	}
	return p.StepDown(r.Term)
}

// ready says what the node needs to be ready: a leader to pass checks on to, or to be it, and room on its
// disk.
func (n *Node) ready() []rpc.Condition {
	disk := rpc.Condition{Name: "disk", Ready: !n.diskLow.Load(), Detail: "has room"}
	if !disk.Ready {
		disk.Detail = fmt.Sprintf("less than %d MiB are free in %s: make room", *n.cfg.Storage.MinFreeMiB, n.cfg.DataDir)
	}
	return []rpc.Condition{n.partitionReady(), disk}
}

func (n *Node) partitionReady() rpc.Condition {
	c := rpc.Condition{Name: "partition " + n.cfg.Partition.ID}
	p := n.partition.Load()
	if p == nil {
		c.Detail = (*backend)(n).Waiting()
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

// ahead queues a report of a leader whose time runs fast. One at a time is enough.
func (n *Node) ahead(a partition.Ahead) {
	select {
	case n.reports <- a:
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
			n.logger.Warn("partition time outruns this machine's clock: telling the leader", "leader", a.Leader,
				"term", a.Term, "partition_time", time.Duration(a.PartitionNanos), "own_time", time.Duration(a.LocalNanos))
			n.sendReport(ctx, a)
		}
	}
}

func (n *Node) sendReport(ctx context.Context, a partition.Ahead) {
	ctx, cancel := context.WithTimeout(ctx, reportTimeout)
	defer cancel()
	err := n.server.ReportPace(ctx, a.Leader, rpc.Pace{
		From: n.cfg.ID, Partition: n.cfg.Partition.ID, Term: a.Term,
		PartitionNanos: a.PartitionNanos, LocalNanos: a.LocalNanos,
	})
	if err != nil {
		n.logger.Warn("the leader did not take the report", "leader", a.Leader, "error", err)
	}
}
