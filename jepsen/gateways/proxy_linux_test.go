package gateways

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/quorate/quorate/jepsen/cluster"
	"github.com/quorate/quorate/jepsen/history"
	"github.com/quorate/quorate/jepsen/process"
)

const (
	proxyConnections = 2000
	proxyCallers     = 400
	proxyLimit       = 3
	proxyWindow      = 20 * time.Second
	// proxyGrowth is by how much memory may grow from when the crowd is complete, and proxyGoroutines by how many
	// goroutines there may be more when it has gone.
	proxyGrowth     = 64 << 20
	proxyGoroutines = 20
)

// mustProxied makes a cluster, an upstream, and a reference gateway between, which has connected to all of them.
func mustProxied(t *testing.T) (*world, *upstream, *proxy) {
	t.Helper()
	w := mustWorld(t, cluster.Options{Partitions: 2, Moves: true, Policy: history.Policy{
		Version: "v1",
		Default: history.Class{Limits: []history.Limit{{Name: "default", Max: 1, Window: history.Window(proxyWindow)}}},
		Classes: map[string]history.Class{"convert": {
			Limits:        []history.Limit{{Name: "convert", Max: proxyLimit, Window: history.Window(proxyWindow)}},
			OnUnavailable: "deny", Timeout: history.Window(250 * time.Millisecond),
		}},
	}}, 1)
	up := w.mustUpstream()
	p := w.mustProxy(up.URL)
	must(t, w.AwaitWhole(within(t, time.Minute), 3))
	w.mustWarm(p)
	return w, up, p
}

// mustKeepCaps judges what was let through, as somebody has seen it, and returns how many full windows there were.
func (w *world) mustKeepCaps(seen string, let []Passed) (full int) {
	w.t.Helper()
	full, err := PassedCaps(let, proxyLimit, proxyWindow)
	w.say("as %s saw it %d were let through, and %d windows were full", seen, len(let), full)
	if err != nil {
		w.t.Errorf("as %s saw it: %v", seen, err)
	}
	return full
}

// mustKeepCaps judges all that has come, and returns how many full windows there were.
func (u *upstream) mustKeepCaps() (full int) {
	u.w.t.Helper()
	let, err := u.noted()
	if err != nil {
		u.w.t.Error(err)
	}
	full = u.w.mustKeepCaps("the upstream", let)
	n, shortest := Bunched(let, proxyLimit, proxyWindow)
	u.w.say("%d times one more than %d came within less than %v, decided before: within %v", n, proxyLimit, proxyWindow, shortest)
	return full
}

// mustBeWorth looks at how all requests were answered: by nothing else than 200, 429 and 503, and by enough of each. least
// is how many full windows are enough.
func (w *world) mustBeWorth(least, full int, statuses map[int]int) {
	w.t.Helper()
	w.say("answers to requests of %d callers: %v", proxyCallers, statuses)
	if full < least || statuses[http.StatusTooManyRequests] < 10*proxyCallers || statuses[http.StatusServiceUnavailable] == 0 {
		w.t.Errorf("%d full windows, and %v: too little to be worth anything", full, statuses)
	}
	for status := range statuses {
		if status != http.StatusOK && status != http.StatusTooManyRequests && status != http.StatusServiceUnavailable {
			w.t.Errorf("an answer %d", status)
		}
	}
}

// mustBeFlat compares what it used when a load had begun with what it used in the end.
func mustBeFlat(t *testing.T, begun, ended usage) {
	t.Helper()
	if ended.bytes > begun.bytes+proxyGrowth || ended.goroutines > begun.goroutines*5/4+200 {
		t.Errorf("it grows: %v, and later %v", begun, ended)
	}
}

// mustLeaveNothing waits until it has no more goroutines than when it was calm, and ends it.
func (p *proxy) mustLeaveNothing(w *world, calm usage) {
	w.t.Helper()
	var after usage
	// Connections to the upstream are kept for a while.
	err := process.Await(within(w.t, 2*time.Minute), "its goroutines end", func() bool {
		after = p.mustMeasure(w.t)
		return after.goroutines <= calm.goroutines+proxyGoroutines
	})
	w.say("afterwards: %v", after)
	must(w.t, err)
	p.mustEnd(w.t)
}

