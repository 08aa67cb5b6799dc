package rpc

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"

	quoratev1 "github.com/quorate/quorate/proto/quorate/v1"
	"github.com/quorate/quorate/quotaerr"
	"github.com/quorate/quorate/rpc/errtable"
)

// Shows that a replacement asked of a follower is done by the leader and told whole; that a refusal comes
// back with its reason; that one whose fate is unknown is asked for again; and that a name that cannot be
// a node's reaches nobody.
func TestReplaceNode(t *testing.T) {
	follower, leader := allowing(), allowing()
	follower.leader = ledBy("n2")
	n1, n2 := mustNode(t, "n1", follower), mustNode(t, "n2", leader)
	acquaint(map[string]*testNode{"n1": n1, "n2": n2}, follower)
	asked := 0
	var fail error
	leader.replace = func(node string) (Replacement, error) {
		asked++
		if fail != nil && asked == 1 {
			return Replacement{}, fail
		}
		return Replacement{Removed: []RemovedReplica{{Partition: "p0", Instance: node + "-1"}}, Next: "start it"}, nil
	}
	admin := quoratev1.NewAdminClient(n1.conn)
	want := &quoratev1.ReplaceNodeResponse{
		Removed: []*quoratev1.RemovedReplica{{Partition: "p0", Instance: "n3-1"}}, Next: "start it",
	}
	for _, fail = range []error{nil, quotaerr.New(quotaerr.OutcomeUnknown, "perhaps")} {
		asked = 0
		got, err := admin.ReplaceNode(within(t, 10*time.Second), &quoratev1.ReplaceNodeRequest{Node: "n3"})
		if diff := cmp.Diff(want, got, protocmp.Transform()); err != nil || diff != "" {
			t.Errorf("after %v: %v\n%s", fail, err, diff)
		}
	}
	asked, fail = 0, quotaerr.New(quotaerr.InvalidArgument, "n3 is up and well")
	_, err := admin.ReplaceNode(within(t, 10*time.Second), &quoratev1.ReplaceNodeRequest{Node: "n3"})
	if e := errtable.FromStatus(err); e == nil || e.Reason != quotaerr.InvalidArgument || e.Message != "n3 is up and well" {
		t.Errorf("refused: %v", err)
	}
	asked = 0
	for _, node := range []string{"", strings.Repeat("n", 64)} {
		_, err := admin.ReplaceNode(within(t, 10*time.Second), &quoratev1.ReplaceNodeRequest{Node: node})
		if e := errtable.FromStatus(err); e == nil || e.Reason != quotaerr.InvalidArgument || asked != 0 {
			t.Errorf("%q: %v, asked %d times", node, err, asked)
		}
	}
	_, err = quoratev1.NewPeerClient(n2.conn).ForwardReplaceNode(within(t, 10*time.Second),
		&quoratev1.ForwardReplaceNodeRequest{ClusterId: "c2", Replace: &quoratev1.ReplaceNodeRequest{Node: "n3"}})
	if e := errtable.FromStatus(err); e == nil || e.Reason != quotaerr.PermissionDenied || asked != 0 {
		t.Errorf("from another cluster: %v", err)
	}
}
