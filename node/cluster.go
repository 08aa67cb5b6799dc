package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/anypb"

	"github.com/quorate/quorate/control"
	"github.com/quorate/quorate/control/state"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/internal/identity"
	"github.com/quorate/quorate/node/admin"
	"github.com/quorate/quorate/partition/group"
	quoratev1 "github.com/quorate/quorate/proto/quorate/v1"
	"github.com/quorate/quorate/quotaerr"
	"github.com/quorate/quorate/rpc"
)

// cluster is what operators' calls need of the node and those around it.
type cluster Node

var _ admin.Cluster = (*cluster)(nil)

// Self is this node's id.
func (c *cluster) Self() string { return c.cfg.ID }

// Init makes the cluster on this node.
func (c *cluster) Init(ctx context.Context, actor string, partitions int) (nodes, parts []string, err error) {
	return (*Node)(c).makeCluster(ctx, partitions, actor)
}

// Control is this node's replica of the control group.
func (c *cluster) Control() (*control.Control, error) {
	if open := (*Node)(c).control(); open != nil && open.State().Born {
		return open, nil
	}
	return nil, (*Node)(c).errNotMade()
}

// anybody are the commands that any node may propose: what they say is theirs to say, and they change nothing else.
var anybody = []state.Kind{state.KindNote, state.KindAttempt, state.KindConfirm}

// proposeTimeout bounds a command on its way to the node that leads the control group.
const proposeTimeout = 2 * time.Second

// Propose has a command applied by the node that leads the control group.
func (c *cluster) Propose(ctx context.Context, cmd *state.Command) (state.Result, error) {
	n := (*Node)(c)
	if !slices.Contains(anybody, cmd.Kind) {
		return state.Result{}, quotaerr.New(quotaerr.Internal, "a command of kind %d is the leader's to propose", cmd.Kind)
	}
	open, err := c.Control()
	if err != nil {
		return state.Result{}, err
	}
	r, err := open.Propose(ctx, cmd) // fills in what makes it the same command when it is sent again
	var e *quotaerr.Error
	if !errors.As(err, &e) || e.Reason != quotaerr.NotLeader || e.Leader == n.cfg.ID {
		return r, err
	}
	a, err := n.askNode(ctx, e.Leader, question{Kind: askPropose, Command: state.AppendCommand(nil, cmd)})
	switch {
	case err != nil:
		return r, quotaerr.Wrap(quotaerr.OutcomeUnknown, err,
			"the control group has not answered: propose the same command again")
	case a.Proposed == nil:
		return r, quotaerr.New(quotaerr.Internal, "node %s does not say what the command came to", e.Leader)
	case a.Proposed.Failed != "":
		failed := quotaerr.New(quotaerr.Reason(a.Proposed.Reason), "%s", a.Proposed.Failed)
		failed.Leader = a.Proposed.Leader
		return r, failed
	}
	return state.Result{Index: a.Proposed.Index, Version: a.Proposed.Version, Repeated: a.Proposed.Repeated}, nil
}

// replyPropose proposes what another node may say.
func (n *Node) replyPropose(q *question) *proposedAnswer {
	ctx, cancel := context.WithTimeout(n.life, proposeTimeout)
	defer cancel()
	cmd, err := state.DecodeCommand(q.Command)
	if err == nil && !slices.Contains(anybody, cmd.Kind) {
		err = quotaerr.New(quotaerr.Internal, "a command of kind %d is the leader's to propose", cmd.Kind)
	}
	c := n.control()
	if err == nil && c == nil {
		err = n.errNotMade()
	}
	if err == nil {
		known, ok := c.State().Node(q.Self.ID)
		if !ok || known.State == state.NodeRemoved || known.Instance != q.Self.Instance {
			err = quotaerr.New(quotaerr.PermissionDenied, "node %.63q is none of the cluster's, or has another data directory",
				q.Self.ID)
		}
	}
	var r state.Result
	if err == nil {
		r, err = c.Propose(ctx, cmd)
	}
	if err != nil {
		failed := quotaerr.As(err)
		return &proposedAnswer{Reason: string(failed.Reason), Failed: failed.Message, Leader: failed.Leader}
	}
	return &proposedAnswer{Index: r.Index, Version: r.Version, Repeated: r.Repeated}
}

