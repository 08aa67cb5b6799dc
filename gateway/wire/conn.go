package wire

import (
	"errors"
	"net"
	"sync/atomic"
)

// Shape is what a request was refused for, in a word for metrics. It is a closed set.
type Shape string

// The shapes.
const (
	LengthAndCoding Shape = "length_and_coding" // Content-Length and Transfer-Encoding
	BadLength       Shape = "length"            // Content-Length twice, or not digits
	BadCoding       Shape = "coding"            // Transfer-Encoding twice, not chunked, or in HTTP/1.0
	BareLF          Shape = "bare_lf"
	BareCR          Shape = "bare_cr"
	Folded          Shape = "folded"        // a header line that goes on in the next one
	BadHeader       Shape = "header"        // a name that is no token
	BadRequestLine  Shape = "request_line"  // empty, or of another version
	BadChunk        Shape = "chunk"         // a chunk's size or end
	LongLine        Shape = "line_too_long" // longer than any server's bound
)

// Shapes are all shapes.
func Shapes() []Shape {
	return []Shape{
		LengthAndCoding, BadLength, BadCoding, BareLF, BareCR, Folded, BadHeader, BadRequestLine, BadChunk, LongLine,
	}
}

// Error is why Read fails.
type Error struct{ Shape Shape }

// Error says what is wrong.
func (e *Error) Error() string { return "wire: the request is malformed: " + string(e.Shape) }

// Conn is a server's connection. Only one goroutine at a time may read it, as net/http does.
type Conn struct {
	net.Conn
	refused  func(Shape)
	parser   parser
	bad      Shape
	released atomic.Bool
	stopped  atomic.Bool
}

// ErrStopped is why Read fails after Stop.
var ErrStopped = errors.New("wire: no further request is read")

// New is a strict view of c. refused, which may be nil, is called once when c is refused.
func New(c net.Conn, refused func(Shape)) *Conn {
	if refused == nil {
		refused = func(Shape) {}
	}
	return &Conn{Conn: c, refused: refused}
}

// Read reads what is well-formed. After the first that is not it fails with an *Error.
func (c *Conn) Read(b []byte) (int, error) {
	if c.released.Load() {
		return c.Conn.Read(b)
	}
	if c.stopped.Load() {
		return 0, ErrStopped
	}
	if c.bad != "" {
		return 0, &Error{c.bad}
	}
	n, err := c.Conn.Read(b)
	good, bad := c.parser.feed(b[:n])
	if bad == "" {
		return n, err
	}
	c.bad = bad
	c.refused(bad)
	if good > 0 {
		return good, nil
	}
	return 0, &Error{bad}
}

// Stop has Read fail from now on. It is for when the rest of a body is not read, behind which the next request would
// begin: net/http then closes the connection.
func (c *Conn) Stop() { c.stopped.Store(true) }

// Stopped reports whether Stop was called.
func (c *Conn) Stopped() bool { return c.stopped.Load() }

// Release ends the parsing: what comes from now on is another protocol. Nobody may be reading.
func (c *Conn) Release() { c.released.Store(true) }
