package identity

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// Shows that files which do not hold together are refused, each for its own reason and in words that say what
// to do.
func TestOpenRefuses(t *testing.T) {
	a, dir := mustCA(t, clusterA)
	b, dirB := mustCA(t, clusterB)
	n0 := ID{Role: Node, Name: "n0"}
	good := mustIssue(t, a, dir, n0, time.Hour)
	other := mustIssue(t, a, dir, ID{Role: Node, Name: "n1"}, time.Hour)
	gateway := mustIssue(t, a, dir, ID{Role: Gateway, Name: "g"}, time.Hour)
	foreign := mustIssue(t, b, dirB, n0, time.Hour)
	junk := filepath.Join(t.TempDir(), "junk")
	if err := os.WriteFile(junk, []byte("junk"), 0o600); err != nil {
		t.Fatal(err)
	}
	big := filepath.Join(t.TempDir(), "big")
	if err := os.WriteFile(big, make([]byte, maxFileBytes+1), 0o600); err != nil {
		t.Fatal(err)
	}
	want := ID{Cluster: clusterA, Role: Node, Name: "n0"}
	if s, err := Open(good, want); err != nil || s.ID().Name != "n0" {
		t.Fatalf("the good one: %v", err)
	}
	for name, c := range map[string]struct {
		files Files
		want  []string
	}{
		"nothing there":      {Files{"no-ca", "no-cert", "no-key"}, []string{"no-ca", "no-cert", "no-key"}},
		"key of another":     {Files{good.CA, good.Cert, other.Key}, []string{"does not match", "key must be that"}},
		"another node":       {other, []string{"node/n1", "node/n0"}},
		"another role":       {gateway, []string{"gateway", "where node is needed"}},
		"another cluster":    {foreign, []string{clusterA, clusterB}},
		"another CA":         {Files{foreign.CA, good.Cert, good.Key}, []string{"must come from a CA in " + foreign.CA}},
		"no CA":              {Files{good.Cert, good.Cert, good.Key}, []string{"not that of a CA"}},
		"key as CA":          {Files{good.Key, good.Cert, good.Key}, []string{"holds a PRIVATE KEY"}},
		"junk as CA":         {Files{junk, good.Cert, good.Key}, []string{"holds no certificate"}},
		"junk as cert":       {Files{good.CA, junk, good.Key}, []string{junk}},
		"CA as certificate":  {Files{good.CA, good.CA, filepath.Join(dir, "ca-key.pem")}, []string{"no role and name"}},
		"a file without end": {Files{good.CA, big, good.Key}, []string{"more than"}},
	} {
		_, err := Open(c.files, want)
		for _, w := range c.want {
			if err == nil || !strings.Contains(err.Error(), w) {
				t.Errorf("%s: %v, want %q", name, err, w)
			}
		}
	}
	for _, c := range []struct {
		after time.Duration
		want  string
	}{{2 * time.Hour, "has ended"}, {-time.Hour, "begins on"}} {
		s := &Source{files: good, want: want, now: func() time.Time { return time.Now().Add(c.after) }}
		if _, err := s.read(); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("after %s: %v", c.after, err)
		}
	}
}

