package gateway

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/quorate/quorate/sdk/quotatest"
)

// Shows for all tests of the package that no goroutine outlives the gateways.
func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const testPolicy = `
version: v1
default: {limits: [{name: default, limit: 100000, window: 60s}], timeout: 2s}
classes:
  convert: {limits: [{name: per-minute, limit: 3, window: 60s}], timeout: 2s}
  login: {limits: [{name: per-minute, limit: 3, window: 60s}]}
  dear: {limits: [{name: per-minute, limit: 10, window: 60s}]}
tiers:
  pro: {convert: {limits: [{name: per-minute, limit: 5, window: 60s}]}}
`

// patience is how long a test waits for what should happen soon.
const patience = 20 * time.Second

// lockedBuffer is a log that is read while it is written.
type lockedBuffer struct {
	mu sync.Mutex // guards b
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// rig is a gateway that runs, before an upstream, with a fake cluster.
type rig struct {
	*Gateway
	cluster  *quotatest.Server
	dir      string
	log      *lockedBuffer
	reached  atomic.Int64 // requests that came to the upstream
	upstream *httptest.Server
	hangups  chan os.Signal
	poll     time.Duration // between looks at the files; 0: a hangup alone has them read again
	stop     func() error  // ends it once, and gives what Run returned
	web      *http.Client
}

// mustRig starts a gateway with a configuration, to which addresses, cluster and upstream `api` are added, and with
// files, name and content in turns.
func mustRig(t *testing.T, config string, upstream http.HandlerFunc, files ...string) *rig {
	t.Helper()
	r := &rig{dir: t.TempDir(), log: &lockedBuffer{}, hangups: make(chan os.Signal)}
	if upstream == nil {
		upstream = func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "served") }
	}
	r.cluster = quotatest.Start(t, testPolicy)
	r.upstream = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		r.reached.Add(1)
		upstream(w, q)
	}))
	t.Cleanup(r.upstream.Close)
	r.put(t, "keys.yaml", testKeys)
	r.put(t, "gateway.yaml", r.whole(config))
	for i := 0; i+1 < len(files); i += 2 {
		r.put(t, files[i], files[i+1])
	}
	r.start(t)
	return r
}

// whole is a configuration with what all tests need. Upstream settings replace those of the upstream `api`.
func (r *rig) whole(config string) string {
	head := fmt.Sprintf("listen: 127.0.0.1:0\nadmin: 127.0.0.1:0\ncluster: {addrs: [%q]}\n",
		strings.Join(r.cluster.Addrs(), ", "))
	if !strings.Contains(config, "drain:") {
		head += "drain: {delay: 0s, timeout: 5s}\n"
	}
	if !strings.Contains(config, "upstreams:") {
		head += "upstreams: {api: {url: URL}}\n"
	}
	return strings.ReplaceAll(head+config, "URL", r.upstream.URL)
}

func (r *rig) put(t *testing.T, name, text string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(r.dir, name), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func (r *rig) start(t *testing.T) {
	t.Helper()
	c, err := Load(filepath.Join(r.dir, "gateway.yaml"), nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Gateway, err = Start(c, Options{
		Logger:   slog.New(slog.NewTextHandler(r.log, &slog.HandlerOptions{Level: slog.LevelDebug})),
		interval: cmp.Or(r.poll, time.Hour),
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx, r.hangups) }()
	transport := &http.Transport{DisableCompression: true}
	r.web = &http.Client{Transport: transport, Timeout: patience}
	r.stop = sync.OnceValue(func() error {
		cancel()
		return <-ended
	})
	t.Cleanup(func() {
		transport.CloseIdleConnections()
		if err := r.stop(); err != nil {
			t.Errorf("Run: %v", err)
		}
		if t.Failed() {
			t.Log(r.log)
		}
	})
	until(t, "the gateway is ready", func() bool {
		status, _ := r.probe(t, "/readyz")
		return status == http.StatusOK
	})
}

// until waits for a condition.
func until(t *testing.T, what string, condition func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(patience)
	for !condition() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("not within %s: %s", patience, what)
		}
	}
}

