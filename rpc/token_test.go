package rpc

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"

	"github.com/quorate/quorate/internal/errtable"
	"github.com/quorate/quorate/internal/identity"
	quoratev1 "github.com/quorate/quorate/proto/quorate/v1"
	"github.com/quorate/quorate/quotaerr"
)

// tokens is what an Admin knows of tokens: by secret a role, or why it does not count.
type tokens struct {
	mu   sync.Mutex // guards the rest
	role map[string]identity.Role
	bad  map[string]string
}

func (k *tokens) token(secret string) (string, identity.Role, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if why := k.bad[secret]; why != "" {
		return "", 0, quotaerr.New(quotaerr.Unauthenticated, "the token %s", why)
	}
	role, known := k.role[secret]
	if !known {
		return "", 0, quotaerr.New(quotaerr.Unauthenticated, "the token is not known")
	}
	return "bob", role, nil
}

// mustAnonymous connects without a certificate.
func mustAnonymous(t testing.TB, ca *testCA, addr string) *grpc.ClientConn {
	t.Helper()
	own, err := identity.OpenCA(ca.file)
	if err != nil {
		t.Fatal(err)
	}
	return mustDial(t, addr, own)
}

// showing is a call's context that shows what is given as authorization.
func showing(t testing.TB, values ...string) context.Context {
	t.Helper()
	ctx := within(t, 10*time.Second)
	for _, v := range values {
		ctx = metadata.AppendToOutgoingContext(ctx, tokenKey, v)
	}
	return ctx
}

