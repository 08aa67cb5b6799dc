package rpc

import (
	"bytes"
	"context"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/quorate/quorate/internal/identity"
	quoratev1 "github.com/quorate/quorate/proto/quorate/v1"
)

// labelled reads a counter that has the given labels, in pairs.
func (n *testNode) labelled(t testing.TB, name string, labels ...string) (count float64) {
	t.Helper()
	families, err := n.Registry().Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
	next:
		for _, m := range f.GetMetric() {
			has := map[string]string{}
			for _, l := range m.GetLabel() {
				has[l.GetName()] = l.GetValue()
			}
			for i := 0; i < len(labels); i += 2 {
				if has[labels[i]] != labels[i+1] {
					continue next
				}
			}
			count += m.GetCounter().GetValue()
		}
	}
	return count
}

// refusedOf reads how many connections a door has refused for a reason.
func (n *testNode) refusedOf(t testing.TB, door, reason string) float64 {
	t.Helper()
	return n.labelled(t, "quorate_connections_refused_total", "door", door, "reason", reason)
}

// callsOf reads how many calls of a method ended with a code.
func (n *testNode) callsOf(t testing.TB, method string, code codes.Code) float64 {
	t.Helper()
	return n.labelled(t, "quorate_grpc_calls_total", "method", method, "code", code.String())
}

func mustAllow(t testing.TB, conn *grpc.ClientConn) {
	t.Helper()
	d, err := quoratev1.NewQuotaClient(conn).CheckAndConsume(within(t, 10*time.Second), aCheck())
	if err != nil || !Allowed(d) {
		t.Fatalf("%v %v", d, err)
	}
}

// Shows what plaintext gets at a port with TLS: gRPC no connection, HTTP a sentence, and both are counted; and
// that TLS below 1.3 is refused.
func TestPlaintextAtATLSPort(t *testing.T) {
	ca := mustCA(t, tlsCluster)
	n := mustSecure(t, ca, "n1", allowing())
	conn, err := grpc.NewClient("passthrough:///"+n.grpcAddr,
		grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithNoProxy())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := quoratev1.NewQuotaClient(conn).CheckAndConsume(within(t, 10*time.Second), aCheck()); err == nil {
		t.Error("a check was answered in plaintext")
	}
	if n.refusedOf(t, "grpc", refusedHandshake) == 0 {
		t.Error("it was not counted")
	}
	r := n.mustPost(t, aBody) // http://
	if r.status != http.StatusBadRequest || !strings.Contains(r.body, "use https") {
		t.Errorf("%d %q", r.status, r.body)
	}
	own := ca.must(t, identity.Gateway, "g")
	for _, addr := range []string{n.grpcAddr, n.config.HTTP.Addr().String()} {
		config := own.Client(addr, "", "h2", "http/1.1")
		config.MinVersion, config.MaxVersion = tls.VersionTLS12, tls.VersionTLS12
		if _, err := tlsDial(t, addr, config); err == nil || !strings.Contains(err.Error(), "protocol version") {
			t.Errorf("TLS 1.2 at %s: %v", addr, err)
		}
	}
	mustAllow(t, mustDial(t, n.grpcAddr, own))
}

// Shows that a message of 64 MiB is refused over both protocols, and that the node goes on.
func TestHugeMessages(t *testing.T) {
	ca := mustCA(t, tlsCluster)
	backend := allowing()
	n := mustSecure(t, ca, "n1", backend)
	own := ca.must(t, identity.Gateway, "g")
	conn := mustDial(t, n.grpcAddr, own)
	huge := bytes.Repeat([]byte{' '}, 64<<20)
	var out []byte
	err := conn.Invoke(within(t, 20*time.Second), quoratev1.Quota_CheckAndConsume_FullMethodName, huge, &out,
		grpc.ForceCodec(rawCodec{}))
	if status.Code(err) != codes.ResourceExhausted {
		t.Errorf("gRPC: %v", err)
	}
	req, err := http.NewRequestWithContext(within(t, 20*time.Second), http.MethodPost,
		"https://"+n.config.HTTP.Addr().String()+"/v1/check", bytes.NewReader(huge))
	if err != nil {
		t.Fatal(err)
	}
	// The node answers and closes while the body is still being sent, so the answer may not be read.
	if resp, err := n.as(t, own, own).http.Do(req); err == nil {
		if resp.StatusCode != http.StatusBadRequest {
			t.Errorf("HTTP: %s", resp.Status)
		}
		resp.Body.Close()
	}
	if len(backend.seen()) != 0 {
		t.Error("one was decided")
	}
	mustAllow(t, conn)
}

