package gateway

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// reloads waits until so many attempts have had a result.
func (r *rig) reloads(t *testing.T, result string, n int) {
	t.Helper()
	until(t, fmt.Sprint(n, " reloads ", result), func() bool {
		return r.metric(t, fmt.Sprintf(`quorate_gateway_reloads_total{result=%q}`, result)) == fmt.Sprint(n)
	})
}

// Shows that what an editor that renames, one that writes in place, and a change of the key file alone bring about is
// in force soon, without a signal; that requests under way end by the configuration that they began with; and that
// metrics of routes which are gone go too.
func TestReload(t *testing.T) {
	begun, release := make(chan bool), make(chan bool)
	r := mustRig(t, accountRoutes+"principal_header: X-Old\n", func(w http.ResponseWriter, q *http.Request) {
		if q.URL.Path == "/free/hold" {
			begun <- true
			<-release
		}
		fmt.Fprintf(w, "old %q, new %q", q.Header.Get("X-Old"), q.Header.Get("X-New"))
	})
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	r.poll = 100 * time.Millisecond
	r.start(t)
	r.do(t, http.MethodPost, "/dear", "X-Api-Key", keyAcme)
	held := r.dial(t)
	held.mustWrite(t, "GET /free/hold HTTP/1.1\r\nHost: a\r\n\r\n")
	<-begun

	routes := strings.ReplaceAll(strings.ReplaceAll(accountRoutes, "/dear", "/costly"), "/free/", "/gratis/")
	r.put(t, ".gateway.yaml.swp", r.whole(routes+"principal_header: X-New\n"))
	if err := os.Rename(filepath.Join(r.dir, ".gateway.yaml.swp"), filepath.Join(r.dir, "gateway.yaml")); err != nil {
		t.Fatal(err)
	}
	r.reloads(t, reloadApplied, 1)
	a := r.do(t, http.MethodPost, "/costly", "X-Api-Key", keyAcme)
	a.mustBe(t, "the new route", http.StatusOK, "")
	if a.body != `old "", new "account:acme"` {
		t.Error(a.body)
	}
	if got := r.metric(t, `quorate_gateway_requests_total{route="POST /dear",status="200"}`); got != "" {
		t.Errorf("the old route has %q requests still", got)
	}
	close(release)
	if resp := held.answer(t); resp == nil || resp.StatusCode != http.StatusOK {
		t.Errorf("what was under way: %+v", resp)
	}
	until(t, "it has ended", func() bool { return r.metric(t, "quorate_gateway_in_flight") == "0" })
	if _, series := r.probe(t, "/metrics"); strings.Contains(series, `route="/free/"`) {
		t.Error("what ended after its route had gone has made the route's series again")
	}

	r.put(t, "keys.yaml", strings.Replace(testKeys, sum(keyAcme), sum("k-fresh"), 1))
	r.reloads(t, reloadApplied, 2)
	r.do(t, http.MethodGet, "/", "X-Api-Key", "k-fresh").mustBe(t, "the fresh key", http.StatusOK, "")
	r.do(t, http.MethodGet, "/", "X-Api-Key", keyAcme).mustBe(t, "the key that was removed", http.StatusUnauthorized, "")
}

// Shows that each bad change is refused as a whole, with all reasons in the log, counted, while that before goes on, in
// spite of good parts beside; that SIGHUP tries at once; and that a mended file is taken.
func TestRefusedReload(t *testing.T) {
	r := mustRig(t, accountRoutes, nil)
	good := r.whole(accountRoutes)
	for i, tt := range []struct{ file, text, want string }{
		{"gateway.yaml", "", "listen: "},
		{"gateway.yaml", good[:len(good)/2], ""},
		{"gateway.yaml", good + "extra: 1\n", "extra"},
		{"gateway.yaml", good + "routes: []\n", "already defined"},
		{"gateway.yaml", strings.ReplaceAll(good, "class: convert", "class: ''"), "routes[0]"},
		{"gateway.yaml", good + "bounds: {max_requests: 7}\n", "bounds: it has changed"},
		{"gateway.yaml", strings.Replace(good, "127.0.0.1:0", "127.0.0.1:1", 1), "listen: it has changed"},
		{"gateway.yaml", good + "allow_plaintext: 17x\n", "allow_plaintext"},
		{"keys.yaml", "keys: [{sha256: 00, principal: ''}]", "keys[0]"},
		{"keys.yaml", "\x00", "keys.yaml"},
	} {
		r.put(t, tt.file, tt.text)
		r.hangups <- syscall.SIGHUP
		r.reloads(t, reloadRefused, i+1)
		if !strings.Contains(r.log.String(), tt.want) {
			t.Errorf("%q: the log lacks %q", tt.text, tt.want)
		}
		r.do(t, http.MethodGet, "/", "X-Api-Key", keyAcme).mustBe(t, tt.want, http.StatusOK, "")
		if got := r.metric(t, "quorate_gateway_config_good"); got != "0" {
			t.Errorf("%s: config_good is %q", tt.want, got)
		}
		r.put(t, "gateway.yaml", good)
		r.put(t, "keys.yaml", testKeys)
		r.hangups <- syscall.SIGHUP
		r.reloads(t, reloadApplied, i+1)
		if got := r.metric(t, "quorate_gateway_config_good"); got != "1" {
			t.Errorf("%s: config_good is %q after it was mended", tt.want, got)
		}
	}
	if err := os.Remove(filepath.Join(r.dir, "gateway.yaml")); err != nil {
		t.Fatal(err)
	}
	r.hangups <- syscall.SIGHUP
	r.reloads(t, reloadRefused, 11)
	r.do(t, http.MethodGet, "/", "X-Api-Key", keyAcme).mustBe(t, "no file", http.StatusOK, "")
}

