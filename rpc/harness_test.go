package rpc

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/policy"
	quoratev1 "github.com/quorate/quorate/proto/quorate/v1"
	"github.com/quorate/quorate/quotaerr"
)

const testCluster = "c1"

// fakeBackend answers what a test tells it to, and notes what it was asked.
type fakeBackend struct {
	check    func(ctx context.Context, c fsm.Check) (Answer, error)
	peek     func(ctx context.Context, p fsm.Peek) (UsageAnswer, error)
	leader   func() Leadership
	replicas []Replica
	waiting  string
	admin    fakeAdmin
	interior fakeInterior
	knows    func(id string) bool
	removed  map[string]bool                // without knows: nodes whose certificates do not count
	control  func() string                  // the control group's leader
	policy   func() (*policy.Policy, error) // in force
	horizon  time.Duration
	horizons map[string]time.Duration // by class, where not horizon
	// unconfirmed: the node is cut off from the control group.
	unconfirmed atomic.Bool

	mu sync.Mutex // guards the rest
	// lastContextEnd is the deadline of the last check after the first.
	lastContextEnd time.Time

	checks  []fsm.Check
	members []Member
	paces   []Pace
	learned []lesson
	view    *ConfigView
	changed chan struct{}
	viewed  int // how often the configuration was asked for
}

// lesson is what Learn was told.
type lesson struct {
	Principal, Asked, Leader string
	Reason                   quotaerr.Reason
	Epoch                    uint64
}

func (b *fakeBackend) Check(ctx context.Context, c fsm.Check) (Answer, error) {
	b.mu.Lock()
	if len(b.checks) > 0 {
		b.lastContextEnd, _ = ctx.Deadline()
	}
	b.checks = append(b.checks, c)
	b.mu.Unlock()
	return b.check(ctx, c)
}

func (b *fakeBackend) Peek(ctx context.Context, p fsm.Peek) (UsageAnswer, error) {
	return b.peek(ctx, p)
}

func (b *fakeBackend) Leader(string) Leadership {
	if b.leader == nil {
		return Leadership{Node: "n1", Local: true, Epoch: 7}
	}
	return b.leader()
}

func (b *fakeBackend) ReplayHorizon(class string) time.Duration {
	if h, ok := b.horizons[class]; ok {
		return h
	}
	return b.horizon
}

func (b *fakeBackend) Members() []Member {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.members
}

func (b *fakeBackend) Replicas(context.Context) ([]Replica, error) { return b.replicas, nil }

func (b *fakeBackend) Waiting() string { return b.waiting }

func (b *fakeBackend) Policy(context.Context) (*policy.Policy, error) {
	if b.policy == nil {
		return nil, quotaerr.New(quotaerr.PolicyBehind, "there is no policy yet")
	}
	return b.policy()
}

func (b *fakeBackend) Confirmed() bool { return !b.unconfirmed.Load() }

func (b *fakeBackend) Admin() Admin { return &b.admin }

func (b *fakeBackend) Interior() Interior { return &b.interior }

func (b *fakeBackend) KnowsNode(id string) bool {
	if b.knows != nil {
		return b.knows(id)
	}
	return !b.removed[id]
}

func (b *fakeBackend) ControlLeader() string {
	if b.control == nil {
		return ""
	}
	return b.control()
}

func (b *fakeBackend) Learn(principal, asked string, e *quotaerr.Error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.learned = append(b.learned, lesson{principal, asked, e.Leader, e.Reason, e.Epoch})
}

func (b *fakeBackend) Config() (*ConfigView, <-chan struct{}) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.viewed++
	if b.changed == nil {
		b.changed = make(chan struct{})
	}
	return b.view, b.changed
}

// views is how often the configuration was asked for.
func (b *fakeBackend) views() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.viewed
}

// publish makes view the newest configuration.
func (b *fakeBackend) publish(view *ConfigView) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.changed != nil {
		close(b.changed)
	}
	b.view, b.changed = view, make(chan struct{})
}

