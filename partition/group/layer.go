package group

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/hashicorp/raft"
)

// layer is one group's share of a Listener. It keeps every connection of the group, because Raft's
// transport leaves those that it accepted open until the peer goes.
type layer struct {
	listener *Listener
	group    string
	self     Member
	accepted chan net.Conn
	hangups  chan raft.ServerID // see Transport.Hangups
	ctx      context.Context    // ends when the group closes
	cancel   context.CancelFunc

	mu       sync.Mutex // guards the fields below
	conns    map[*groupConn]struct{}
	incoming int
	closed   bool
}

var _ raft.StreamLayer = (*layer)(nil)

func newLayer(l *Listener, group string, self Member) *layer {
	ctx, cancel := context.WithCancel(context.Background())
	return &layer{
		listener: l, group: group, self: self, accepted: make(chan net.Conn),
		ctx: ctx, cancel: cancel, conns: make(map[*groupConn]struct{}),
		hangups: make(chan raft.ServerID, maxHangups),
	}
}

// groupConn is a connection that its group knows of.
type groupConn struct {
	net.Conn
	layer    *layer
	incoming bool
	from     string // the replica at the other end of an incoming one
}

// Read notes when the other end hangs up, which it does when its process ends.
func (c *groupConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if err != nil && c.incoming && hungUp(err) {
		select {
		case c.layer.hangups <- raft.ServerID(c.from):
		default: // others wait to be looked at already
		}
	}
	return n, err
}

// hungUp reports whether an error says that nobody is at the other end of a connection.
func hungUp(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET) ||
		errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.EPIPE)
}

func (c *groupConn) Close() error {
	c.layer.mu.Lock()
	if _, ok := c.layer.conns[c]; ok {
		delete(c.layer.conns, c)
		if c.incoming {
			c.layer.incoming--
		}
	}
	conn := c.Conn
	c.layer.mu.Unlock()
	return conn.Close()
}

var errGroupClosing = errors.New("the group is closing")

func (y *layer) track(conn net.Conn, incoming bool, from string) (*groupConn, error) {
	y.mu.Lock()
	defer y.mu.Unlock()
	switch {
	case y.closed:
		return nil, errGroupClosing
	case incoming && y.incoming >= maxGroupConns:
		return nil, fmt.Errorf("group %q has %d connections already", y.group, y.incoming)
	}
	c := &groupConn{Conn: conn, layer: y, incoming: incoming, from: from}
	y.conns[c] = struct{}{}
	if incoming {
		y.incoming++
	}
	return c, nil
}

// admit takes an accepted connection of a replica into the group, if there is room.
func (y *layer) admit(conn net.Conn, from string) (*groupConn, error) {
	return y.track(conn, true, from)
}

// deliver hands an admitted connection to the transport.
func (y *layer) deliver(c *groupConn) error {
	select {
	case y.accepted <- c:
		return nil
	case <-y.ctx.Done():
		return errors.Join(errGroupClosing, c.Close())
	}
}

// Accept waits for the next connection to the group.
func (y *layer) Accept() (net.Conn, error) {
	select {
	case c := <-y.accepted:
		return c, nil
	case <-y.ctx.Done():
		return nil, net.ErrClosed
	}
}

// Close ends all connections of the group.
func (y *layer) Close() error {
	y.listener.unregister(y.group)
	y.cancel()
	y.mu.Lock()
	y.closed = true
	var conns []*groupConn
	for c := range y.conns {
		conns = append(conns, c)
	}
	y.mu.Unlock()
	for _, c := range conns {
		_ = c.Close() // whoever uses it sees the end
	}
	return nil
}

// Addr is the address by which the other replicas know this one: Raft compares it with theirs.
func (y *layer) Addr() net.Addr { return replicaAddr(y.self.Addr) }

type replicaAddr string

func (replicaAddr) Network() string  { return "tcp" }
func (a replicaAddr) String() string { return string(a) }

// Raft dials an address and does not say whose; the preamble must. So the transport puts the node id in
// front, see guarded.
const targetSeparator = "\x00"

func joinTarget(id raft.ServerID, address raft.ServerAddress) raft.ServerAddress {
	return raft.ServerAddress(string(id) + targetSeparator + string(address))
}

// Dial connects to the group's replica on another node, and introduces itself.
func (y *layer) Dial(target raft.ServerAddress, timeout time.Duration) (net.Conn, error) {
	replica, address, ok := strings.Cut(string(target), targetSeparator)
	if !ok {
		return nil, fmt.Errorf("dial %q: the replica's id is missing", target)
	}
	conn, err := y.dial(replica, address, timeout)
	if err != nil {
		return nil, fmt.Errorf("group %q on node %q: %w", y.group, replica, err)
	}
	return conn, nil
}

func (y *layer) dial(replica, address string, timeout time.Duration) (net.Conn, error) {
	l := y.listener
	p := preamble{cluster: l.config.Cluster, group: y.group, from: string(y.self.replicaID()), to: replica}
	if err := p.validate(); err != nil {
		return nil, err
	}
	if l.config.Locate != nil {
		if now := l.config.Locate(p.node()); now != "" {
			address = now
		}
	}
	deadline := time.Now().Add(timeout)
	d := net.Dialer{Deadline: deadline, KeepAliveConfig: keepAlive}
	conn, err := d.DialContext(y.ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	tune(conn)
	c, err := y.track(conn, false, "")
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	if err := c.introduce(p, address, deadline); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

// introduce secures a dialled connection and sends its preamble.
func (c *groupConn) introduce(p preamble, address string, deadline time.Time) error {
	if err := c.SetDeadline(deadline); err != nil {
		return err
	}
	if s := c.layer.listener.config.Secure; s != nil {
		secured, err := s.Dial(c.layer.ctx, c.Conn, p.node(), address)
		if err != nil {
			return err
		}
		c.layer.mu.Lock()
		c.Conn = secured // the layer may be closing it
		c.layer.mu.Unlock()
	}
	if err := p.introduce(c); err != nil {
		return err
	}
	return c.SetDeadline(time.Time{})
}