// Shows that files that are still being written are not read, be it in parts with pauses between, or several of them one
// after the other: only what was the same for long enough counts.
func TestHalfWritten(t *testing.T) {
	dir := t.TempDir()
	names := []string{filepath.Join(dir, "f"), filepath.Join(dir, "g")}
	put := func(i int, text string) {
		if err := os.WriteFile(names[i], []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	put(0, "1")
	put(1, "a")
	f := newFiles()
	for _, name := range names {
		if _, err := f.read(name); err != nil {
			t.Fatal(err)
		}
	}
	w := &watcher{}
	w.note(f)
	looks := 0
	for i, step := range []struct {
		file, n int
		text    string
		settled bool // at the last of n looks, and never before
	}{
		{0, 9, "1", false}, // as at the last attempt
		{0, quietLooks, "1\n", false}, {0, quietLooks, "1\n2", false}, {1, quietLooks, "b", false}, {1, 1, "b", true},
		{0, 2, "1", false}, {1, 2, "a", false}, // back again
		{1, 3, "b", false}, {1, 1, "a", false}, {1, quietLooks, "b", false}, {1, 1, "b", true},
	} {
		put(step.file, step.text)
		for n := range step.n {
			looks++
			if got := w.settled(); got != (step.settled && n == step.n-1) {
				t.Errorf("step %d, look %d, %q: %t", i, looks, step.text, got)
			}
		}
	}
}

// Shows that a file which ends in the middle of a line, or of a certificate, is refused as half-written, in spite of
// all in it being good, and taken when the rest has come.
func TestCutOff(t *testing.T) {
	ca := mustCA(t)
	cert, key := ca.issue(t, "server")
	const config = `
tls: {cert: server.pem, key: server-key.pem, client_ca: ca.pem}
callers: {all: [{api_key: {file: keys.yaml}}]}
fallback: {charges: [{class: default, cost: 10}]}
`
	cas := ca.pem() + mustCA(t).pem()
	r := mustRig(t, config, nil, "server.pem", cert, "server-key.pem", key, "ca.pem", cas)
	good := r.whole(config)
	for i, tt := range []struct{ file, text, cut, want string }{
		{"gateway.yaml", good + "log: {level: info}\n", good + "log: {level: info}", "half-written"},
		{"gateway.yaml", good + "hosts:\n- 127.0.0.1\n", good + "hosts:\n- 127", ":6: the last line"},
		{"keys.yaml", testKeys, strings.TrimSuffix(testKeys, "\n"), "keys.yaml:4:"},
		{"ca.pem", cas, cas[:len(cas)-200], "ca.pem: a block of PEM"},
		{"ca.pem", cas, cas[:len(cas)-5], "ca.pem: a block of PEM"},
		{"server.pem", cert + ca.pem(), cert + ca.pem()[:99], "server.pem: a block of PEM"},
	} {
		r.put(t, tt.file, tt.cut)
		r.hangups <- nil
		r.reloads(t, reloadRefused, i+1)
		if !strings.Contains(r.log.String(), tt.want) {
			t.Errorf("%d: the log lacks %q", i, tt.want)
		}
		r.put(t, tt.file, tt.text)
		r.hangups <- nil
		r.reloads(t, reloadApplied, i+1)
	}
}

// Shows that a change of the policy file is noticed, and refused as what needs a new start, until it is taken back.
func TestPolicyFileChanges(t *testing.T) {
	r := mustRig(t, accountRoutes, nil)
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	r.put(t, "policy.yaml", testPolicy)
	r.put(t, "gateway.yaml", strings.Replace(r.whole(accountRoutes), "cluster: {", "cluster: {policy_file: policy.yaml, ", 1))
	r.start(t)
	r.put(t, "policy.yaml", testPolicy+"# another\n")
	r.hangups <- nil
	r.reloads(t, reloadRefused, 1)
	if good := r.metric(t, "quorate_gateway_config_good"); good != "0" ||
		!strings.Contains(r.log.String(), "cluster.policy_file: it has changed") {
		t.Errorf("config_good is %q", good)
	}
	r.put(t, "policy.yaml", testPolicy)
	r.hangups <- nil
	r.reloads(t, reloadApplied, 1)
}