// Shows that changed files come into force, that bad ones do not and are reported once, and that the next good
// ones do again: a certificate without its key for a moment harms nothing.
func TestReload(t *testing.T) {
	a, dir := mustCA(t, clusterA)
	files := mustIssue(t, a, dir, ID{Role: Node, Name: "n0"}, time.Hour)
	next := mustIssue(t, a, dir, ID{Role: Node, Name: "n0"}, 30*time.Minute)
	s := mustOpen(t, files)
	var out bytes.Buffer
	logger := slog.New(slog.NewTextHandler(&out, nil))
	lines := func() int { return strings.Count(out.String(), "\n") }
	first := s.NotAfter()
	s.reload(logger)
	if lines() != 0 || !s.NotAfter().Equal(first) {
		t.Errorf("nothing has changed: %s", &out)
	}
	mustCopy(t, next.Cert, files.Cert)
	s.reload(logger)
	s.reload(logger)
	if lines() != 1 || !strings.Contains(out.String(), "stay in force") || !s.NotAfter().Equal(first) {
		t.Errorf("with another key: %s, ends %s", &out, s.NotAfter())
	}
	mustCopy(t, next.Key, files.Key)
	s.reload(logger)
	if lines() != 2 || !strings.Contains(out.String(), "new connections use them") || !s.NotAfter().Before(first) {
		t.Errorf("with its key: %s, ends %s", &out, s.NotAfter())
	}
	renamed := mustIssue(t, a, dir, ID{Role: Node, Name: "n1"}, 20*time.Minute)
	mustCopy(t, renamed.Key, files.Key)
	mustCopy(t, renamed.Cert, files.Cert)
	s.reload(logger)
	if lines() != 3 || s.ID().Name != "n0" {
		t.Errorf("with another node's: %s", &out)
	}
	if err := os.Remove(files.CA); err != nil {
		t.Fatal(err)
	}
	s.reload(logger)
	mustCopy(t, filepath.Join(dir, "ca-key.pem"), files.CA)
	s.reload(logger)
	if lines() != 5 || !s.NotAfter().Before(first) {
		t.Errorf("without a CA, then with a wrong one: %s", &out)
	}
}

// Shows that when a CA has been replaced, callers of the old one are refused and those of the new one accepted, that
// a session from before opens no way past that, and that a connection from before goes on.
func TestCAReplaced(t *testing.T) {
	a, dir := mustCA(t, clusterA)
	b, dirB := mustCA(t, clusterA)
	files := mustIssue(t, a, dir, ID{Role: Node, Name: "n0"}, time.Hour)
	next := mustIssue(t, b, dirB, ID{Role: Node, Name: "n0"}, time.Hour)
	server := mustOpen(t, files)
	sessions := tls.NewLRUClientSessionCache(10)
	// The clients trust both CAs, as they must while one is replaced.
	roots := x509.NewCertPool()
	for _, d := range []string{dir, dirB} {
		src, err := os.ReadFile(filepath.Join(d, "ca.pem"))
		if err != nil || !roots.AppendCertsFromPEM(src) {
			t.Fatal(err)
		}
	}
	// connect says hello from the server, so that the client hears whether it was accepted, and gets a ticket if
	// there is one.
	connect := func(own *Source) (here, there *tls.Conn, err error) {
		rawHere, rawThere, addr := mustPair(t)
		config := own.Client(addr, "n0")
		config.ClientSessionCache, config.RootCAs = sessions, roots
		here, there = tls.Server(rawHere, server.Server(false)), tls.Client(rawThere, config)
		accepted := make(chan error, 1)
		go func() {
			_, err := io.WriteString(here, "hello")
			accepted <- err
		}()
		_, clientErr := io.ReadFull(there, make([]byte, 5))
		return here, there, errors.Join(<-accepted, clientErr)
	}
	ofA, ofB := mustSource(t, a, dir, ID{Role: Viewer, Name: "v"}), mustSource(t, b, dirB, ID{Role: Viewer, Name: "v"})
	here, there, err := connect(ofA)
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := connect(ofB); err == nil {
		t.Error("one of the new CA was accepted before")
	}
	// What the configuration names is replaced, as files are.
	mustCopy(t, next.Key, files.Key)
	mustCopy(t, next.Cert, files.Cert)
	mustCopy(t, next.CA, files.CA)
	server.reload(slog.New(slog.DiscardHandler))
	if _, _, err := connect(ofB); err != nil {
		t.Errorf("one of the new CA: %v", err)
	}
	if _, there, err := connect(ofA); err == nil {
		t.Errorf("one of the old CA was accepted; by a session from before: %v", there.ConnectionState().DidResume)
	}
	go func() {
		if _, err := io.WriteString(there, "still"); err != nil {
			t.Error(err)
		}
	}()
	got := make([]byte, 5)
	if _, err := io.ReadFull(here, got); err != nil || string(got) != "still" {
		t.Errorf("the connection from before: %q %v", got, err)
	}
}

