package identity

import (
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	clusterA = "6f1c1a52-7a8e-4f0e-9a53-0d4d8f2f8f11"
	clusterB = "aaaaaaaa-7a8e-4f0e-9a53-0d4d8f2f8f11"
)

// mustCA makes a CA in a directory of its own.
func mustCA(t *testing.T, cluster string) (a *Authority, dir string) {
	t.Helper()
	dir = t.TempDir()
	if _, err := MakeCA(dir, cluster, 90*time.Minute); err != nil {
		t.Fatal(err)
	}
	a, err := OpenAuthority(dir)
	if err != nil {
		t.Fatal(err)
	}
	return a, dir
}

// mustIssue makes a certificate in a directory of its own. A node's is for loopback.
func mustIssue(t *testing.T, a *Authority, caDir string, id ID, valid time.Duration) Files {
	t.Helper()
	var hosts []string
	if id.Role == Node {
		hosts = []string{"127.0.0.1", "localhost"}
	}
	made, err := a.Issue(t.TempDir(), id, hosts, valid)
	if err != nil {
		t.Fatal(err)
	}
	return Files{CA: filepath.Join(caDir, "ca.pem"), Cert: made.Cert, Key: made.Key}
}

func mustOpen(t *testing.T, f Files) *Source {
	t.Helper()
	s, err := Open(f, ID{})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// mustSource makes and opens a certificate.
func mustSource(t *testing.T, a *Authority, caDir string, id ID) *Source {
	t.Helper()
	return mustOpen(t, mustIssue(t, a, caDir, id, time.Hour))
}

// mustCopy writes the content of one file into another.
func mustCopy(t *testing.T, from, to string) {
	t.Helper()
	src, err := os.ReadFile(from)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(to, src, 0o600); err != nil {
		t.Fatal(err)
	}
}

// mustPair is a connected pair of sockets on loopback, with deadlines.
func mustPair(t *testing.T) (here, there net.Conn, addr string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	accepted := make(chan net.Conn, 1)
	go func() {
		c, err := l.Accept()
		if err != nil {
			t.Error(err)
		}
		accepted <- c
	}()
	there, err = net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	here = <-accepted
	for _, c := range []net.Conn{here, there} {
		if err := c.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
	}
	return here, there, l.Addr().String()
}
