package rpc

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/quorate/quorate/internal/errtable"
	"github.com/quorate/quorate/internal/identity"
	quoratev1 "github.com/quorate/quorate/proto/quorate/v1"
	"github.com/quorate/quorate/quotaerr"
)

// leads is an answer of an Admin that says who leads; of nobody, when it is empty.
func leads(node string) *quotaerr.Error {
	return &quotaerr.Error{Reason: quotaerr.NotLeader, Leader: node, Message: "ask the leader"}
}

// operationNames are the last parts of all operations, sorted.
func operationNames() (out []string) {
	for full := range operations {
		out = append(out, lastOf(full))
	}
	slices.Sort(out)
	return out
}

func lastOf(full string) string { return full[strings.LastIndexByte(full, '/')+1:] }

// Shows for each operation that a node which does not lead passes it on to the leader once, whole, with who asks,
// and hands the answer back; and that what is for the asked node alone is passed on to nobody.
func TestEveryOperationIsPassedOnOnce(t *testing.T) {
	follower, leader := allowing(), allowing()
	follower.admin.answer = func(context.Context, string, proto.Message, proto.Message) error { return leads("n2") }
	leader.admin.answer = func(_ context.Context, method string, req, resp proto.Message) error {
		if r, ok := req.(*quoratev1.ReplaceNodeRequest); ok {
			resp.(*quoratev1.ReplaceNodeResponse).Next = method + " " + r.GetNode()
		}
		return nil
	}
	ca := mustCA(t, tlsCluster)
	n1, n2 := mustSecure(t, ca, "n1", follower), mustSecure(t, ca, "n2", leader)
	acquaint(map[string]*testNode{"n1": n1, "n2": n2}, follower)
	conn := mustDial(t, n1.grpcAddr, ca.must(t, identity.Admin, "ops"))
	for _, name := range operationNames() {
		full := "/quorate.v1.Admin/" + name
		here := operations[full].here
		before := len(follower.admin.asked())
		err := callEmpty(t, conn, full)
		want := []operated{{name, Actor{"admin/ops", identity.Admin}}}
		got := leader.admin.asked()
		if here {
			want = nil
		} else if len(got) > 0 {
			got = got[len(got)-1:]
		}
		if e := errtable.FromStatus(err); (e == nil) == here || here && e.Reason != quotaerr.NotLeader {
			t.Errorf("%s: %v", name, err)
		}
		if asked := len(follower.admin.asked()) - before; asked != 1 {
			t.Errorf("%s: the follower was asked %d times", name, asked)
		}
		if !here {
			mustEqual(t, got, want)
		} else if slices.ContainsFunc(got, func(o operated) bool { return o.Method == name }) {
			t.Errorf("%s was passed on", name)
		}
	}
	if got, all := len(leader.admin.asked()), len(operations)-1; got != all {
		t.Errorf("the leader was asked %d times, want %d", got, all)
	}
	resp, err := quoratev1.NewAdminClient(conn).ReplaceNode(within(t, 10*time.Second),
		&quoratev1.ReplaceNodeRequest{Node: "n9"})
	if err != nil || resp.GetNext() != "ReplaceNode n9" {
		t.Errorf("%v %v", resp, err)
	}
}

// Shows that a node which was passed a call on and does not lead either says so and passes it on to nobody, and
// that the first node follows its hint, since nothing has been changed.
func TestOperationIsNeverPassedOnTwice(t *testing.T) {
	b1, b2, b3 := allowing(), allowing(), allowing()
	for b, to := range map[*fakeBackend]string{b1: "n2", b2: "n3"} {
		b.admin.answer = func(context.Context, string, proto.Message, proto.Message) error { return leads(to) }
	}
	nodes := map[string]*testNode{"n1": mustNode(t, "n1", b1), "n2": mustNode(t, "n2", b2), "n3": mustNode(t, "n3", b3)}
	acquaint(nodes, b1, b2, b3)
	request, err := anypb.New(&quoratev1.AddNodeRequest{Node: "n9"})
	if err != nil {
		t.Fatal(err)
	}
	_, err = quoratev1.NewPeerClient(nodes["n2"].conn).ForwardAdmin(within(t, 10*time.Second),
		&quoratev1.ForwardAdminRequest{ClusterId: testCluster, FromNode: "n1", Actor: "admin/ops", Role: "admin",
			Method: quoratev1.Admin_AddNode_FullMethodName, Request: request})
	if e := errtable.FromStatus(err); e == nil || e.Reason != quotaerr.NotLeader || e.Leader != "n3" {
		t.Errorf("got %v, want not_leader naming n3", err)
	}
	if got := b3.admin.asked(); len(got) != 0 {
		t.Fatalf("it was passed on: %v", got)
	}
	if _, err := quoratev1.NewAdminClient(nodes["n1"].conn).AddNode(within(t, 10*time.Second),
		&quoratev1.AddNodeRequest{Node: "n9"}); err != nil {
		t.Error(err)
	}
	for i, b := range []*fakeBackend{b1, b2, b3} {
		if got, want := len(b.admin.asked()), []int{1, 2, 1}[i]; got != want {
			t.Errorf("n%d was asked %d times, want %d", i+1, got, want)
		}
	}
}