// proxy is a running reference gateway.
type proxy struct {
	listen, admin string
	cmd           *exec.Cmd
	ended         chan error
}

// mustProxy starts the reference gateway before an upstream, with the certificate of the world's gateway.
func (w *world) mustProxy(upstream string) *proxy {
	w.t.Helper()
	base, err := process.FreePorts(1)
	must(w.t, err)
	p := &proxy{
		listen: fmt.Sprint("127.0.0.1:", base), admin: fmt.Sprint("127.0.0.1:", base+1), ended: make(chan error, 1),
	}
	var addrs []string
	for _, n := range w.Nodes {
		addrs = append(addrs, strconv.Quote(n.Dialled.GRPC))
	}
	file := func(name string) string { return filepath.Join(w.dir, name) }
	config := file("proxy.yaml")
	must(w.t, os.WriteFile(config, fmt.Appendf(nil, `listen: %s
admin: %s
cluster:
  addrs: [%s]
  tls: {ca: %s, cert: %s, key: %s}
proxies: {trusted_hops: 1, from: [127.0.0.0/8]}
callers: {address: [client_ip: {}]}
upstreams: {api: {url: %q}}
routes: [{match: POST /convert, charges: [{class: convert, by: address}]}]
drain: {delay: 0s}
`, p.listen, p.admin, strings.Join(addrs, ", "), file("ca.pem"), file("gateway-edge0.pem"), file("gateway-edge0-key.pem"),
		upstream), 0o600))
	log, err := os.Create(file("proxy.log"))
	must(w.t, err)
	p.cmd = exec.Command(w.binary, "gateway", "--config", config)
	p.cmd.Stdout, p.cmd.Stderr = log, log
	must(w.t, p.cmd.Start())
	go func() { p.ended <- errors.Join(p.cmd.Wait(), log.Close()) }()
	w.t.Cleanup(func() {
		if p.cmd.ProcessState == nil { // the test has failed before it ended it
			must(w.t, p.cmd.Process.Kill())
			<-p.ended //nolint:errcheck // that it was killed
		}
		if w.t.Failed() {
			words, _ := os.ReadFile(file("proxy.log"))
			w.t.Logf("the proxy's log ends:\n%s", words[max(0, len(words)-maxWords):])
		}
	})
	must(w.t, process.Await(within(w.t, 20*time.Second), "the proxy is ready", func() bool {
		res, err := http.Get("http://" + p.admin + "/readyz")
		return err == nil && errors.Join(res.Body.Close()) == nil && res.StatusCode == http.StatusOK
	}))
	return p
}

// mustEnd has it drain.
func (p *proxy) mustEnd(t *testing.T) {
	t.Helper()
	must(t, p.cmd.Process.Signal(syscall.SIGTERM))
	select {
	case err := <-p.ended:
		must(t, err)
	case <-time.After(time.Minute):
		t.Fatal("the proxy does not end")
	}
}

// usage is what it uses, and what it has done.
type usage struct{ goroutines, bytes, connections, requests float64 }

func (u usage) String() string {
	return fmt.Sprintf("%.0f goroutines, %.0f MiB resident, %.0f connections, %.0f requests answered",
		u.goroutines, u.bytes/(1<<20), u.connections, u.requests)
}

// mustMeasure asks it what it uses.
func (p *proxy) mustMeasure(t *testing.T) (u usage) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+p.admin+"/metrics", http.NoBody)
	must(t, err)
	res, err := http.DefaultClient.Do(req)
	must(t, err)
	text, err := io.ReadAll(io.LimitReader(res.Body, 1<<20))
	must(t, errors.Join(err, res.Body.Close()))
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		space := strings.LastIndexByte(line, ' ')
		n, _ := strconv.ParseFloat(line[space+1:], 64)
		switch name, _, _ := strings.Cut(line[:max(space, 0)], "{"); name {
		case "quorate_gateway_connections":
			u.connections = n
		case "quorate_gateway_requests_total":
			u.requests += n
		case "go_goroutines":
			u.goroutines = n
		case "process_resident_memory_bytes":
			u.bytes = n
		}
	}
	if u.goroutines == 0 || u.bytes == 0 {
		t.Fatalf("it does not tell what it uses:\n%s", text)
	}
	return u
}