// Shows that of thousands of connections that say nothing only so many are kept, the newest, and that a
// connection from before goes on, and a new one is served, all the time.
func TestThousandsOfIdleConnections(t *testing.T) {
	const many = 3000
	ca := mustCA(t, tlsCluster)
	n := mustSecure(t, ca, "n1", allowing())
	own := ca.must(t, identity.Gateway, "g")
	old := mustDial(t, n.grpcAddr, own)
	mustAllow(t, old)
	d := n.doors.grpc.(*door)
	var idle []net.Conn
	for i := range many {
		idle = append(idle, mustRaw(t, n.grpcAddr))
		if i%500 == 499 {
			mustAllow(t, old)
			mustAllow(t, mustDial(t, n.grpcAddr, own))
		}
		d.mu.Lock()
		pending := d.pending.Len()
		d.mu.Unlock()
		if pending > maxHandshakes {
			t.Fatalf("%d handshakes at once", pending)
		}
	}
	for _, c := range idle[:many-2*maxHandshakes] {
		mustEnd(t, c, 10*time.Second)
	}
	eventually(t, "they are counted", func() bool {
		return n.refusedOf(t, "grpc", refusedHandshakes) >= many-2*maxHandshakes
	})
	mustAllow(t, old)
}

// Shows that a handshake which does not go on is ended when its time is over, whether it began or not, and that
// the doors of a node have the bounds that are declared.
func TestSlowHandshakes(t *testing.T) {
	t.Parallel()
	ca := mustCA(t, tlsCluster)
	n := mustSecure(t, ca, "n1", allowing())
	for _, l := range []net.Listener{n.doors.grpc, n.doors.http} {
		if got := l.(*door).limits; got != defaultDoorLimits() || got.handshakeTimeout != handshakeTimeout {
			t.Errorf("%+v", got)
		}
		silent, slow := mustRaw(t, l.Addr().String()), mustRaw(t, l.Addr().String())
		began := time.Now()
		if _, err := slow.Write([]byte{22, 3, 1, 2, 0, 1}); err != nil { // the head of a hello
			t.Fatal(err)
		}
		for _, c := range []net.Conn{silent, slow} {
			mustEnd(t, c, 2*handshakeTimeout)
		}
		if took := time.Since(began); took < handshakeTimeout-time.Second {
			t.Errorf("they were ended after %s", took)
		}
	}
}

// Shows that requests which trickle in over HTTP with TLS, head or body, are ended when their time is over.
func TestSlowRequests(t *testing.T) {
	t.Parallel()
	ca := mustCA(t, tlsCluster)
	n := mustSecure(t, ca, "n1", allowing())
	own := ca.must(t, identity.Gateway, "g")
	var wg sync.WaitGroup
	for text, limit := range map[string]time.Duration{
		"GET /livez HT": readHeaderTimeout,
		"POST /v1/check HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{": readTimeout,
	} {
		c := mustShake(t, n.config.HTTP.Addr().String(), own, "http/1.1")
		if _, err := io.WriteString(c, text); err != nil {
			t.Fatal(err)
		}
		wg.Go(func() { mustEndSoon(t, c, limit+5*time.Second) })
	}
	wg.Wait()
}

// mustEndSoon is mustEnd for a goroutine beside the test's.
func mustEndSoon(t *testing.T, c net.Conn, limit time.Duration) {
	if err := c.SetReadDeadline(time.Now().Add(limit)); err != nil {
		t.Error(err)
	}
	if _, err := io.Copy(io.Discard, c); isTimeout(err) {
		t.Errorf("the connection is still there after %s", limit)
	}
}

