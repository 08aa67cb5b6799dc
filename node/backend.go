package node

import (
	"context"
	"time"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/partition"
	"github.com/quorate/quorate/rpc"
)

// backend is what the doors of a node see of it.
type backend Node

var _ rpc.Backend = (*backend)(nil)

func (b *backend) Check(ctx context.Context, c fsm.Check) (rpc.Answer, error) {
	a, err := b.partition.Check(ctx, c)
	return rpc.Answer(a), err
}

func (b *backend) Peek(ctx context.Context, p fsm.Peek) (rpc.UsageAnswer, error) {
	a, err := b.partition.Peek(ctx, p)
	return rpc.UsageAnswer(a), err
}

func (b *backend) Leader(principal string) rpc.Leadership {
	leader, leading, epoch, changed := b.partition.Role(principal)
	return rpc.Leadership{Node: leader, Local: leading, Epoch: epoch, Changed: changed}
}

func (b *backend) ReplayHorizon(apiClass string) time.Duration { return b.partition.Horizon(apiClass) }

func (b *backend) Members() []rpc.Member {
	out := make([]rpc.Member, len(b.cfg.Nodes))
	for i, n := range b.cfg.Nodes {
		out[i] = rpc.Member{ID: n.ID, GRPC: n.GRPC, HTTP: n.HTTP, Raft: n.Raft}
	}
	return out
}

func (b *backend) Replicas(context.Context) ([]rpc.Replica, error) {
	s := b.partition.Status()
	r := rpc.Replica{
		Partition: b.cfg.Partition.ID, Role: rpc.RoleFollower, Leader: s.Leader, Term: s.RaftTerm,
		AppliedIndex: s.AppliedIndex, Digest: s.Digest[:], Ranges: s.Owned,
		Revision: s.Revision, PolicyVersion: s.Version,
	}
	switch {
	case s.Leadership.Ready:
		r.Role = rpc.RoleLeader
	case s.Leader == "":
		r.Role = rpc.RoleCandidate
	}
	for _, m := range s.Members {
		r.Members = append(r.Members, m.ID)
		if m.ID == b.cfg.ID && m.Learner {
			r.Role = rpc.RoleLearner
		}
	}
	return []rpc.Replica{r}, nil
}

func (b *backend) ReportPace(_ context.Context, p rpc.Pace) error {
	b.logger.Warn("a follower saw partition time outrun its clock", "follower", p.From, "partition", p.Partition,
		"term", p.Term, "partition_time", time.Duration(p.PartitionNanos), "follower_time", time.Duration(p.LocalNanos))
	if p.Partition != b.cfg.Partition.ID {
		return nil
	}
	return b.partition.StepDown(p.Term)
}

// ready says what the node needs to be ready: a leader to pass checks on to, or to be it.
func (n *Node) ready() []rpc.Condition {
	c := rpc.Condition{Name: "partition " + n.cfg.Partition.ID}
	switch s := n.partition.Status(); {
	case s.Leader == "" && s.Leadership.Term == 0:
		c.Detail = "no leader is known"
	case !s.Born:
		c.Detail = "it has not been made yet"
	default:
		c.Ready, c.Detail = true, "led by "+s.Leader
	}
	return []rpc.Condition{c}
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
