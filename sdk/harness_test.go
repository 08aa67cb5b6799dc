package sdk

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	quoratev1 "github.com/quorate/quorate/proto/quorate/v1"
	"github.com/quorate/quorate/quotaerr"
	"github.com/quorate/quorate/sdk/internal/bound"
)

func TestMain(m *testing.M) {
	if os.Getenv(nodeVariable) != "" {
		serveApart()
		return
	}
	goleak.VerifyTestMain(m)
}

// asked is one check as a node got it.
type asked struct {
	node  string
	at    time.Time
	frame int
	check *quoratev1.CheckRequest
}

// reply is what a node does with a check.
type reply struct {
	after    time.Duration
	decision *quoratev1.Decision
	refusal  *quoratev1.Refusal
	leader   string
	silent   bool  // there is no answer at all
	empty    bool  // there is one that says nothing
	otherID  bool  // there is one to another check
	breaks   error // the stream ends with it
}

// cluster is what the nodes of a test have in common.
type cluster struct {
	t      testing.TB
	quit   chan struct{}
	dumb   atomic.Bool // no check is answered
	script func(asked) reply

	mu     sync.Mutex // guards the rest
	nodes  map[string]*node
	config *quoratev1.WatchConfigResponse
	stir   chan struct{} // closed when the configuration changes
	mute   bool          // watches say nothing more
	asked  []asked
	active map[string]int // attempts under way, by decision id
	overlap,
	frames int
	dialDelay time.Duration
}

// node is one node of a test, which serves over memory.
type node struct {
	quoratev1.UnimplementedQuotaServer
	c      *cluster
	id     string
	server *grpc.Server
	lis    *bufconn.Listener
	stale  atomic.Pointer[quoratev1.WatchConfigResponse] // what its watches tell in place of what holds
	watch  atomic.Int32                                  // watches that are open
	hole   atomic.Bool                                   // what comes over the wire is lost
	down   atomic.Bool                                   // nobody listens
	deaf   atomic.Bool                                   // streams take one more frame, and then none
	door   error                                         // with which streams are refused; set before the client is made
}

// mustCluster makes n nodes, a, b, …, of which a leads the only partition. It is over with the test, or with stop.
func mustCluster(t testing.TB, n int, script func(asked) reply, classes ...*quoratev1.ClassSettings) *cluster {
	t.Helper()
	c := &cluster{
		t: t, quit: make(chan struct{}), script: script, nodes: map[string]*node{}, stir: make(chan struct{}),
		active: map[string]int{},
	}
	m := &quoratev1.RoutingMap{Version: 1, Seed: make([]byte, 16), Ranges: []*quoratev1.RoutingRange{{
		Slots: &quoratev1.SlotRange{FirstSlot: 0, LastSlot: 16383, Epoch: 7}, Partition: "p1",
	}}}
	part := &quoratev1.RoutingPartition{Id: "p1", Leader: "a"}
	for i := range n {
		id := string(rune('a' + i))
		c.start(id)
		m.Nodes = append(m.Nodes, &quoratev1.RoutingNode{Id: id, Grpc: addrOf(id)})
		part.Replicas = append(part.Replicas, id)
	}
	m.Partitions = []*quoratev1.RoutingPartition{part}
	c.config = &quoratev1.WatchConfigResponse{ClusterId: "test", Map: m, Policy: settingsOf(1, classes...)}
	return c
}

func settingsOf(revision uint64, classes ...*quoratev1.ClassSettings) *quoratev1.PolicySettings {
	return &quoratev1.PolicySettings{Revision: revision, Version: fmt.Sprint("v", revision), Classes: classes}
}

// classOf is a class with a timeout of 100 ms.
func classOf(name string, mode quoratev1.FailureMode) *quoratev1.ClassSettings {
	return &quoratev1.ClassSettings{
		Name: name, Timeout: durationpb.New(100 * time.Millisecond), ReplayHorizon: durationpb.New(30 * time.Second),
		OnUnavailable: mode, LocalLimit: 2, LocalWindow: durationpb.New(time.Minute),
	}
}

const (
	modeDeny  = quoratev1.FailureMode_FAILURE_MODE_DENY
	modeAllow = quoratev1.FailureMode_FAILURE_MODE_ALLOW
	modeLocal = quoratev1.FailureMode_FAILURE_MODE_LOCAL
)

// modes are three classes, one of each mode, and default, which denies.
func modes() []*quoratev1.ClassSettings {
	return []*quoratev1.ClassSettings{
		classOf("default", modeDeny), classOf("deny", modeDeny), classOf("allow", modeAllow), classOf("local", modeLocal),
	}
}

