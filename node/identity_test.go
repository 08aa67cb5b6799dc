package node

import (
	"encoding/base64"
	"log/slog"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/quorate/quorate/internal/identity"
)

// mustCertificate makes a CA and a node's certificate in dir, and returns where they are.
func mustCertificate(t *testing.T, dir, cluster, node string) TLSConfig {
	t.Helper()
	if _, err := identity.MakeCA(dir, cluster, 2*time.Hour); err != nil {
		t.Fatal(err)
	}
	ca, err := identity.OpenAuthority(dir)
	if err != nil {
		t.Fatal(err)
	}
	made, err := ca.Issue(dir, identity.ID{Role: identity.Node, Name: node}, []string{"127.0.0.1"}, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	return TLSConfig{CA: filepath.Join(dir, "ca.pem"), Cert: made.Cert, Key: made.Key}
}

// Shows that the files of tls are taken from the configuration's folder, that they go together, and that with
// them every address must be one that others can reach.
func TestTLSConfig(t *testing.T) {
	path := writeConfig(t, goodConfig+"gossip_key_file: k\ntls: {ca: ca.pem, cert: sub/n1.pem, key: /k.pem}\n")
	c, err := LoadConfig(path, []string{"QUORATE_TLS_CA=/not/mine", "QUORATE_TLS__CERT=env.pem"})
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Dir(path)
	if want := (TLSConfig{filepath.Join(dir, "ca.pem"), filepath.Join(dir, "env.pem"), "/k.pem"}); c.TLS != want {
		t.Errorf("%+v, want %+v", c.TLS, want)
	}
	for text, wants := range map[string][]string{
		"tls: {ca: ca.pem}\n":                             {"tls.cert: name", "tls.key: name"},
		"tls: {cert: n1.pem, key: k.pem}\n":               {"tls.ca: name"},
		"tls: {ca: a, cert: b, key: c, certificate: d}\n": {"certificate"},
	} {
		_, err := LoadConfig(writeConfig(t, goodConfig+text), nil)
		for _, want := range wants {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v, want %q", text, err, want)
			}
		}
	}
	anywhere := strings.Replace(goodConfig, "grpc: 127.0.0.1:5", `grpc: "0.0.0.0:5"`, 1)
	_, err = LoadConfig(writeConfig(t, anywhere+"tls: {ca: a, cert: b, key: c}\n"), nil)
	for _, want := range []string{"advertise.grpc: 0.0.0.0:5 names no host", "gossip_key_file: name the file"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("every interface: %v, want %q", err, want)
		}
	}
	reached := anywhere + "tls: {ca: a, cert: b, key: c}\ngossip_key_file: k\nadvertise: {grpc: 10.0.0.1:5}\n"
	if _, err = LoadConfig(writeConfig(t, reached), nil); err != nil {
		t.Errorf("with an address to reach: %v", err)
	}
}

// mustGossipKey makes a key of gossip.
func mustGossipKey(t *testing.T) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "gossip.key")
	mustWriteFile(t, file, []byte(base64.StdEncoding.EncodeToString(make([]byte, gossipKeyBytes))+"\n"))
	return file
}

// Shows that a node does not start with a certificate that the others would refuse, says why in a line, and has
// not touched its data directory; and that without TLS it listens on loopback only.
func TestStartRefusesCertificates(t *testing.T) {
	const foreign = "aaaaaaaa-7a8e-4f0e-9a53-0d4d8f2f8f11"
	for _, c := range []struct {
		cluster, node, want string
	}{
		{"", "n7", "is that of node/n7, not of node/n0"},
		{foreign, "n0", "is of cluster " + foreign},
	} {
		cfg := mustConfigs(t, 1)[0]
		if c.cluster == "" {
			c.cluster = cfg.ClusterID
		}
		cfg.TLS, cfg.GossipKeyFile = mustCertificate(t, t.TempDir(), c.cluster, c.node), mustGossipKey(t)
		_, err := Start(t.Context(), cfg, "test", slog.New(slog.DiscardHandler), func(error) {})
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v", c, err)
		}
		if exists(cfg.DataDir) {
			t.Errorf("%+v: the data directory was made", c)
		}
	}
	cfg := mustConfigs(t, 1)[0]
	cfg.Raft = "0.0.0.0:1"
	if _, err := Start(t.Context(), cfg, "test", slog.New(slog.DiscardHandler), func(error) {}); err == nil ||
		!strings.Contains(err.Error(), "without TLS only loopback is served") {
		t.Errorf("in plaintext everywhere: %v", err)
	}
}

// Shows that a node with TLS starts, is ready, tells when its certificate ends, and stops.
func TestAloneWithTLS(t *testing.T) {
	cfg := mustConfigs(t, 1)[0]
	cfg.TLS, cfg.GossipKeyFile = mustCertificate(t, t.TempDir(), cfg.ClusterID, "n0"), mustGossipKey(t)
	n := mustRun(t, cfg)
	mustInit(t, []*running{n}, 1)
	untilReady(t, n)
	families, err := n.server.Registry().Gather()
	if err != nil {
		t.Fatal(err)
	}
	ends := 0.0
	for _, f := range families {
		if f.GetName() == "quorate_certificate_end_timestamp_seconds" {
			ends = f.GetMetric()[0].GetGauge().GetValue()
		}
	}
	for _, addr := range []string{cfg.GRPC, cfg.HTTP} {
		resp, err := http.Get("http://" + addr + "/livez")
		if err != nil {
			continue // gRPC's ends the connection
		}
		if err := resp.Body.Close(); err != nil || resp.StatusCode != http.StatusBadRequest {
			t.Errorf("in plaintext at %s: %s %v", addr, resp.Status, err)
		}
	}
	if left := time.Until(time.Unix(int64(ends), 0)); left < 50*time.Minute || left > time.Hour {
		t.Errorf("the certificate ends in %s", left)
	}
	mustEnd(t, n)
}

// Shows that a file without a good key of gossip is refused, and what to do.
func TestGossipKey(t *testing.T) {
	for _, text := range []string{"", "c2hvcnQ=", "not base64!"} {
		file := filepath.Join(t.TempDir(), "gossip.key")
		mustWriteFile(t, file, []byte(text))
		if _, err := readGossipKey(file); err == nil || !strings.Contains(err.Error(), "quorate cert gossip") {
			t.Errorf("%q: %v", text, err)
		}
	}
}
