package rpc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sort"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/internal/errtable"
	"github.com/quorate/quorate/internal/identity"
	quoratev1 "github.com/quorate/quorate/proto/quorate/v1"
	"github.com/quorate/quorate/quotaerr"
)

// methodsOf are the full names of all that a node serves over gRPC.
func methodsOf(s *Server) (out []string) {
	for service, info := range s.grpc.GetServiceInfo() {
		for _, m := range info.Methods {
			out = append(out, "/"+service+"/"+m.Name)
		}
	}
	sort.Strings(out)
	return out
}

// Shows that every method that a node serves says who may call it, and that nothing else does; and by the service
// descriptors that every method of the contract is served: each of Admin's by an operation, but for those that are
// none. What changes something is for admins alone, and what only looks on for viewers too.
func TestEveryMethodHasItsRoles(t *testing.T) {
	files := []protoreflect.FileDescriptor{quoratev1.File_quorate_v1_quota_proto, quoratev1.File_quorate_v1_admin_proto,
		quoratev1.File_quorate_v1_peer_proto}
	aside := map[string]bool{
		"ClusterStatus": true, "UploadPolicy": true, "DownloadPolicy": true, "SaveSnapshot": true, "RestoreSnapshot": true,
	}
	count := 0
	for _, f := range files {
		for i := range f.Services().Len() {
			s := f.Services().Get(i)
			for k := range s.Methods().Len() {
				count++
				m := s.Methods().Get(k)
				name := fmt.Sprintf("/%s/%s", s.FullName(), m.Name())
				if access[name] == 0 {
					t.Errorf("%s has no roles in access", name)
				}
				if s.Name() != "Admin" {
					continue
				}
				o, known := operations[name]
				if known == aside[string(m.Name())] {
					t.Errorf("%s among operations: %v", name, known)
				} else if known && o.request().ProtoReflect().Descriptor() != m.Input() {
					t.Errorf("%s has the request %T", name, o.request())
				}
				if access[name] != accessLook && access[name] != accessChange {
					t.Errorf("%s is for %s", name, access[name])
				}
			}
		}
	}
	if count != len(access)-4 { // those of gRPC's health service, and Envoy's
		t.Errorf("the contract has %d methods, access %d", count, len(access))
	}
	served := methodsOf(mustNode(t, "n1", allowing()).Server)
	if len(served) < 10 {
		t.Fatalf("only %v", served)
	}
	for _, m := range served {
		if access[m] == 0 {
			t.Errorf("%s has no roles in access: nobody could call it", m)
		}
	}
	if len(access) != len(served) {
		t.Errorf("access has %d methods, %d are served", len(access), len(served))
	}
}

// Shows over real TLS, for every method and every role, that a call is refused as permission_denied exactly where
// the contract says so, written out here apart from the table under test, and that nothing refused reaches the
// backend.
func TestRolesOnTheWire(t *testing.T) {
	looks := "Quota/Peek Quota/WatchConfig Admin/ClusterStatus Admin/ListNodes Admin/DownloadPolicy " +
		"Admin/ListPolicies Admin/DiffPolicies Admin/PolicyStatus Admin/SearchAudit Admin/ListTokens " +
		"Admin/ListPlans"
	contract := map[string]string{
		"gateway": "Quota/CheckAndConsume Quota/CheckStream Quota/Peek Quota/WatchConfig",
		"viewer":  looks,
		"admin": looks + " Admin/InitCluster Admin/AddNode Admin/DrainNode Admin/RemoveNode Admin/ReplaceNode " +
			"Admin/TransferLeader Admin/UploadPolicy Admin/ApplyPolicy Admin/RollbackPolicy Admin/SwitchClass " +
			"Admin/ForgiveUsage Admin/CreateToken Admin/RevokeToken Admin/StartPlan Admin/AbortPlan Admin/SaveSnapshot " +
			"Admin/RestoreSnapshot",
		"node": "Peer/ForwardCheck Peer/ForwardPeek Peer/NodeStatus Peer/ReportPace Peer/ForwardAdmin " +
			"Peer/ConfirmPolicy Peer/PartitionPolicy Peer/HasBody Peer/PutBody Peer/GetBody Peer/PlanStep " +
			"Peer/ExportSlots Peer/ExportPartition",
	}
	ca := mustCA(t, tlsCluster)
	backend := allowing()
	n := mustSecure(t, ca, "n1", backend)
	for _, role := range []identity.Role{identity.Gateway, identity.Viewer, identity.Admin, identity.Node} {
		may := map[string]bool{}
		for _, m := range strings.Fields(contract[role.String()]) {
			may["/quorate.v1."+m] = true
		}
		may["/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"] = role == identity.Gateway
		conn := mustDial(t, n.grpcAddr, ca.must(t, role, "x"))
		for _, m := range methodsOf(n.Server) {
			if strings.HasPrefix(m, "/grpc.health.") {
				may[m] = true
			}
			err := callEmpty(t, conn, m)
			refused := status.Code(err) == codes.PermissionDenied && strings.Contains(err.Error(), "it takes the role")
			if refused == may[m] {
				t.Errorf("%s calls %s: %v", role, m, err)
			}
		}
		var out []byte
		err := conn.Invoke(within(t, 10*time.Second), "/quorate.v1.Admin/Everything", []byte{}, &out, grpc.ForceCodec(rawCodec{}))
		if status.Code(err) != codes.Unimplemented {
			t.Errorf("%s calls what is not there: %v", role, err)
		}
	}
	if got := backend.seen(); len(got) != 0 {
		t.Errorf("the backend saw %+v", got)
	}
}

