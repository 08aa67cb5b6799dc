package main

import (
	"bytes"
	"context"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	quoratev1 "github.com/quorate/quorate/proto/quorate/v1"
	"github.com/quorate/quorate/quotaerr"
)

var (
	statusUnmade = &quoratev1.ClusterStatusResponse{ClusterId: "c1"}
	statusMade   = &quoratev1.ClusterStatusResponse{
		ClusterId: "c1", Control: &quoratev1.Partition{Id: "control"},
		Nodes: []*quoratev1.Node{{Id: "n0"}, {Id: "n1"}},
		Partitions: []*quoratev1.Partition{
			{Id: "p0", Ranges: []*quoratev1.SlotRange{{FirstSlot: 0, LastSlot: 8191}}},
			{Id: "p1", Ranges: []*quoratev1.SlotRange{{FirstSlot: 8192, LastSlot: 16383}}},
		},
	}
	initDone = &quoratev1.InitClusterResponse{ClusterId: "c1", Nodes: []string{"n0", "n1"}, Partitions: []string{"p0", "p1"}}
)

// errMade is what a node says that is asked to make its cluster again.
var errMade = quotaerr.New(quotaerr.InvalidArgument, "made already")

// forming is a node that can make the cluster c1, and has no policy.
func forming() *adminScript {
	first := aRevision(1, "p7")
	s := applying()
	s.answers["ClusterStatusRequest"] = []any{statusUnmade}
	s.answers["InitClusterRequest"] = []any{initDone}
	s.answers["ListPoliciesRequest"] = []any{history()}
	s.answers["ApplyPolicyRequest"] = []any{&quoratev1.ApplyPolicyResponse{Revision: first}}
	s.answers["PolicyStatusRequest"] = []any{&quoratev1.PolicyStatusResponse{Revision: first, ActiveEverywhere: true}}
	return s
}

// Shows that init makes the cluster on the first node of several and on no other, and puts the policy in force as
// the first; and that without a policy it says what comes next.
func TestClusterInit(t *testing.T) {
	s := forming()
	mustServeAdmin(t, s)
	r := mustRun(t, "cluster", "init", "--partitions", "2")
	const want = "cluster c1 is made\nnodes: n0 n1\npartitions: p0 p1\nnext: quorate policy apply FILE; until then nothing is decided\n"
	if diff := cmp.Diff(want, r.stdout); diff != "" {
		t.Error(diff)
	}
	s.mustHaveAsked(t, &quoratev1.InitClusterRequest{Partitions: 2})
	if help := mustRun(t, "cluster", "init", "--help").stdout; !strings.Contains(help, "at most 128") {
		t.Errorf("it does not say how many partitions there may be: %s", help)
	}

	first, err := (&options{}).addrs(nil)
	if err != nil {
		t.Fatal(err)
	}
	other := forming()
	mustServeAdmin(t, other)
	second, err := (&options{}).addrs(nil)
	if err != nil {
		t.Fatal(err)
	}
	var v initView
	mustJSON(t, &v, "cluster", "init", "--policy", mustWrite(t, "p.yaml", goodPolicy), "--addr", first[0]+","+second[0],
		"--comment", "the first")
	if !v.Made || v.ClusterID != "c1" || v.Policy == nil || v.Policy.Revision.Number != 1 || v.Policy.Status == nil {
		t.Errorf("%+v", v)
	}
	d := digestOf(mustPolicy(t, goodPolicy))
	s.mustHaveAsked(t, &quoratev1.InitClusterRequest{Comment: "the first"}, &quoratev1.ListPoliciesRequest{Limit: 1},
		&quoratev1.UploadPolicyRequest{Digest: d}, &quoratev1.ApplyPolicyRequest{Digest: d, Comment: "the first"},
		&quoratev1.PolicyStatusRequest{Revision: 1})
	other.mustHaveAsked(t)
}