// Shows that Watch looks again within its interval, and ends with its context.
func TestWatch(t *testing.T) {
	a, dir := mustCA(t, clusterA)
	files := mustIssue(t, a, dir, ID{Role: Viewer, Name: "v"}, time.Hour)
	next := mustIssue(t, a, dir, ID{Role: Viewer, Name: "v"}, 30*time.Minute)
	synctest.Test(t, func(t *testing.T) {
		s := mustOpenAt(t, files) // the bubble's clock stands where no certificate is valid yet
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			s.Watch(ctx, slog.New(slog.DiscardHandler))
			close(done)
		}()
		first := s.NotAfter()
		mustCopy(t, next.Cert, files.Cert)
		mustCopy(t, next.Key, files.Key)
		<-time.After(ReloadInterval + time.Millisecond)
		synctest.Wait()
		if !s.NotAfter().Before(first) {
			t.Errorf("it still ends %s", s.NotAfter())
		}
		cancel()
		<-done
	})
}

// mustOpenAt opens files at an instant at which their certificate is valid.
func mustOpenAt(t *testing.T, files Files) *Source {
	t.Helper()
	pair, err := tls.LoadX509KeyPair(files.Cert, files.Key)
	if err != nil {
		t.Fatal(err)
	}
	begin := pair.Leaf.NotBefore
	s := &Source{files: files, now: func() time.Time { return begin.Add(backdate + time.Minute) }}
	b, err := s.read()
	if err != nil {
		t.Fatal(err)
	}
	s.current.Store(b)
	return s
}

