package client

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"

	"github.com/quorate/quorate/internal/errtable"
	"github.com/quorate/quorate/internal/identity"
	quoratev1 "github.com/quorate/quorate/proto/quorate/v1"
	"github.com/quorate/quorate/quotaerr"
)

// operated is a node that gives the next answer of its script to each operator's call, nil being an empty answer,
// and that for ever once the script has ended. It notes which methods were called, and with which tokens.
type operated struct {
	quoratev1.UnimplementedAdminServer
	quoratev1.UnimplementedQuotaServer

	mu     sync.Mutex // guards the rest
	script []error
	calls  []string
	tokens []string
	body   []byte // of the last upload
	// breaks is how many pieces of a download or watch come before it breaks off; 0: it does not.
	breaks int
}

// next notes a call and takes the next answer.
func (o *operated) next(ctx context.Context, method string) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.calls = append(o.calls, method[strings.LastIndexByte(method, '/')+1:])
	o.tokens = append(o.tokens, metadata.ValueFromIncomingContext(ctx, "authorization")...)
	if len(o.script) == 0 {
		return nil
	}
	err := o.script[0]
	o.script = o.script[1:]
	if err == nil {
		return nil
	}
	return errtable.ToStatus(ctx, err).Err()
}

func (o *operated) called() []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return append([]string(nil), o.calls...)
}

// UploadPolicy keeps the body, and answers by the script once it is there.
func (o *operated) UploadPolicy(
	s grpc.ClientStreamingServer[quoratev1.UploadPolicyRequest, quoratev1.UploadPolicyResponse],
) error {
	var body []byte
	for {
		m, err := s.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		body = append(body, m.GetChunk()...)
	}
	o.mu.Lock()
	o.body = body
	o.mu.Unlock()
	if err := o.next(s.Context(), "/UploadPolicy"); err != nil {
		return err
	}
	return s.SendAndClose(&quoratev1.UploadPolicyResponse{Size: int64(len(body))})
}

// DownloadPolicy sends three pieces.
func (o *operated) DownloadPolicy(
	_ *quoratev1.DownloadPolicyRequest, s grpc.ServerStreamingServer[quoratev1.DownloadPolicyResponse],
) error {
	if err := o.next(s.Context(), "/DownloadPolicy"); err != nil {
		return err
	}
	for i := range 3 {
		m := &quoratev1.DownloadPolicyResponse{Chunk: []byte("abc")[i : i+1]}
		if i == 0 {
			m.Revision = &quoratev1.Revision{Number: 5}
		}
		if err := s.Send(m); err != nil {
			return err
		}
		if o.breaks == i+1 {
			return errtable.ToStatus(s.Context(), quotaerr.New(quotaerr.NoQuorum, "the disk")).Err()
		}
	}
	return nil
}

// WatchConfig sends two messages and ends.
func (o *operated) WatchConfig(
	_ *quoratev1.WatchConfigRequest, s grpc.ServerStreamingServer[quoratev1.WatchConfigResponse],
) error {
	if err := o.next(s.Context(), "/WatchConfig"); err != nil {
		return err
	}
	for _, id := range []string{"c1", "c2"} {
		if err := s.Send(&quoratev1.WatchConfigResponse{ClusterId: id}); err != nil {
			return err
		}
	}
	return errtable.ToStatus(s.Context(), quotaerr.New(quotaerr.NotLeader, "stopping")).Err()
}

