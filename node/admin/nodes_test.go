package admin

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/quorate/quorate/control/state"
	"github.com/quorate/quorate/internal/identity"
	quoratev1 "github.com/quorate/quorate/proto/quorate/v1"
	"github.com/quorate/quorate/quotaerr"
	"github.com/quorate/quorate/rpc"
)

// states are the nodes as they are listed, in short.
func (n *node) states(t *testing.T) (out []string) {
	t.Helper()
	list, err := n.ListNodes(t.Context(), ops, &quoratev1.ListNodesRequest{})
	must(t, err)
	for _, i := range list.GetNodes() {
		s := i.GetId() + "@" + i.GetInstance() + " " + i.GetState() + " " + strings.Join(i.GetPartitions(), ",") + " " + i.GetControl()
		if i.GetDown() != nil {
			s += " down " + i.GetDown().AsDuration().String()
		}
		out = append(out, strings.TrimSpace(s))
	}
	return out
}

// Shows a node's life as it is listed: it waits, is added, drains, comes back, loses its directory, and is removed
// once it holds nothing; each step in the trail with who and why, and each step too early refused and in the trail.
func TestLifeOfANode(t *testing.T) {
	c := newCluster(t, 1)
	n := c.leader(t)
	add := func(id string) error {
		return second(n.AddNode(t.Context(), ops, &quoratev1.AddNodeRequest{Node: id, Comment: "more"}))
	}
	drain := func(id string, undo bool) error {
		return second(n.DrainNode(t.Context(), ops, &quoratev1.DrainNodeRequest{Node: id, Undo: undo}))
	}
	remove := func(id string) error {
		return second(n.RemoveNode(t.Context(), ops, &quoratev1.RemoveNodeRequest{Node: id}))
	}
	wantList := func(want ...string) {
		t.Helper()
		if diff := cmp.Diff(want, n.states(t)); diff != "" {
			t.Fatal(diff)
		}
	}
	refused := func(what string, err error) {
		t.Helper()
		wantReason(t, err, quotaerr.InvalidArgument, what)
		if got := n.trail(t, 1)[0]; !strings.HasSuffix(got, ": refused") {
			t.Errorf("%s: the trail has %s", what, got)
		}
	}
	b := Waiting{ID: "b", Instance: "i1", GRPC: "grpc-b", HTTP: "http-b", Raft: "raft-b", Zone: "z"}
	refused("none waits", add("b"))
	refused("the only active one", drain("a", false))
	c.waiting = []Waiting{b, {ID: "b", Instance: "i2"}}
	refused("two wait", add("b"))
	c.waiting = []Waiting{b}
	wantList("a@dir-a active p0 voter", "b@i1 waiting")
	must(t, add("b"))
	c.waiting = nil
	refused("it is in", add("b"))
	if got, _ := n.control.State().Node("b"); got.GRPC != b.GRPC || got.HTTP != b.HTTP || got.Raft != b.Raft || got.Zone != b.Zone {
		t.Errorf("added: %+v", got)
	}
	must(t, drain("a", false))
	must(t, drain("a", true))
	must(t, drain("b", false))
	c.down["b"] = time.Minute
	wantList("a@dir-a active p0 voter", "b@i1 draining   down 1m0s")

	c.held["b"] = []string{"control", "p0"}
	refused("it holds a replica", remove("b"))
	refused("it votes, and is to hold one", remove("a"))
	refused("it is not known", remove("x"))
	c.mayReplace = quotaerr.New(quotaerr.InvalidArgument, "it answers")
	replace := &quoratev1.ReplaceNodeRequest{Node: "b"}
	refused("its replicas answer", second(n.ReplaceNode(t.Context(), ops, replace)))
	c.mayReplace = nil
	must(t, second(n.ReplaceNode(t.Context(), ops, replace)))
	again, err := n.ReplaceNode(t.Context(), ops, replace)
	if err != nil || len(again.GetRemoved()) > 0 || !strings.Contains(again.GetNext(), "empty data directory") {
		t.Errorf("again: %v %v", again, err)
	}
	c.held["b"] = []string{"control"}
	must(t, remove("b"))
	must(t, remove("b"))
	wantList("a@dir-a active p0 voter", "b@ removed")
	want := []string{
		"admin/ops node.put node b: refused", "admin/ops node.state node a: refused", "admin/ops node.put node b: refused",
		"admin/ops node.put node b: done", "admin/ops node.put node b: refused", "admin/ops node.state node a: done",
		"admin/ops node.state node a: done", "admin/ops node.state node b: done", "admin/ops node.state node b: refused",
		"admin/ops node.state node a: refused", "admin/ops node.state node x: refused",
		"admin/ops node.replace node b: refused", "admin/ops node.replace node b: done", "admin/ops node.state node b: done",
	}
	if diff := cmp.Diff(want, n.trail(t, uint32(len(want)))); diff != "" {
		t.Error(diff)
	}
}

