package main

import (
	"encoding/base64"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"

	"github.com/quorate/quorate/internal/identity"
)

// setCredentials sets the environment's files and token for the time of the test.
func setCredentials(t *testing.T, ca, cert, key, token string) {
	t.Helper()
	t.Setenv(tlsCAEnv, ca)
	t.Setenv(tlsCertEnv, cert)
	t.Setenv(tlsKeyEnv, key)
	t.Setenv(tokenEnv, token)
}

// Shows that the TLS flags go before the environment, that none is plaintext, and that they go together.
func TestTLSFlags(t *testing.T) {
	dir := t.TempDir()
	ca := mustCert(t, "ca", "--dir", dir)
	v, a := mustCert(t, "viewer", "v", "--dir", dir), mustCert(t, "admin", "a", "--dir", dir)
	cmd := &cobra.Command{Use: "check"}
	setCredentials(t, "", "", "", "")
	if shown, err := (&options{}).credentials(cmd); shown != (credentials{}) || err != nil {
		t.Errorf("nothing named: %v %v", shown, err)
	}
	setCredentials(t, ca.Cert, v.Cert, v.Key, "")
	if shown, err := (&options{}).credentials(cmd); err != nil || shown.tls.ID().Name != "v" {
		t.Errorf("the environment: %v", err)
	}
	o := &options{tls: identity.Files{Cert: a.Cert, Key: a.Key}}
	if shown, err := o.credentials(cmd); err != nil || shown.tls.ID().Name != "a" {
		t.Errorf("flags before the environment: %v", err)
	}
	for _, c := range []struct {
		ca, cert, key string
		status        int
		want          string
	}{
		{"", v.Cert, v.Key, exitUsage, "give all three"},
		{ca.Cert, v.Cert, "", exitUsage, "give all three"},
		{ca.Cert, "", "", exitUsage, "--tls-ca alone goes with a token"},
		{ca.Cert, v.Cert, a.Key, exitError, "the key must be that of the first certificate"},
	} {
		setCredentials(t, c.ca, c.cert, c.key, "")
		r := runWith(t, "", "peek", "u", "c")
		if r.status != c.status || !strings.Contains(r.stderr, c.want) || strings.Count(r.stderr, "\n") != 1 {
			t.Errorf("%+v: %+v", c, r)
		}
	}
}

// Shows where a token comes from: its file, before the environment; that one which a flag names goes before a
// certificate of the environment, and the other way round; and that both at the same place are refused.
func TestTokenFlags(t *testing.T) {
	dir := t.TempDir()
	ca := mustCert(t, "ca", "--dir", dir)
	v := mustCert(t, "viewer", "v", "--dir", dir)
	file := mustWrite(t, "token", "qt_file\n")
	cmd := &cobra.Command{Use: "check"}
	for name, c := range map[string]struct {
		o     options
		env   [4]string // CA, certificate, key, token
		token string
		shows string // the certificate's name
		tls   bool
	}{
		"file":                  {options{tokenFile: file}, [4]string{3: "qt_env"}, "qt_file", "", false},
		"environment":           {options{}, [4]string{3: "qt_env"}, "qt_env", "", false},
		"with the CA":           {options{tls: identity.Files{CA: ca.Cert}}, [4]string{3: "qt_env"}, "qt_env", "", true},
		"file, certificate set": {options{tokenFile: file}, [4]string{ca.Cert, v.Cert, v.Key, ""}, "qt_file", "", true},
		"certificate, token set": {
			options{tls: identity.Files{Cert: v.Cert, Key: v.Key}}, [4]string{ca.Cert, "", "", "qt_env"}, "", "v", true,
		},
	} {
		setCredentials(t, c.env[0], c.env[1], c.env[2], c.env[3])
		shown, err := c.o.credentials(cmd)
		if err != nil || shown.token != c.token || (shown.tls != nil) != c.tls {
			t.Errorf("%s: %+v, %v", name, shown, err)
			continue
		}
		if c.tls && shown.tls.ID().Name != c.shows {
			t.Errorf("%s: the certificate of %q", name, shown.tls.ID().Name)
		}
	}
	setCredentials(t, ca.Cert, v.Cert, v.Key, "qt_env")
	if _, err := (&options{}).credentials(cmd); err == nil || !strings.Contains(err.Error(), "give one of them") {
		t.Errorf("both in the environment: %v", err)
	}
	both := &options{tokenFile: file, tls: identity.Files{Cert: v.Cert, Key: v.Key}}
	if _, err := both.credentials(cmd); err == nil || !strings.Contains(err.Error(), "give one of them") {
		t.Errorf("both by flags: %v", err)
	}
}