// mustOperate serves o on a loopback socket until the test ends, and returns where.
func mustOperate(t *testing.T, o *operated, options ...grpc.ServerOption) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	// Every unary method answers by the script.
	g := grpc.NewServer(append(options, grpc.UnaryInterceptor(
		func(ctx context.Context, _ any, info *grpc.UnaryServerInfo, _ grpc.UnaryHandler) (any, error) {
			if err := o.next(ctx, info.FullMethod); err != nil {
				return nil, err
			}
			return emptyAnswer(info.FullMethod), nil
		}))...)
	quoratev1.RegisterAdminServer(g, o)
	quoratev1.RegisterQuotaServer(g, o)
	done := make(chan error, 1)
	go func() { done <- g.Serve(l) }()
	t.Cleanup(func() {
		g.Stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return l.Addr().String()
}

// emptyAnswer is an empty response of one of Admin's methods.
func emptyAnswer(method string) proto.Message {
	m, _ := reflect.TypeFor[quoratev1.AdminServer]().MethodByName(method[strings.LastIndexByte(method, '/')+1:])
	return reflect.New(m.Type.Out(0).Elem()).Interface().(proto.Message)
}

// call calls one of the client's unary methods by name.
func call(ctx context.Context, c *Client, method string, req proto.Message) error {
	args := []reflect.Value{reflect.ValueOf(ctx)}
	m := reflect.ValueOf(c).MethodByName(method)
	if m.Type().NumIn() > 1 {
		args = append(args, reflect.ValueOf(req))
	}
	err, _ := m.Call(args)[1].Interface().(error)
	return err
}

// methodCase is one unary method, with a request of it and whether it is asked again after an unknown fate.
type methodCase struct {
	name   string
	req    proto.Message
	repeat bool
}

var methodCases = []methodCase{
	{"ClusterStatus", nil, true},
	{"InitCluster", &quoratev1.InitClusterRequest{}, false},
	{"ListNodes", &quoratev1.ListNodesRequest{}, true},
	{"AddNode", &quoratev1.AddNodeRequest{}, true},
	{"DrainNode", &quoratev1.DrainNodeRequest{}, true},
	{"RemoveNode", &quoratev1.RemoveNodeRequest{}, true},
	{"ReplaceNode", &quoratev1.ReplaceNodeRequest{}, true},
	{"TransferLeader", &quoratev1.TransferLeaderRequest{Partition: "p1"}, false},
	{"TransferLeader", &quoratev1.TransferLeaderRequest{Partition: "p1", Node: "n2"}, true},
	{"StartPlan", &quoratev1.StartPlanRequest{}, false},
	{"AbortPlan", &quoratev1.AbortPlanRequest{}, true},
	{"ListPlans", &quoratev1.ListPlansRequest{}, true},
	{"ApplyPolicy", &quoratev1.ApplyPolicyRequest{}, true},
	{"RollbackPolicy", &quoratev1.RollbackPolicyRequest{}, true},
	{"SwitchClass", &quoratev1.SwitchClassRequest{}, false},
	{"SwitchClass", &quoratev1.SwitchClassRequest{Base: 3}, true},
	{"ListPolicies", &quoratev1.ListPoliciesRequest{}, true},
	{"DiffPolicies", &quoratev1.DiffPoliciesRequest{}, true},
	{"PolicyStatus", &quoratev1.PolicyStatusRequest{}, true},
	{"ForgiveUsage", &quoratev1.ForgiveUsageRequest{}, false},
	{"ForgiveUsage", &quoratev1.ForgiveUsageRequest{ForgiveId: "f1"}, true},
	{"SearchAudit", &quoratev1.SearchAuditRequest{}, true},
	{"CreateToken", &quoratev1.CreateTokenRequest{}, false},
	{"ListTokens", &quoratev1.ListTokensRequest{}, true},
	{"RevokeToken", &quoratev1.RevokeTokenRequest{}, true},
}

// Shows for every method of the Admin service that the client has it; that it is asked again after a refusal that has
// changed nothing; and that after an unknown fate only what is harmless is asked again, once.
func TestAfterAnUnknownFate(t *testing.T) {
	had := map[string]bool{ // have tests of their own
		"UploadPolicy": true, "DownloadPolicy": true, "SaveSnapshot": true, "RestoreSnapshot": true,
	}
	for _, m := range methodCases {
		had[m.name] = true
		for _, c := range []struct {
			script []error
			repeat bool
		}{
			{[]error{quotaerr.ErrNotLeader, quotaerr.ErrOverloaded}, true},
			{[]error{quotaerr.ErrOutcomeUnknown}, m.repeat},
		} {
			t.Run(m.name, func(t *testing.T) {
				t.Parallel()
				o := &operated{script: c.script}
				err := call(within(t, 10*time.Second), mustClient(t, mustOperate(t, o)), m.name, m.req)
				want := 1
				if c.repeat {
					want = len(c.script) + 1
				}
				if got := len(o.called()); got != want || (err == nil) != c.repeat {
					t.Errorf("%v after %v: called %d times, %v", m.req, c.script, got, err)
				}
				if !c.repeat && quotaerr.ReasonOf(err) != quotaerr.OutcomeUnknown {
					t.Errorf("%v", err)
				}
			})
		}
	}
	for i := range quoratev1.File_quorate_v1_admin_proto.Services().Get(0).Methods().Len() {
		m := quoratev1.File_quorate_v1_admin_proto.Services().Get(0).Methods().Get(i)
		if !had[string(m.Name())] {
			t.Errorf("%s is not tried", m.Name())
		}
	}
}

// Shows that what a check is asked again for is an answer to an operator; that a refusal after an unknown fate does
// not hide it; that a no_quorum of all nodes ends the asking; and that a cluster is made on one node only.
func TestOperatorsAnswers(t *testing.T) {
	for _, e := range []*quotaerr.Error{quotaerr.ErrPolicyStale, quotaerr.ErrPolicyBehind, quotaerr.ErrCapacity} {
		o := &operated{script: []error{e}}
		_, err := mustClient(t, mustOperate(t, o)).ApplyPolicy(within(t, 10*time.Second), &quoratev1.ApplyPolicyRequest{})
		if quotaerr.ReasonOf(err) != e.Reason || len(o.called()) != 1 {
			t.Errorf("%s: %v after %v", e.Reason, err, o.called())
		}
	}
	o := &operated{script: []error{quotaerr.ErrOutcomeUnknown, quotaerr.ErrPolicyStale}}
	_, err := mustClient(t, mustOperate(t, o)).ApplyPolicy(within(t, 10*time.Second), &quoratev1.ApplyPolicyRequest{})
	if quotaerr.ReasonOf(err) != quotaerr.OutcomeUnknown || len(o.called()) != 2 {
		t.Errorf("stale by one's own doing: %v after %v", err, o.called())
	}
	none := quotaerr.New(quotaerr.NoQuorum, "not made yet")
	a, b := &operated{script: []error{none, none, none}}, &operated{script: []error{none, none, none}}
	two := mustClient(t, mustOperate(t, a), mustOperate(t, b))
	ctx := within(t, time.Minute)
	_, err = two.ListNodes(ctx, &quoratev1.ListNodesRequest{})
	if quotaerr.ReasonOf(err) != quotaerr.NoQuorum || len(a.called()) != 2 || len(b.called()) != 2 {
		t.Errorf("no cluster: %v after %v and %v", err, a.called(), b.called())
	}
	_, err = two.InitCluster(ctx, &quoratev1.InitClusterRequest{})
	if quotaerr.ReasonOf(err) != quotaerr.InvalidArgument || len(a.called()) != 2 {
		t.Errorf("making a cluster on two nodes: %v", err)
	}
	_, err = two.AddNode(ctx, &quoratev1.AddNodeRequest{Node: "n\xff"})
	if quotaerr.ReasonOf(err) != quotaerr.InvalidArgument || len(a.called()) != 2 {
		t.Errorf("not UTF-8: %v", err)
	}
}

// Shows that a policy goes up whole, from its beginning at each attempt, also one of no bytes, and that a refusal ends
// it.
func TestUploadPolicy(t *testing.T) {
	for _, size := range []int{0, 1, chunkBytes, 3*chunkBytes + 1} {
		body := bytes.Repeat([]byte("p"), size)
		digest := sha256.Sum256(body)
		o := &operated{script: []error{quotaerr.ErrOutcomeUnknown}}
		c := mustClient(t, mustOperate(t, o))
		got, err := c.UploadPolicy(within(t, 20*time.Second), digest[:], bytes.NewReader(body))
		if err != nil || got.GetSize() != int64(size) || len(o.called()) != 2 || !bytes.Equal(o.body, body) {
			t.Errorf("%d bytes: %v, %v after %v", size, got, err, o.called())
		}
	}
	o := &operated{script: []error{quotaerr.New(quotaerr.InvalidArgument, "no policy")}}
	_, err := mustClient(t, mustOperate(t, o)).UploadPolicy(within(t, 10*time.Second), nil, strings.NewReader("x"))
	if quotaerr.ReasonOf(err) != quotaerr.InvalidArgument {
		t.Errorf("refused: %v", err)
	}
}

// failing is a writer that is full.
type failing struct{}

func (failing) Write([]byte) (int, error) { return 0, errors.New("full") }

// Shows that a policy comes down whole, past a node that does not answer; that one that breaks off is an error and is
// not gone on with from another node; and that a writer that fails is.
func TestDownloadPolicy(t *testing.T) {
	good := &operated{script: []error{quotaerr.ErrNoQuorum}}
	c := mustClient(t, mustDeadAddr(t), mustOperate(t, good))
	var to bytes.Buffer
	r, err := c.DownloadPolicy(within(t, 20*time.Second), &quoratev1.DownloadPolicyRequest{}, &to)
	if err != nil || r.GetNumber() != 5 || to.String() != "abc" {
		t.Errorf("%v %v %q", r, err, &to)
	}
	if _, err := c.DownloadPolicy(within(t, 10*time.Second), &quoratev1.DownloadPolicyRequest{}, failing{}); err == nil {
		t.Error("a full disk is no error")
	}
	broken, other := &operated{breaks: 2}, &operated{}
	c = mustClient(t, mustOperate(t, broken), mustOperate(t, other))
	to.Reset()
	_, err = c.DownloadPolicy(within(t, 10*time.Second), &quoratev1.DownloadPolicyRequest{}, &to)
	if quotaerr.ReasonOf(err) != quotaerr.NoQuorum || len(other.called()) != 0 || to.String() != "ab" {
		t.Errorf("half-way: %v, %q, then %v", err, &to, other.called())
	}
}

// Shows that a watch is that of the first node that answers, and ends with the reason for which that node ends it, or
// without one when who watches has had enough.
func TestWatchConfig(t *testing.T) {
	c := mustClient(t, mustOperate(t, &operated{script: []error{quotaerr.ErrNoQuorum}}), mustOperate(t, &operated{}))
	var told []string
	for m, err := range c.WatchConfig(within(t, 10*time.Second)) {
		if err != nil {
			told = append(told, string(quotaerr.ReasonOf(err)))
			continue
		}
		told = append(told, m.GetClusterId())
	}
	if got := strings.Join(told, " "); got != "c1 c2 not_leader" {
		t.Errorf("told %s", got)
	}
	for range c.WatchConfig(within(t, 10*time.Second)) {
		break
	}
	for m, err := range mustClient(t, mustDeadAddr(t)).WatchConfig(within(t, 300*time.Millisecond)) {
		if m != nil || quotaerr.ReasonOf(err) != quotaerr.NoQuorum {
			t.Errorf("nobody there: %v %v", m, err)
		}
	}
}

// Shows that a token goes with each call over TLS, with a CA alone, and in plaintext on loopback; that none is sent
// where none is given; and that a client which would send it elsewhere in plaintext is not made.
func TestToken(t *testing.T) {
	ca := mustCA(t, testCluster)
	node := ca.must(t, identity.Node, "127.0.0.1", ca)
	own, err := identity.OpenCA(ca.dir + "/ca.pem")
	if err != nil {
		t.Fatal(err)
	}
	over, plain := &operated{}, &operated{}
	secured := mustOperate(t, over, grpc.Creds(credentials.NewTLS(node.Server(true, "h2"))))
	local := mustOperate(t, plain)
	for _, c := range []struct {
		addr    string
		options []Option
		at      *operated
		want    string
	}{
		{secured, []Option{WithTLS(own), WithToken("qt_s")}, over, "Bearer qt_s"},
		{local, []Option{WithToken("qt_s")}, plain, "Bearer qt_s"},
		{local, []Option{WithToken("")}, plain, ""},
	} {
		c.at.tokens = nil
		client, err := New([]string{c.addr}, c.options...)
		if err != nil {
			t.Fatal(err)
		}
		if text := fmt.Sprintf("%v %+v %#v", client, client, client); strings.Contains(text, "qt_s") {
			t.Errorf("the client prints its token: %s", text)
		}
		if _, err := client.ListNodes(within(t, 10*time.Second), &quoratev1.ListNodesRequest{}); err != nil {
			t.Error(err)
		}
		if got := strings.Join(c.at.tokens, ","); got != c.want {
			t.Errorf("shown %q, want %q", got, c.want)
		}
		if err := client.Close(); err != nil {
			t.Error(err)
		}
	}
	for _, addr := range []string{"192.0.2.1:7070", "node.example:7070", "localhost.example:7070", "0.0.0.0:7070", "x"} {
		if _, err := New([]string{local, addr}, WithToken("qt_s")); err == nil || strings.Contains(err.Error(), "qt_s") {
			t.Errorf("to %s in plaintext: %v", addr, err)
		}
	}
}
