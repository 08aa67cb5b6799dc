package sdk

import (
	"crypto/tls"
	"errors"
	"net"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/quorate/quorate/internal/identity"
	quoratev1 "github.com/quorate/quorate/proto/quorate/v1"
)

// authority makes certificates of one cluster.
type authority struct {
	t  *testing.T
	ca string
	a  *identity.Authority
}

func mustAuthority(t *testing.T) *authority {
	t.Helper()
	dir := t.TempDir()
	made, err := identity.MakeCA(dir, "4c8f0222-b16a-4e8d-baf1-c8bc25498ac8", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	a, err := identity.OpenAuthority(dir)
	if err != nil {
		t.Fatal(err)
	}
	return &authority{t, made.Cert, a}
}

func (a *authority) mustIssue(role identity.Role, name string) identity.Files {
	a.t.Helper()
	var hosts []string
	if role == identity.Node {
		hosts = []string{"127.0.0.1"}
	}
	made, err := a.a.Issue(a.t.TempDir(), identity.ID{Role: role, Name: name}, hosts, time.Minute)
	if err != nil {
		a.t.Fatal(err)
	}
	return identity.Files{CA: a.ca, Cert: made.Cert, Key: made.Key}
}

// mustServe serves a node on loopback with a certificate that names it certified, and tells its address.
func (a *authority) mustServe(c *cluster, id, certified string) string {
	a.t.Helper()
	source, err := identity.Open(a.mustIssue(identity.Node, certified), identity.ID{})
	if err != nil {
		a.t.Fatal(err)
	}
	lis, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // loopback
	if err != nil {
		a.t.Fatal(err)
	}
	server := grpc.NewServer(grpc.WaitForHandlers(true), grpc.Creds(credentials.NewTLS(&tls.Config{
		MinVersion: tls.VersionTLS13,
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
			return source.Server(false, "h2"), nil
		},
	})))
	quoratev1.RegisterQuotaServer(server, &node{c: c, id: id})
	go func() { _ = server.Serve(lis) }()
	a.t.Cleanup(server.Stop)
	return lis.Addr().String()
}

// Shows that with TLS files both ends are authenticated: a node under its name answers; one whose certificate names
// another node than the map does is not asked; and a gateway of another authority gets no configuration.
func TestTLSFiles(t *testing.T) {
	ours, theirs := mustAuthority(t), mustAuthority(t)
	c := mustCluster(t, 1, alwaysAllow, unhurried()...)
	t.Cleanup(c.close)
	right, wrong := ours.mustServe(c, "a", "a"), ours.mustServe(c, "a", "b")
	for name, k := range map[string]struct {
		gateway identity.Files
		leader  string
		want    string
	}{
		"right":             {ours.mustIssue(identity.Gateway, "g"), right, ""},
		"another node":      {ours.mustIssue(identity.Gateway, "g"), wrong, "certificate"},
		"another authority": {theirs.mustIssue(identity.Gateway, "g"), right, "no_quorum"},
	} {
		t.Run(name, func(t *testing.T) {
			c.publish(func(m *quoratev1.WatchConfigResponse) { m.Map.Nodes[0].Grpc = k.leader })
			client, err := New([]string{right}, WithTLSFiles(k.gateway.CA, k.gateway.Cert, k.gateway.Key))
			if err != nil {
				t.Fatal(err)
			}
			defer mustClose(t, client)
			if name != "another authority" {
				mustReady(t, client)
			}
			d, err := client.Check(bg(), "acme", "deny", WithID("x"))
			if k.want == "" && (err != nil || !d.Verified()) || k.want != "" && !errors.Is(err, ErrUnavailable) {
				t.Errorf("%+v, %v", d, err)
			}
			if k.want != "" && !strings.Contains(err.Error(), k.want) {
				t.Errorf("%v does not say %q", err, k.want)
			}
		})
	}
	for _, a := range c.seen() {
		if a.node != "a" {
			t.Errorf("%+v", a)
		}
	}
	if n := len(c.seen()); n != 1 {
		t.Errorf("%d checks arrived", n)
	}
}
