package main

import (
	"crypto/tls"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/quorate/quorate/internal/identity"
)

// mustCert runs a command under cert and returns what it says that it has made.
func mustCert(t *testing.T, args ...string) (v certView) {
	t.Helper()
	r := mustRun(t, append([]string{"cert", "-o", "json"}, args...)...)
	if err := json.Unmarshal([]byte(r.stdout), &v); err != nil {
		t.Fatalf("%s: %v", r.stdout, err)
	}
	return v
}

// Shows what each command under cert makes: the identity and its hosts in the certificate, valid for as long as
// is said or for the default, usable as it is, and found again by its cluster.
func TestCertCommands(t *testing.T) {
	dir := t.TempDir()
	ca := mustCert(t, "ca", "--dir", dir)
	if left := time.Until(ca.NotAfter); left < 3649*24*time.Hour || left > 3650*24*time.Hour {
		t.Errorf("the CA is valid for %s", left)
	}
	uri := "quorate://" + ca.ClusterID
	for _, c := range []struct {
		args   []string
		uri    string
		file   string
		valid  time.Duration
		dns    string
		ip     string
		server bool
	}{
		{[]string{"node", "n0", "--host", "n0.example,127.0.0.1"}, "/node/n0", "node-n0", 90 * 24 * time.Hour, "n0.example", "127.0.0.1", true},
		{[]string{"gateway", "edge", "--classes", "a,b", "--valid", "1d"}, "/gateway/edge?classes=a,b", "gateway-edge", 24 * time.Hour, "", "", false},
		{[]string{"gateway", "all", "--valid", "1m"}, "/gateway/all", "gateway-all", time.Minute, "", "", false},
		{[]string{"admin", "ops"}, "/admin/ops", "admin-ops", 90 * 24 * time.Hour, "", "", false},
		{[]string{"viewer", "board"}, "/viewer/board", "viewer-board", 90 * 24 * time.Hour, "", "", false},
	} {
		v := mustCert(t, append(c.args, "--dir", dir)...)
		if v.Identity != uri+c.uri || v.Cert != filepath.Join(dir, c.file+".pem") || v.ClusterID != ca.ClusterID {
			t.Errorf("%v: %+v", c.args, v)
		}
		if left := time.Until(v.NotAfter); left > c.valid || left < c.valid-time.Minute {
			t.Errorf("%v: valid for %s", c.args, left)
		}
		pair, err := tls.LoadX509KeyPair(v.Cert, v.Key)
		if err != nil {
			t.Fatal(err)
		}
		if c.dns != "" && pair.Leaf.VerifyHostname(c.dns) != nil || c.ip != "" && pair.Leaf.VerifyHostname(c.ip) != nil ||
			c.dns == "" && len(pair.Leaf.DNSNames)+len(pair.Leaf.IPAddresses) > 0 {
			t.Errorf("%v: for %v %v", c.args, pair.Leaf.DNSNames, pair.Leaf.IPAddresses)
		}
		if _, err := identity.Open(identity.Files{CA: ca.Cert, Cert: v.Cert, Key: v.Key}, identity.ID{}); err != nil {
			t.Errorf("%v: %v", c.args, err)
		}
	}
	out := filepath.Join(dir, "next")
	if v := mustCert(t, "admin", "ops", "--dir", dir, "--out", out); v.Cert != filepath.Join(out, "admin-ops.pem") {
		t.Errorf("--out: %+v", v)
	}
}

// Shows that mistakes under cert are refused in one line that says what to do, and leave every file as it was.
func TestCertMistakes(t *testing.T) {
	dir := t.TempDir()
	mustCert(t, "ca", "--dir", dir, "--cluster-id", "6f1c1a52-7a8e-4f0e-9a53-0d4d8f2f8f11", "--valid", "10d")
	key, err := os.ReadFile(filepath.Join(dir, "ca-key.pem"))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		status int
		want   string
		args   []string
	}{
		{exitError, "is there already", []string{"ca", "--dir", dir}},
		{exitError, "not a UUID", []string{"ca", "--dir", t.TempDir(), "--cluster-id", "mine"}},
		{exitUsage, "--host is required", []string{"node", "n0", "--dir", dir}},
		{exitError, "without a port", []string{"node", "n0", "--dir", dir, "--host", "n0:7070", "--valid", "1d"}},
		{exitError, "the CA ends on", []string{"admin", "ops", "--dir", dir}},
		{exitError, "make a CA with `quorate cert ca`", []string{"admin", "ops", "--dir", t.TempDir()}},
		{exitError, "use letters", []string{"admin", "o p s", "--dir", dir, "--valid", "1d"}},
		{exitError, "take another", []string{"gateway", "insecure", "--dir", dir, "--valid", "1d"}},
		{exitUsage, "is not above 0", []string{"admin", "ops", "--dir", dir, "--valid", "-1d"}},
		{exitUsage, "has no unit", []string{"admin", "ops", "--dir", dir, "--valid", "90"}},
		{exitUsage, "admin: name the NAME", []string{"admin", "--dir", dir}},
	} {
		r := runWith(t, "", append([]string{"cert"}, c.args...)...)
		if r.status != c.status || !strings.Contains(r.stderr, c.want) || strings.Count(r.stderr, "\n") != 1 {
			t.Errorf("%v: %+v, want %d %q", c.args, r, c.status, c.want)
		}
	}
	files, err := os.ReadDir(dir)
	if err != nil || len(files) != 2 {
		t.Errorf("%d files: %v", len(files), err)
	}
	if now, err := os.ReadFile(filepath.Join(dir, "ca-key.pem")); err != nil || string(now) != string(key) {
		t.Errorf("the CA's key was changed: %v", err)
	}
}