// Shows that init goes on where it was: a cluster that is made gets its first policy; but is not made again, nor
// given another policy or number of partitions; and what is said where it fails.
func TestClusterInitGoesOn(t *testing.T) {
	s := forming()
	mustServeAdmin(t, s)
	file := mustWrite(t, "p.yaml", goodPolicy)
	s.answers["ClusterStatusRequest"] = []any{statusMade}
	s.answers["InitClusterRequest"] = []any{errMade}
	mustFail(t, exitError, []string{"cluster c1 is made already"}, "cluster", "init")
	if out := mustRun(t, "cluster", "init", "--policy", file).stdout; !strings.HasPrefix(out,
		"cluster c1 is found\nnodes: n0 n1\npartitions: p0 p1\nrevision 1 (p7) is in force, on 0\n") {
		t.Error(out)
	}
	mustFail(t, exitError, []string{"with 2 partitions: leave out --partitions"},
		"cluster", "init", "--policy", file, "--partitions", "3")
	s.answers["ListPoliciesRequest"] = []any{history(aRevision(4, "p6"))}
	mustFail(t, exitError, []string{"has its policy already, revision 4 (p6)", "quorate policy apply"},
		"cluster", "init", "--policy", file)

	s.answers["InitClusterRequest"] = []any{quotaerr.New(quotaerr.OutcomeUnknown, "no answer")}
	mustFail(t, exitUnavailable, []string{"repeat it, it goes on where it was"}, "cluster", "init", "--policy", file)
	s.answers["ListPoliciesRequest"] = []any{history()}
	s.answers["ClusterStatusRequest"] = []any{statusUnmade}
	s.answers["InitClusterRequest"] = []any{quotaerr.New(quotaerr.InvalidArgument, "n1 belongs to another cluster")}
	mustFail(t, exitError, []string{"n1 belongs to another cluster"}, "cluster", "init", "--policy", file)
	s.answers["InitClusterRequest"] = []any{initDone}
	s.answers["ApplyPolicyRequest"] = []any{quotaerr.New(quotaerr.InvalidArgument, "no")}
	mustFail(t, exitError, []string{"cluster c1 is made, but its policy is not in force", "repeat it"},
		"cluster", "init", "--policy", file)
}

// aNode is n2 with partitions, in a state.
func aNode(state string, partitions ...string) *quoratev1.ListNodesResponse {
	return &quoratev1.ListNodesResponse{Nodes: []*quoratev1.NodeInfo{
		{Id: "n1", State: "active", Control: "voter", Zone: "a", Grpc: "g", Http: "h", Raft: "r", Partitions: []string{"p0", "p1"}},
		{Id: "n2", State: state, Partitions: partitions, Down: durationpb.New(61*time.Second + 1)},
	}}
}

// Shows the list of nodes, and what the commands that change a node ask for and say.
func TestNodeCommands(t *testing.T) {
	s := &adminScript{answers: map[string][]any{
		"ListNodesRequest": {aNode("waiting")}, "AddNodeRequest": {&quoratev1.AddNodeResponse{}},
		"DrainNodeRequest": {&quoratev1.DrainNodeResponse{}}, "RemoveNodeRequest": {&quoratev1.RemoveNodeResponse{}},
		"TransferLeaderRequest": {&quoratev1.TransferLeaderResponse{}},
		"ReplaceNodeRequest":    {&quoratev1.ReplaceNodeResponse{Next: "start it"}},
	}}
	mustServeAdmin(t, s)
	const list = `NODE  STATE    ZONE  CONTROL  GRPC  HTTP  RAFT  DOWN FOR  PARTITIONS
n1    active   a     voter    g     h     r     -         p0 p1
n2    waiting  -     -                          1m2s      -
`
	if diff := cmp.Diff(list, mustRun(t, "node", "list").stdout); diff != "" {
		t.Error(diff)
	}
	var nodes nodesView
	mustJSON(t, &nodes, "node", "list")
	if n := nodes.Nodes[1]; n.Down != "1m1s1ns" || n.Partitions == nil || n.State != "waiting" {
		t.Errorf("%+v", n)
	}
	ask := &quoratev1.ListNodesRequest{}
	s.mustHaveAsked(t, ask, ask)

	for _, c := range []struct {
		args []string
		want proto.Message
		done string
	}{
		{[]string{"node", "add", "n2", "--comment", "new"}, &quoratev1.AddNodeRequest{Node: "n2", Comment: "new"}, "added"},
		{[]string{"node", "drain", "n2"}, &quoratev1.DrainNodeRequest{Node: "n2"}, "draining"},
		{[]string{"node", "drain", "n2", "--undo"}, &quoratev1.DrainNodeRequest{Node: "n2", Undo: true}, "active"},
		{[]string{"node", "remove", "n2"}, &quoratev1.RemoveNodeRequest{Node: "n2"}, "removed"},
	} {
		if out := mustRun(t, c.args...).stdout; !strings.HasPrefix(out, "n2: "+c.done) || strings.Count(out, "\n") != 1 {
			t.Errorf("%v: %q", c.args, out)
		}
		var v changedView
		mustJSON(t, &v, c.args...)
		if diff := cmp.Diff(changedView{Node: "n2", Done: c.done}, v); diff != "" {
			t.Errorf("%v: %s", c.args, diff)
		}
		s.mustHaveAsked(t, c.want, c.want)
	}
	mustRun(t, "partition", "transfer-leader", "p0")
	mustRun(t, "partition", "transfer-leader", "control", "n2", "--comment", "to the faster disk")
	s.mustHaveAsked(t, &quoratev1.TransferLeaderRequest{Partition: "p0"},
		&quoratev1.TransferLeaderRequest{Partition: "control", Node: "n2", Comment: "to the faster disk"})
	if out := mustRun(t, "node", "replace", "n2", "--comment", "a dead disk").stdout; !strings.HasSuffix(out, "next: start it\n") {
		t.Error(out)
	}
	s.mustHaveAsked(t, &quoratev1.ReplaceNodeRequest{Node: "n2", Comment: "a dead disk"})
	mustFail(t, exitUsage, []string{"nothing to --wait for"}, "node", "drain", "n2", "--undo", "--wait")
}

