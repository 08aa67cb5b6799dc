package rpc

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/quorate/quorate/fsm"
	quoratev1 "github.com/quorate/quorate/proto/quorate/v1"
	"github.com/quorate/quorate/quotaerr"
)

// Shows a status put together from two nodes that answer and one that does not: the leader of the
// later term speaks for the partition, the silent node's replica is listed as unreachable, and the control group is
// told apart from the partitions.
func TestClusterStatus(t *testing.T) {
	replica := func(role Role, term, applied uint64) Replica {
		return Replica{Partition: "p1", Role: role, Leader: "n2", Term: term, AppliedIndex: applied,
			Digest: []byte{0xab, byte(applied)}, Members: []ReplicaMember{{Node: "n3", Instance: "i3", Learner: true}, {Node: "n2"}, {Node: "n1"}},
			Ranges:   []fsm.OwnedRange{{SlotRange: fsm.SlotRange{First: 0, Last: 16383}, Epoch: 1 << 40}},
			Revision: fsm.Revision(term), PolicyVersion: "p7"}
	}
	b1, b2 := allowing(), allowing()
	b1.replicas = []Replica{replica(RoleLeader, 3, 90)} // has not heard that it was deposed
	b2.replicas = []Replica{replica(RoleLeader, 4, 80)}
	b1.replicas[0].Stopped, b1.replicas[0].DiskLow = "its state is wrong", true
	b2.replicas[0].Instance, b2.replicas[0].FeatureLevel = "i2", 3
	n1, n2 := mustNode(t, "n1", b1), mustNode(t, "n2", b2)
	gone := mustListen(t)
	if err := gone.Close(); err != nil {
		t.Fatal(err)
	}
	group := replica(RoleLeader, 2, 5)
	group.Partition, group.Ranges, group.Revision, group.PolicyVersion = ControlGroup, nil, 0, ""
	group.Members = []ReplicaMember{{Node: "n1"}}
	b1.replicas = append(b1.replicas, group)
	b1.members = []Member{{ID: "n3", GRPC: gone.Addr().String(), Zone: "c", State: "draining"},
		{ID: "n1", GRPC: n1.grpcAddr, HTTP: "h1", Raft: "r1"}, {ID: "n2", GRPC: n2.grpcAddr, HTTP: "h2", Raft: "r2"}}

	got, err := quoratev1.NewAdminClient(n1.conn).ClusterStatus(within(t, 10*time.Second),
		&quoratev1.ClusterStatusRequest{})
	if err != nil {
		t.Fatal(err)
	}
	want := &quoratev1.ClusterStatusResponse{
		ClusterId: testCluster,
		Nodes: []*quoratev1.Node{
			{Id: "n1", Grpc: n1.grpcAddr, Http: "h1", Raft: "r1", Reachable: true, Version: "v-test"},
			{Id: "n2", Grpc: n2.grpcAddr, Http: "h2", Raft: "r2", Reachable: true, Version: "v-test"},
			{Id: "n3", Grpc: gone.Addr().String(), Zone: "c", State: "draining"},
		},
		Control: &quoratev1.Partition{
			Id: "control", Leader: "n1", Replicas: []string{"n1"}, AppliedIndex: 5, Digest: "ab05", Term: 2,
			ReplicaStates: []*quoratev1.ReplicaState{
				{Node: "n1", AppliedIndex: 5, Digest: "ab05", Reachable: true, Role: quoratev1.Role_ROLE_LEADER},
			},
		},
		Partitions: []*quoratev1.Partition{{
			Id: "p1", Leader: "n2", Replicas: []string{"n1", "n2", "n3"},
			Ranges:         []*quoratev1.SlotRange{{FirstSlot: 0, LastSlot: 16383, Epoch: 1 << 40}},
			PolicyRevision: 4, PolicyVersion: "p7", AppliedIndex: 80, Digest: "ab50", Term: 4,
			ReplicaStates: []*quoratev1.ReplicaState{
				{Node: "n1", AppliedIndex: 90, Digest: "ab5a", Reachable: true, Role: quoratev1.Role_ROLE_LEADER,
					Stopped: "its state is wrong", DiskLow: true},
				{Node: "n2", AppliedIndex: 80, Digest: "ab50", Reachable: true, Role: quoratev1.Role_ROLE_LEADER,
					Instance: "i2", FeatureLevel: 3},
				{Node: "n3", Role: quoratev1.Role_ROLE_UNREACHABLE, Instance: "i3", Learner: true},
			},
		}},
	}
	if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}

	b1.replicas[0].Role, b2.replicas[0].Role = RoleFollower, RoleCandidate
	got, err = quoratev1.NewAdminClient(n1.conn).ClusterStatus(within(t, 10*time.Second),
		&quoratev1.ClusterStatusRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if p := got.GetPartitions()[0]; p.GetLeader() != "" || p.GetAppliedIndex() != 90 {
		t.Errorf("without a leader: %v", p)
	}
}

// Shows that a follower's report about the pace of time reaches the leader's node whole.
func TestReportPace(t *testing.T) {
	follower, leader := allowing(), allowing()
	n1, n2 := mustNode(t, "n1", follower), mustNode(t, "n2", leader)
	acquaint(map[string]*testNode{"n1": n1, "n2": n2}, follower)
	p := Pace{From: "n1", Partition: "p1", Term: 5, PartitionNanos: 9e9, LocalNanos: 2e9}
	if err := n1.ReportPace(within(t, 10*time.Second), "n2", p); err != nil {
		t.Fatal(err)
	}
	leader.mu.Lock()
	mustEqual(t, leader.paces, []Pace{p})
	leader.mu.Unlock()
	err := n1.ReportPace(within(t, 10*time.Second), "n9", p)
	if quotaerr.ReasonOf(err) != quotaerr.NoQuorum {
		t.Errorf("to an unknown node: %v", err)
	}
}