// Shows that a lost node's replicas are told when it is replaced.
func TestReplaceTellsWhatWasLost(t *testing.T) {
	c := newCluster(t, 3)
	out, err := c.leader(t).ReplaceNode(t.Context(), ops, &quoratev1.ReplaceNodeRequest{Node: c.follower(t).id})
	must(t, err)
	var got []string
	for _, r := range out.GetRemoved() {
		got = append(got, r.GetPartition()+" "+r.GetInstance())
	}
	lost := "dir-" + c.follower(t).id
	if diff := cmp.Diff([]string{"control " + lost, "p0 " + lost}, got); diff != "" {
		t.Error(diff)
	}
}

// Shows that leadership is handed over by the node that leads, after the trail has it; that another node names it;
// and that without the trail, or to a node without a replica, nothing is done.
func TestTransferLeader(t *testing.T) {
	c := newCluster(t, 3)
	c.leader(t)
	a, b := c.nodes[0], c.nodes[1]
	transfer := func(n *node, partition, to string) error {
		return second(n.TransferLeader(t.Context(), ops, &quoratev1.TransferLeaderRequest{Partition: partition, Node: to}))
	}
	err := transfer(b, "p0", "c")
	wantReason(t, err, quotaerr.NotLeader, "on another node")
	if got := quotaerr.As(err).Leader; got != "a" {
		t.Errorf("it names %q", got)
	}
	wantReason(t, transfer(a, "p7", ""), quotaerr.InvalidArgument, "an unknown partition")
	wantReason(t, transfer(a, "p0", "x"), quotaerr.InvalidArgument, "an unknown node")
	c.lose = func(*state.Command) bool { return true }
	wantReason(t, second(a.TransferLeader(shortly(t), ops, &quoratev1.TransferLeaderRequest{Partition: "p0"})),
		quotaerr.NoQuorum, "without the trail")
	if len(c.transfers) > 0 {
		t.Fatalf("made: %v", c.transfers)
	}
	c.lose = nil
	must(t, transfer(a, "p0", "c"))
	must(t, transfer(a, "p0", ""))
	must(t, transfer(c.leader(t), "control", ""))
	if diff := cmp.Diff([]string{"p0 to c", "p0 to ", "control to "}, c.transfers); diff != "" {
		t.Error(diff)
	}
	want := []string{
		"admin/ops partition.transfer-leader partition p0: done", "admin/ops partition.transfer-leader partition p0: done",
		"admin/ops partition.transfer-leader partition control: done",
	}
	if diff := cmp.Diff(want, c.leader(t).trail(t, 3)); diff != "" {
		t.Error(diff)
	}
}