// Shows that drain --wait says what is left, a line for each step, and returns when nothing is; that it tells when
// somebody takes the drain back; and that it says what goes on when nobody answers any more.
func TestNodeDrainWait(t *testing.T) {
	s := &adminScript{answers: map[string][]any{"DrainNodeRequest": {&quoratev1.DrainNodeResponse{}}}}
	mustServeAdmin(t, s)
	left := aNode("draining", "p0", "p1")
	s.answers["ListNodesRequest"] = []any{aNode("active", "p0", "p1"), left, left, aNode("draining", "p1"), aNode("draining")}
	r := mustRun(t, "node", "drain", "n2", "--wait")
	if r.stderr != "n2: 2 replicas left: p0 p1\nn2: 1 replica left: p1\n" || !strings.HasPrefix(r.stdout, "n2: drained; ") {
		t.Errorf("%+v", r)
	}
	s.answers["ListNodesRequest"] = []any{left, aNode("active", "p0", "p1")}
	r = runWith(t, "", "node", "drain", "n2", "--wait")
	if r.status != exitError || r.stdout != "" || !strings.Contains(r.stderr, "taken the drain back") {
		t.Errorf("%+v", r)
	}
	s.answers["ListNodesRequest"] = []any{left, quotaerr.New(quotaerr.NoQuorum, "nobody leads")}
	r = runWith(t, "", "node", "drain", "n2", "--wait", "--timeout", "300ms")
	if r.status != exitUnavailable || !strings.Contains(r.stderr, "n2 drains on, but is not known to be empty") {
		t.Errorf("%+v", r)
	}
}

// Shows that a wait that is interrupted ends with what goes on all the same.
func TestInterruptedWait(t *testing.T) {
	s := &adminScript{answers: map[string][]any{
		"DrainNodeRequest": {&quoratev1.DrainNodeResponse{}}, "ListNodesRequest": {aNode("draining", "p0")},
	}}
	mustServeAdmin(t, s)
	ctx, cancel := context.WithCancel(t.Context())
	var stdout bytes.Buffer
	stderr := cancelling{cancel: cancel}
	status := run(ctx, []string{"node", "drain", "n2", "--wait"}, strings.NewReader(""), &stdout, &stderr)
	const want = "n2: 1 replica left: p0\nquorate: interrupted: n2 drains on, but is not known to be empty: " +
		"look with `quorate node list`\n"
	if status != exitError || stdout.Len() > 0 || stderr.String() != want {
		t.Errorf("status %d, %q, %q", status, &stdout, &stderr.Buffer)
	}
}

// cancelling is written to and then cancels.
type cancelling struct {
	bytes.Buffer
	cancel context.CancelFunc
}

func (c *cancelling) Write(b []byte) (int, error) {
	c.cancel()
	return c.Buffer.Write(b)
}

