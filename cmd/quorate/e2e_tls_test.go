package main

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/quorate/quorate/internal/identity"
	"github.com/quorate/quorate/rpc/client"
)

// secured is three `quorate server` processes with TLS, on certificates by `quorate cert`.
type secured struct {
	dir   string // configurations, data, logs and the certificates that the nodes read
	ca    string // the CA's directory
	valid string // of the nodes' certificates
	nodes []devNode
	cmds  map[string]*exec.Cmd
}

// mustSecured makes CA, certificates and the gossip's key, starts the nodes, makes the cluster with e2ePolicy, and
// waits until it is whole. The nodes end with the test.
func mustSecured(t *testing.T, valid string) *secured {
	t.Helper()
	s := &secured{dir: t.TempDir(), ca: t.TempDir(), valid: valid, cmds: map[string]*exec.Cmd{}}
	cluster := s.cert(t, "ca").ClusterID
	if r := command(t, "cert", "gossip", "--dir", s.dir); r.status != exitDone {
		t.Fatalf("cert gossip: %+v", r)
	}
	base := mustFreePorts(t, 3)
	var join []string
	for k := range 3 {
		at := func(offset int) string { return fmt.Sprintf("127.0.0.1:%d", base+10*k+offset) }
		n := devNode{ID: fmt.Sprint("n", k), GRPC: at(0), HTTP: at(1), Raft: at(2), Gossip: at(3)}
		s.nodes, join = append(s.nodes, n), append(join, n.Raft)
	}
	for _, n := range s.nodes {
		s.renew(t, n.ID)
		mustPut(t, filepath.Join(s.dir, n.ID+".yaml"), fmt.Sprintf("cluster_id: %s\nnode_id: %s\ndata_dir: %[2]s\n"+
			"grpc: %s\nhttp: %s\nraft: %s\ngossip: %s\njoin: [%s]\ngossip_key_file: gossip.key\n"+
			"tls: {ca: %s, cert: node-%[2]s.pem, key: node-%[2]s-key.pem}\n",
			cluster, n.ID, n.GRPC, n.HTTP, n.Raft, n.Gossip, strings.Join(join, ", "), filepath.Join(s.ca, "ca.pem")))
		s.start(t, n.ID)
	}
	t.Cleanup(func() { s.stop(t) })
	mustPut(t, filepath.Join(s.dir, "policy.yaml"), e2ePolicy)
	_, admin := s.caller(t, "admin", "init")
	r := s.ask(t, admin, "cluster", "init", "--policy", filepath.Join(s.dir, "policy.yaml"))
	if r.status != exitDone {
		t.Fatalf("cluster init: %+v", r)
	}
	s.untilReady(t)
	until(t, "the cluster is whole", func() bool {
		var v clusterView
		r := s.ask(t, admin, "cluster", "status", "-o", "json")
		return json.Unmarshal([]byte(r.stdout), &v) == nil && v.wanting() == ""
	})
	return s
}

