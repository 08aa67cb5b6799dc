package rpc

import (
	"context"
	"encoding/hex"
	"slices"
	"strings"
	"sync"
	"time"

	quoratev1 "github.com/quorate/quorate/proto/quorate/v1"
	"github.com/quorate/quorate/quotaerr"
)

// nodeStatusTimeout bounds what one silent node adds to a cluster status.
const nodeStatusTimeout = time.Second

// maxStatusQueries bounds the nodes that are asked at once.
const maxStatusQueries = 16

// ClusterStatus asks every node for its own view and puts the answers together.
func (s *adminService) ClusterStatus(
	ctx context.Context, _ *quoratev1.ClusterStatusRequest,
) (*quoratev1.ClusterStatusResponse, error) {
	done, err := s.desk.operators.take(identityOf(ctx).String())
	if err != nil {
		return nil, err
	}
	defer done()
	members := slices.Clone(s.desk.backend.Members())
	slices.SortFunc(members, func(a, b Member) int { return strings.Compare(a.ID, b.ID) })
	views := make([]*quoratev1.NodeStatusResponse, len(members))
	slots := make(chan struct{}, maxStatusQueries)
	var wg sync.WaitGroup
	for i, m := range members {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			views[i] = s.view(ctx, m, members)
		})
	}
	wg.Wait()
	if err := ctx.Err(); err != nil {
		return nil, quotaerr.Wrap(quotaerr.NoQuorum, err, "the deadline passed: allow more time")
	}
	out := &quoratev1.ClusterStatusResponse{ClusterId: s.desk.cluster}
	for i, m := range members {
		out.Nodes = append(out.Nodes, &quoratev1.Node{
			Id: m.ID, Grpc: m.GRPC, Http: m.HTTP, Raft: m.Raft, Zone: m.Zone, State: m.State,
			Reachable: views[i] != nil, Version: views[i].GetVersion(), Waiting: views[i].GetWaiting(),
		})
	}
	for _, p := range assemble(views) {
		if p.GetId() == ControlGroup {
			out.Control = p
		} else {
			out.Partitions = append(out.Partitions, p)
		}
	}
	return out, nil
}

// view is m's view of itself; nil when m does not answer in time.
func (s *adminService) view(
	ctx context.Context, m Member, members []Member,
) *quoratev1.NodeStatusResponse {
	ctx, cancel := context.WithTimeout(ctx, nodeStatusTimeout)
	defer cancel()
	if m.ID == s.desk.node {
		v, err := ownStatus(ctx, s.desk, s.version)
		if err != nil {
			return nil
		}
		return v
	}
	client, err := s.desk.peers.to(m, members)
	if err != nil {
		return nil
	}
	v, err := client.NodeStatus(ctx, &quoratev1.NodeStatusRequest{ClusterId: s.desk.cluster})
	if err != nil || v.GetNode() != m.ID {
		return nil // another node answers at that address
	}
	return v
}

// ownStatus is this node's view of itself.
func ownStatus(ctx context.Context, d *desk, version string) (*quoratev1.NodeStatusResponse, error) {
	replicas, err := d.backend.Replicas(ctx)
	if err != nil {
		return nil, quotaerr.As(err)
	}
	out := &quoratev1.NodeStatusResponse{Node: d.node, Version: version, Waiting: d.backend.Waiting()}
	for i := range replicas {
		r := &replicas[i]
		p := &quoratev1.Replica{
			Partition: r.Partition, Role: quoratev1.Role(r.Role), Leader: r.Leader, Term: r.Term,
			AppliedIndex: r.AppliedIndex, Digest: hex.EncodeToString(r.Digest),
			PolicyRevision: uint64(r.Revision), PolicyVersion: r.PolicyVersion, Stopped: r.Stopped,
			FeatureLevel: r.FeatureLevel, DiskLow: r.DiskLow, Instance: r.Instance,
		}
		for _, m := range r.Members {
			p.Members = append(p.Members, m.Node)
			p.ReplicaMembers = append(p.ReplicaMembers,
				&quoratev1.ReplicaMember{Node: m.Node, Instance: m.Instance, Learner: m.Learner})
		}
		for _, o := range r.Ranges {
			p.Ranges = append(p.Ranges, &quoratev1.SlotRange{
				FirstSlot: uint32(o.First), LastSlot: uint32(o.Last), Epoch: uint64(o.Epoch),
			})
		}
		out.Replicas = append(out.Replicas, p)
	}
	return out, nil
}

