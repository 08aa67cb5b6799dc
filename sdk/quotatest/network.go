package quotatest

import (
	"context"
	"fmt"
	"net"
	"sync"
	"syscall"

	"google.golang.org/grpc/test/bufconn"
)

// pipeBytes is how much of a connection in memory is under way at most, in each direction.
const pipeBytes = 256 << 10

// loopback is the machine's own network. Each node takes a free port, and keeps it.
type loopback struct{}

func (loopback) listen(int) (net.Listener, error) { return net.Listen("tcp", "127.0.0.1:0") }

func (loopback) dial(ctx context.Context, addr string) (net.Conn, error) {
	return (&net.Dialer{}).DialContext(ctx, "tcp", addr)
}

// memory has a listener per node, whose connections are pipes. Its addresses are under .invalid, which is nowhere: who
// forgets DialOptions reaches nobody, and not what happens to listen on this machine.
type memory struct {
	mu        sync.Mutex // guards listeners
	listeners []*pipes   // by node
}

// pipes listens in memory.
type pipes struct {
	*bufconn.Listener
	addr net.Addr
}

// Addr is where it seems to listen.
func (p *pipes) Addr() net.Addr { return p.addr }

func newMemory(nodes int) *memory { return &memory{listeners: make([]*pipes, nodes)} }

// memoryAddr is the address of a node in memory.
type memoryAddr int

// Network is no network.
func (memoryAddr) Network() string { return "memory" }

// String is the address, as host:port.
func (k memoryAddr) String() string {
	return fmt.Sprintf("n%d.quotatest.invalid:%d", int(k), 7070+10*int(k))
}

func (m *memory) listen(k int) (net.Listener, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.listeners[k] = &pipes{bufconn.Listen(pipeBytes), memoryAddr(k)}
	return m.listeners[k], nil
}

func (m *memory) dial(ctx context.Context, addr string) (net.Conn, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, l := range m.listeners {
		if l != nil && l.addr.String() == addr {
			conn, err := l.DialContext(ctx)
			if err != nil {
				return nil, fmt.Errorf("dial %s: %w", addr, syscall.ECONNREFUSED)
			}
			return conn, nil
		}
	}
	return nil, fmt.Errorf("dial %s: %w", addr, syscall.ECONNREFUSED)
}

// tracked is a listener that knows the connections it has accepted.
type tracked struct {
	net.Listener

	mu   sync.Mutex // guards open
	open map[*trackedConn]bool
}

type trackedConn struct {
	net.Conn
	of *tracked
}

// Accept takes the next connection.
func (l *tracked) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	c := &trackedConn{conn, l}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.open[c] = true
	return c, nil
}

// Close ends the connection.
func (c *trackedConn) Close() error {
	c.of.mu.Lock()
	delete(c.of.open, c)
	c.of.mu.Unlock()
	return c.Conn.Close()
}

// drop ends all connections.
func (l *tracked) drop() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for c := range l.open {
		_ = c.Conn.Close() // it is to break; whoever serves it sees the end, and closes it again
	}
}
