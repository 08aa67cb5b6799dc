package rpc

import (
	"container/list"
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/quorate/quorate/internal/identity"
)

// The bounds of one door with TLS, gRPC's or HTTP's.
const (
	// maxHandshakes bounds the connections that have not proven who they are. One more ends the oldest of
	// them: an honest one is through in milliseconds.
	maxHandshakes = 256
	// handshakeTimeout is how long a connection may take to prove it.
	handshakeTimeout = 5 * time.Second
	// maxConnectionsPerIdentity bounds the connections of one certificate's owner.
	maxConnectionsPerIdentity = 512
	// maxAnonymous bounds the connections of callers without an accepted certificate, who may use the probes
	// and read why they are refused. One more ends the oldest of them.
	maxAnonymous = 64
	// refusalLogInterval is how often refused connections are logged at most.
	refusalLogInterval = 10 * time.Second
)

// doorLimits are those bounds.
type doorLimits struct {
	connections, handshakes, perIdentity, anonymous int
	handshakeTimeout                                time.Duration
}

func defaultDoorLimits() doorLimits {
	return doorLimits{maxConnections, maxHandshakes, maxConnectionsPerIdentity, maxAnonymous, handshakeTimeout}
}

// Why a door refuses connections: the values of a metric's label.
const (
	refusedHandshake  = "handshake"   // none, or none that can be accepted
	refusedHandshakes = "handshakes"  // too many at once
	refusedIdentity   = "identity"    // too many of one identity
	refusedTotal      = "connections" // too many
)

// door is a listener whose connections have proven by TLS who they are.
type door struct {
	inner     net.Listener
	name      string
	source    *identity.Source
	optional  bool // no certificate is needed
	protocols []string
	limits    doorLimits
	metrics   *metrics
	log       *slog.Logger

	start    sync.Once
	ready    chan *doorConn
	ctx      context.Context // ends with Close
	cancel   context.CancelFunc
	handlers sync.WaitGroup

	mu        sync.Mutex // guards the rest
	failed    error      // of inner
	pending   *list.List // of net.Conn, the oldest first
	anonymous *list.List // of *doorConn, the oldest first
	of        map[string]int
	total     int
	nextLog   time.Time
	quiet     int // refusals since the last logged one
}

// newDoor makes a door of inner, which it owns. It accepts when it is asked to.
func newDoor(inner net.Listener, name string, source *identity.Source, m *metrics, log *slog.Logger) *door {
	d := &door{
		inner: inner, name: name, source: source, limits: defaultDoorLimits(), metrics: m, log: log,
		ready: make(chan *doorConn), pending: list.New(), anonymous: list.New(), of: map[string]int{},
	}
	d.ctx, d.cancel = context.WithCancel(context.Background())
	return d
}

// doorConn is a connection of a door. Close may be called from anywhere.
type doorConn struct {
	*tls.Conn
	door *door
	id   identity.ID
	err  error         // why it is nobody's who counts here
	rank *list.Element // among the anonymous
	gone bool          // guarded by the door
}

// Close ends the connection and makes room for another.
func (c *doorConn) Close() error {
	c.door.release(c)
	return c.Conn.Close()
}

// Accept waits for the next connection that has proven who it is.
func (d *door) Accept() (net.Conn, error) {
	d.start.Do(func() { d.handlers.Go(d.run) })
	select {
	case c := <-d.ready:
		return c, nil
	case <-d.ctx.Done():
		d.mu.Lock()
		defer d.mu.Unlock()
		if d.failed != nil {
			return nil, d.failed
		}
		return nil, net.ErrClosed
	}
}

// Addr is the socket's address.
func (d *door) Addr() net.Addr { return d.inner.Addr() }

