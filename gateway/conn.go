package gateway

import (
	"context"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/quorate/quorate/gateway/wire"
)

// conn is a caller's connection, of HTTP/1.
type conn struct {
	*wire.Conn
	tls      *tls.ConnectionState // nil without TLS
	trust    trust                // with TLS
	lingered atomic.Bool
}

const (
	// lingerTime and lingerBytes are how much is read, and dropped, of what a caller still sends when his connection is
	// closed: what is not read has the kernel throw away the answer.
	lingerTime  = 500 * time.Millisecond
	lingerBytes = 1 << 20
)

// Close closes the connection.
func (c *conn) Close() error {
	if (c.Stopped() || c.Fault() != nil) && c.lingered.CompareAndSwap(false, true) {
		c.linger()
	}
	return c.Conn.Close()
}

// CloseWrite tells the caller that nothing more comes. net/http calls it behind an answer after which it closes.
func (c *conn) CloseWrite() error {
	half, ok := c.Conn.Conn.(interface{ CloseWrite() error })
	if !ok {
		return net.ErrClosed
	}
	return half.CloseWrite()
}

func (c *conn) linger() {
	under := c.Conn.Conn
	if c.CloseWrite() != nil || under.SetReadDeadline(time.Now().Add(lingerTime)) != nil {
		return
	}
	_, _ = io.CopyN(io.Discard, under, lingerBytes) // until the caller has closed, or the time is over
}

// unasked is called when a request is answered whose caller was to be told to send his body, b. Without the whole of it
// net/http ends the connection; it is not to wait first for what nobody sends.
func (c *conn) unasked(b *body) {
	if !b.ended.Load() {
		c.Stop()
	}
}

type connKey struct{}

func withConn(ctx context.Context, c net.Conn) context.Context {
	if strict, ok := c.(*conn); ok {
		return context.WithValue(ctx, connKey{}, strict)
	}
	return withTrust(ctx, c)
}

// follow tells a connection of HTTP/1 when a request is served.
func follow(c net.Conn, state http.ConnState) {
	if strict, ok := c.(*conn); ok {
		strict.Serving(state == http.StateActive)
	}
}

func connOf(ctx context.Context) *conn {
	c, _ := ctx.Value(connKey{}).(*conn)
	return c
}
