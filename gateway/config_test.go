package gateway

import (
	"encoding/hex"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/quorate/quorate/sdk/caller"
)

var rewrite = flag.Bool("rewrite", false, "write the expected problems anew")

// write puts files, name and content in turns, into a fresh folder, and gives the path of the first.
func write(t *testing.T, files ...string) string {
	t.Helper()
	dir := t.TempDir()
	for i := 0; i+1 < len(files); i += 2 {
		if err := os.WriteFile(filepath.Join(dir, files[i]), []byte(files[i+1]), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return filepath.Join(dir, files[0])
}

const badConfig = `
listen: 0.0.0.0:8080
admin: "[::]:8081"
tls: {client_certificates: maybe, cert: none.pem}
hosts: ["A.example", "b:80"]
methods: [get, CONNECT]
upgrades: [h2c]
bounds: {max_connections: -1, header_timeout: 2h, max_upgrades: 8, max_upgrades_per_caller: 9, idle_timeout: soon}
proxies: {trusted_hops: -1, from: [here]}
cluster: {addrs: ["192.0.2.1:7070", nowhere]}
callers:
  "a b": [{client_ip: {}}]
  empty: []
  two: [{client_ip: {}, jwt: {}}, {}]
  keys: [{api_key: {header: "x y", file: bad-keys.yaml}}, {api_key: {}}]
  tokens: [{jwt: {jwks_file: jwks.json, algorithms: [HS256]}}, {jwt: {jwks_file: none.json}}]
  certificates: [{certificate: {name: email}}, {jwt: {leeway: long}}, {apikey: {}}]
upstreams:
  here: {url: "ftp://x", timeout: -1s}
  there: {url: "http://x/?a=b", ca: none.pem, max_body_bytes: -5}
routes:
  - {match: POST /a, upstream: nowhere, charges: [{class: c, by: nobody, cost: 0}]}
  - {match: POST /a, upstream: here, unlimited: true}
  - {match: "example.org/x", upstream: here, unlimited: true}
  - {upstream: here, charges: [], unlimitted: true}
fallback: {match: /, upstream: here, unlimited: true, charges: [{class: "", by: two}]}
principal_header: Host
remove_headers: ["a b"]
answers: {retry_jitter: 2h, retry-jitter: 2h}
drain: {delay: -1s}
log: {level: loud, format: xml, colour: red}
lissen: 127.0.0.1:80
admin: 127.0.0.1:81
answers: {retry_jitter: 2h}` // and the last line does not end

const badKeys = "keys:\n- {sha256: zz, principal: 'ip:1.2.3.4'}\n- {sha256: '%[1]s', principal: a}\n- {sha256: '%[1]s', principal: '', tier: \"\\0\", teir: x}\n"

// Shows that everything that is wrong, in the configuration and in the files that it names, is told in one answer, each
// with file, line, place and what to do: names that are no field, names that stand twice and values of another kind hide
// nothing that stands behind them.
func TestAllProblemsAtOnce(t *testing.T) {
	config := write(t, "gateway.yaml", badConfig, "bad-keys.yaml", strings.ReplaceAll(badKeys, "%[1]s", sum("k")),
		"jwks.json", `{"keys": [{"kty": "EC", "d": "x"}, {"kty": "EC", "x5u": "https://x"}]}`)
	_, err := Load(config, nil)
	if err == nil {
		t.Fatal("it is accepted")
	}
	var got []string
	for _, line := range strings.Split(err.Error(), "\n") {
		got = append(got, strings.ReplaceAll(line, filepath.Dir(config)+"/", ""))
	}
	file := filepath.Join("testdata", "problems.txt")
	if *rewrite {
		if err := os.WriteFile(file, []byte(strings.Join(got, "\n")+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(strings.Split(strings.TrimSuffix(string(want), "\n"), "\n"), got); diff != "" {
		t.Error(diff)
	}
}

// Shows that what cannot be read as a configuration is refused, with the names that are none.
func TestStrict(t *testing.T) {
	for text, want := range map[string]string{
		"lissen: x\nroutes: [{matches: y}]\ncallers: {a: [{apikey: {}}]}": "lissen",
		"routes: [{matches: y}]":            "matches",
		"callers: {a: [{apikey: {}}]}":      "apikey",
		"listen: a\nlisten: b":              "already defined",
		"bounds: {idle_timeout: soon}":      "idle_timeout",
		"a: [":                              "yaml",
		"- a":                               "",
		"bounds: {max_connections: 1.5e99}": "max_connections",
	} {
		_, err := Load(write(t, "gateway.yaml", text), nil)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}

// Shows that the example is good, what its defaults are, and that the environment wins over the file where it may.
func TestExample(t *testing.T) {
	c, err := Load(filepath.Join("example", "gateway.yaml"), []string{
		"QUORATE_GATEWAY_LISTEN=127.0.0.1:1234", "QUORATE_GATEWAY_BOUNDS__MAX_REQUESTS=7", "QUORATE_GATEWAY_DRAIN__TIMEOUT=9s",
		"QUORATE_GATEWAY_CLUSTER__ADDRS=127.0.0.1:1,127.0.0.1:2", "QUORATE_GATEWAY_ROUTES=x", "QUORATE_GATEWAY_SERVICE_HOST=10.0.0.1",
		"QUORATE_LISTEN=127.0.0.1:5",
	})
	if err != nil {
		t.Fatal(err)
	}
	if c.Listen != "127.0.0.1:1234" || c.Bounds.MaxRequests != 7 || c.Drain.Timeout != 9*time.Second ||
		len(c.Cluster.Addrs) != 2 || len(c.Routes) != 3 {
		t.Errorf("%+v", c)
	}
	if c.Bounds.MaxHeaderBytes != 32<<10 || *c.Drain.Delay != 5*time.Second || c.Upstreams["api"].Timeout != 30*time.Second ||
		c.Upstreams["api"].MaxBodyBytes != 1<<30 || c.Fallback.Name != "fallback" || c.Routes[0].Name != "POST /login" {
		t.Errorf("%+v", c)
	}
}

// Shows that plaintext and open probes are accepted where they are asked for by name.
func TestAllowed(t *testing.T) {
	const rest = "\ncluster: {addrs: [\"127.0.0.1:1\"]}\nupstreams: {a: {url: \"http://x\"}}\nfallback: {unlimited: true}\n"
	for head, good := range map[string]bool{
		"listen: :80": false, "listen: 0.0.0.0:80": false, "listen: api.example:80": false, "listen: localhost:80": true,
		"listen: :80\nallow_plaintext: true":                       true,
		"listen: localhost:80\nadmin: :81":                         false,
		"listen: localhost:80\nadmin: :81\nallow_open_admin: true": true,
		"listen: localhost:80\nadmin: localhost:80":                false,
	} {
		if _, err := Load(write(t, "gateway.yaml", head+rest), nil); (err == nil) != good {
			t.Errorf("%q: %v", head, err)
		}
	}
}

// Shows that a key that is made is found by its entry as it is printed, and that an entry nobody could mean is refused.
func TestKeys(t *testing.T) {
	key, entry, err := NewKey("account:acme", "pro")
	if err != nil {
		t.Fatal(err)
	}
	again, _, err := NewKey("account:acme", "pro")
	if err != nil || again == key || len(key) < 40 {
		t.Errorf("%q %q %v", key, again, err)
	}
	line, err := entry.Line()
	if err != nil || strings.Contains(line, key) {
		t.Errorf("%q %v", line, err)
	}
	accounts, err := parseKeys("keys.yaml", []byte("keys:\n"+line+"\n"))
	if err != nil || len(accounts) != 1 {
		t.Fatalf("%v %v", accounts, err)
	}
	for d, a := range accounts {
		if a != (account{"account:acme", "pro"}) || hex.EncodeToString(d[:]) != sum(key) || entry.SHA256 != sum(key) {
			t.Errorf("%x %v", d, a)
		}
	}
	for _, principal := range []string{"", "a\x00", "\xff", strings.Repeat("a", caller.MaxPrincipalBytes+1), "ip:1.2.3.4", "sub:x", "cn:x"} {
		if _, _, err := NewKey(principal, ""); err == nil {
			t.Errorf("%q is accepted", principal)
		}
	}
	if accounts, err := parseKeys("keys.yaml", nil); len(accounts) != 0 || err != nil {
		t.Errorf("an empty file: %v %v", accounts, err)
	}
}

// Shows that only sets of public keys that are written out are accepted.
func TestJWKS(t *testing.T) {
	x, y := coordinates(t, mustKey(t))
	key := func(more string) string {
		return `{"kty": "EC", "crv": "P-256", "x": "` + x + `", "y": "` + y + `"` + more + `}`
	}
	for text, want := range map[string]string{
		`{"keys": [` + key(`, "kid": "a"`) + `]}`:                              "",
		`{"keys": [` + key(`, "kid": "a"`) + `, ` + key(`, "kid": "b"`) + `]}`: "",
		`{"keys": [` + key(`, "kid": "a"`) + `, ` + key(`, "kid": "a"`) + `]}`: "also that of keys[0]",
		`{"keys": []}`:                           "0 keys",
		`{}`:                                     "0 keys",
		`[]`:                                     "no JWK Set",
		`x`:                                      "no JWK Set",
		`{"keys": [` + key(`, "d": "AA"`) + `]}`: "not a public key",
		`{"keys": [` + key(`, "D": "AA"`) + `]}`: "not a public key",
		`{"keys": [` + key(`, "x5u": "https://a"`) + `]}`:                 "not fetched",
		`{"keys": [{"kty": "oct", "k": "AAAA"}]}`:                         "not a public key",
		`{"keys": [{"kty": "EC", "crv": "P-256", "x": "AA", "y": "AA"}]}`: "cannot be read",
	} {
		_, err := parseJWKS("jwks.json", []byte(text))
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}

// Shows that a file of keys, or a configuration, of several documents is refused, and two routes of one name too.
func TestNothingIsOverlooked(t *testing.T) {
	for src, good := range map[string]bool{
		"keys: []\n---\nkeys: [{sha256: x}]\n": false, "keys: []\n--- [\n": false, "---\nkeys: []\n": true,
		"keys: []\n...\n": true, "# nothing\n": true,
	} {
		if _, err := parseKeys("keys.yaml", []byte(src)); (err == nil) != good {
			t.Errorf("%q: %v", src, err)
		}
	}
	const head = "listen: 127.0.0.1:0\ncluster: {addrs: [\"127.0.0.1:1\"]}\nupstreams: {a: {url: \"http://x\"}}\n"
	for text, want := range map[string]string{
		"fallback: {unlimited: true}\n---\nlisten: x\n":                                                                       "second document",
		"routes:\n- {match: GET /a, name: GET /b, unlimited: true}\n- {match: GET /b, unlimited: true}\n":                     "routes[1].name",
		"routes:\n- {match: /b, unlimited: true}\n- {match: /a, name: /b, unlimited: true}\n":                                 "routes[1].name",
		"keep_headers: [X-Api-Key]\nfallback: {unlimited: true}\n":                                                            "keep_headers[0]",
		"principal_header: X-IP\nproxies: {trusted_hops: 1, from: [10.0.0.0/8], header: x_ip}\nfallback: {unlimited: true}\n": "principal_header",
	} {
		_, err := Load(write(t, "gateway.yaml", head+text), nil)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}

// Shows that trusted hops are believed from named networks only, however many those are.
func TestTrustedHopsNeedNetworks(t *testing.T) {
	const head = "listen: 127.0.0.1:0\ncluster: {addrs: [\"127.0.0.1:1\"]}\nupstreams: {a: {url: \"http://x\"}}\n" +
		"fallback: {unlimited: true}\nproxies: "
	for text, want := range map[string]string{
		"{trusted_hops: 1}":                                  "gateway.yaml:5:1: proxies.from: name the networks",
		"{trusted_hops: 2, from: []}":                        "gateway.yaml:5:28: proxies.from: name the networks",
		"{trusted_hops: 1, from: [\"0.0.0.0/0\", \"::/0\"]}": "", "{trusted_hops: 1, from: [10.0.0.0/8]}": "", "{}": "",
		"{from: [10.0.0.0/8]}": "count them",
	} {
		_, err := Load(write(t, "gateway.yaml", head+text+"\n"), nil)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}

// Shows that what the environment says is told as that, and hides nothing that the file says.
func TestProblemsOfTheEnvironment(t *testing.T) {
	config := write(t, "gateway.yaml", "listen: 127.0.0.1:0\ncluster: {addrs: [\"127.0.0.1:1\"]}\n"+
		"upstreams: {a: {url: \"http://x\"}}\nfallback: {unlimited: true}\nbounds: {max_streams: -1, idle_timeout: 1s}\n")
	_, err := Load(config, []string{"QUORATE_GATEWAY_LISTEN=nowhere", "QUORATE_GATEWAY_BOUNDS__IDLE_TIMEOUT=soon"})
	want := `environment QUORATE_GATEWAY_BOUNDS__IDLE_TIMEOUT: bounds.idle_timeout: time: invalid duration: write it as 30s or 5m
environment QUORATE_GATEWAY_LISTEN: listen: "nowhere" is not host:port
` + config + `:5:10: bounds.max_streams: -1: set it between 1 and 65536`
	if err == nil {
		t.Fatal("it is accepted")
	}
	if diff := cmp.Diff(want, err.Error()); diff != "" {
		t.Error(diff)
	}
}