// lockedBuffer is a log's sink.
type lockedBuffer struct {
	mu  sync.Mutex // guards the rest
	buf bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

// Shows over TLS without a certificate: with a token that counts its owner may do what its role may, under the
// token's name; without one, or with one that is unknown, expired, revoked or no token at all, every method is
// unauthenticated and nothing reaches the backend; and no token is ever in the log or in an answer.
func TestTokens(t *testing.T) {
	ca := mustCA(t, tlsCluster)
	backend := allowing()
	known := tokens{role: map[string]identity.Role{"qt_admin_s1": identity.Admin, "qt_view_s2": identity.Viewer,
		"qt_odd_s5": identity.Node, "qt_odd_s6": identity.AnyRole},
		bad: map[string]string{"qt_old_s3": "has expired", "qt_gone_s4": "was revoked"}}
	backend.admin.token = known.token
	var book notebook
	backend.admin.attempt = book.attempt
	logged := &lockedBuffer{}
	n := mustSecure(t, ca, "n1", backend, func(c *Config) {
		c.Logger = slog.New(slog.NewTextHandler(logged, &slog.HandlerOptions{Level: slog.LevelDebug}))
	})
	conn := mustAnonymous(t, ca, n.grpcAddr)
	admin := quoratev1.NewAdminClient(conn)
	for _, c := range []struct {
		name   string
		shown  []string
		add    quotaerr.Reason
		list   quotaerr.Reason
		reason string
	}{
		{"admin", []string{"Bearer qt_admin_s1"}, "", "", ""},
		{"admin, spelt otherwise", []string{"bearer qt_admin_s1"}, "", "", ""},
		{"viewer", []string{"Bearer qt_view_s2"}, quotaerr.PermissionDenied, "", "token/bob may not call"},
		{"none", nil, quotaerr.Unauthenticated, quotaerr.Unauthenticated, "or over gRPC a token"},
		{"unknown", []string{"Bearer qt_admin_s"}, quotaerr.Unauthenticated, quotaerr.Unauthenticated, "is not known"},
		{"expired", []string{"Bearer qt_old_s3"}, quotaerr.Unauthenticated, quotaerr.Unauthenticated, "has expired"},
		{"revoked", []string{"Bearer qt_gone_s4"}, quotaerr.Unauthenticated, quotaerr.Unauthenticated, "was revoked"},
		{"a node's", []string{"Bearer qt_odd_s5"}, quotaerr.Internal, quotaerr.Internal, ""},
		{"of many roles", []string{"Bearer qt_odd_s6"}, quotaerr.Internal, quotaerr.Internal, ""},
		{"no scheme", []string{"qt_admin_s1"}, quotaerr.Unauthenticated, quotaerr.Unauthenticated, "is not one token"},
		{"another scheme", []string{"Basic qt_admin_s1"}, quotaerr.Unauthenticated, quotaerr.Unauthenticated, "is not one"},
		{"empty", []string{"Bearer "}, quotaerr.Unauthenticated, quotaerr.Unauthenticated, "is not one token"},
		{"two", []string{"Bearer qt_admin_s1", "Bearer qt_admin_s1"}, quotaerr.Unauthenticated, quotaerr.Unauthenticated, ""},
		{"long", []string{"Bearer " + strings.Repeat("q", maxTokenBytes)}, quotaerr.Unauthenticated, quotaerr.Unauthenticated, ""},
	} {
		before := len(backend.admin.asked())
		_, addErr := admin.AddNode(showing(t, c.shown...), &quoratev1.AddNodeRequest{})
		_, listErr := admin.ListNodes(showing(t, c.shown...), &quoratev1.ListNodesRequest{})
		passed := 0
		for err, want := range map[error]quotaerr.Reason{addErr: c.add, listErr: c.list} {
			e := errtable.FromStatus(err)
			if e == nil && want != "" || e != nil && (e.Reason != want || strings.Contains(e.Message, "qt_")) {
				t.Errorf("%s: %v, want %q", c.name, err, want)
			}
		}
		for _, want := range []quotaerr.Reason{c.add, c.list} {
			if want == "" {
				passed++
			}
		}
		if addErr != nil && !strings.Contains(addErr.Error(), c.reason) {
			t.Errorf("%s: %v, want %q", c.name, addErr, c.reason)
		}
		got := backend.admin.asked()[before:]
		if len(got) != passed {
			t.Errorf("%s: %v reached the backend", c.name, got)
		}
		for _, o := range got {
			if o.Who.Name != "token/bob" {
				t.Errorf("%s: done as %v", c.name, o.Who)
			}
		}
	}
	mustEqual(t, book.take(), []string{"token/bob viewer AddNode permission_denied"})
	if strings.Contains(logged.String(), "qt_") || !strings.Contains(logged.String(), "may not call") {
		t.Errorf("the log: %s", logged)
	}
	if n.callsOf(t, "/quorate.v1.Admin/AddNode", codes.Unauthenticated) < 9 {
		t.Error("refused calls are not counted")
	}
}

// Shows that without a certificate and with no token every method of a node is unauthenticated, before anything of
// the message is read; that a token opens what is for operators only; and that a token counts instead of the
// certificate of whoever shows both.
func TestWhatATokenOpens(t *testing.T) {
	ca := mustCA(t, tlsCluster)
	backend := allowing()
	known := tokens{role: map[string]identity.Role{"qt_admin": identity.Admin}}
	backend.admin.token = known.token
	n := mustSecure(t, ca, "n1", backend)
	conn := mustAnonymous(t, ca, n.grpcAddr)
	for _, m := range methodsOf(n.Server) {
		if e := errtable.FromStatus(callEmpty(t, conn, m)); e == nil || e.Reason != quotaerr.Unauthenticated {
			t.Errorf("%s: %v", m, e)
		}
	}
	var out []byte
	large := make([]byte, transportMessageBytes+1) // a size that the library itself refuses, once it has read it
	err := conn.Invoke(within(t, 10*time.Second), quoratev1.Admin_AddNode_FullMethodName, large, &out,
		grpc.ForceCodec(rawCodec{}))
	if e := errtable.FromStatus(err); e.Reason != quotaerr.Unauthenticated {
		t.Errorf("a large message: %v", err)
	}
	_, err = quoratev1.NewQuotaClient(conn).CheckAndConsume(showing(t, "Bearer qt_admin"), aCheck())
	if e := errtable.FromStatus(err); e == nil || e.Reason != quotaerr.PermissionDenied || len(backend.seen()) != 0 {
		t.Errorf("a check: %v", err)
	}
	_, err = quoratev1.NewPeerClient(conn).NodeStatus(showing(t, "Bearer qt_admin"), &quoratev1.NodeStatusRequest{})
	if e := errtable.FromStatus(err); e == nil || e.Reason != quotaerr.PermissionDenied {
		t.Errorf("another node: %v", err)
	}
	both := quoratev1.NewAdminClient(mustDial(t, n.grpcAddr, ca.must(t, identity.Viewer, "v")))
	if _, err := both.AddNode(showing(t, "Bearer qt_admin"), &quoratev1.AddNodeRequest{}); err != nil {
		t.Errorf("a viewer with an admin's token: %v", err)
	}
	if _, err := both.ListNodes(showing(t, "Bearer qt_nobody"), &quoratev1.ListNodesRequest{}); err == nil {
		t.Error("a viewer with a bad token is let through")
	}
	mustEqual(t, backend.admin.asked(), []operated{{"AddNode", Actor{"token/bob", identity.Admin}}})
}

// Shows that a token counts over plaintext on loopback too, where a call without one is anybody's.
func TestTokenInPlaintext(t *testing.T) {
	backend := allowing()
	known := tokens{role: map[string]identity.Role{"qt_view": identity.Viewer}}
	backend.admin.token = known.token
	admin := quoratev1.NewAdminClient(mustNode(t, "n1", backend).conn)
	if _, err := admin.AddNode(showing(t), &quoratev1.AddNodeRequest{}); err != nil {
		t.Errorf("anybody: %v", err)
	}
	_, err := admin.AddNode(showing(t, "Bearer qt_view"), &quoratev1.AddNodeRequest{})
	if e := errtable.FromStatus(err); e == nil || e.Reason != quotaerr.PermissionDenied {
		t.Errorf("a viewer: %v", err)
	}
	_, err = admin.AddNode(showing(t, "Bearer qt_other"), &quoratev1.AddNodeRequest{})
	if e := errtable.FromStatus(err); e == nil || e.Reason != quotaerr.Unauthenticated {
		t.Errorf("a bad one: %v", err)
	}
	mustEqual(t, backend.admin.asked(), []operated{{"AddNode", Actor{InsecureName, identity.Admin}}})
}
