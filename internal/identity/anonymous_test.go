package identity

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// shake makes a TLS connection between a server's and a client's configuration, and returns what each end says of it.
func shake(t *testing.T, server *tls.Config, client func(addr string) *tls.Config) (state tls.ConnectionState, here, there error) {
	t.Helper()
	raw, back, addr := mustPair(t)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- tls.Client(back, client(addr)).HandshakeContext(ctx) }()
	s := tls.Server(raw, server)
	here = s.HandshakeContext(ctx)
	if here != nil {
		_ = raw.Close()
	}
	return s.ConnectionState(), here, <-done
}

// Shows that a client with a CA alone shows no certificate, is nobody where none is needed and refused where one is,
// accepts nodes of that CA only, and that nobody can serve with such a source.
func TestCAOnly(t *testing.T) {
	a, dir := mustCA(t, clusterA)
	_, otherDir := mustCA(t, clusterB)
	node := mustSource(t, a, dir, ID{Role: Node, Name: "n0"})
	gateway := mustSource(t, a, dir, ID{Role: Gateway, Name: "g"})
	own, err := OpenCA(filepath.Join(dir, "ca.pem"))
	if err != nil {
		t.Fatal(err)
	}
	if !own.Anonymous() || node.Anonymous() || own.ID().Name != "" || !own.NotAfter().IsZero() {
		t.Errorf("it is %v until %v", own.ID(), own.NotAfter())
	}
	client := func(addr string) *tls.Config { return own.Client(addr, "") }
	state, here, there := shake(t, node.Server(true), client)
	if here != nil || there != nil {
		t.Fatalf("%v, %v", here, there)
	}
	if _, err := node.Peer(&state); !errors.Is(err, ErrNoCertificate) {
		t.Errorf("it is taken for somebody: %v", err)
	}
	if _, here, _ := shake(t, node.Server(false), client); here == nil {
		t.Error("it is accepted where a certificate is needed")
	}
	if _, _, there := shake(t, gateway.Server(true), client); there == nil {
		t.Error("it takes a gateway for a node")
	}
	if _, here, _ := shake(t, own.Server(true), client); here == nil {
		t.Error("it serves")
	}
	stranger, err := OpenCA(filepath.Join(otherDir, "ca.pem"))
	if err != nil {
		t.Fatal(err)
	}
	_, _, there = shake(t, node.Server(true), func(addr string) *tls.Config { return stranger.Client(addr, "") })
	if there == nil {
		t.Error("a node of another CA is accepted")
	}
	for _, file := range []string{"not-there", filepath.Join(dir, "ca-key.pem")} {
		if _, err := OpenCA(file); err == nil {
			t.Errorf("%s is a CA", file)
		}
	}
}

// Shows that a certificate that is left out by mistake is missed, and not taken for a CA alone.
func TestNoCertificateIsNoCAOnly(t *testing.T) {
	_, dir := mustCA(t, clusterA)
	if s, err := Open(Files{CA: filepath.Join(dir, "ca.pem")}, ID{}); err == nil {
		t.Errorf("opened as %v", s.ID())
	}
}

// Shows that a CA alone follows its file, and stays as it was while that is bad.
func TestCAOnlyIsReplaced(t *testing.T) {
	_, dir := mustCA(t, clusterA)
	b, otherDir := mustCA(t, clusterB)
	node := mustSource(t, b, otherDir, ID{Role: Node, Name: "n0"})
	file := filepath.Join(t.TempDir(), "ca.pem")
	mustCopy(t, filepath.Join(dir, "ca.pem"), file)
	own, err := OpenCA(file)
	if err != nil {
		t.Fatal(err)
	}
	accepts := func() bool {
		_, _, there := shake(t, node.Server(true), func(addr string) *tls.Config { return own.Client(addr, "") })
		return there == nil
	}
	log := slog.New(slog.DiscardHandler)
	if err := os.WriteFile(file, []byte("junk"), 0o600); err != nil {
		t.Fatal(err)
	}
	own.reload(log)
	if accepts() || !strings.Contains(own.refused, "no certificate") {
		t.Errorf("with a bad file: %q", own.refused)
	}
	mustCopy(t, filepath.Join(otherDir, "ca.pem"), file)
	own.reload(log)
	if !accepts() {
		t.Error("the new CA is not in force")
	}
}

// Shows that every role is found by its name, and nothing else is a role.
func TestRoleNamed(t *testing.T) {
	for _, r := range []Role{Node, Gateway, Admin, Viewer} {
		if got, known := RoleNamed(r.String()); !known || got != r {
			t.Errorf("%s: %v %v", r, got, known)
		}
	}
	for _, name := range []string{"", "nobody", "Admin", AnyRole.String(), (Admin | Viewer).String()} {
		if got, known := RoleNamed(name); known || got != 0 {
			t.Errorf("%q is %v", name, got)
		}
	}
}
