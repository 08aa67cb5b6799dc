package admin

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/quorate/quorate/control"
	"github.com/quorate/quorate/control/state"
	quoratev1 "github.com/quorate/quorate/proto/quorate/v1"
	"github.com/quorate/quorate/quotaerr"
	"github.com/quorate/quorate/rpc"
)

// ListNodes tells which nodes there are, and which wait.
func (a *Admin) ListNodes(
	ctx context.Context, _ rpc.Actor, _ *quoratev1.ListNodesRequest,
) (*quoratev1.ListNodesResponse, error) {
	_, s, _, err := a.look(ctx)
	if err != nil {
		return nil, err
	}
	out := &quoratev1.ListNodesResponse{}
	for _, n := range s.Nodes {
		info := &quoratev1.NodeInfo{
			Id: n.ID, Instance: n.Instance, Grpc: n.GRPC, Http: n.HTTP, Raft: n.Raft, Zone: n.Zone,
			State: n.State.String(), Control: a.cluster.ControlRole(n.ID),
		}
		for _, p := range s.Partitions {
			if slices.Contains(p.Replicas, n.ID) {
				info.Partitions = append(info.Partitions, p.ID.String())
			}
		}
		if down := a.cluster.Down(n.ID); down > 0 && n.State != state.NodeRemoved {
			info.Down = durationpb.New(down)
		}
		out.Nodes = append(out.Nodes, info)
	}
	for _, w := range a.cluster.Waiting() {
		out.Nodes = append(out.Nodes, &quoratev1.NodeInfo{
			Id: w.ID, Instance: w.Instance, Grpc: w.GRPC, Http: w.HTTP, Raft: w.Raft, Zone: w.Zone, State: "waiting",
		})
	}
	return out, nil
}

// AddNode takes in a node that waits.
func (a *Admin) AddNode(
	ctx context.Context, who rpc.Actor, req *quoratev1.AddNodeRequest,
) (*quoratev1.AddNodeResponse, error) {
	c, s, err := a.leading(ctx)
	if err != nil {
		return nil, err
	}
	w, err := a.waiting(s, req.GetNode())
	if err != nil {
		return nil, a.refuse(ctx, who, "node.put", "node "+req.GetNode(), err)
	}
	_, err = a.propose(ctx, who, &state.Command{
		Kind: state.KindPutNode, Comment: req.GetComment(),
		Difference: fmt.Sprintf("+ node %s: grpc %s, http %s, raft %s, zone %q, data directory %s",
			w.ID, w.GRPC, w.HTTP, w.Raft, w.Zone, w.Instance),
		Node: &state.PutNode{ID: w.ID, Instance: w.Instance, GRPC: w.GRPC, HTTP: w.HTTP, Raft: w.Raft, Zone: w.Zone},
	}, c.Propose)
	if err != nil {
		return nil, err
	}
	return &quoratev1.AddNodeResponse{}, nil
}

// waiting is the node of this id that announces itself; an error where there is none, or more than one.
func (a *Admin) waiting(s *state.State, id string) (w Waiting, err error) {
	found := 0
	for _, each := range a.cluster.Waiting() {
		if each.ID == id {
			w, found = each, found+1
		}
	}
	known, ok := s.Node(id)
	switch {
	case found > 1:
		return w, quotaerr.New(quotaerr.InvalidArgument, "%d nodes call themselves %s: stop all but one", found, id)
	case found == 1:
		return w, nil
	case ok && known.State != state.NodeRemoved && known.Instance != "":
		return w, quotaerr.New(quotaerr.InvalidArgument, "node %s is in the cluster already: see `quorate node list`", id)
	default:
		return w, quotaerr.New(quotaerr.InvalidArgument,
			"no node %.63q waits: start it with an address of this cluster in join, then see `quorate node list`", id)
	}
}