// Shows that one identity has so many connections and no more, that those it has are not touched, that others are
// served, and that a closed one makes room.
func TestConnectionsPerIdentity(t *testing.T) {
	ca := mustCA(t, tlsCluster)
	n := mustSecure(t, ca, "n1", allowing())
	d := n.doors.grpc.(*door)
	d.mu.Lock()
	d.limits.perIdentity = 3
	d.mu.Unlock()
	greedy, other := ca.must(t, identity.Gateway, "greedy"), ca.must(t, identity.Gateway, "other")
	count := func() int {
		d.mu.Lock()
		defer d.mu.Unlock()
		return d.of[greedy.ID().String()]
	}
	var conns []*grpc.ClientConn
	for range 3 {
		conns = append(conns, mustDial(t, n.grpcAddr, greedy))
		mustAllow(t, conns[len(conns)-1])
	}
	mustEnd(t, mustShake(t, n.grpcAddr, greedy, "h2"), 10*time.Second)
	if got := n.refusedOf(t, "grpc", refusedIdentity); got != 1 || count() != 3 {
		t.Errorf("%v refused, %d are there", got, count())
	}
	for _, c := range conns {
		mustAllow(t, c)
	}
	mustAllow(t, mustDial(t, n.grpcAddr, other))
	if err := conns[0].Close(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "one has made room", func() bool { return count() == 2 })
	mustAllow(t, mustDial(t, n.grpcAddr, greedy))
}

// Shows that callers without a certificate cannot shut each other out: one too many ends the oldest of them, and
// a node with all its connections in use refuses the next.
func TestAnonymousConnections(t *testing.T) {
	ca := mustCA(t, tlsCluster)
	n := mustSecure(t, ca, "n1", allowing())
	trusted := ca.must(t, identity.Viewer, "v")
	addr := n.config.HTTP.Addr().String()
	d := n.doors.http.(*door)
	d.mu.Lock()
	d.limits.anonymous, d.limits.connections = 2, 4
	d.mu.Unlock()
	nobody := func() net.Conn {
		config := trusted.Client(addr, "")
		config.Certificates = nil
		c, err := tlsDial(t, addr, config)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	present := func() int {
		d.mu.Lock()
		defer d.mu.Unlock()
		return d.total
	}
	first := nobody()
	eventually(t, "the first is counted", func() bool { return present() == 1 })
	nobody()
	eventually(t, "the second is counted", func() bool { return present() == 2 })
	if r := n.as(t, trusted, nil).mustDo(t, http.MethodGet, "/livez", nil); r.status != http.StatusOK {
		t.Errorf("a probe: %d", r.status)
	}
	mustEnd(t, first, 10*time.Second)
	for range 2 {
		mustShake(t, addr, trusted, "http/1.1")
	}
	eventually(t, "all are in use", func() bool { return present() == 4 })
	mustEnd(t, mustShake(t, addr, trusted, "http/1.1"), 10*time.Second)
	if n.refusedOf(t, "http", refusedTotal) != 1 || present() != 4 {
		t.Errorf("%d are there", present())
	}
}

// Shows that a connection has so many streams at once and no more, until one ends.
func TestStreamsPerConnection(t *testing.T) {
	ca := mustCA(t, tlsCluster)
	n := mustSecure(t, ca, "n1", allowing())
	health := healthv1.NewHealthClient(mustDial(t, n.grpcAddr, ca.must(t, identity.Viewer, "v")))
	watch := func(ctx context.Context) error {
		s, err := health.Watch(ctx, &healthv1.HealthCheckRequest{})
		if err == nil {
			_, err = s.Recv()
		}
		return err
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	for i := range maxConcurrentStreams {
		if err := watch(ctx); err != nil {
			t.Fatalf("stream %d: %v", i, err)
		}
	}
	if err := watch(within(t, 200*time.Millisecond)); status.Code(err) != codes.DeadlineExceeded {
		t.Errorf("one too many: %v", err)
	}
	cancel()
	if err := watch(within(t, 10*time.Second)); err != nil {
		t.Errorf("when they have ended: %v", err)
	}
}

// Shows that a node with TLS ends its connections and goroutines when it is shut down with handshakes and
// connections of all kinds under way.
func TestShutdownWithTLS(t *testing.T) {
	ca := mustCA(t, tlsCluster)
	n := mustSecure(t, ca, "n1", allowing())
	own := ca.must(t, identity.Gateway, "g")
	mustAllow(t, mustDial(t, n.grpcAddr, own))
	half := mustRaw(t, n.grpcAddr)
	idle := mustShake(t, n.config.HTTP.Addr().String(), own, "http/1.1")
	eventually(t, "the handshake has begun", func() bool {
		d := n.doors.grpc.(*door)
		d.mu.Lock()
		defer d.mu.Unlock()
		return d.pending.Len() == 1
	})
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	n.Shutdown(ctx)
	mustEnd(t, half, 10*time.Second)
	mustEnd(t, idle, 10*time.Second)
}
