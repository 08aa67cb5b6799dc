package gateways

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/quorate/quorate/jepsen/cluster"
	"github.com/quorate/quorate/jepsen/process"
)

const (
	proxyConnections = 2000
	proxyCallers     = 400
	proxyLimit       = 3
	proxyWindow      = 20 * time.Second
	// proxyPause is the mean between two requests of a connection.
	proxyPause = 1500 * time.Millisecond
	// proxyGrowth is by how much memory may grow from when the crowd is complete.
	proxyGrowth = 64 << 20
)

// proxied is one request through the proxy.
type proxied struct {
	caller         int
	sent, received time.Duration
	status         int
}

// TestProxyUnderLoad shows that the reference gateway, with two thousand connections and leaders killed every few seconds,
// keeps every caller's cap, as its callers see it; and that it leaves no goroutine, and no memory, behind.
func TestProxyUnderLoad(t *testing.T) {
	w := mustWorld(t, cluster.Options{Partitions: 2, Moves: true, Policy: cluster.Policy{
		Version: "v1",
		Default: cluster.Class{Limits: []cluster.Limit{{Name: "default", Max: 1, Window: cluster.Window(proxyWindow)}}},
		Classes: map[string]cluster.Class{"convert": {
			Limits:        []cluster.Limit{{Name: "convert", Max: proxyLimit, Window: cluster.Window(proxyWindow)}},
			OnUnavailable: "deny", Timeout: cluster.Window(250 * time.Millisecond),
		}},
	}}, 1)
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "converted\n")
	}))
	t.Cleanup(upstream.Close)
	p := w.mustProxy(upstream.URL)
	must(t, w.AwaitWhole(within(t, time.Minute), 3))
	w.mustWarm(p)
	calm := p.mustMeasure(t)

	load, stop := context.WithCancel(w.t.Context())
	defer stop()
	var mu sync.Mutex
	var all []proxied
	var crowd sync.WaitGroup
	for k := range proxyConnections {
		crowd.Go(func() {
			mine := w.converse(load, p.listen, k)
			mu.Lock()
			defer mu.Unlock()
			all = append(all, mine...)
		})
	}
	w.run(10 * time.Second) // until the crowd is complete, and buffers have their size
	crowded := p.mustMeasure(t)
	w.mustKillLeaders(mustSeconds(t, "QUORATE_GATEWAYS_SECONDS", 30*time.Second))
	busy := p.mustMeasure(t)
	stop()
	crowd.Wait()
	w.say("calm %v; with %d connections %v, and later %v", calm, proxyConnections, crowded, busy)
	if busy.bytes > crowded.bytes+proxyGrowth || busy.goroutines > crowded.goroutines*5/4+200 {
		t.Errorf("it grows: %v, and later %v", crowded, busy)
	}
	w.mustKeepCaps(all)
	// Connections to the upstream are kept for a while.
	var after usage
	err := process.Await(within(t, 2*time.Minute), "its goroutines end", func() bool {
		after = p.mustMeasure(t)
		return after.goroutines <= calm.goroutines+20
	})
	w.say("afterwards %v", after)
	must(t, err)
	p.mustEnd(t)
}

// mustWarm has it connect to every node, and to the upstream.
func (w *world) mustWarm(p *proxy) {
	w.t.Helper()
	few, stop := context.WithTimeout(w.t.Context(), 5*time.Second)
	defer stop()
	var some sync.WaitGroup
	for k := range 50 {
		some.Go(func() { w.converse(few, p.listen, -k) })
	}
	some.Wait()
}

// converse is one connection's: a caller who asks again and again, and connects anew when the connection is closed.
func (w *world) converse(ctx context.Context, addr string, k int) (out []proxied) {
	rng := rand.New(rand.NewPCG(7, uint64(k)))
	var conn net.Conn
	var in *bufio.Reader
	hangUp := func() {
		if conn != nil {
			_ = conn.Close()
			conn = nil
		}
	}
	defer hangUp()
	for {
		select {
		case <-ctx.Done():
			return out
		case <-time.After(time.Duration(rng.ExpFloat64() * float64(proxyPause))):
		}
		if conn == nil {
			c, err := (&net.Dialer{}).DialContext(ctx, "tcp", addr)
			if err != nil {
				continue
			}
			conn, in = c, bufio.NewReaderSize(c, 2048)
		}
		r := proxied{caller: rng.IntN(proxyCallers), sent: w.now()}
		_ = conn.SetDeadline(time.Now().Add(20 * time.Second)) // of a connection, it never fails
		_, err := fmt.Fprintf(conn, "POST /convert HTTP/1.1\r\nHost: api\r\nX-Forwarded-For: 192.0.%d.%d\r\nContent-Length: 0\r\n\r\n",
			r.caller/250, r.caller%250+1)
		if err == nil {
			r.status, err = answer(in)
		}
		if err != nil {
			hangUp() // its fate is not known: it counts for nothing, in favour of the proxy
			continue
		}
		r.received = w.now()
		out = append(out, r)
	}
}

// answer reads an answer to its end.
func answer(in *bufio.Reader) (status int, err error) {
	res, err := http.ReadResponse(in, nil)
	if err != nil {
		return 0, err
	}
	_, err = io.Copy(io.Discard, res.Body)
	return res.StatusCode, errors.Join(err, res.Body.Close())
}

// mustKeepCaps looks for a caller of whom more was let through than the limit within less than the window, whenever
// within its request each was decided; and that there was enough of everything.
func (w *world) mustKeepCaps(all []proxied) {
	w.t.Helper()
	of, statuses := map[int][]proxied{}, map[int]int{}
	for _, r := range all {
		statuses[r.status]++
		if r.status == http.StatusOK {
			of[r.caller] = append(of[r.caller], r)
		}
	}
	w.say("%d requests of %d callers: %v", len(all), proxyCallers, statuses)
	full := 0
	for caller, let := range of {
		slices.SortFunc(let, func(a, b proxied) int { return int(a.sent - b.sent) })
		for i := range let {
			n := 0
			for _, r := range let[i:] {
				if r.received-let[i].sent < proxyWindow {
					n++
				}
			}
			if n > proxyLimit {
				w.t.Fatalf("caller %d was let through %d times in less than %v, from %v on", caller, n, proxyWindow, let[i].sent)
			}
			if n == proxyLimit {
				full++
			}
		}
	}
	if full < proxyCallers || statuses[http.StatusTooManyRequests] < 10*proxyCallers || statuses[http.StatusServiceUnavailable] == 0 {
		w.t.Errorf("%d full windows, and %v: too little to be worth anything", full, statuses)
	}
	for status := range statuses {
		if status != http.StatusOK && status != http.StatusTooManyRequests && status != http.StatusServiceUnavailable {
			w.t.Errorf("an answer %d", status)
		}
	}
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

// usage is what it uses.
type usage struct{ goroutines, bytes float64 }

func (u usage) String() string {
	return fmt.Sprintf("%.0f goroutines, %.0f MiB", u.goroutines, u.bytes/(1<<20))
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
		name, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		n, _ := strconv.ParseFloat(value, 64)
		switch name {
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