func (b *fakeBackend) ReportPace(_ context.Context, p Pace) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.paces = append(b.paces, p)
	return nil
}

// seen returns the checks that reached the backend.
func (b *fakeBackend) seen() []fsm.Check {
	b.mu.Lock()
	defer b.mu.Unlock()
	return append([]fsm.Check(nil), b.checks...)
}

var _ Backend = (*fakeBackend)(nil)

// answering makes a backend that gives every check the same answer.
func answering(a Answer, err error) *fakeBackend {
	return &fakeBackend{
		horizon: time.Minute,
		check:   func(context.Context, fsm.Check) (Answer, error) { return a, err },
	}
}

// allowing makes a backend that allows everything.
func allowing() *fakeBackend {
	return answering(Answer{Decision: fsm.Decision{Reason: fsm.ReasonAllowed, Recorded: true}}, nil)
}

// plaintext makes a client without TLS.
var plaintext = []grpc.DialOption{grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithNoProxy()}

// testNode is a server on loopback sockets with a client of each protocol.
type testNode struct {
	*Server
	conn     *grpc.ClientConn
	grpcAddr string
	url      string
	http     *http.Client
}

// mustNode serves backend as the node id until the test ends.
func mustNode(t testing.TB, id string, backend Backend, change ...func(*Config)) *testNode {
	t.Helper()
	config := Config{Node: id, ClusterID: testCluster, Version: "v-test", Backend: backend,
		GRPC: mustListen(t), HTTP: mustListen(t), Logger: slog.New(slog.DiscardHandler)}
	for _, c := range change {
		c(&config)
	}
	s, err := New(config)
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- s.Serve() }()
	n := &testNode{Server: s, grpcAddr: config.GRPC.Addr().String(),
		url: "http://" + config.HTTP.Addr().String(), http: &http.Client{Transport: &http.Transport{}}}
	n.conn, err = grpc.NewClient("passthrough:///"+n.grpcAddr, plaintext...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = n.conn.Close()
		n.http.CloseIdleConnections()
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		s.Shutdown(ctx)
		if err := <-served; err != nil {
			t.Errorf("serving ended with %v", err)
		}
	})
	return n
}

func mustListen(t testing.TB) net.Listener {
	t.Helper()
	l, err := ListenPlaintext(context.Background(), "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// within is a context that ends the test's call if the code under test hangs.
func within(t testing.TB, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), d)
	t.Cleanup(cancel)
	return ctx
}

// telling is within a minute, but the server is told that the caller waits for d only: so a test sees what the server
// does in time, and not how long the answer takes on a busy machine.
func telling(t testing.TB, d time.Duration) context.Context {
	t.Helper()
	return told{within(t, time.Minute), time.Now().Add(d)}
}

// told is a context that says another deadline than it has.
type told struct {
	context.Context
	deadline time.Time
}

func (c told) Deadline() (time.Time, bool) { return c.deadline, true }

func aCheck() *quoratev1.CheckRequest {
	return &quoratev1.CheckRequest{Principal: "acme", ApiClass: "convert", DecisionId: "d1"}
}

const aBody = `{"principal":"acme","api_class":"convert","decision_id":"d1"}`

// reply is an HTTP answer, read to its end.
type reply struct {
	status int
	header http.Header
	body   string
}

func (n *testNode) mustPost(t testing.TB, body string, headers ...string) reply {
	t.Helper()
	return n.mustDo(t, http.MethodPost, "/v1/check", []byte(body), headers...)
}

func (n *testNode) mustDo(t testing.TB, method, path string, body []byte, headers ...string) reply {
	t.Helper()
	req, err := http.NewRequestWithContext(within(t, 10*time.Second), method, n.url+path,
		bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i+1 < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	resp, err := n.http.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return reply{resp.StatusCode, resp.Header, string(b)}
}