// Shows that a change whose fate is unknown, here or at the leader, is not asked for again, and that reading is.
func TestUnknownFateOfAnOperation(t *testing.T) {
	unknown := quotaerr.New(quotaerr.OutcomeUnknown, "perhaps")
	for _, local := range []bool{true, false} {
		first, leader := allowing(), allowing()
		var asked atomic.Int32
		fails := func(context.Context, string, proto.Message, proto.Message) error {
			if asked.Add(1) == 1 {
				return unknown
			}
			return nil
		}
		first.admin.answer, leader.admin.answer = fails, fails
		if !local {
			first.admin.answer = func(context.Context, string, proto.Message, proto.Message) error { return leads("n2") }
		}
		n1 := mustNode(t, "n1", first)
		acquaint(map[string]*testNode{"n1": n1, "n2": mustNode(t, "n2", leader)}, first)
		admin := quoratev1.NewAdminClient(n1.conn)
		_, err := admin.SwitchClass(within(t, 10*time.Second), &quoratev1.SwitchClassRequest{})
		if e := errtable.FromStatus(err); e == nil || e.Reason != quotaerr.OutcomeUnknown || asked.Load() != 1 {
			t.Errorf("here %v: a change: %v after %d", local, err, asked.Load())
		}
		asked.Store(0)
		_, err = admin.SearchAudit(within(t, 10*time.Second), &quoratev1.SearchAuditRequest{})
		if err != nil || asked.Load() != 2 {
			t.Errorf("here %v: reading: %v after %d", local, err, asked.Load())
		}
	}
}

// Shows that a call waits for a leader while there is none, also when the one that was named cannot be reached;
// that it is told why shortly before its deadline; and that a node which has no part in a cluster says so at once.
func TestOperationsWaitForALeader(t *testing.T) {
	backend := allowing()
	var asked atomic.Int32
	var answers []error
	backend.admin.answer = func(context.Context, string, proto.Message, proto.Message) error {
		if n := int(asked.Add(1)); n <= len(answers) {
			return answers[n-1]
		}
		return nil
	}
	gone := mustListen(t)
	if err := gone.Close(); err != nil {
		t.Fatal(err)
	}
	backend.members = []Member{{ID: "n2", GRPC: gone.Addr().String()}}
	n := mustNode(t, "n1", backend)
	admin := quoratev1.NewAdminClient(n.conn)
	answers = []error{leads(""), quotaerr.New(quotaerr.NoQuorum, "an election"), leads("n2"), leads("n1"), leads("n7")}
	if _, err := admin.AddNode(within(t, 10*time.Second), &quoratev1.AddNodeRequest{}); err != nil || asked.Load() != 6 {
		t.Errorf("%v after %d", err, asked.Load())
	}
	answers = slices.Repeat([]error{leads("")}, 1000)
	asked.Store(0)
	_, err := admin.AddNode(telling(t, 300*time.Millisecond), &quoratev1.AddNodeRequest{})
	if e := errtable.FromStatus(err); e == nil || e.Reason != quotaerr.NotLeader {
		t.Errorf("without a leader: %v", err)
	}
	if n := asked.Load(); n < 3 || n > 40 {
		t.Errorf("asked %d times in 300 ms", n)
	}
	backend.waiting = "for `quorate cluster init`"
	answers = slices.Repeat([]error{quotaerr.New(quotaerr.NoQuorum, "not made yet")}, 1000)
	asked.Store(0)
	_, err = admin.AddNode(within(t, time.Minute), &quoratev1.AddNodeRequest{})
	if e := errtable.FromStatus(err); e == nil || e.Message != "not made yet" || asked.Load() != 1 {
		t.Errorf("without a cluster: %v after %d", err, asked.Load())
	}
}

