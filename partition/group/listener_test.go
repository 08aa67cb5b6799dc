package group

import (
	"bytes"
	"errors"
	"io"
	"log/slog"
	"net"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/raft"
	"pgregory.net/rapid"
)

func ids() *rapid.Generator[string] { return rapid.StringN(1, 30, maxIDBytes) }

// A preamble is read back as it was written, and nothing behind it is read.
func TestPreamble(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := preamble{
			cluster: ids().Draw(t, "cluster"), group: ids().Draw(t, "group"),
			from: ids().Draw(t, "from"), to: ids().Draw(t, "to"),
		}
		r := bytes.NewReader(append(p.append(nil), "raft"...))
		got, err := readPreamble(r)
		if err != nil || got != p || r.Len() != len("raft") {
			t.Fatalf("got %+v, %v, %d bytes left", got, err, r.Len())
		}
	})
}

// Whatever arrives is a preamble that can be written again, or an error; it never panics.
func FuzzPreamble(f *testing.F) {
	good := preamble{"c1", "p7", "a", "b"}.append(nil)
	f.Add(good)
	f.Add(good[:len(good)-1])
	f.Add([]byte("QRFT\x01\xff\xff"))
	f.Add([]byte("GET / HTTP/1.1\r\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		p, err := readPreamble(bytes.NewReader(data))
		if err == nil && !bytes.HasPrefix(data, p.append(nil)) {
			t.Errorf("%x was read as %+v", data, p)
		}
	})
}

// dialled opens one connection from a node of a cluster to l, for a group and addressee.
func dialled(t *testing.T, cluster, from, group, to, address string) error {
	t.Helper()
	l := mustListen(t, cluster, from)
	y, err := l.register(group, Member{ID: from, Addr: l.Addr()})
	must(t, err)
	defer func() { must(t, y.Close()) }()
	conn, err := y.Dial(joinTarget(raft.ServerID(to), raft.ServerAddress(address)), 5*time.Second)
	if err != nil {
		return err
	}
	return conn.Close()
}

// Connections from another cluster, for another node, for a group that is not here, or with another
// version or none are refused, told why, and counted; the right one is accepted.
func TestRefusals(t *testing.T) {
	var log bytes.Buffer
	l, err := Listen("127.0.0.1:0", ListenerConfig{
		Cluster: "c1", Node: "a", Logger: slog.New(slog.NewTextHandler(&log, nil)),
	})
	must(t, err)
	y, err := l.register("p7", Member{ID: "a", Addr: l.Addr()})
	must(t, err)
	accepted := make(chan error, 1)
	go func() {
		conn, err := y.Accept()
		if err == nil {
			_, err = io.Copy(io.Discard, conn) // until the peer goes
		}
		accepted <- err
	}()
	if err := dialled(t, "c1", "b", "p7", "a", l.Addr()); err != nil {
		t.Errorf("the right one: %v", err)
	}
	must(t, <-accepted)

	for want, err := range map[string]error{
		`of cluster "c2"`:           dialled(t, "c2", "b", "p7", "a", l.Addr()),
		`this is node`:              dialled(t, "c1", "b", "p7", "c", l.Addr()),
		`which node \"a\" does not`: dialled(t, "c1", "b", "p8", "a", l.Addr()),
	} {
		if err == nil || !strings.Contains(strings.ReplaceAll(err.Error(), `\"`, `"`),
			strings.ReplaceAll(want, `\"`, `"`)) {
			t.Errorf("got %v, want %s", err, want)
		}
	}
	version := preamble{"c1", "p7", "b", "a"}.append(nil)
	version[len(preambleMagic)] = 9
	for name, data := range map[string][]byte{"version 9": version, "malformed": []byte("GET / HTTP/1.1\r\n")} {
		conn, err := net.Dial("tcp", l.Addr())
		must(t, err)
		_, err = conn.Write(data)
		must(t, err)
		if err := readAnswer(conn); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("got %v, want %s", err, name)
		}
		must(t, conn.Close())
	}
	must(t, y.Close())
	must(t, l.Close())
	want := Refusals{Malformed: 1, Version: 1, Cluster: 1, Node: 1, Group: 1}
	if diff := cmp.Diff(want, l.Refusals()); diff != "" {
		t.Error(diff)
	}
	if n := strings.Count(log.String(), "connection refused"); n != 1 {
		t.Errorf("%d lines were logged for 5 refusals within a moment, want 1:\n%s", n, log.String())
	}
}

// While as many connections as may be say nothing, one that says what it is for is heard all the same: the
// oldest of the silent makes room, and only that one.
func TestPreambleBound(t *testing.T) {
	l := mustListen(t, "c1", "a")
	var silent []net.Conn
	for range maxPreambles {
		conn, err := net.Dial("tcp", l.Addr())
		must(t, err)
		silent = append(silent, conn)
	}
	eventually(t, "all have been accepted", func() bool { return len(l.waiting) == maxPreambles })
	err := dialled(t, "c1", "b", "p7", "a", l.Addr())
	if err == nil || !strings.Contains(err.Error(), "does not have") {
		t.Errorf("got %v", err)
	}
	if _, err := silent[0].Read(make([]byte, 1)); !errors.Is(err, io.EOF) && !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("the oldest is not ended: %v", err)
	}
	if got := l.Refusals(); got.Busy != 1 {
		t.Errorf("%+v", got)
	}
	for _, c := range silent {
		must(t, c.Close())
	}
	eventually(t, "their places are free", func() bool { return len(l.waiting) == 0 })
}

// A group has at most so many accepted connections; a closed one makes room. All of them end with the
// group.
func TestGroupConnections(t *testing.T) {
	l := mustListen(t, "c1", "a")
	y, err := l.register("p7", Member{ID: "a", Addr: l.Addr()})
	must(t, err)
	if _, err := l.register("p7", Member{ID: "a", Addr: l.Addr()}); err == nil {
		t.Error("a group was opened twice")
	}
	var conns []*groupConn
	var peers []net.Conn
	for range maxGroupConns {
		here, there := net.Pipe()
		c, err := y.admit(here, "b")
		must(t, err)
		conns, peers = append(conns, c), append(peers, there)
	}
	here, _ := net.Pipe()
	if _, err := y.admit(here, "b"); err == nil {
		t.Error("one too many was admitted")
	}
	must(t, conns[0].Close())
	if _, err := y.admit(here, "b"); err != nil {
		t.Errorf("there is room again: %v", err)
	}
	must(t, y.Close())
	if _, err := peers[1].Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("a connection outlived its group: %v", err)
	}
	if _, err := y.admit(here, "b"); !errors.Is(err, errGroupClosing) {
		t.Errorf("admitted after Close: %v", err)
	}
	if _, err := y.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("Accept after Close: %v", err)
	}
}
