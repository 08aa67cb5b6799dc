package gateway

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"sync"
	"time"

	"github.com/quorate/quorate/gateway/wire"
)

// listener bounds connections, shakes hands, and has HTTP/1 read strictly.
type listener struct {
	net.Listener
	tls       func() (*tls.Config, trust) // nil without TLS
	handshake time.Duration
	refused   func(wire.Shape)
	opened    func(delta float64)

	slots   chan struct{}
	ready   chan net.Conn
	life    context.Context //nolint:containedctx // ends with Close; handshakes run in it
	end     context.CancelFunc
	work    sync.WaitGroup
	closing sync.Once
	closed  error // set in closing
}

func (l *listener) start(maxConnections int) {
	l.slots = make(chan struct{}, maxConnections)
	l.ready = make(chan net.Conn)
	l.life, l.end = context.WithCancel(context.Background())
	l.work.Go(l.run)
}

// errPause is how long is waited after a failed accept, as when there are no file descriptors.
const errPause = 50 * time.Millisecond

func (l *listener) run() {
	for {
		select {
		case l.slots <- struct{}{}:
		case <-l.life.Done():
			return
		}
		raw, err := l.Listener.Accept()
		if err != nil {
			<-l.slots
			if errors.Is(err, net.ErrClosed) {
				return
			}
			select {
			case <-time.After(errPause):
				continue
			case <-l.life.Done():
				return
			}
		}
		l.opened(1)
		held := &slot{Conn: raw, free: sync.OnceFunc(func() {
			<-l.slots
			l.opened(-1)
		})}
		if l.tls == nil {
			l.hand(&conn{Conn: wire.New(held, l.refused)})
			continue
		}
		l.work.Go(func() { l.secure(held) })
	}
}

// secure shakes hands. net/http finds HTTP/2 by the type of the connection.
func (l *listener) secure(held *slot) {
	ctx, cancel := context.WithTimeout(l.life, l.handshake)
	defer cancel()
	config, asked := l.tls()
	held.trust = asked
	secured := tls.Server(held, config)
	if err := secured.HandshakeContext(ctx); err != nil {
		_ = held.Close() // it never was a connection
		return
	}
	state := secured.ConnectionState()
	if state.NegotiatedProtocol == "h2" {
		l.hand(secured)
		return
	}
	l.hand(&conn{Conn: wire.New(secured, l.refused), tls: &state, trust: asked})
}

func (l *listener) hand(c net.Conn) {
	select {
	case l.ready <- c:
	case <-l.life.Done():
		_ = c.Close() // nobody takes it any more
	}
}

// Accept is the next connection that may speak.
func (l *listener) Accept() (net.Conn, error) {
	select {
	case c := <-l.ready:
		return c, nil
	case <-l.life.Done():
		return nil, net.ErrClosed
	}
}

// Close ends it, and waits for its goroutines. It may be called again.
func (l *listener) Close() error {
	l.closing.Do(func() {
		l.end()
		l.closed = l.Listener.Close()
	})
	l.work.Wait()
	return l.closed
}

// slot frees its place when it is closed.
type slot struct {
	net.Conn
	free  func()
	trust trust // with TLS
}

// CloseWrite tells the other end that nothing more comes.
func (s *slot) CloseWrite() error {
	half, ok := s.Conn.(interface{ CloseWrite() error })
	if !ok {
		return net.ErrClosed
	}
	return half.CloseWrite()
}

// Close closes the connection.
func (s *slot) Close() error {
	defer s.free()
	return s.Conn.Close()
}