// Shows that the cluster's own hand-overs are made by the same way, and neither they nor their refusals are in the
// audit trail, so that they work without it; and that a comment that the trail does not take is refused as such.
func TestTheClusterMovesLeadersItself(t *testing.T) {
	c := newCluster(t, 1)
	n := c.leader(t)
	before := n.control.State().AuditCount
	transfer := func(who rpc.Actor, req *quoratev1.TransferLeaderRequest) error {
		return second(n.TransferLeader(shortly(t), who, req))
	}
	itself := rpc.Actor{Name: ItselfName, Role: identity.Admin}
	c.lose = func(*state.Command) bool { return true }
	must(t, transfer(itself, &quoratev1.TransferLeaderRequest{Partition: "p0"}))
	wantReason(t, transfer(itself, &quoratev1.TransferLeaderRequest{Partition: "p7"}), quotaerr.InvalidArgument, "p7")
	if got := n.control.State().AuditCount; got != before {
		t.Errorf("the trail has %d records more", got-before)
	}
	c.lose = nil
	wantReason(t, transfer(ops, &quoratev1.TransferLeaderRequest{
		Partition: "p0", Comment: strings.Repeat("c", state.MaxCommentBytes+1),
	}), quotaerr.InvalidArgument, "a long comment")
	if diff := cmp.Diff([]string{"p0 to "}, c.transfers); diff != "" {
		t.Error(diff)
	}
}

// Shows that each change has its comment in the audit trail.
func TestCommentsAreInTheTrail(t *testing.T) {
	c := newCluster(t, 2)
	n := c.leader(t)
	c.leaders["p0"] = n.id
	must(t, second(n.InitCluster(t.Context(), ops, &quoratev1.InitClusterRequest{Comment: "1"})))
	must(t, second(n.TransferLeader(t.Context(), ops, &quoratev1.TransferLeaderRequest{Partition: "p0", Comment: "2"})))
	token, err := n.CreateToken(t.Context(), ops, &quoratev1.CreateTokenRequest{
		Name: "ana", Role: "viewer", Valid: durationpb.New(time.Hour), Comment: "3",
	})
	must(t, err)
	must(t, second(n.RevokeToken(t.Context(), ops, &quoratev1.RevokeTokenRequest{Id: token.GetToken().GetId(), Comment: "4"})))
	must(t, second(n.ReplaceNode(t.Context(), ops, &quoratev1.ReplaceNodeRequest{Node: c.follower(t).id, Comment: "5"})))
	want := []string{"cluster.init 1", "partition.transfer-leader 2", "token.create 3", "token.revoke 4", "node.replace 5"}
	if diff := cmp.Diff(want, n.comments(t, 5)); diff != "" {
		t.Error(diff)
	}
}

// Shows that the node alone judges how many partitions a cluster begins with; that a refusal to make it is in the
// audit trail where there is one, and else told all the same; and that with a comment that the trail does not take
// nothing is made.
func TestInitCluster(t *testing.T) {
	c := newCluster(t, 1)
	n := c.leader(t)
	made, err := n.InitCluster(t.Context(), ops, &quoratev1.InitClusterRequest{Partitions: 5000})
	must(t, err)
	if diff := cmp.Diff([]string{"5000"}, made.GetPartitions()); diff != "" || made.GetClusterId() != "c1" {
		t.Errorf("%v: %s", made, diff)
	}
	c.init = quotaerr.New(quotaerr.InvalidArgument, "made already")
	refused := func(comment string) {
		t.Helper()
		before := n.control.State().AuditCount
		_, err := n.InitCluster(t.Context(), ops, &quoratev1.InitClusterRequest{Comment: comment})
		wantReason(t, err, quotaerr.InvalidArgument, "refused")
		if n.control.State().AuditCount != before+1 {
			t.Fatal("it is not in the trail")
		}
		if got := n.trail(t, 1)[0]; got != "admin/ops cluster.init cluster c1: refused" {
			t.Errorf("the trail has %s", got)
		}
	}
	refused("again")
	asked := len(c.inits)
	refused(strings.Repeat("c", state.MaxCommentBytes+1))
	if len(c.inits) != asked {
		t.Error("it was made all the same")
	}
	c.unmade = quotaerr.New(quotaerr.NoQuorum, "not made yet")
	_, err = n.InitCluster(t.Context(), ops, &quoratev1.InitClusterRequest{})
	wantReason(t, err, quotaerr.InvalidArgument, "without a control group")
}