// Shows what a CA's maker relies on: files are never written over, keys are for their owner only, nothing is left
// of a certificate that could not be made, and none outlives its CA.
func TestMaking(t *testing.T) {
	a, dir := mustCA(t, clusterA)
	if _, err := MakeCA(dir, clusterA, time.Hour); err == nil || !strings.Contains(err.Error(), "is there already") {
		t.Errorf("a CA over another: %v", err)
	}
	made, err := a.Issue(dir, ID{Role: Admin, Name: "ops"}, nil, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := a.Issue(dir, ID{Role: Admin, Name: "ops"}, nil, time.Minute); err == nil {
		t.Error("a certificate was written over another")
	}
	for file, want := range map[string]os.FileMode{
		filepath.Join(dir, "ca-key.pem"): 0o600, made.Key: 0o600, made.Cert: 0o644,
	} {
		info, err := os.Stat(file)
		if err != nil || info.Mode().Perm() != want {
			t.Errorf("%s: %v, %v", file, info.Mode(), err)
		}
	}
	if err := os.Remove(made.Key); err != nil {
		t.Fatal(err)
	}
	if _, err := a.Issue(dir, ID{Role: Admin, Name: "ops"}, nil, time.Minute); err == nil {
		t.Error("a certificate was written over one without its key")
	}
	if _, err := os.Stat(made.Key); err == nil {
		t.Error("a key was left without its certificate")
	}
	for name, c := range map[string]struct {
		id    ID
		hosts []string
		valid time.Duration
		want  string
	}{
		"beyond the CA":       {ID{Role: Viewer, Name: "v"}, nil, 2 * time.Hour, "the CA ends on"},
		"no time":             {ID{Role: Viewer, Name: "v"}, nil, 0, "above 0"},
		"node without hosts":  {ID{Role: Node, Name: "n"}, nil, time.Minute, "needs the hosts"},
		"host with a port":    {ID{Role: Node, Name: "n"}, []string{"n:1"}, time.Minute, "without a port"},
		"every interface":     {ID{Role: Node, Name: "n"}, []string{"0.0.0.0"}, time.Minute, "name the node's own"},
		"viewer with classes": {ID{Role: Viewer, Name: "v", Classes: []string{"a"}}, nil, time.Minute, "only a gateway"},
		"bad name":            {ID{Role: Viewer, Name: "../v"}, nil, time.Minute, "use letters"},
		"no role":             {ID{Name: "v"}, nil, time.Minute, "no role"},
		"two roles":           {ID{Role: Node | Admin, Name: "v"}, []string{"h"}, time.Minute, "no role"},
	} {
		if _, err := a.Issue(t.TempDir(), c.id, c.hosts, c.valid); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
	if _, err := OpenAuthority(t.TempDir()); err == nil || !strings.Contains(err.Error(), "quorate cert ca") {
		t.Errorf("no CA: %v", err)
	}
	if _, err := MakeCA(t.TempDir(), "c1", time.Hour); err == nil {
		t.Error("a cluster id that is none was taken")
	}
}

// Shows whom nodes accept on a connection between them, both ways: the right node, and nobody of another id,
// role, cluster or CA; and that what is sent arrives.
func TestBetweenNodes(t *testing.T) {
	a, dir := mustCA(t, clusterA)
	b, dirB := mustCA(t, clusterB)
	both := filepath.Join(t.TempDir(), "both.pem") // one CA file that trusts both: the cluster in the name must decide
	var src []byte
	for _, d := range []string{dir, dirB} {
		part, err := os.ReadFile(filepath.Join(d, "ca.pem"))
		if err != nil {
			t.Fatal(err)
		}
		src = append(src, part...)
	}
	if err := os.WriteFile(both, src, 0o600); err != nil {
		t.Fatal(err)
	}
	trusting := func(f Files) *Source { f.CA = both; return mustOpen(t, f) }
	n0 := trusting(mustIssue(t, a, dir, ID{Role: Node, Name: "n0"}, time.Hour))
	n1 := trusting(mustIssue(t, a, dir, ID{Role: Node, Name: "n1"}, time.Hour))
	gateway := trusting(mustIssue(t, a, dir, ID{Role: Gateway, Name: "n1"}, time.Hour))
	foreign := trusting(mustIssue(t, b, dirB, ID{Role: Node, Name: "n1"}, time.Hour))
	stranger := mustSource(t, b, dirB, ID{Role: Node, Name: "n1"})
	serving := trusting(mustIssueServing(t, a, dir, ID{Role: Gateway, Name: "n1"}))
	for name, c := range map[string]struct {
		dialler, acceptor *Source
		node              string
		want              string // in either end's error; none: it works
	}{
		"right":                {n1, n0, "n0", ""},
		"another node is met":  {n1, n0, "n2", "node/n0, not of node/n2"},
		"a gateway dials":      {gateway, n0, "n0", "role gateway"},
		"a foreign node dials": {foreign, n0, "n0", "cluster " + clusterA},
		"a foreign node is":    {n0, foreign, "n1", "cluster " + clusterB},
		"a stranger dials":     {stranger, n0, "n0", "unknown authority"},
		"a gateway is met":     {n0, gateway, "n1", "certificate"},
		"one that may serve":   {n0, serving, "n1", "role gateway"},
	} {
		here, there, addr := mustPair(t)
		accepted := make(chan error, 1)
		go func() {
			conn, node, err := c.acceptor.Accept(t.Context(), here)
			if err == nil && node != c.dialler.ID().Name {
				t.Errorf("%s: taken for %q", name, node)
			}
			if err == nil {
				_, err = io.WriteString(conn, "hello")
			}
			if err != nil {
				here.Close()
			}
			accepted <- err
		}()
		got := make([]byte, 5)
		conn, err := c.dialler.Dial(t.Context(), there, c.node, addr)
		if err == nil {
			_, err = io.ReadFull(conn, got)
		} else {
			there.Close()
		}
		acceptErr := <-accepted
		if c.want == "" {
			if err != nil || acceptErr != nil || string(got) != "hello" {
				t.Errorf("%s: %v, %v, %q", name, err, acceptErr, got)
			}
			continue
		}
		if err == nil || acceptErr == nil && c.dialler == n0 {
			t.Errorf("%s: accepted: %v, %v", name, err, acceptErr)
		}
		if all := errText(err) + errText(acceptErr); !strings.Contains(all, c.want) {
			t.Errorf("%s: %s, want %q", name, all, c.want)
		}
	}
}

// mustIssueServing makes a certificate that is like a node's but for the role.
func mustIssueServing(t *testing.T, a *Authority, caDir string, id ID) Files {
	t.Helper()
	id.Cluster = a.Cluster
	dir := t.TempDir()
	made, err := write(&x509.Certificate{
		NotBefore: time.Now().Add(-time.Minute), NotAfter: time.Now().Add(time.Hour),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, URIs: []*url.URL{id.URI()},
	}, &a.cert, filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem"))
	if err != nil {
		t.Fatal(err)
	}
	return Files{CA: filepath.Join(caDir, "ca.pem"), Cert: made.Cert, Key: made.Key}
}

func errText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error() + "\n"
}
