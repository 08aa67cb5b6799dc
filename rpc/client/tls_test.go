package client

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/quorate/quorate/internal/identity"
	quoratev1 "github.com/quorate/quorate/proto/quorate/v1"
	"github.com/quorate/quorate/quotaerr"
)

const testCluster = "6f1c1a52-7a8e-4f0e-9a53-0d4d8f2f8f11"

// testCA is a CA in a directory of its own.
type testCA struct {
	*identity.Authority
	dir string
}

func mustCA(t *testing.T, cluster string) testCA {
	t.Helper()
	dir := t.TempDir()
	if _, err := identity.MakeCA(dir, cluster, 2*time.Hour); err != nil {
		t.Fatal(err)
	}
	a, err := identity.OpenAuthority(dir)
	if err != nil {
		t.Fatal(err)
	}
	return testCA{a, dir}
}

// must makes a certificate, and opens it with the CAs of all that are trusted.
func (ca testCA) must(t *testing.T, role identity.Role, host string, trusted ...testCA) *identity.Source {
	t.Helper()
	var hosts []string
	if host != "" {
		hosts = []string{host}
	}
	made, err := ca.Issue(t.TempDir(), identity.ID{Role: role, Name: "x"}, hosts, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	bundle := filepath.Join(t.TempDir(), "bundle.pem")
	var all []byte
	for _, c := range trusted {
		src, err := os.ReadFile(filepath.Join(c.dir, "ca.pem"))
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, src...)
	}
	if err := os.WriteFile(bundle, all, 0o600); err != nil {
		t.Fatal(err)
	}
	s, err := identity.Open(identity.Files{CA: bundle, Cert: made.Cert, Key: made.Key}, identity.ID{})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// mustServeTLS serves an allow behind own's certificate.
func mustServeTLS(t *testing.T, own *identity.Source) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	g := grpc.NewServer(grpc.Creds(credentials.NewTLS(own.Server(false, "h2"))))
	quoratev1.RegisterQuotaServer(g, &scripted{script: []any{allow}})
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

// Shows that a client with a certificate gets its answer from a node of its cluster, past nodes whose certificate
// it does not accept; and that when there is none that it accepts, or that accepts it, it says so at once, as
// unauthenticated, with what is wrong and what to look at.
func TestTLS(t *testing.T) {
	ca, other := mustCA(t, testCluster), mustCA(t, "aaaaaaaa-7a8e-4f0e-9a53-0d4d8f2f8f11")
	own := ca.must(t, identity.Gateway, "", ca)
	both := ca.must(t, identity.Gateway, "", ca, other)
	good := mustServeTLS(t, ca.must(t, identity.Node, "127.0.0.1", ca))
	stranger := mustServeTLS(t, other.must(t, identity.Node, "127.0.0.1", other))
	narrow := mustServeTLS(t, ca.must(t, identity.Node, "127.0.0.1", ca))
	for name, c := range map[string]struct {
		own   *identity.Source
		addrs []string
		want  string // of the error; none: an allow
	}{
		"a good node":            {own, []string{good}, ""},
		"past others":            {own, []string{mustDeadAddr(t), stranger, good}, ""},
		"another CA":             {own, []string{stranger}, "unknown authority"},
		"another cluster":        {both, []string{stranger}, "is of cluster aaaaaaaa"},
		"no node":                {own, []string{mustServeTLS(t, ca.must(t, identity.Gateway, "", ca))}, "cannot validate certificate"},
		"another host":           {own, []string{mustServeTLS(t, ca.must(t, identity.Node, "n0.example", ca))}, "127.0.0.1"},
		"refused by the node":    {other.must(t, identity.Gateway, "", ca, other), []string{narrow}, "is of cluster " + testCluster},
		"in plaintext":           {own, []string{mustServe(t, &scripted{script: []any{allow}})}, "does not look like a TLS handshake"},
		"none of several":        {own, []string{stranger, stranger}, "unknown authority"},
		"a stranger by one's CA": {sameClusterStranger(t, ca), []string{narrow}, "remote error"},
	} {
		conn, err := New(c.addrs, WithTLS(c.own))
		if err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		d, err := conn.CheckAndConsume(within(t, 20*time.Second), aCheck())
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
		if c.want == "" {
			if err != nil || d.GetOutcome() != quoratev1.Outcome_OUTCOME_ALLOWED {
				t.Errorf("%s: %v %v", name, d, err)
			}
			continue
		}
		if quotaerr.ReasonOf(err) != quotaerr.Unauthenticated || !strings.Contains(err.Error(), c.want) ||
			!strings.Contains(err.Error(), "--tls-ca") {
			t.Errorf("%s: %v %v, want %q", name, d, err, c.want)
		}
		if took := time.Since(began); took > 10*time.Second {
			t.Errorf("%s: told after %s", name, took)
		}
	}
}

// sameClusterStranger has a certificate of the cluster by another CA, which only it trusts besides the cluster's.
func sameClusterStranger(t *testing.T, ca testCA) *identity.Source {
	t.Helper()
	return mustCA(t, testCluster).with(t, ca)
}

func (ca testCA) with(t *testing.T, trusted testCA) *identity.Source {
	t.Helper()
	return ca.must(t, identity.Gateway, "", ca, trusted)
}