// DrainNode has a node's replicas moved away, or takes that back.
func (a *Admin) DrainNode(
	ctx context.Context, who rpc.Actor, req *quoratev1.DrainNodeRequest,
) (*quoratev1.DrainNodeResponse, error) {
	to := state.NodeDraining
	if req.GetUndo() {
		to = state.NodeActive
	}
	err := a.setNodeState(ctx, who, req.GetNode(), to, req.GetComment(), func(s *state.State, n *state.Node) error {
		if to == state.NodeDraining {
			return mayDrain(s, n)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return &quoratev1.DrainNodeResponse{}, nil
}

// mayDrain refuses to drain a node whose replicas no other active node can take.
func mayDrain(s *state.State, n *state.Node) error {
	active := 0
	for _, other := range s.Nodes {
		if other.ID != n.ID && other.State == state.NodeActive {
			active++
		}
	}
	for _, p := range s.Partitions {
		if slices.Contains(p.Replicas, n.ID) && len(p.Replicas) > active {
			return quotaerr.New(quotaerr.InvalidArgument,
				"partition %s has %d replicas, and without node %s %d active nodes are left to hold them: add another node first",
				p.ID, len(p.Replicas), n.ID, active)
		}
	}
	return nil
}

// RemoveNode removes a node that has no replica any more.
func (a *Admin) RemoveNode(
	ctx context.Context, who rpc.Actor, req *quoratev1.RemoveNodeRequest,
) (*quoratev1.RemoveNodeResponse, error) {
	err := a.setNodeState(ctx, who, req.GetNode(), state.NodeRemoved, req.GetComment(),
		func(s *state.State, n *state.Node) error { return a.mayRemove(ctx, s, n) })
	if err != nil {
		return nil, err
	}
	return &quoratev1.RemoveNodeResponse{}, nil
}

// mayRemove refuses while the node has a replica, is to have one, or has a vote in the control group.
func (a *Admin) mayRemove(ctx context.Context, s *state.State, n *state.Node) error {
	var left []string
	for _, p := range s.Partitions {
		if slices.Contains(p.Replicas, n.ID) {
			left = append(left, p.ID.String())
		}
	}
	held, err := a.cluster.Held(ctx, n.ID)
	if err != nil {
		return err
	}
	for _, id := range held {
		if id != control.GroupID && !slices.Contains(left, id) {
			left = append(left, id)
		}
	}
	if a.cluster.ControlRole(n.ID) == "voter" {
		left = append(left, "the control group, with a vote")
	}
	if len(left) == 0 {
		return nil
	}
	slices.Sort(left)
	return quotaerr.New(quotaerr.InvalidArgument, "node %s still has replicas (%s): run `quorate node drain %s`, and wait",
		n.ID, strings.Join(left[:min(len(left), 10)], ", "), n.ID)
}

// setNodeState changes what a node is for, if may does not refuse.
func (a *Admin) setNodeState(
	ctx context.Context, who rpc.Actor, id string, to state.NodeState, comment string,
	may func(*state.State, *state.Node) error,
) error {
	c, s, err := a.leading(ctx)
	if err != nil {
		return err
	}
	n, ok := s.Node(id)
	if !ok {
		return a.refuse(ctx, who, "node.state", "node "+id, unknownNode(id))
	}
	if n.State == to {
		return nil
	}
	if err := may(s, n); err != nil {
		return a.refuse(ctx, who, "node.state", "node "+id, err)
	}
	_, err = a.propose(ctx, who, &state.Command{
		Kind: state.KindNodeState, NodeID: id, State: to, Comment: comment,
		Difference: fmt.Sprintf("~ node %s: %s -> %s", id, n.State, to),
	}, c.Propose)
	return err
}

func unknownNode(id string) error {
	return quotaerr.New(quotaerr.InvalidArgument, "node %.63q is not known: see `quorate node list`", id)
}

// ReplaceNode gives up a node's data directory, so that the node can come back with another.
func (a *Admin) ReplaceNode(
	ctx context.Context, who rpc.Actor, req *quoratev1.ReplaceNodeRequest,
) (*quoratev1.ReplaceNodeResponse, error) {
	c, s, err := a.leading(ctx)
	if err != nil {
		return nil, err
	}
	id := req.GetNode()
	n, ok := s.Node(id)
	if !ok || n.State == state.NodeRemoved {
		return nil, a.refuse(ctx, who, "node.replace", "node "+id, unknownNode(id))
	}
	out := &quoratev1.ReplaceNodeResponse{
		Next: fmt.Sprintf("start node %s with an empty data directory: it gets its replicas again by itself", id),
	}
	if n.Instance == "" { // it has been done
		return out, nil
	}
	if err := a.cluster.MayReplace(ctx, id); err != nil {
		return nil, a.refuse(ctx, who, "node.replace", "node "+id, err)
	}
	controls := a.cluster.ControlRole(id) != ""
	_, err = a.propose(ctx, who, &state.Command{
		Kind: state.KindLoseNode, NodeID: id, Instance: n.Instance, Comment: req.GetComment(),
		Difference: fmt.Sprintf("- node %s: data directory %s", id, n.Instance),
	}, c.Propose)
	if err != nil {
		return nil, err
	}
	if controls {
		out.Removed = append(out.Removed, &quoratev1.RemovedReplica{Partition: control.GroupID, Instance: n.Instance})
	}
	for _, p := range s.Partitions {
		if slices.Contains(p.Replicas, id) {
			out.Removed = append(out.Removed, &quoratev1.RemovedReplica{Partition: p.ID.String(), Instance: n.Instance})
		}
	}
	return out, nil
}

// TransferLeader hands the leadership of a partition to another replica. It is the one way for operators and for the
// cluster itself, which calls it in the name of ItselfName.
func (a *Admin) TransferLeader(
	ctx context.Context, who rpc.Actor, req *quoratev1.TransferLeaderRequest,
) (*quoratev1.TransferLeaderResponse, error) {
	const action = "partition.transfer-leader"
	c, err := a.cluster.Control()
	if err != nil {
		return nil, err
	}
	id, to := req.GetPartition(), req.GetNode()
	object := "partition " + id
	if err := mayLead(c.State(), id, to); err != nil {
		return nil, a.refuse(ctx, who, action, object, err)
	}
	leader, ok := a.cluster.Leader(id)
	switch {
	case !ok:
		return nil, quotaerr.New(quotaerr.NoQuorum, "no leader of %s is known: see `quorate partition list`", id)
	case leader != a.cluster.Self():
		return nil, notLeader(c.State(), id, leader)
	case leader == to:
		return &quoratev1.TransferLeaderResponse{}, nil
	}
	message := "from " + leader + " to any other"
	if to != "" {
		message = "from " + leader + " to " + to
	}
	if who.Name == ItselfName {
		a.logger.Info("the cluster moves leadership", "partition", id, "move", message)
	} else if _, err := a.propose(ctx, who, &state.Command{
		Kind: state.KindNote, Comment: req.GetComment(),
		Act: &state.Act{Action: action, Object: object, Message: message},
	}, a.cluster.Propose); err != nil {
		return nil, notNoted(err)
	}
	if err := a.cluster.Transfer(ctx, id, to); err != nil {
		a.attempt(ctx, who, action, object, quotaerr.As(err).Message)
		return nil, err
	}
	return &quoratev1.TransferLeaderResponse{}, nil
}

// mayLead refuses a partition that is not there, and a node that is to have no replica of it.
func mayLead(s *state.State, id, node string) error {
	if node != "" {
		if n, ok := s.Node(node); !ok || n.State == state.NodeRemoved {
			return unknownNode(node)
		}
	}
	if id == control.GroupID {
		return nil
	}
	i := slices.IndexFunc(s.Partitions, func(p *state.Partition) bool { return p.ID.String() == id })
	switch {
	case i < 0:
		return quotaerr.New(quotaerr.InvalidArgument, "partition %.63q is not there: see `quorate partition list`", id)
	case node != "" && !slices.Contains(s.Partitions[i].Replicas, node):
		return quotaerr.New(quotaerr.InvalidArgument, "node %s is to have no replica of %s: name one of %s", node, id,
			strings.Join(s.Partitions[i].Replicas, ", "))
	}
	return nil
}

// notLeader says which node leads a group.
func notLeader(s *state.State, group, leader string) error {
	e := quotaerr.New(quotaerr.NotLeader, "node %s leads %s: ask it", leader, group)
	e.Leader = leader
	if n, ok := s.Node(leader); ok {
		e.LeaderAddr = n.GRPC
	}
	return e
}

// notNoted is the error of what is not done since the audit trail has no word of it.
func notNoted(err error) error {
	if quotaerr.ReasonOf(err) == quotaerr.InvalidArgument {
		return err // its words are too long for the trail
	}
	return quotaerr.Wrap(quotaerr.NoQuorum, err,
		"nothing was done, since it could not be written to the audit trail: try again")
}
