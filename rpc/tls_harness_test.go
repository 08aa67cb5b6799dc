package rpc

import (
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/quorate/quorate/internal/identity"
)

const (
	tlsCluster     = "6f1c1a52-7a8e-4f0e-9a53-0d4d8f2f8f11"
	foreignCluster = "aaaaaaaa-7a8e-4f0e-9a53-0d4d8f2f8f11"
)

// testCA makes certificates for the time of a test.
type testCA struct {
	*identity.Authority
	file string
}

func mustCA(t testing.TB, cluster string) *testCA {
	t.Helper()
	dir := t.TempDir()
	if _, err := identity.MakeCA(dir, cluster, 2*time.Hour); err != nil {
		t.Fatal(err)
	}
	a, err := identity.OpenAuthority(dir)
	if err != nil {
		t.Fatal(err)
	}
	return &testCA{a, filepath.Join(dir, "ca.pem")}
}

// must makes a certificate and opens it.
func (ca *testCA) must(t testing.TB, role identity.Role, name string, classes ...string) *identity.Source {
	t.Helper()
	var hosts []string
	if role == identity.Node {
		hosts = []string{"127.0.0.1"}
	}
	made, err := ca.Issue(t.TempDir(), identity.ID{Role: role, Name: name, Classes: classes}, hosts, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	s, err := identity.Open(identity.Files{CA: ca.file, Cert: made.Cert, Key: made.Key}, identity.ID{})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// mustSecure serves backend as the node id with TLS. The node's own client is not for use.
func mustSecure(t testing.TB, ca *testCA, id string, backend Backend, change ...func(*Config)) *testNode {
	t.Helper()
	return mustNode(t, id, backend, append([]func(*Config){func(c *Config) {
		c.ClusterID, c.TLS = tlsCluster, ca.must(t, identity.Node, id)
	}}, change...)...)
}

// mustDial makes a gRPC client with a certificate.
func mustDial(t testing.TB, addr string, own *identity.Source) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///"+addr,
		grpc.WithTransportCredentials(own.Credentials("")), grpc.WithNoProxy())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// as is the node's HTTP door, asked with a certificate; without one, when own is nil.
func (n *testNode) as(t testing.TB, trusted, own *identity.Source) *testNode {
	t.Helper()
	addr := n.config.HTTP.Addr().String()
	config := trusted.Client(addr, "")
	if own == nil {
		config.Certificates = nil
	} else {
		config = own.Client(addr, "")
	}
	c := &http.Client{Transport: &http.Transport{TLSClientConfig: config}}
	t.Cleanup(c.CloseIdleConnections)
	return &testNode{Server: n.Server, url: "https://" + addr, http: c}
}

// mustRaw opens a connection to addr that has said nothing.
func mustRaw(t testing.TB, addr string) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// mustShake opens a connection that has shown own's certificate.
func mustShake(t testing.TB, addr string, own *identity.Source, protocol string) *tls.Conn {
	t.Helper()
	c, err := tlsDial(t, addr, own.Client(addr, "", protocol))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// tlsDial opens a connection with a configuration.
func tlsDial(t testing.TB, addr string, config *tls.Config) (*tls.Conn, error) {
	t.Helper()
	c := tls.Client(mustRaw(t, addr), config)
	return c, c.HandshakeContext(within(t, 10*time.Second))
}

// isTimeout reports whether a deadline has passed.
func isTimeout(err error) bool {
	var late net.Error
	return errors.As(err, &late) && late.Timeout()
}

// mustEnd waits until the other end has ended a connection; what it sends before is thrown away.
func mustEnd(t testing.TB, c net.Conn, limit time.Duration) {
	t.Helper()
	if err := c.SetReadDeadline(time.Now().Add(limit)); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 4096)
	for {
		if _, err := c.Read(b); err != nil {
			if isTimeout(err) {
				t.Fatalf("the connection is still there after %s", limit)
			}
			return
		}
	}
}

// eventually polls a condition for at most ten seconds.
func eventually(t testing.TB, what string, condition func() bool) {
	t.Helper()
	deadline := time.After(10 * time.Second)
	look := time.NewTicker(5 * time.Millisecond)
	defer look.Stop()
	for !condition() {
		select {
		case <-deadline:
			t.Fatalf("not within 10 s: %s", what)
		case <-look.C:
		}
	}
}

// mustBundle puts certificates into one file.
func mustBundle(t testing.TB, files ...string) string {
	t.Helper()
	var all []byte
	for _, f := range files {
		src, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, src...)
	}
	bundle := filepath.Join(t.TempDir(), "bundle.pem")
	if err := os.WriteFile(bundle, all, 0o600); err != nil {
		t.Fatal(err)
	}
	return bundle
}