// unhurried are the same with five seconds of time, for tests that do not run in virtual time.
func unhurried() []*quoratev1.ClassSettings {
	out := modes()
	for _, c := range out {
		c.Timeout, c.ReplayHorizon = durationpb.New(5*time.Second), durationpb.New(time.Minute)
	}
	return out
}

func addrOf(id string) string { return fmt.Sprintf("127.0.0.1:%d", 7000+int(id[0])) }

// start has a node listen.
func (c *cluster) start(id string) {
	pings := grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: time.Second, PermitWithoutStream: true})
	n := &node{c: c, id: id, server: grpc.NewServer(pings, grpc.WaitForHandlers(true)), lis: bufconn.Listen(1 << 20)}
	quoratev1.RegisterQuotaServer(n.server, n)
	c.mu.Lock()
	c.nodes[addrOf(id)] = n
	c.mu.Unlock()
	go func() { _ = n.server.Serve(n.lis) }()
}

// stop ends one node.
func (c *cluster) stop(id string) {
	n := c.node(id)
	n.down.Store(true)
	n.server.Stop()
}

func (c *cluster) node(id string) *node {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.nodes[addrOf(id)]
}

// close ends all nodes.
func (c *cluster) close() {
	close(c.quit)
	for _, n := range c.nodes {
		n.server.Stop()
	}
}

// mustClient makes a client of all nodes.
func (c *cluster) mustClient(options ...Option) *Client {
	c.t.Helper()
	var seeds []string
	for addr := range c.nodes {
		seeds = append(seeds, addr)
	}
	options = append([]Option{WithDialOptions(grpc.WithContextDialer(c.dial))}, options...)
	client, err := New(seeds, options...)
	if err != nil {
		c.t.Fatal(err)
	}
	return client
}

func (c *cluster) dial(ctx context.Context, addr string) (net.Conn, error) {
	c.mu.Lock()
	n, delay := c.nodes[addr], c.dialDelay
	c.mu.Unlock()
	if delay > 0 {
		elapse(delay)
	}
	switch {
	case n == nil || n.down.Load():
		return nil, errors.New("connection refused")
	case n.hole.Load():
		<-ctx.Done()
		return nil, ctx.Err()
	}
	conn, err := n.lis.DialContext(ctx)
	if err != nil {
		return nil, err
	}
	return &wire{Conn: conn, hole: &n.hole}, nil
}

// wire is a connection that may fall into a hole: what is said is lost both ways.
type wire struct {
	net.Conn
	hole *atomic.Bool
}

func (w *wire) Write(b []byte) (int, error) {
	if w.hole.Load() {
		return len(b), nil
	}
	return w.Conn.Write(b)
}

func (w *wire) Read(b []byte) (int, error) {
	for {
		n, err := w.Conn.Read(b)
		if err != nil || !w.hole.Load() {
			return n, err
		}
	}
}

// publish changes the configuration, and tells the watches.
func (c *cluster) publish(change func(*quoratev1.WatchConfigResponse)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	next := proto.CloneOf(c.config)
	change(next)
	c.config = next
	close(c.stir)
	c.stir = make(chan struct{})
}

// WatchConfig tells the configuration, again when it changes, and that it has not every two seconds.
func (n *node) WatchConfig(
	_ *quoratev1.WatchConfigRequest, stream grpc.ServerStreamingServer[quoratev1.WatchConfigResponse],
) error {
	n.watch.Add(1)
	defer n.watch.Add(-1)
	var told *quoratev1.WatchConfigResponse
	beat := time.NewTicker(2 * time.Second)
	defer beat.Stop()
	for {
		n.c.mu.Lock()
		config, stir, mute := n.c.config, n.c.stir, n.c.mute
		n.c.mu.Unlock()
		if old := n.stale.Load(); old != nil {
			config = old
		}
		m := config
		if told == config {
			m = &quoratev1.WatchConfigResponse{ClusterId: config.GetClusterId()}
		}
		if told = config; !mute {
			if err := stream.Send(m); err != nil {
				return err
			}
		}
		select {
		case <-stir:
		case <-beat.C:
		case <-stream.Context().Done():
			return nil
		case <-n.c.quit:
			return nil
		}
	}
}

// CheckStream answers each check as the script says.
func (n *node) CheckStream(
	stream grpc.BidiStreamingServer[quoratev1.CheckStreamRequest, quoratev1.CheckStreamResponse],
) error {
	if n.door != nil {
		return n.door
	}
	var answering sync.WaitGroup
	defer answering.Wait()
	over := make(chan struct{})
	defer close(over)
	ended := make(chan error, 1)
	var sending sync.Mutex
	go func() {
		for {
			frame, err := stream.Recv()
			if err != nil {
				select {
				case ended <- nil:
				default:
				}
				return
			}
			for _, a := range n.c.note(n, frame) {
				answering.Go(func() { n.answer(stream, &sending, a, ended, over) })
			}
			if n.deaf.Load() {
				<-stream.Context().Done()
			}
		}
	}()
	return <-ended
}