// assemble puts partitions together from what the nodes that answered say of their replicas.
func assemble(views []*quoratev1.NodeStatusResponse) []*quoratev1.Partition {
	byID := map[string]*quoratev1.Partition{}
	spokesman := map[string]*quoratev1.Replica{} // whose word counts for the partition
	for _, v := range views {
		for _, r := range v.GetReplicas() {
			p := byID[r.GetPartition()]
			if p == nil {
				p = &quoratev1.Partition{Id: r.GetPartition()}
				byID[p.Id] = p
			}
			p.ReplicaStates = append(p.ReplicaStates, &quoratev1.ReplicaState{
				Node: v.GetNode(), AppliedIndex: r.GetAppliedIndex(), Digest: r.GetDigest(),
				Reachable: true, Role: r.GetRole(), Stopped: r.GetStopped(), FeatureLevel: r.GetFeatureLevel(),
				DiskLow: r.GetDiskLow(), Instance: r.GetInstance(), Learner: r.GetRole() == quoratev1.Role_ROLE_LEARNER,
			})
			if s := spokesman[p.Id]; s == nil || speaksOver(r, s) {
				spokesman[p.Id] = r
				p.Leader = ""
				if r.GetRole() == quoratev1.Role_ROLE_LEADER {
					p.Leader = v.GetNode()
				}
			}
		}
	}
	out := make([]*quoratev1.Partition, 0, len(byID))
	for id, p := range byID {
		complete(p, spokesman[id])
		out = append(out, p)
	}
	slices.SortFunc(out, func(a, b *quoratev1.Partition) int { return strings.Compare(a.Id, b.Id) })
	return out
}

// speaksOver prefers leaders, of two leaders the one of the later term, and else the replica that has
// applied more.
func speaksOver(a, b *quoratev1.Replica) bool {
	aLeads := a.GetRole() == quoratev1.Role_ROLE_LEADER
	bLeads := b.GetRole() == quoratev1.Role_ROLE_LEADER
	if aLeads != bLeads {
		return aLeads
	}
	if aLeads && a.GetTerm() != b.GetTerm() {
		return a.GetTerm() > b.GetTerm()
	}
	return a.GetAppliedIndex() > b.GetAppliedIndex()
}

func complete(p *quoratev1.Partition, s *quoratev1.Replica) {
	p.Replicas = slices.Sorted(slices.Values(s.GetMembers()))
	p.Ranges = s.GetRanges()
	p.PolicyRevision, p.PolicyVersion = s.GetPolicyRevision(), s.GetPolicyVersion()
	p.AppliedIndex, p.Digest, p.Term = s.GetAppliedIndex(), s.GetDigest(), s.GetTerm()
	heard := map[string]*quoratev1.ReplicaState{}
	for _, r := range p.ReplicaStates {
		heard[r.GetNode()] = r
	}
	for _, node := range p.Replicas {
		if heard[node] == nil {
			heard[node] = &quoratev1.ReplicaState{Node: node, Role: quoratev1.Role_ROLE_UNREACHABLE}
			p.ReplicaStates = append(p.ReplicaStates, heard[node])
		}
	}
	for _, m := range s.GetReplicaMembers() {
		if r := heard[m.GetNode()]; r != nil {
			r.Learner = m.GetLearner()
			if !r.GetReachable() {
				r.Instance = m.GetInstance()
			}
		}
	}
	slices.SortFunc(p.ReplicaStates, func(a, b *quoratev1.ReplicaState) int {
		return strings.Compare(a.Node, b.Node)
	})
}
