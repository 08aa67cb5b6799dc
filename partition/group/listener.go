package group

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// userTimeout is how long sent bytes may stay unacknowledged (TCP_USER_TIMEOUT).
	userTimeout = 5 * time.Second
	// preambleTimeout is how long a connection may take to say what it is for.
	preambleTimeout = 3 * time.Second
	// maxPreambles bounds the connections that have not said so yet.
	maxPreambles = 64
	// placeTimeout is how long a new connection waits for the place of one that was ended for it.
	placeTimeout = 100 * time.Millisecond
	// maxHangups bounds the hang-ups that a group has not looked at yet.
	maxHangups = 8
	// maxGroupConns bounds the accepted connections of one group: a peer uses about five.
	maxGroupConns = 128
	// refusalLogInterval is how often a refused connection is logged at most.
	refusalLogInterval = 10 * time.Second
)

var keepAlive = net.KeepAliveConfig{
	Enable: true, Idle: userTimeout, Interval: userTimeout / 2, Count: 2,
}

// ListenerConfig says who listens.
type ListenerConfig struct {
	Cluster string // cluster id
	Node    string // this node's id
	// Answer answers the questions that other nodes Ask; nil refuses them. It is called from any
	// goroutine, must be quick, and may return at most maxQuestionBytes.
	Answer func(from string, question []byte) []byte
	// Secure authenticates the connections, both ways. nil leaves them as they are: loopback only.
	Secure Secure
	// Locate tells where a node is reached now (host:port); empty, or a nil Locate, is for where its group's
	// configuration has it. It is called from any goroutine and must be quick.
	Locate func(node string) string
	Logger *slog.Logger // nil discards
}

// Secure turns connections into authenticated ones. The raw connection has a deadline; after an error it is the
// caller's to close.
type Secure interface {
	// Accept authenticates an accepted connection, and tells which node is at its other end.
	Accept(ctx context.Context, raw net.Conn) (secured net.Conn, node string, err error)
	// Dial authenticates a connection to addr (host:port), where node is expected; any node, when it is empty.
	Dial(ctx context.Context, raw net.Conn, node, addr string) (net.Conn, error)
}

// Refusals counts the connections that a Listener did not accept, by reason.
type Refusals struct {
	Malformed uint64 // no preamble within the time, or not one of this protocol
	Version   uint64 // another preamble version
	Cluster   uint64 // another cluster
	Node      uint64 // addressed to another node
	Group     uint64 // a group that this node does not have
	Busy      uint64 // too many at once; those that were ended for others are among them
	Identity  uint64 // no node's certificate, or that of another node than the preamble names
}

// Listener is the one socket on which a node's groups are reached by their other replicas.
type Listener struct {
	config ListenerConfig
	socket net.Listener
	// ctx ends with Close, and with it the handshakes under way.
	ctx      context.Context
	cancel   context.CancelFunc
	refused  [refusals]atomic.Uint64
	waiting  chan struct{} // one per connection in its preamble
	handlers sync.WaitGroup

	mu       sync.Mutex // guards the fields below
	closed   bool
	groups   map[string]*layer
	early    map[net.Conn]uint64 // connections in their preamble, by arrival
	arrivals uint64
	nextLog  time.Time
	quiet    uint64 // refusals since the last logged one
}

