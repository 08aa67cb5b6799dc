package group

import (
	"errors"
	"io"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/internal/identity"
)

const secureCluster = "6f1c1a52-7a8e-4f0e-9a53-0d4d8f2f8f11"

// mustIdentities makes certificates of one CA, by name.
func mustIdentities(t *testing.T, ids ...identity.ID) map[string]*identity.Source {
	t.Helper()
	dir := t.TempDir()
	_, err := identity.MakeCA(dir, secureCluster, 2*time.Hour)
	must(t, err)
	ca, err := identity.OpenAuthority(dir)
	must(t, err)
	out := map[string]*identity.Source{}
	for _, id := range ids {
		var hosts []string
		if id.Role == identity.Node {
			hosts = []string{"127.0.0.1"}
		}
		made, err := ca.Issue(dir, id, hosts, time.Hour)
		must(t, err)
		out[id.Name], err = identity.Open(identity.Files{
			CA: filepath.Join(dir, "ca.pem"), Cert: made.Cert, Key: made.Key,
		}, identity.ID{})
		must(t, err)
	}
	return out
}

func mustListenSecure(t *testing.T, node string, own Secure) *Listener {
	t.Helper()
	l, err := Listen("127.0.0.1:0", ListenerConfig{
		Cluster: secureCluster, Node: node, Secure: own,
		Answer: func(from string, question []byte) []byte { return append([]byte(from+" asks "), question...) },
	})
	must(t, err)
	t.Cleanup(func() { must(t, l.Close()) })
	return l
}

// dialFrom opens a connection to a group of another node, reads what comes, and closes it.
func dialFrom(t *testing.T, l *Listener, self Member, to raft.ServerID, addr string) (got string, err error) {
	t.Helper()
	y, err := l.register("p7", self)
	must(t, err)
	defer func() { must(t, y.Close()) }()
	conn, err := y.Dial(joinTarget(to, raft.ServerAddress(addr)), 5*time.Second)
	if err != nil {
		return "", err
	}
	must(t, conn.SetDeadline(time.Now().Add(5*time.Second)))
	b := make([]byte, 5)
	_, err = io.ReadFull(conn, b)
	return string(b), errors.Join(err, conn.Close())
}

// Over TLS a group's connections and questions work between nodes, both ways authenticated, with the replica's
// instance behind the node's id; and nobody speaks as another: not a node as another node, not a gateway, not
// somebody in plaintext. A node is not taken for another either.
func TestSecureConnections(t *testing.T) {
	own := mustIdentities(t,
		identity.ID{Role: identity.Node, Name: "a"}, identity.ID{Role: identity.Node, Name: "b"},
		identity.ID{Role: identity.Gateway, Name: "g"})
	a := mustListenSecure(t, "a", own["a"])
	y, err := a.register("p7", Member{ID: "a", Instance: "i1", Addr: a.Addr()})
	must(t, err)
	served := make(chan error, 1)
	go func() {
		conn, err := y.Accept()
		if err == nil {
			_, err = io.WriteString(conn, "hello")
			err = errors.Join(err, conn.Close())
		}
		served <- err
	}()
	b := mustListenSecure(t, "b", own["b"])
	got, err := dialFrom(t, b, Member{ID: "b", Instance: "i2", Addr: b.Addr()}, "a@i1", a.Addr())
	if err != nil || got != "hello" {
		t.Errorf("between nodes: %q %v", got, err)
	}
	must(t, <-served)
	if answer, err := b.Ask(t.Context(), "a", a.Addr(), []byte("who")); err != nil || string(answer) != "b asks who" {
		t.Errorf("a question: %q %v", answer, err)
	}

	asA := mustListenSecure(t, "c", own["b"]) // says that it is c, and proves to be b
	asNode := mustListenSecure(t, "g", own["g"])
	plain := mustListen(t, secureCluster, "b")
	for _, c := range []struct {
		name     string
		listener *Listener
		node, to string
		want     string
	}{
		{"as another node", asA, "c", "a@i1", `the certificate is that of node \"b\"`},
		{"a gateway", asNode, "g", "a@i1", "tls:"},
		{"in plaintext", plain, "b", "a@i1", "no answer"},
		{"another node is met", b, "b", "z@i1", "node/a, not of node/z"},
	} {
		self := Member{ID: c.node, Instance: "i3", Addr: c.listener.Addr()}
		if got, err := dialFrom(t, c.listener, self, raft.ServerID(c.to), a.Addr()); err == nil ||
			c.name != "in plaintext" && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s, a group: %q %v, want %q", c.name, got, err, c.want)
		}
		node, _, _ := strings.Cut(c.to, "@")
		if answer, err := c.listener.Ask(t.Context(), node, a.Addr(), []byte("who")); !errors.Is(err, ErrNoAnswer) {
			t.Errorf("%s, a question: %q %v", c.name, answer, err)
		}
	}
	eventually(t, "all are counted", func() bool { return a.Refusals().Identity == 8 })
	if diff := cmp.Diff(Refusals{Identity: 8}, a.Refusals()); diff != "" {
		t.Error(diff)
	}
}

// A connection that does not finish its handshake in the time that it has is ended, and so are those under way
// when the listener closes.
func TestSlowHandshake(t *testing.T) {
	t.Parallel()
	own := mustIdentities(t, identity.ID{Role: identity.Node, Name: "a"})
	l, err := Listen("127.0.0.1:0", ListenerConfig{Cluster: secureCluster, Node: "a", Secure: own["a"]})
	must(t, err)
	dial := func() net.Conn {
		conn, err := net.Dial("tcp", l.Addr())
		must(t, err)
		t.Cleanup(func() { conn.Close() })
		must(t, conn.SetDeadline(time.Now().Add(preambleTimeout+5*time.Second)))
		return conn
	}
	ended := func(conn net.Conn) {
		t.Helper()
		var late net.Error
		if _, err := io.Copy(io.Discard, conn); errors.As(err, &late) && late.Timeout() {
			t.Error("the connection is still there")
		}
	}
	conn := dial()
	_, err = conn.Write([]byte{22, 3, 1, 2, 0, 1}) // the head of a hello
	must(t, err)
	ended(conn)
	conn = dial()
	eventually(t, "the handshake is under way", func() bool { return len(l.waiting) == 1 })
	must(t, l.Close())
	ended(conn)
}