// Shows what is refused of what other nodes pass on: another cluster, another role than the method takes, no actor,
// no such method, one that is not passed on, and another request than the method's. The wrong role is noted.
func TestForwardedOperationsAreJudgedAgain(t *testing.T) {
	backend := allowing()
	var noted []string
	backend.admin.attempt = func(_ context.Context, who Actor, method, reason string) {
		noted = append(noted, fmt.Sprintf("%s %s %s", who.Name, lastOf(method), reason))
	}
	peer := quoratev1.NewPeerClient(mustNode(t, "n1", backend).conn)
	good := func() *quoratev1.ForwardAdminRequest {
		request, err := anypb.New(&quoratev1.AddNodeRequest{})
		if err != nil {
			t.Fatal(err)
		}
		return &quoratev1.ForwardAdminRequest{ClusterId: testCluster, FromNode: "n2", Actor: "admin/ops", Role: "admin",
			Method: quoratev1.Admin_AddNode_FullMethodName, Request: request}
	}
	for name, c := range map[string]struct {
		change func(*quoratev1.ForwardAdminRequest)
		want   quotaerr.Reason
	}{
		"good":            {func(*quoratev1.ForwardAdminRequest) {}, ""},
		"another cluster": {func(r *quoratev1.ForwardAdminRequest) { r.ClusterId = "c2" }, quotaerr.PermissionDenied},
		"a viewer":        {func(r *quoratev1.ForwardAdminRequest) { r.Role = "viewer" }, quotaerr.PermissionDenied},
		"a gateway":       {func(r *quoratev1.ForwardAdminRequest) { r.Role = "gateway" }, quotaerr.PermissionDenied},
		"two roles":       {func(r *quoratev1.ForwardAdminRequest) { r.Role = "admin or viewer" }, quotaerr.InvalidArgument},
		"no role":         {func(r *quoratev1.ForwardAdminRequest) { r.Role = "" }, quotaerr.InvalidArgument},
		"no actor":        {func(r *quoratev1.ForwardAdminRequest) { r.Actor = "" }, quotaerr.InvalidArgument},
		"a long actor":    {func(r *quoratev1.ForwardAdminRequest) { r.Actor = strings.Repeat("a", 257) }, quotaerr.InvalidArgument},
		"no method":       {func(r *quoratev1.ForwardAdminRequest) { r.Method = "" }, quotaerr.InvalidArgument},
		"a check": {func(r *quoratev1.ForwardAdminRequest) {
			r.Method = quoratev1.Quota_CheckAndConsume_FullMethodName
		}, quotaerr.InvalidArgument},
		"making a cluster": {func(r *quoratev1.ForwardAdminRequest) {
			r.Method = quoratev1.Admin_InitCluster_FullMethodName
			if err := r.Request.MarshalFrom(&quoratev1.InitClusterRequest{}); err != nil {
				t.Fatal(err)
			}
		}, quotaerr.InvalidArgument},
		"another request": {func(r *quoratev1.ForwardAdminRequest) {
			r.Method = quoratev1.Admin_DrainNode_FullMethodName
		}, quotaerr.InvalidArgument},
		"no request": {func(r *quoratev1.ForwardAdminRequest) { r.Request = nil }, quotaerr.InvalidArgument},
	} {
		req := good()
		c.change(req)
		_, err := peer.ForwardAdmin(within(t, 10*time.Second), req)
		if e := errtable.FromStatus(err); e == nil && c.want != "" || e != nil && e.Reason != c.want {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
	if got := len(backend.admin.asked()); got != 1 {
		t.Errorf("%d calls reached the backend", got)
	}
	mustEqual(t, noted, slices.Repeat([]string{"admin/ops AddNode permission_denied"}, 2))
}

// Shows that an answer which could not be passed on is refused with its size, and that a panic is a defect and no
// answer, and ends nothing else.
func TestUnfitAnswers(t *testing.T) {
	backend := allowing()
	backend.admin.answer = func(_ context.Context, _ string, _, resp proto.Message) error {
		if r, ok := resp.(*quoratev1.SearchAuditResponse); ok {
			r.Records = []*quoratev1.AuditRecord{{Message: strings.Repeat("x", MaxAnswerBytes)}}
			return nil
		}
		panic("a defect")
	}
	n := mustNode(t, "n1", backend)
	admin := quoratev1.NewAdminClient(n.conn)
	_, err := admin.SearchAudit(within(t, 10*time.Second), &quoratev1.SearchAuditRequest{})
	if e := errtable.FromStatus(err); e == nil || e.Reason != quotaerr.InvalidArgument {
		t.Errorf("large: %v", err)
	}
	_, err = admin.AddNode(within(t, 10*time.Second), &quoratev1.AddNodeRequest{})
	if e := errtable.FromStatus(err); e == nil || e.Reason != quotaerr.Internal || n.metric(t, "quorate_panics_total") != 1 {
		t.Errorf("panic: %v", err)
	}
	if got := n.callsOf(t, "/quorate.v1.Admin/AddNode", codes.Internal); got != 1 {
		t.Errorf("it was counted %v times", got)
	}
}

// Shows that one caller's share of what is under way is bounded, that others still get theirs, that the whole is
// bounded too, and that what was given back is there again.
func TestShares(t *testing.T) {
	s := newShares("things", 3, 2)
	taken := map[string][]func(){}
	for i, c := range []struct {
		who string
		ok  bool
	}{{"a", true}, {"a", true}, {"a", false}, {"b", true}, {"c", false}} {
		done, err := s.take(c.who)
		if (err == nil) != c.ok || err != nil && quotaerr.ReasonOf(err) != quotaerr.Overloaded {
			t.Errorf("%d: %s: %v", i, c.who, err)
		}
		taken[c.who] = append(taken[c.who], done)
	}
	taken["a"][0]()
	if _, err := s.take("c"); err != nil {
		t.Error(err)
	}
	taken["a"][1]()
	taken["b"][0]()
	if len(s.of) != 1 || s.taken != 1 {
		t.Errorf("left: %v", s.of)
	}
}