// callEmpty calls a method of any shape with one empty message, and returns what comes of the first answer. Beyond
// the door the message is malformed, or its cluster is another, wherever one is needed.
func callEmpty(t *testing.T, conn *grpc.ClientConn, method string) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	both := &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}
	s, err := conn.NewStream(ctx, both, method, grpc.ForceCodec(rawCodec{}))
	if err != nil {
		return err
	}
	// An error of these is that of the call, which RecvMsg tells.
	_ = s.SendMsg([]byte{})
	_ = s.CloseSend()
	var out []byte
	if err := s.RecvMsg(&out); !errors.Is(err, io.EOF) {
		return err
	}
	return nil
}

// Shows that a gateway gets decisions, under the name in its certificate, for the classes in it and no other, in
// the check itself and in what it charges besides, over both protocols and for peeks.
func TestClassesOfAGateway(t *testing.T) {
	ca := mustCA(t, tlsCluster)
	backend := allowing()
	backend.peek = func(context.Context, fsm.Peek) (UsageAnswer, error) { return UsageAnswer{}, nil }
	n := mustSecure(t, ca, "n1", backend)
	own := ca.must(t, identity.Gateway, "edge-1", "convert", "a,b")
	quota := quoratev1.NewQuotaClient(mustDial(t, n.grpcAddr, own))
	web := n.as(t, own, own)
	for _, c := range []struct {
		class, also string
		want        quotaerr.Reason
	}{
		{"convert", "", ""}, {"a,b", "", ""}, {"convert", "a,b", ""},
		{"login", "", quotaerr.PermissionDenied}, {"a", "", quotaerr.PermissionDenied},
		{"convert", "login", quotaerr.PermissionDenied},
	} {
		req := aCheck()
		req.ApiClass = c.class
		body := `{"principal":"acme","decision_id":"d1","api_class":"` + c.class + `"`
		if c.also != "" {
			req.Also = []*quoratev1.Charge{{ApiClass: c.also}}
			body += `,"also":[{"api_class":"` + c.also + `"}]`
		}
		_, err := quota.CheckAndConsume(within(t, 10*time.Second), req)
		if e := errtable.FromStatus(err); e != nil && e.Reason != c.want || e == nil && c.want != "" {
			t.Errorf("%+v: %v", c, err)
		}
		r := web.mustPost(t, body+"}")
		if want := map[bool]int{true: http.StatusOK, false: http.StatusForbidden}[c.want == ""]; r.status != want {
			t.Errorf("%+v over HTTP: %d %s", c, r.status, r.body)
		}
		_, err = quota.Peek(within(t, 10*time.Second), &quoratev1.PeekRequest{Principal: "acme", ApiClass: c.class})
		if c.also == "" && (status.Code(err) == codes.PermissionDenied) != (c.want != "") {
			t.Errorf("%+v, peek: %v", c, err)
		}
	}
	for _, c := range backend.seen() {
		if c.Gateway != "edge-1" {
			t.Errorf("decided for gateway %q", c.Gateway)
		}
	}
	if got := len(backend.seen()); got != 6 {
		t.Errorf("%d checks were decided", got)
	}
}

// Shows the HTTP door by role: probes are open to all, metrics to who may look on, checks to gateways; without a
// certificate, or with one of another cluster, the answer says what is missing.
func TestRolesOverHTTP(t *testing.T) {
	ca := mustCA(t, tlsCluster)
	n := mustSecure(t, ca, "n1", allowing())
	trusted := ca.must(t, identity.Viewer, "v")
	for _, c := range []struct {
		name                        string
		own                         *identity.Source
		livez, readyz, metrics, ask int
	}{
		{"nobody", nil, 200, 200, 401, 401},
		{"viewer", trusted, 200, 200, 200, 403},
		{"admin", ca.must(t, identity.Admin, "a"), 200, 200, 200, 403},
		{"gateway", ca.must(t, identity.Gateway, "g"), 200, 200, 403, 200},
		{"node", ca.must(t, identity.Node, "n2"), 200, 200, 403, 403},
	} {
		web := n.as(t, trusted, c.own)
		for path, want := range map[string]int{"/livez": c.livez, "/readyz": c.readyz, "/metrics": c.metrics} {
			if r := web.mustDo(t, http.MethodGet, path, nil); r.status != want {
				t.Errorf("%s gets %s: %d, want %d: %.200s", c.name, path, r.status, want, r.body)
			}
		}
		r := web.mustPost(t, aBody)
		if r.status != c.ask || (c.ask == 401) != strings.Contains(r.body, "no certificate was shown") {
			t.Errorf("%s checks: %d %s, want %d", c.name, r.status, r.body, c.ask)
		}
	}
}