// Held are the groups that have a replica on a node, as their leaders say now.
func (c *cluster) Held(ctx context.Context, node string) (groups []string, err error) {
	n := (*Node)(c)
	open, err := c.Control()
	if err != nil {
		return nil, err
	}
	ids := []string{controlID}
	for _, p := range open.State().Partitions {
		ids = append(ids, p.ID.String())
	}
	for _, id := range ids {
		g, err := n.askLeader(ctx, id)
		if err != nil {
			return nil, quotaerr.Wrap(quotaerr.NoQuorum, err, "the leader of %s cannot be asked: try again", id)
		}
		if _, listed := g.lists(node); listed {
			groups = append(groups, id)
		}
	}
	return groups, nil
}

// askLeader asks the leader of a group how that stands.
func (n *Node) askLeader(ctx context.Context, id string) (*groupAnswer, error) {
	leader, ok := (*cluster)(n).Leader(id)
	switch {
	case !ok:
		return nil, errors.New("it is not known")
	case leader == n.cfg.ID:
		if r := n.hosted.of(id); r != nil && r.leads() {
			return r.standing(n.member()), nil
		}
		return nil, errors.New("it is about to lead")
	}
	a, err := n.askNode(ctx, leader, question{Kind: askWho})
	if err != nil {
		return nil, err
	}
	if g := a.Groups[id]; g != nil && g.Leads {
		return g, nil
	}
	return nil, fmt.Errorf("node %s leads it no more", leader)
}

// Waiting are the nodes that wait to be added, as far as they answer.
func (c *cluster) Waiting() []admin.Waiting {
	n := (*Node)(c)
	var mu sync.Mutex // guards out
	var out []admin.Waiting
	var wg sync.WaitGroup
	for _, who := range n.announced.recent() {
		if s := n.judgeStanding(who); s == nil || !s.Waits {
			continue
		}
		wg.Go(func() {
			if n.isThere(n.life, who) {
				mu.Lock()
				defer mu.Unlock()
				out = append(out, admin.Waiting{
					ID: who.ID, Instance: who.Instance, GRPC: who.GRPC, HTTP: who.HTTP, Raft: who.Raft, Zone: who.Zone,
				})
			}
		})
	}
	wg.Wait()
	slices.SortFunc(out, func(a, b admin.Waiting) int {
		return cmp.Or(strings.Compare(a.ID, b.ID), strings.Compare(a.Instance, b.Instance))
	})
	return out
}

// Down is for how long a node has not answered.
func (c *cluster) Down(node string) time.Duration { return (*Node)(c).down(node) }

// ControlRole is what a node does in the control group.
func (c *cluster) ControlRole(node string) string {
	open := (*Node)(c).control()
	if open == nil {
		return ""
	}
	m, ok := memberOf(open.Group().Members(), node)
	switch {
	case !ok:
		return ""
	case m.Learner:
		return "learner"
	}
	return "voter"
}

// Leader is who leads a group, as far as this node knows.
func (c *cluster) Leader(id string) (node string, ok bool) {
	n := (*Node)(c)
	if r := n.hosted.of(id); r != nil && r.leader() != "" {
		return r.leader(), true
	}
	if g := n.neighbours.leading(id, time.Now()); g != nil {
		return g.leader, true
	}
	return "", false
}