func (r *rig) probe(t *testing.T, path string) (status int, body string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+r.AdminAddr().String()+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := r.web.Do(req)
	if err != nil {
		return 0, err.Error()
	}
	b, err := io.ReadAll(resp.Body)
	if err := errors.Join(err, resp.Body.Close()); err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(b)
}

// metric is the value of one series, as it is written.
func (r *rig) metric(t *testing.T, series string) string {
	t.Helper()
	_, body := r.probe(t, "/metrics")
	for _, line := range strings.Split(body, "\n") {
		if value, ok := strings.CutPrefix(line, series+" "); ok {
			return value
		}
	}
	return ""
}

// reply is an answer.
type reply struct {
	status int
	header http.Header
	body   string
}

// do makes a request; headers are name and value in turns.
func (r *rig) do(t *testing.T, method, path string, headers ...string) reply {
	t.Helper()
	return r.send(t, method, path, nil, headers...)
}

func (r *rig) send(t *testing.T, method, path string, body io.Reader, headers ...string) reply {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, "http://"+r.Addr().String()+path, body)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i+1 < len(headers); i += 2 {
		req.Header[headers[i]] = append(req.Header[headers[i]], headers[i+1])
	}
	resp, err := r.web.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(resp.Body)
	if err := errors.Join(err, resp.Body.Close()); err != nil {
		t.Fatal(err)
	}
	return reply{resp.StatusCode, resp.Header, string(b)}
}

func (a reply) mustBe(t *testing.T, what string, status int, reason string) {
	t.Helper()
	if a.status != status || reason != "" && !strings.Contains(a.body, `"reason":"`+reason+`"`) {
		t.Errorf("%s: %d %s, want %d %s", what, a.status, a.body, status, reason)
	}
}

// line is a connection of a test's own.
type line struct {
	net.Conn
	r *bufio.Reader
}

func (r *rig) dial(t *testing.T) *line {
	t.Helper()
	var d net.Dialer
	c, err := d.DialContext(t.Context(), "tcp", r.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	return &line{c, bufio.NewReader(c)}
}

func (l *line) mustWrite(t *testing.T, text string) {
	t.Helper()
	if _, err := io.WriteString(l, text); err != nil {
		t.Fatal(err)
	}
}

// incoming is an answer whose body is yet to be read.
type incoming struct {
	StatusCode int
	Header     http.Header
	Body       io.Reader
	trailer    func() http.Header
}

// answer is the next answer; nil when the connection ends instead.
func (l *line) answer(t *testing.T) *incoming {
	t.Helper()
	resp, err := http.ReadResponse(l.r, nil)
	if err != nil {
		return nil
	}
	t.Cleanup(func() { _ = resp.Body.Close() })
	return &incoming{resp.StatusCode, resp.Header, resp.Body, func() http.Header { return resp.Trailer }}
}

// mustEnd wants the connection to be closed from the other end.
func (l *line) mustEnd(t *testing.T, what string) {
	t.Helper()
	_, err := io.Copy(io.Discard, l.r)
	var late net.Error
	if errors.As(err, &late) && late.Timeout() {
		t.Errorf("%s: the connection is not closed", what)
	}
}

const (
	keyAcme  = "k-acme"
	keyOther = "k-acme-2"
	keyPro   = "k-pro"
)

var testKeys = fmt.Sprintf("keys:\n- {sha256: %s, principal: 'account:acme'}\n- {sha256: %s, principal: 'account:acme'}\n"+
	"- {sha256: %s, principal: 'account:pro', tier: pro}\n", sum(keyAcme), sum(keyOther), sum(keyPro))

const accountRoutes = `
callers:
  account: [{api_key: {file: keys.yaml}}]
routes:
  - {match: POST /convert, charges: [{class: convert}]}
  - {match: POST /dear, charges: [{class: dear, cost: 4}]}
  - {match: /free/, unlimited: true}
  - {match: /, charges: [{class: default}]}
`