// Shows that a certificate of another cluster is refused as unauthenticated by either end, in words that name
// both clusters, though the CA is trusted.
func TestForeignCluster(t *testing.T) {
	ca, foreign := mustCA(t, tlsCluster), mustCA(t, foreignCluster)
	n := mustSecure(t, &testCA{ca.Authority, mustBundle(t, ca.file, foreign.file)}, "n1", allowing())
	trusting := &testCA{foreign.Authority, mustBundle(t, ca.file, foreign.file)}
	own := trusting.must(t, identity.Gateway, "g")

	// The client's own check.
	creds := own.Credentials("")
	conn, err := grpc.NewClient("passthrough:///"+n.grpcAddr, grpc.WithTransportCredentials(creds), grpc.WithNoProxy())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_, err = quoratev1.NewQuotaClient(conn).CheckAndConsume(within(t, 10*time.Second), aCheck())
	if err == nil || creds.Failure() == nil || !strings.Contains(creds.Failure().Error(), tlsCluster) ||
		!strings.Contains(creds.Failure().Error(), foreignCluster) {
		t.Errorf("%v, failure %v", err, creds.Failure())
	}

	// A client that checks nothing.
	config := own.Client(n.config.HTTP.Addr().String(), "")
	config.VerifyConnection = nil
	web := &testNode{Server: n.Server, url: "https://" + n.config.HTTP.Addr().String(),
		http: &http.Client{Transport: &http.Transport{TLSClientConfig: config}}}
	t.Cleanup(web.http.CloseIdleConnections)
	r := web.mustPost(t, aBody)
	if r.status != 401 || !strings.Contains(r.body, tlsCluster) || !strings.Contains(r.body, foreignCluster) {
		t.Errorf("%d %s", r.status, r.body)
	}
}

// Shows that a check is passed on between nodes by their certificates, with the gateway's own name, and that a
// node cannot speak for another, nor one that is none of the cluster's for anybody.
func TestForwardingWithTLS(t *testing.T) {
	ca := mustCA(t, tlsCluster)
	there := allowing()
	there.removed = map[string]bool{"n9": true}
	leader := mustSecure(t, ca, "n2", there)
	here := allowing()
	here.leader = func() Leadership { return Leadership{Node: "n2", Epoch: 7} }
	here.members = []Member{{ID: "n2", GRPC: leader.grpcAddr}}
	n := mustSecure(t, ca, "n1", here)
	own := ca.must(t, identity.Gateway, "edge-1")
	d, err := quoratev1.NewQuotaClient(mustDial(t, n.grpcAddr, own)).CheckAndConsume(within(t, 10*time.Second), aCheck())
	if err != nil || !Allowed(d) {
		t.Fatalf("%v %v", d, err)
	}
	if got := there.seen(); len(got) != 1 || got[0].Gateway != "edge-1" {
		t.Errorf("the leader decided %+v", got)
	}

	// The node at the address is another than the one that is looked for.
	here.mu.Lock()
	here.members = []Member{{ID: "n3", GRPC: leader.grpcAddr}}
	here.mu.Unlock()
	here.leader = func() Leadership { return Leadership{Node: "n3", Epoch: 7} }
	_, err = quoratev1.NewQuotaClient(mustDial(t, n.grpcAddr, own)).CheckAndConsume(within(t, 500*time.Millisecond), aCheck())
	if got := there.seen(); err == nil || len(got) != 1 {
		t.Errorf("n2 decided for n3: %v, %+v", err, got)
	}

	routed := aCheck()
	routed.RouteEpoch = 7
	_, err = quoratev1.NewPeerClient(mustDial(t, leader.grpcAddr, ca.must(t, identity.Node, "n1"))).ForwardCheck(
		within(t, 10*time.Second), &quoratev1.ForwardCheckRequest{
			ClusterId: tlsCluster, FromNode: "n3", Gateway: "edge-1", Check: routed,
		})
	if e := errtable.FromStatus(err); e == nil || e.Reason != quotaerr.PermissionDenied {
		t.Errorf("n1 speaks for n3: %v", err)
	}
	_, err = quoratev1.NewPeerClient(mustDial(t, leader.grpcAddr, ca.must(t, identity.Node, "n9"))).ForwardCheck(
		within(t, 10*time.Second), &quoratev1.ForwardCheckRequest{
			ClusterId: tlsCluster, FromNode: "n9", Gateway: "edge-1", Check: routed,
		})
	if e := errtable.FromStatus(err); e == nil || e.Reason != quotaerr.NoQuorum || !strings.Contains(e.Message, "n2 does not accept node n9") || len(there.seen()) != 1 {
		t.Errorf("n9, which is no node of the cluster: %v", err)
	}
}