// Transfer hands leadership over, if this node leads.
func (c *cluster) Transfer(_ context.Context, id, node string) error {
	n := (*Node)(c)
	r := n.hosted.of(id)
	var g *group.RaftGroup
	if r != nil && r.leads() {
		g = r.group.Load()
	}
	if g == nil {
		leader, _ := c.Leader(id)
		if leader == "" || leader == n.cfg.ID {
			return quotaerr.New(quotaerr.NoQuorum, "no leader of %.63q is known: see `quorate partition list`", id)
		}
		e := quotaerr.New(quotaerr.NotLeader, "node %s leads %s", leader, id)
		e.Leader = leader
		return e
	}
	if node != "" {
		m, ok := memberOf(g.Members(), node)
		switch {
		case !ok:
			return quotaerr.New(quotaerr.InvalidArgument,
				"node %.63q has no replica of %s: see `quorate partition list`", node, id)
		case m.Learner:
			return quotaerr.New(quotaerr.InvalidArgument, "node %s is a learner in %s: wait until it has its vote", node, id)
		}
	}
	switch err := g.Transfer(node); {
	case err == nil:
		return nil
	case errors.Is(err, group.ErrUnknown):
		return quotaerr.Wrap(quotaerr.OutcomeUnknown, err,
			"the leadership of %s may move yet: see `quorate partition list`", id)
	case errors.Is(err, group.ErrNotLeader):
		return quotaerr.Wrap(quotaerr.NoQuorum, err, "node %s leads %s no more", n.cfg.ID, id)
	default: // the node that was named cannot lead
		return quotaerr.Wrap(quotaerr.InvalidArgument, err, "%v", err)
	}
}

// transferAt hands the leadership of a partition over, wherever it is led, in the cluster's own name.
func (n *Node) transferAt(ctx context.Context, id, to string) error {
	ctx, cancel := context.WithTimeout(ctx, confirmTimeout)
	defer cancel()
	req := &quoratev1.TransferLeaderRequest{Partition: id, Node: to}
	_, err := n.admin.TransferLeader(ctx, rpc.Actor{Name: admin.ItselfName, Role: identity.Admin}, req)
	var e *quotaerr.Error
	if !errors.As(err, &e) || e.Reason != quotaerr.NotLeader || e.Leader == "" {
		return err
	}
	peer, err := n.server.Peer(e.Leader)
	if err != nil {
		return err
	}
	request, err := anypb.New(req)
	if err != nil {
		return err
	}
	_, err = peer.ForwardAdmin(ctx, &quoratev1.ForwardAdminRequest{
		ClusterId: n.cfg.ClusterID, FromNode: n.cfg.ID, Actor: admin.ItselfName, Role: identity.Admin.String(),
		Method: quoratev1.Admin_TransferLeader_FullMethodName, Request: request,
	})
	return err
}

// SpreadBody brings a body to the other nodes.
func (c *cluster) SpreadBody(ctx context.Context, d state.Digest, epoch uint64) (held, of int, err error) {
	return (*Node)(c).spreadBody(ctx, d, epoch)
}

// FetchBody makes a body local.
func (c *cluster) FetchBody(ctx context.Context, d state.Digest) error {
	return (*Node)(c).fetchBody(ctx, d)
}

// PartitionPolicy is a partition's policy as its leader has it, wherever that is.
func (c *cluster) PartitionPolicy(ctx context.Context, id string) (*quoratev1.PartitionPolicyResponse, error) {
	n := (*Node)(c)
	leader, ok := c.Leader(id)
	switch {
	case !ok:
		return nil, quotaerr.New(quotaerr.NoQuorum, "no leader of partition %s is known", id)
	case leader == n.cfg.ID:
		return n.partitionPolicyHere(id)
	}
	peer, err := n.server.Peer(leader)
	if err != nil {
		return nil, err
	}
	return peer.PartitionPolicy(ctx, &quoratev1.PartitionPolicyRequest{
		ClusterId: n.cfg.ClusterID, FromNode: n.cfg.ID, Partition: id,
	})
}

// Forgive drops usage, if this node leads the principal's partition.
func (c *cluster) Forgive(ctx context.Context, f fsm.Forgive) (fsm.Forgiven, error) {
	n := (*Node)(c)
	route, p, err := n.route(f.Principal)
	switch {
	case err != nil:
		return fsm.Forgiven{}, err
	case p == nil:
		return fsm.Forgiven{}, n.elsewhere(route)
	}
	if f.RouteEpoch == 0 {
		f.RouteEpoch = fsm.Epoch(route.Epoch)
	}
	return p.Forgive(ctx, f)
}