// Shows what forgive asks for, with an id of its own unless one is given, what it prints, and that it takes a
// reason.
func TestUsageForgive(t *testing.T) {
	s := &adminScript{answers: map[string][]any{"ForgiveUsageRequest": {&quoratev1.ForgiveUsageResponse{
		Forgiven: []*quoratev1.ForgivenUsage{{ApiClass: "convert", Amount: 3}},
	}}}}
	mustServeAdmin(t, s)
	mustFail(t, exitUsage, []string{"--reason is required"}, "usage", "forgive", "u1")
	if out := mustRun(t, "usage", "forgive", "u1", "convert", "--reason", "ticket", "--id", "f1").stdout; out != "CLASS    FORGIVEN\nconvert         3\n" {
		t.Error(out)
	}
	s.mustHaveAsked(t, &quoratev1.ForgiveUsageRequest{Principal: "u1", ApiClass: "convert", Reason: "ticket", ForgiveId: "f1"})
	var v, w forgivenView
	mustJSON(t, &v, "usage", "forgive", "u1", "--reason", "ticket")
	mustJSON(t, &w, "usage", "forgive", "u1", "--reason", "ticket")
	if v.ForgiveID == "" || v.ForgiveID == w.ForgiveID || v.Principal != "u1" || v.APIClass != "" || len(v.Forgiven) != 1 {
		t.Errorf("%+v, then %+v", v, w)
	}
	s.mustHaveAsked(t, &quoratev1.ForgiveUsageRequest{Principal: "u1", Reason: "ticket", ForgiveId: v.ForgiveID},
		&quoratev1.ForgiveUsageRequest{Principal: "u1", Reason: "ticket", ForgiveId: w.ForgiveID})
	s.answers["ForgiveUsageRequest"] = []any{&quoratev1.ForgiveUsageResponse{}}
	if out := mustRun(t, "usage", "forgive", "u1", "--reason", "ticket").stdout; out != "there was no usage to forgive\n" {
		t.Error(out)
	}
	s.answers["ForgiveUsageRequest"] = []any{quotaerr.New(quotaerr.OutcomeUnknown, "no answer")}
	mustFail(t, exitUnavailable, []string{"repeat it with --id f2"},
		"usage", "forgive", "u1", "--reason", "ticket", "--id", "f2", "--timeout", "300ms")
}

// Shows what the flags of audit ask for, the table, in which no record can break a line or drive a terminal, the
// fields for scripts, and how to go on where there is more.
func TestAudit(t *testing.T) {
	s := &adminScript{answers: map[string][]any{"SearchAuditRequest": {&quoratev1.SearchAuditResponse{
		Records: []*quoratev1.AuditRecord{
			{
				Index: 9, At: timestamppb.New(time.Unix(1_700_000_000, 0)), Actor: "admin/ops", Action: "policy.publish",
				Object: "policy", Comment: "why\x1b[31m", Difference: "~ a\n~ b\n~ c", Result: "done", Message: "revision 5",
			},
			{Index: 8, Actor: "token/ana", Action: "node.drain", Object: "node n1", Result: "permission_denied", Message: "it takes admin"},
		},
		Next: 8,
	}}}}
	mustServeAdmin(t, s)
	r := mustRun(t, "audit", "--since", "2026-01-31", "--until", "2026-01-31T12:00:00.5Z", "--actor", "admin/ops",
		"--action", "policy", "--object", "policy", "--limit", "2", "--before", "10")
	s.mustHaveAsked(t, &quoratev1.SearchAuditRequest{
		From:  timestamppb.New(time.Date(2026, 1, 31, 0, 0, 0, 0, time.UTC)),
		Until: timestamppb.New(time.Date(2026, 1, 31, 12, 0, 0, 5e8, time.UTC)),
		Actor: "admin/ops", Action: "policy", Object: "policy", Limit: 2, Before: 10,
	})
	const want = `RECORD  AT                    ACTOR      ACTION          OBJECT   RESULT                             COMMENT   DIFFERENCE
     9  2023-11-14T22:13:20Z  admin/ops  policy.publish  policy   done                               why [31m  ~ a (and 2 more lines)
     8  -                     token/ana  node.drain      node n1  permission_denied: it takes admin  -         -
`
	if diff := cmp.Diff(want, r.stdout); diff != "" || r.stderr != "there is more: go on with --before 8\n" {
		t.Errorf("%q %s", r.stderr, diff)
	}
	var v auditView
	mustJSON(t, &v, "audit", "--since", "24h")
	if v.Next != 8 || v.Records[0].Difference != "~ a\n~ b\n~ c" || v.Records[0].Message != "revision 5" {
		t.Errorf("%+v", v)
	}
	s.mu.Lock()
	since := s.asked[0].(*quoratev1.SearchAuditRequest).GetFrom().AsTime()
	s.mu.Unlock()
	if ago := time.Since(since); ago < 24*time.Hour || ago > 24*time.Hour+time.Minute {
		t.Errorf("24h is %s ago", ago)
	}
	mustFail(t, exitUsage, []string{`"soon" is no moment`}, "audit", "--since", "soon")
}