// Close ends the accepting, and the handshakes under way.
func (d *door) Close() error {
	d.start.Do(func() {}) // it does not start any more
	err := d.inner.Close()
	d.cancel()
	d.mu.Lock()
	for e := d.pending.Front(); e != nil; e = e.Next() {
		_ = e.Value.(net.Conn).Close() // it has been told nothing
	}
	d.mu.Unlock()
	d.handlers.Wait()
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

func (d *door) run() {
	defer d.cancel()
	const delay = 50 * time.Millisecond
	for {
		raw, err := d.inner.Accept()
		switch {
		case err == nil:
			at := d.begin(raw)
			d.handlers.Go(func() { d.greet(raw, at) })
		case isTemporary(err):
			d.log.Error("a connection cannot be accepted", "door", d.name, "error", err)
			select {
			case <-d.ctx.Done():
			case <-time.After(delay): // out of descriptors, as a rule: others must close some first
			}
		default:
			d.mu.Lock()
			d.failed = err
			d.mu.Unlock()
			return
		}
	}
}

// isTemporary reports whether an accept failed for a reason that passes.
func isTemporary(err error) bool {
	var t interface{ Temporary() bool }
	return errors.As(err, &t) && t.Temporary()
}

// begin notes a handshake, and ends the oldest one when there are too many.
func (d *door) begin(raw net.Conn) *list.Element {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.pending.Len() >= d.limits.handshakes {
		oldest := d.pending.Front()
		d.pending.Remove(oldest)
		d.metrics.refused.WithLabelValues(d.name, refusedHandshakes).Inc()
		_ = oldest.Value.(net.Conn).Close()
	}
	return d.pending.PushBack(raw)
}

// greet carries out one handshake and hands the connection over.
func (d *door) greet(raw net.Conn, at *list.Element) {
	c, err := d.handshake(raw)
	d.mu.Lock()
	d.pending.Remove(at) // nothing, if it was ended for another's sake
	d.mu.Unlock()
	if err != nil {
		d.refuse(raw, refusedHandshake, err)
		return
	}
	if reason := d.admit(c); reason != "" {
		d.refuse(raw, reason, errors.New("too many connections of "+c.who()))
		return
	}
	select {
	case d.ready <- c:
	case <-d.ctx.Done():
		_ = c.Close() // nobody serves it any more
	}
}

func (d *door) handshake(raw net.Conn) (*doorConn, error) {
	if err := raw.SetDeadline(time.Now().Add(d.limits.handshakeTimeout)); err != nil {
		return nil, err
	}
	t := tls.Server(raw, d.source.Server(d.optional, d.protocols...))
	if err := t.HandshakeContext(d.ctx); err != nil {
		d.explain(err)
		return nil, err
	}
	c := &doorConn{Conn: t, door: d}
	state := t.ConnectionState()
	c.id, c.err = d.source.Peer(&state)
	return c, raw.SetDeadline(time.Time{})
}

// explain answers who speaks HTTP without TLS.
func (d *door) explain(err error) {
	var header tls.RecordHeaderError
	if !errors.As(err, &header) || header.Conn == nil {
		return
	}
	switch string(header.RecordHeader[:]) {
	case "GET /", "HEAD ", "POST ", "PUT /", "OPTIO":
		// The socket's buffer takes it; a caller that does not read is not waited for.
		_, _ = header.Conn.Write([]byte("HTTP/1.0 400 Bad Request\r\nContent-Type: text/plain\r\nConnection: close\r\n\r\n" +
			"this port speaks TLS: use https, and the certificate that was made for you\n"))
	}
}

// who is whose connection it is, in words.
func (c *doorConn) who() string {
	if c.err != nil {
		return "callers without an accepted certificate"
	}
	return c.id.String()
}

// admit counts a connection, or says why there is no room for it.
func (d *door) admit(c *doorConn) (refused string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	key := c.who()
	switch {
	case c.err != nil && d.anonymous.Len() >= d.limits.anonymous:
		oldest := d.anonymous.Front().Value.(*doorConn)
		d.drop(oldest)
		d.metrics.refused.WithLabelValues(d.name, refusedIdentity).Inc()
		_ = oldest.NetConn().Close() // no farewell: it could wait for a caller that does not read
	case c.err == nil && d.of[key] >= d.limits.perIdentity:
		return refusedIdentity
	}
	if d.total >= d.limits.connections {
		return refusedTotal
	}
	d.total++
	d.of[key]++
	if c.err != nil {
		c.rank = d.anonymous.PushBack(c)
	}
	return ""
}

func (d *door) release(c *doorConn) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.drop(c)
}

// drop uncounts a connection, once. The caller holds mu.
func (d *door) drop(c *doorConn) {
	if c.gone {
		return
	}
	c.gone = true
	d.total--
	key := c.who()
	if d.of[key]--; d.of[key] == 0 {
		delete(d.of, key)
	}
	if c.rank != nil {
		d.anonymous.Remove(c.rank)
	}
}

// refuse counts a connection and ends it, and now and then logs one.
func (d *door) refuse(raw net.Conn, reason string, err error) {
	stopping := d.ctx.Err() != nil
	if !stopping {
		d.metrics.refused.WithLabelValues(d.name, reason).Inc()
	}
	_ = raw.Close()
	if stopping {
		return
	}
	now := time.Now()
	d.mu.Lock()
	due, quiet := now.After(d.nextLog), d.quiet
	if due {
		d.nextLog, d.quiet = now.Add(refusalLogInterval), 0
	} else {
		d.quiet++
	}
	d.mu.Unlock()
	if due {
		d.log.Warn("connection refused", "door", d.name, "remote", raw.RemoteAddr().String(),
			"reason", strings.TrimSpace(err.Error()), "refused_since_last", quiet)
	}
}