// Shows that what is no token is refused without being shown, and that a token does not leave the machine in
// plaintext.
func TestTokensThatAreRefused(t *testing.T) {
	setCredentials(t, "", "", "", "")
	for name, text := range map[string]string{
		"empty": " \n", "two lines": "qt_secret\nqt_other\n", "too long": strings.Repeat("x", maxTokenBytes+1), "odd": "qt_\x01secret",
	} {
		r := runWith(t, "", "audit", "--token-file", mustWrite(t, "token", text))
		if r.status != exitError || !strings.Contains(r.stderr, "holds no token") || strings.Contains(r.stderr, "secret") {
			t.Errorf("%s: %+v", name, r)
		}
	}
	t.Setenv(tokenEnv, "two words")
	if r := runWith(t, "", "audit"); r.status != exitError || !strings.Contains(r.stderr, "$"+tokenEnv+" holds no token") {
		t.Errorf("environment: %+v", r)
	}
	t.Setenv(tokenEnv, "qt_secret")
	r := runWith(t, "", "audit", "--addr", "192.0.2.1:7070")
	if r.status != exitError || !strings.Contains(r.stderr, "over TLS only: give --tls-ca") ||
		strings.Contains(r.stderr, "qt_secret") {
		t.Errorf("plaintext to another machine: %+v", r)
	}
	missing := filepath.Join(t.TempDir(), "none")
	r = runWith(t, "", "audit", "--token-file", missing)
	if r.status != exitError || !strings.Contains(r.stderr, "--token-file: ") || !strings.Contains(r.stderr, missing) {
		t.Errorf("no file: %+v", r)
	}
}

// Shows that cert gossip makes a key of 32 bytes in base64 that only its owner reads, another one each time, and
// never writes over one.
func TestCertGossip(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new")
	file := filepath.Join(dir, "gossip.key")
	if diff := cmp.Diff(`{"key":"`+file+`"}`+"\n", mustRun(t, "cert", "gossip", "--dir", dir, "-o", "json").stdout); diff != "" {
		t.Error(diff)
	}
	first := mustGossipKey(t, file)
	r := runWith(t, "", "cert", "gossip", "--dir", dir)
	if r.status != exitError || !strings.Contains(r.stderr, file+" is there already") {
		t.Errorf("again: %+v", r)
	}
	if mustGossipKey(t, file) != first {
		t.Error("the key was written over")
	}
	other := t.TempDir()
	mustRun(t, "cert", "gossip", "--dir", other)
	if mustGossipKey(t, filepath.Join(other, "gossip.key")) == first {
		t.Error("the same key twice")
	}
}

func mustGossipKey(t *testing.T, file string) [gossipKeyBytes]byte {
	t.Helper()
	info, err := os.Stat(file)
	if err != nil || info.Mode() != 0o600 {
		t.Fatalf("%s: %v %v", file, info, err)
	}
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	key, err := base64.StdEncoding.DecodeString(strings.TrimSuffix(string(b), "\n"))
	if err != nil || len(key) != gossipKeyBytes {
		t.Fatalf("%q: %v", b, err)
	}
	return [gossipKeyBytes]byte(key)
}