type numbered struct {
	asked
	sequence uint64
	timeout  time.Duration
}

// note notes the checks of a frame.
func (c *cluster) note(n *node, frame *quoratev1.CheckStreamRequest) (out []numbered) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.frames++; len(frame.GetChecks()) > bound.FrameChecks || proto.Size(frame) > bound.FrameBytes {
		c.t.Errorf("a frame has %d checks and %d bytes", len(frame.GetChecks()), proto.Size(frame))
	}
	for _, s := range frame.GetChecks() {
		a := asked{node: n.id, at: time.Now(), frame: c.frames, check: s.GetCheck()}
		c.asked = append(c.asked, a)
		if c.active[a.check.GetDecisionId()]++; c.active[a.check.GetDecisionId()] > 1 {
			c.overlap++
		}
		out = append(out, numbered{a, s.GetSequence(), time.Duration(s.GetTimeoutMicros()) * time.Microsecond})
	}
	return out
}

// answer answers a check as the script says. The attempt is under way until it is answered, its time is over, or its
// stream has ended.
func (n *node) answer(
	stream grpc.BidiStreamingServer[quoratev1.CheckStreamRequest, quoratev1.CheckStreamResponse], sending *sync.Mutex,
	a numbered, ended chan<- error, over <-chan struct{},
) {
	r := n.c.script(a.asked)
	after := r.after
	if silent := r.silent || n.c.dumb.Load(); silent && r.breaks == nil {
		after = a.timeout
	}
	if after > 0 {
		t := time.NewTimer(after)
		defer t.Stop()
		select {
		case <-t.C:
		case <-over:
		case <-stream.Context().Done():
		}
	}
	n.c.mu.Lock()
	n.c.active[a.check.GetDecisionId()]--
	n.c.mu.Unlock()
	if r.breaks != nil {
		select {
		case ended <- r.breaks:
		default:
		}
		return
	}
	if r.silent || n.c.dumb.Load() {
		return
	}
	answer := &quoratev1.StreamedAnswer{Sequence: a.sequence, Leader: r.leader}
	switch {
	case r.refusal != nil:
		answer.Answer = &quoratev1.StreamedAnswer_Refusal{Refusal: r.refusal}
	case !r.empty:
		d := proto.CloneOf(r.decision)
		if d.DecisionId = a.check.GetDecisionId(); r.otherID {
			d.DecisionId += "x"
		}
		answer.Answer = &quoratev1.StreamedAnswer_Decision{Decision: d}
	}
	sending.Lock()
	defer sending.Unlock()
	_ = stream.Send(&quoratev1.CheckStreamResponse{Answers: []*quoratev1.StreamedAnswer{answer}})
}

// seen are the checks that came so far, in order.
func (c *cluster) seen() []asked {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.asked)
}

// askedNodes are the nodes that were asked, in order.
func (c *cluster) askedNodes() (out []string) {
	for _, a := range c.seen() {
		out = append(out, a.node)
	}
	return out
}

func allow() reply {
	return reply{decision: &quoratev1.Decision{
		Outcome: quoratev1.Outcome_OUTCOME_ALLOWED, Reason: "allowed", Remaining: 2, PolicyRevision: 1, Recorded: true,
	}}
}

func alwaysAllow(asked) reply { return allow() }

// deny is a denial under revision 1 that ends after retry.
func deny(retry time.Duration) reply {
	return reply{decision: &quoratev1.Decision{
		Outcome: quoratev1.Outcome_OUTCOME_DENIED, Reason: "quota_exhausted", Limit: "per-minute", PolicyRevision: 1,
		Recorded: true, RetryAfterMs: retry.Milliseconds(), RetryAt: timestamppb.New(time.Now().Add(retry)),
	}}
}

func refuse(r quotaerr.Reason) reply { return reply{refusal: &quoratev1.Refusal{Reason: string(r)}} }

// mustReady waits for the configuration.
func mustReady(t testing.TB, c *Client) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := c.Ready(ctx); err != nil {
		t.Fatal(err)
	}
}

func mustClose(t testing.TB, c io.Closer) {
	t.Helper()
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
}

// elapse lets virtual time pass.
func elapse(d time.Duration) { <-time.After(d) }

func bg() context.Context { return context.Background() }

// Peek says that there is room for five.
func (n *node) Peek(_ context.Context, req *quoratev1.PeekRequest) (*quoratev1.PeekResponse, error) {
	return &quoratev1.PeekResponse{ApiClass: req.GetApiClass(), Remaining: 5}, nil
}