// Listen opens the socket at addr (host:port; port 0 picks one).
func Listen(addr string, config ListenerConfig) (*Listener, error) {
	check := preamble{cluster: config.Cluster, group: "any", from: config.Node, to: config.Node}
	if err := check.validate(); err != nil {
		return nil, fmt.Errorf("raft listener: %w", err)
	}
	if config.Logger == nil {
		config.Logger = slog.New(slog.DiscardHandler)
	}
	socket, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("raft listener: %w", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	l := &Listener{
		config: config, socket: socket, ctx: ctx, cancel: cancel,
		waiting: make(chan struct{}, maxPreambles),
		groups:  make(map[string]*layer),
		early:   make(map[net.Conn]uint64),
	}
	l.handlers.Go(l.accept)
	return l, nil
}

// Addr is the socket's address.
func (l *Listener) Addr() string { return l.socket.Addr().String() }

// Refusals are the counts since Listen.
func (l *Listener) Refusals() Refusals {
	return Refusals{
		Malformed: l.refused[refusalMalformed].Load(), Version: l.refused[refusalVersion].Load(),
		Cluster: l.refused[refusalCluster].Load(), Node: l.refused[refusalNode].Load(),
		Group: l.refused[refusalGroup].Load(), Busy: l.refused[refusalBusy].Load(),
		Identity: l.refused[refusalIdentity].Load(),
	}
}

// Close closes the socket and the connections that belong to no group yet. Groups are closed first.
func (l *Listener) Close() error {
	l.mu.Lock()
	l.closed = true
	l.cancel()
	err := l.socket.Close()
	for c := range l.early {
		_ = c.Close() // it was about to be refused
	}
	l.mu.Unlock()
	l.handlers.Wait()
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

func (l *Listener) accept() {
	const delay = 50 * time.Millisecond
	for {
		conn, err := l.socket.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil { // out of descriptors, as a rule: others must close some first
			l.config.Logger.Error("a raft connection cannot be accepted", "error", err)
			<-time.After(delay)
			continue
		}
		if !l.place() {
			_ = l.refuse(conn, refusalBusy, "too many connections are being opened at once")
			_ = conn.Close()
			continue
		}
		if !l.track(conn) {
			<-l.waiting
			_ = conn.Close()
			return
		}
		l.handlers.Go(func() {
			defer func() { <-l.waiting }()
			l.greet(conn)
		})
	}
}

// place takes one of the places for connections in their preamble. When there is none the connection that
// has been silent for longest makes room: replicas say what they want at once, and so are not kept out by
// any number of connections that say nothing.
func (l *Listener) place() bool {
	select {
	case l.waiting <- struct{}{}:
		return true
	default:
	}
	l.mu.Lock()
	var oldest net.Conn
	for c, arrived := range l.early {
		if oldest == nil || arrived < l.early[oldest] {
			oldest = c
		}
	}
	if oldest != nil {
		delete(l.early, oldest) // not to be chosen again
		l.refused[refusalBusy].Add(1)
		_ = oldest.Close() // it has said nothing
	}
	l.mu.Unlock()
	timer := time.NewTimer(placeTimeout)
	defer timer.Stop()
	select {
	case l.waiting <- struct{}{}:
		return true
	case <-timer.C:
		return false
	}
}

func (l *Listener) track(conn net.Conn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.closed {
		l.arrivals++
		l.early[conn] = l.arrivals
	}
	return !l.closed
}

// greet reads what an accepted connection is for, and gives it to its group or refuses it.
func (l *Listener) greet(conn net.Conn) {
	defer func() {
		l.mu.Lock()
		delete(l.early, conn)
		l.mu.Unlock()
	}()
	tune(conn)
	if err := l.receive(conn); err != nil {
		_ = conn.Close() // the refusal has been written, if anybody reads it
	}
}

// receive passes conn on; after an error it is the caller's to close.
func (l *Listener) receive(conn net.Conn) error {
	if err := conn.SetDeadline(time.Now().Add(preambleTimeout)); err != nil {
		return err
	}
	proven := ""
	if l.config.Secure != nil {
		secured, node, err := l.config.Secure.Accept(l.ctx, conn)
		if err != nil {
			return l.noteRefusal(conn, refusalIdentity, err.Error()) // TLS has told the other end
		}
		conn, proven = secured, node
	}
	p, err := readPreamble(conn)
	var version versionError
	switch {
	case errors.As(err, &version):
		return l.refuse(conn, refusalVersion, err.Error())
	case err != nil:
		return l.refuse(conn, refusalMalformed, err.Error())
	case l.config.Secure != nil && proven != nodeOf(p.from):
		return l.refuse(conn, refusalIdentity, fmt.Sprintf("the certificate is that of node %q, the sender says it is %q",
			proven, p.from))
	case p.cluster != l.config.Cluster:
		return l.refuse(conn, refusalCluster, fmt.Sprintf("from node %q of cluster %q, this is cluster %q",
			p.from, p.cluster, l.config.Cluster))
	case p.node() != l.config.Node && (p.to != Anyone || p.group != questionGroup):
		return l.refuse(conn, refusalNode, fmt.Sprintf("node %q looks for node %q here, this is node %q",
			p.from, p.to, l.config.Node))
	case p.group == questionGroup:
		return l.answer(conn, p.from)
	}
	l.mu.Lock()
	g := l.groups[p.group]
	l.mu.Unlock()
	if g == nil {
		return l.refuse(conn, refusalGroup, fmt.Sprintf("node %q asks for group %q, which node %q does not have",
			p.from, p.group, l.config.Node))
	}
	if self := string(g.self.replicaID()); p.to != self {
		return l.refuse(conn, refusalNode, fmt.Sprintf("node %q looks for replica %q of group %q, this is %q: "+
			"the node has another data directory now", p.from, p.to, p.group, self))
	}
	tracked, err := g.admit(conn, p.from)
	if err != nil {
		return l.refuse(conn, refusalBusy, err.Error())
	}
	if err := writeAnswer(tracked, refusalNone, ""); err != nil {
		return errors.Join(err, tracked.Close())
	}
	if err := conn.SetDeadline(time.Time{}); err != nil {
		return errors.Join(err, tracked.Close())
	}
	return g.deliver(tracked)
}

// nodeOf is the node of a preamble's sender or addressee.
func nodeOf(id string) string { return preamble{to: id}.node() }

// refuse answers, counts and now and then logs.
func (l *Listener) refuse(conn net.Conn, code refusal, reason string) error {
	// Only as long as the little that is written fits the socket's buffer; a peer that does not read is
	// not waited for.
	_ = conn.SetWriteDeadline(time.Now().Add(preambleTimeout))
	_ = writeAnswer(conn, code, reason)
	return l.noteRefusal(conn, code, reason)
}

// noteRefusal counts a refusal and now and then logs one.
func (l *Listener) noteRefusal(conn net.Conn, code refusal, reason string) error {
	l.refused[code].Add(1)
	now := time.Now()
	l.mu.Lock()
	due, quiet := now.After(l.nextLog), l.quiet
	if due {
		l.nextLog, l.quiet = now.Add(refusalLogInterval), 0
	} else {
		l.quiet++
	}
	l.mu.Unlock()
	if due {
		l.config.Logger.Warn("raft connection refused",
			"remote", conn.RemoteAddr().String(), "reason", reason, "refused_since_last", quiet)
	}
	return errors.New(reason)
}

// tune makes a connection notice a dead peer.
func tune(conn net.Conn) {
	tcp, ok := conn.(*net.TCPConn)
	if !ok {
		return
	}
	// Neither is needed for anything but speed: the calls have deadlines of their own.
	_ = tcp.SetKeepAliveConfig(keepAlive)
	_ = setUserTimeout(tcp)
}

// register makes self's replica of a group reachable.
func (l *Listener) register(group string, self Member) (*layer, error) {
	id := string(self.replicaID())
	p := preamble{cluster: l.config.Cluster, group: group, from: id, to: id}
	if err := p.validate(); err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil, fmt.Errorf("raft listener: %w", net.ErrClosed)
	}
	if l.groups[group] != nil {
		return nil, fmt.Errorf("group %q is open already on this node", group)
	}
	g := newLayer(l, group, self)
	l.groups[group] = g
	return g, nil
}

func (l *Listener) unregister(group string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.groups, group)
}