// Shows what the token commands ask for, that the secret is printed by create alone, and the states in the list.
func TestTokenCommands(t *testing.T) {
	now := time.Now()
	token := func(id string, expires time.Duration, revoked bool) *quoratev1.Token {
		return &quoratev1.Token{
			Id: id, Name: "ana", Role: "viewer", Created: timestamppb.New(now.Add(-2 * time.Hour)),
			Expires: timestamppb.New(now.Add(expires)), Revoked: revoked,
		}
	}
	s := &adminScript{answers: map[string][]any{
		"CreateTokenRequest": {&quoratev1.CreateTokenResponse{Token: token("t1", time.Hour, false), Secret: "qt_t1_secret"}},
		"ListTokensRequest": {&quoratev1.ListTokensResponse{Tokens: []*quoratev1.Token{
			token("t1", time.Hour, false), token("t2", -time.Hour, false), token("t3", time.Hour, true),
		}}},
		"RevokeTokenRequest": {&quoratev1.RevokeTokenResponse{}},
	}}
	mustServeAdmin(t, s)
	for _, role := range []string{"", "gateway", "node"} {
		mustFail(t, exitUsage, []string{"--role is "}, "token", "create", "ana", "--role", role)
	}
	s.mustHaveAsked(t)
	r := mustRun(t, "token", "create", "ana", "--role", "viewer", "--valid", "7d", "--comment", "she looks on")
	if !strings.HasSuffix(r.stdout, "\nsecret, shown only now: qt_t1_secret\n") || !strings.HasPrefix(r.stdout, "token t1 of ana, viewer, until ") {
		t.Errorf("%+v", r)
	}
	s.mustHaveAsked(t, &quoratev1.CreateTokenRequest{
		Name: "ana", Role: "viewer", Valid: durationpb.New(7 * 24 * time.Hour), Comment: "she looks on",
	})
	var v newTokenView
	mustJSON(t, &v, "token", "create", "ana", "--role", "admin")
	if v.Secret != "qt_t1_secret" || v.Token.ID != "t1" {
		t.Errorf("%+v", v)
	}
	out := mustRun(t, "token", "list").stdout
	for i, state := range []string{"valid", "expired", "revoked"} {
		if line := strings.Fields(strings.Split(out, "\n")[i+1]); line[3] != state {
			t.Errorf("%v, want %s", line, state)
		}
	}
	if strings.Contains(out+mustRun(t, "token", "list", "-o", "yaml").stdout, "secret") {
		t.Error("a list has a secret")
	}
	s.mustHaveAsked(t, &quoratev1.CreateTokenRequest{Name: "ana", Role: "admin", Valid: durationpb.New(30 * 24 * time.Hour)},
		&quoratev1.ListTokensRequest{}, &quoratev1.ListTokensRequest{})
	mustRun(t, "token", "revoke", "t1", "--comment", "it leaked")
	s.mustHaveAsked(t, &quoratev1.RevokeTokenRequest{Id: "t1", Comment: "it leaked"})
}

// Shows that the status of nodes that wait for a cluster says both ways to make one, and that of others does not.
func TestStatusBeforeCluster(t *testing.T) {
	waiting := func(what string) *quoratev1.ClusterStatusResponse {
		return &quoratev1.ClusterStatusResponse{ClusterId: "c1", Nodes: []*quoratev1.Node{{Id: "n0", Waiting: what}}}
	}
	s := &adminScript{answers: map[string][]any{"ClusterStatusRequest": {
		waiting("waiting for a cluster: run `quorate cluster init` on one of its nodes"),
		waiting("looking for the node that leads the control group"),
	}}}
	mustServeAdmin(t, s)
	out := mustRun(t, "cluster", "status").stdout
	if !strings.HasSuffix(out, "\nnext, on one node and once: quorate cluster init, or quorate snapshot restore FILE to make it of a backup\n") {
		t.Error(out)
	}
	if out := mustRun(t, "cluster", "status").stdout; strings.Contains(out, "restore") {
		t.Error(out)
	}
}
