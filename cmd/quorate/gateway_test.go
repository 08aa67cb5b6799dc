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
// running anything, and of a bad one all that is wrong, a line for each with file, line and column.
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
	put("gateway.yaml", strings.ReplaceAll(goodGateway, "listen: 127.0.0.1:0", "lissen: x\nlisten: 0.0.0.0:80"))
	put("keys.yaml", "keys: [{sha256: x, principal: y}]\n")
	bad := runWith(t, "", "gateway", "--config", config, "--check")
	if bad.status != exitError || strings.Count(bad.stderr, "\n") != 3 ||
		!strings.Contains(bad.stderr, config+":2:1: lissen: there is no such field") ||
		!strings.Contains(bad.stderr, config+":3:1: listen: 0.0.0.0:80 is not loopback") ||
		!strings.Contains(bad.stderr, "keys.yaml:1:8: keys[0]: sha256") {
		t.Errorf("%+v", bad)
	}
	put("keys.yaml", "keys:\n"+r.stdout)
	put("policy.yaml", "version: v1\ndefault: {limits: [{name: d, limit: 1, window: 1s}]}\nclasses:\n"+
		"  convert: {limits: [{name: d, limit: 1, window: 1s}]}\n")
	put("gateway.yaml", strings.ReplaceAll(goodGateway, "cluster: {", "cluster: {policy_file: policy.yaml, ")+`routes:
- {match: POST /a, charges: [{class: convert}]}
- {match: POST /b, charges: [{class: default}, {class: konvert}]}
`)
	r = mustRun(t, "gateway", "--config", config, "--check")
	if r.stdout != config+" is good\n" || strings.Count(r.stderr, "\n") != 1 ||
		!strings.Contains(r.stderr, "warning: "+config+":10:") || !strings.Contains(r.stderr, `the class "konvert"`) {
		t.Errorf("%+v", r)
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