func mustPut(t *testing.T, file, text string) {
	t.Helper()
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// cert runs a command under cert with the cluster's CA.
func (s *secured) cert(t *testing.T, args ...string) (v certView) {
	t.Helper()
	r := command(t, append([]string{"cert", "-o", "json", "--dir", s.ca}, args...)...)
	if err := json.Unmarshal([]byte(r.stdout), &v); err != nil {
		t.Fatalf("cert %v: %+v", args, r)
	}
	return v
}

// caller makes a certificate in a directory of its own and returns the flags that show it.
func (s *secured) caller(t *testing.T, args ...string) (files identity.Files, flags []string) {
	t.Helper()
	v := s.cert(t, append(args, "--out", t.TempDir())...)
	files = identity.Files{CA: filepath.Join(s.ca, "ca.pem"), Cert: v.Cert, Key: v.Key}
	return files, []string{"--tls-ca", files.CA, "--tls-cert", files.Cert, "--tls-key", files.Key}
}

// renew makes a node's certificate anew and moves it into place, the key first.
func (s *secured) renew(t *testing.T, id string) {
	t.Helper()
	out := t.TempDir()
	s.cert(t, "node", id, "--host", "127.0.0.1", "--valid", s.valid, "--out", out)
	for _, name := range []string{"node-" + id + "-key.pem", "node-" + id + ".pem"} {
		if err := os.Rename(filepath.Join(out, name), filepath.Join(s.dir, name)); err != nil {
			t.Fatal(err)
		}
	}
}

func (s *secured) start(t *testing.T, id string) {
	t.Helper()
	log, err := os.OpenFile(filepath.Join(s.dir, id+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	cmd := exec.Command(mustBinary(t), "server", "--config", filepath.Join(s.dir, id+".yaml"))
	cmd.Stderr = log
	mustSpawn(t, cmd)
	s.cmds[id] = cmd
}

func (s *secured) stop(t *testing.T) {
	t.Helper()
	for id, cmd := range s.cmds {
		mustEnd(t, id, cmd, syscall.SIGTERM)
		if t.Failed() {
			t.Logf("%s: %s", id, lastLine(filepath.Join(s.dir, id+".log")))
		}
	}
}

// untilReady asks the probes, for which no certificate is needed.
func (s *secured) untilReady(t *testing.T) {
	t.Helper()
	_, flags := s.caller(t, "viewer", "probe")
	own, err := identity.Open(identity.Files{CA: flags[1], Cert: flags[3], Key: flags[5]}, identity.ID{})
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range s.nodes {
		config := own.Client(n.HTTP, n.ID)
		config.Certificates = nil
		c := &http.Client{Transport: &http.Transport{TLSClientConfig: config, DisableKeepAlives: true}, Timeout: askTimeout}
		until(t, n.ID+" is ready", func() bool {
			resp, err := c.Get("https://" + n.HTTP + "/readyz")
			return err == nil && resp.Body.Close() == nil && resp.StatusCode == http.StatusOK
		})
	}
}

func (s *secured) addrs() string {
	var addrs []string
	for _, n := range s.nodes {
		addrs = append(addrs, n.GRPC)
	}
	return strings.Join(addrs, ",")
}

// ask runs a client command against all nodes.
func (s *secured) ask(t *testing.T, flags []string, args ...string) result {
	t.Helper()
	return command(t, append(append(args, "--addr", s.addrs()), flags...)...)
}

// Shows a cluster of three processes on certificates that the commands have made: a gateway checks, by any node
// and for its classes; a viewer looks on and can do no more; a gateway operates nothing; an administrator does,
// but is given no decisions; a caller in plaintext, one by another CA, and one of another cluster are told what
// is wrong, at once.
func TestClusterWithTLS(t *testing.T) {
	t.Parallel()
	s := mustSecured(t, "1d")
	_, gateway := s.caller(t, "gateway", "edge", "--classes", "convert")
	_, viewer := s.caller(t, "viewer", "board")
	_, admin := s.caller(t, "admin", "ops")
	must := func(r result, status int, want string) {
		t.Helper()
		if r.status != status || !strings.Contains(r.stdout+r.stderr, want) || strings.Count(r.stderr, "\n") > 1 {
			t.Errorf("%+v, want status %d and %q", r, status, want)
		}
	}
	for i, n := range s.nodes { // one leads, two pass it on
		r := command(t, append([]string{"check", "u1", "convert", "--addr", n.GRPC}, gateway...)...)
		must(r, exitDone, "allowed")
		if i == 2 {
			must(s.ask(t, gateway, "check", "u1", "convert"), exitDenied, "quota_exhausted")
		}
	}
	must(s.ask(t, gateway, "check", "u1", "quick"), exitError, "may not ask for api_class")
	must(s.ask(t, gateway, "peek", "u1", "convert"), exitDone, "convert")
	must(s.ask(t, gateway, "cluster", "status"), exitError, "it takes the role admin or viewer")
	must(s.ask(t, gateway, "node", "replace", "n2"), exitError, "it takes the role admin")
	must(s.ask(t, viewer, "cluster", "status"), exitDone, "leader")
	must(s.ask(t, viewer, "peek", "u1", "convert"), exitDone, "convert")
	must(s.ask(t, viewer, "check", "u1", "convert"), exitError, "it takes the role gateway")
	must(s.ask(t, viewer, "node", "replace", "n2"), exitError, "it takes the role admin")
	must(s.ask(t, admin, "cluster", "status"), exitDone, "leader")
	must(s.ask(t, admin, "check", "u1", "convert"), exitError, "it takes the role gateway")
	must(s.ask(t, admin, "node", "replace", "nobody"), exitError, "is not known")

	began := time.Now()
	foreign := &secured{ca: t.TempDir()}
	foreign.cert(t, "ca")
	_, stranger := foreign.caller(t, "gateway", "edge")
	must(s.ask(t, stranger, "check", "u1", "convert"), exitError, "unknown authority")
	stranger[1] = filepath.Join(s.dir, "both.pem")
	mustPut(t, stranger[1], mustText(t, filepath.Join(s.ca, "ca.pem"))+mustText(t, filepath.Join(foreign.ca, "ca.pem")))
	r := s.ask(t, stranger, "check", "u1", "convert")
	must(r, exitError, "the certificate of node/n")
	must(r, exitError, "--tls-ca, --tls-cert and --tls-key are of one cluster")
	if took := time.Since(began); took > defaultTimeout {
		t.Errorf("they were told after %s", took)
	}
	must(s.ask(t, nil, "check", "u1", "convert", "--timeout", "500ms"), exitUnavailable, "give --tls-ca")
	must(s.ask(t, admin, "cluster", "status", "-o", "json"), exitDone, `"reachable":true`)
}

// Shows that a token goes for a certificate: over TLS with the CA alone it operates, or looks on, as its role has it
// and under its name in the audit trail, and not once it is revoked; and that neither it nor a caller without
// anything is given a decision.
func TestTokensOverTLS(t *testing.T) {
	t.Parallel()
	s := mustSecured(t, "1d")
	files, admin := s.caller(t, "admin", "ops")
	tokens := map[string][]string{} // flags by role
	ids := map[string]string{}
	for _, role := range []string{"admin", "viewer"} {
		var v newTokenView
		r := s.ask(t, admin, "token", "create", "ana", "--role", role, "-o", "json")
		if err := json.Unmarshal([]byte(r.stdout), &v); err != nil || v.Secret == "" {
			t.Fatalf("%+v", r)
		}
		file := filepath.Join(t.TempDir(), "token")
		mustPut(t, file, v.Secret+"\n")
		tokens[role], ids[role] = []string{"--tls-ca", files.CA, "--token-file", file}, v.Token.ID
	}
	must := func(r result, status int, want string) {
		t.Helper()
		if r.status != status || !strings.Contains(r.stdout+r.stderr, want) {
			t.Errorf("%+v, want status %d and %q", r, status, want)
		}
	}
	untilKnown := func(role string) { // the token is on its way to the node that is asked
		t.Helper()
		until(t, "the token of role "+role+" counts", func() bool {
			return s.ask(t, tokens[role], "cluster", "status").status == exitDone
		})
	}
	untilKnown("viewer")
	untilKnown("admin")
	must(s.ask(t, tokens["viewer"], "policy", "show"), exitDone, "convert")
	must(s.ask(t, tokens["viewer"], "class", "disable", "convert"), exitError, "it takes the role admin")
	must(s.ask(t, tokens["admin"], "class", "disable", "convert", "--comment", "by token"), exitDone, "is in force")
	must(s.ask(t, tokens["admin"], "check", "u1", "convert"), exitError, "")
	must(s.ask(t, tokens["viewer"], "check", "u1", "convert"), exitError, "")
	var trail auditView
	r := s.ask(t, admin, "audit", "--actor", "token/ana", "--action", "class", "-o", "json")
	if err := json.Unmarshal([]byte(r.stdout), &trail); err != nil || len(trail.Records) != 2 ||
		trail.Records[0].Comment != "by token" || trail.Records[1].Result == "done" {
		t.Errorf("the audit trail has %+v of the token: %+v", trail, r)
	}
	must(s.ask(t, admin, "token", "revoke", ids["viewer"]), exitDone, "revoked")
	until(t, "the revoked token counts no more", func() bool {
		return s.ask(t, tokens["viewer"], "cluster", "status").status == exitError
	})
	untilKnown("admin")
}

func mustText(t *testing.T, file string) string {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// Shows that a node whose certificate is another node's, missing, or not that of its key, does not start, and says
// so in one line.
func TestServerRefusesCertificates(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := &secured{dir: dir, ca: dir}
	cluster := s.cert(t, "ca").ClusterID
	s.cert(t, "node", "n1", "--host", "127.0.0.1")
	s.cert(t, "gossip")
	for files, want := range map[string]string{
		"{ca: ca.pem, cert: node-n1.pem, key: node-n1-key.pem}": "is that of node/n1, not of node/n0",
		"{ca: ca.pem, cert: node-n1.pem, key: ca-key.pem}":      "the key must be that of the first certificate",
		"{ca: ca.pem, cert: node-n0.pem, key: node-n1-key.pem}": "node-n0.pem: no such file",
	} {
		config := filepath.Join(dir, "n0.yaml")
		mustPut(t, config, "cluster_id: "+cluster+"\nnode_id: n0\ndata_dir: data\ntls: "+files+"\ngossip_key_file: gossip.key\n"+
			"grpc: 127.0.0.1:1\nhttp: 127.0.0.1:2\nraft: 127.0.0.1:3\ngossip: 127.0.0.1:4\n")
		r := command(t, "server", "--config", config)
		if r.status != exitError || !strings.Contains(r.stderr, want) || strings.Count(r.stderr, "\n") != 1 {
			t.Errorf("%s: %+v, want %q", files, r, want)
		}
	}
}

const (
	// shortLife is how long the nodes' certificates live while they are rotated, and rotation how often that is.
	shortLife = 20 * time.Second
	rotation  = 4 * time.Second
)

// Shows that certificates of a short life which are rotated cost no decision: for longer than the first ones live,
// callers on old connections and on ones that are made anew for each check, by each node alone, are answered all
// the time; the nodes then show new certificates, and a node that is started again finds the others.
func TestRotationUnderLoad(t *testing.T) {
	t.Parallel()
	s := mustSecured(t, shortLife.String())
	begin := time.Now()
	ctx, cancel := context.WithTimeout(t.Context(), shortLife+rotation)
	defer cancel()
	files, _ := s.caller(t, "gateway", "edge")
	own, err := identity.Open(files, identity.ID{})
	if err != nil {
		t.Fatal(err)
	}
	var workers sync.WaitGroup
	var decided atomic.Int64
	for k, n := range s.nodes {
		lasting := mustTLSClient(t, n.GRPC, own)
		workers.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				fresh, err := client.New([]string{n.GRPC}, client.WithTLS(own))
				if err != nil {
					t.Error(err)
					return
				}
				for j, c := range []*client.Client{lasting, fresh} {
					// A check that has been sent is seen through.
					_, err := decide(context.WithoutCancel(ctx), c, fmt.Sprint("r", k), "convert", fmt.Sprint(i, "-", j))
					if err != nil {
						t.Errorf("after %s, node %s, connection %d: %v", time.Since(begin), n.ID, j, err)
					}
					decided.Add(1)
				}
				if err := fresh.Close(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	turn := time.NewTicker(rotation)
	defer turn.Stop()
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-turn.C:
			for _, n := range s.nodes {
				s.renew(t, n.ID)
			}
		}
	}
	workers.Wait()
	t.Logf("%d decisions", decided.Load())
	for _, n := range s.nodes {
		for _, addr := range []string{n.GRPC, n.HTTP} {
			if end := mustLeafEnd(t, addr, own); end.Before(begin.Add(shortLife + rotation)) {
				t.Errorf("%s at %s still shows a certificate that ends on %s", n.ID, addr, end)
			}
		}
		if log := mustText(t, filepath.Join(s.dir, n.ID+".log")); !strings.Contains(log, "new connections use them") {
			t.Errorf("%s has not told that it has new files", n.ID)
		}
	}
	s.renew(t, "n1")
	mustEnd(t, "n1", s.cmds["n1"], syscall.SIGTERM)
	s.start(t, "n1")
	s.untilReady(t)
}

func mustTLSClient(t *testing.T, addr string, own *identity.Source) *client.Client {
	t.Helper()
	c, err := client.New([]string{addr}, client.WithTLS(own))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

// mustLeafEnd is when the certificate ends that a node shows.
func mustLeafEnd(t *testing.T, addr string, own *identity.Source) time.Time {
	t.Helper()
	d := tls.Dialer{Config: own.Client(addr, "", "h2", "http/1.1")}
	ctx, cancel := context.WithTimeout(t.Context(), askTimeout)
	defer cancel()
	conn, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	return conn.(*tls.Conn).ConnectionState().PeerCertificates[0].NotAfter
}
