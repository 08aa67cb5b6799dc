package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const goodGateway = `
listen: 127.0.0.1:0
admin: 127.0.0.1:0
cluster: {addrs: ["127.0.0.1:1"]}
callers: {account: [{api_key: {file: keys.yaml}}]}
upstreams: {api: {url: "http://127.0.0.1:1"}}
fallback: {charges: [{class: default}]}
`

// Shows that a made key's entry is printed apart from the key, makes a good file, and that --check says so without
// running anything, and of a bad one in one line all that is wrong.
func TestGatewayCheckAndKey(t *testing.T) {
	dir := t.TempDir()
	put := func(name, text string) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	r := mustRun(t, "gateway", "key", "account:acme", "--tier", "pro")
	if !strings.Contains(r.stderr, "qk_") || strings.Contains(r.stdout, "qk_") || !strings.Contains(r.stdout, "tier: pro") {
		t.Errorf("%+v", r)
	}
	put("keys.yaml", "keys:\n"+r.stdout)
	config := filepath.Join(dir, "gateway.yaml")
	put("gateway.yaml", goodGateway)
	if r := mustRun(t, "gateway", "--config", config, "--check"); r.stdout != config+" is good\n" || r.stderr != "" {
		t.Errorf("%+v", r)
	}
	put("gateway.yaml", strings.ReplaceAll(goodGateway, "listen: 127.0.0.1:0", "listen: 0.0.0.0:80"))
	put("keys.yaml", "keys: [{sha256: x, principal: y}]")
	bad := runWith(t, "", "gateway", "--config", config, "--check")
	if bad.status != exitError || strings.Count(bad.stderr, "\n") != 1 || !strings.Contains(bad.stderr, "listen: ") ||
		!strings.Contains(bad.stderr, "keys[0]: sha256") {
		t.Errorf("%+v", bad)
	}
	for _, args := range [][]string{{"gateway"}, {"gateway", "key"}, {"gateway", "x"}, {"gateway", "demo", "--base-port", "0"}} {
		if r := runWith(t, "", args...); r.status != exitUsage {
			t.Errorf("%v: %+v", args, r)
		}
	}
	if r := runWith(t, "", "gateway", "key", "ip:1.2.3.4"); r.status != exitError || r.stdout != "" {
		t.Errorf("%+v", r)
	}
}
