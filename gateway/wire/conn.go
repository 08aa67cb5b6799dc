package wire

import (
	"bytes"
	"errors"
	"io"
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
	held     []byte // was read beyond a request's end, and is not parsed; no more than one Read of the server asked for
	skipped  bool   // an empty line, since the last request
	bad      Shape
	fault    atomic.Pointer[error]
	serving  atomic.Bool
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

// Read reads what is well-formed, of one request at a time. After the first that is not it fails with an *Error. While
// a request is served that was read to its end, it reads 0 bytes, without an error, when the next one has begun or the
// caller sends no more.
func (c *Conn) Read(b []byte) (int, error) {
	switch {
	case c.released.Load():
		if n := c.takeHeld(b); n > 0 {
			return n, nil
		}
		return c.Conn.Read(b)
	case c.stopped.Load():
		return 0, ErrStopped
	case c.bad != "":
		return 0, &Error{c.bad}
	case len(b) == 0:
		return 0, nil
	}
	if c.parser.between() {
		if quiet, err := c.edge(b); quiet || err != nil {
			return 0, err
		}
	}
	return c.within(b)
}

// takeHeld takes what is held, as it came.
func (c *Conn) takeHeld(b []byte) int {
	n := copy(b, c.held)
	if c.held = c.held[n:]; len(c.held) == 0 {
		c.held = nil
	}
	return n
}

var emptyLine = []byte("\r\n")

// edge waits, where one request ends, for a byte of the next, and drops one empty line before it. It is quiet when that
// one must wait, for the request in front is served: what is wrong with it, or that there is none, is no business of
// the one in front. b is room to read into.
func (c *Conn) edge(b []byte) (quiet bool, err error) {
	for {
		if !c.skipped && bytes.HasPrefix(c.held, emptyLine) {
			c.held, c.skipped = c.held[len(emptyLine):], true
		}
		if len(c.held) > 0 && (c.skipped || !bytes.HasPrefix(emptyLine, c.held)) {
			return c.serving.Load(), nil
		}
		n, err := c.Conn.Read(b)
		c.held = append(c.held, b[:n]...)
		switch {
		case n > 0 || err == nil: // an error comes again
		case errors.Is(err, io.EOF) && c.serving.Load():
			err = c.gone()
			return err == nil, err
		case errors.Is(err, io.EOF) && len(c.held) > 0:
			return false, nil
		default:
			return false, err
		}
	}
}

// gone tells, of a caller who sends no more, whether he has gone. Over TLS one who still reads has said that he ends,
// and has not ended the connection; that is waited for. Without TLS there is no telling before something is written.
func (c *Conn) gone() error {
	secured, ok := c.Conn.(interface{ NetConn() net.Conn })
	if !ok {
		return nil
	}
	var one [1]byte
	_, err := secured.NetConn().Read(one[:])
	return err
}

// within reads on in a request, or begins one.
func (c *Conn) within(b []byte) (int, error) {
	var err error
	part := c.held[:min(len(b), len(c.held))]
	fresh := len(part) == 0
	if fresh {
		var n int
		n, err = c.Conn.Read(b)
		part = b[:n]
	}
	good, bad := c.parser.feed(part)
	if fresh {
		c.held = append([]byte(nil), part[good:]...)
	} else {
		c.takeHeld(b[:good])
	}
	switch {
	case bad != "":
		c.bad, c.held = bad, nil
		c.blame(&Error{bad})
		c.refused(bad)
		if good == 0 {
			return 0, &Error{bad}
		}
		return good, nil
	case good > 0: // an error comes again
		c.skipped = false
		return good, nil
	case errors.Is(err, io.EOF) && c.serving.Load():
		c.blame(io.ErrUnexpectedEOF)
	}
	return 0, err
}

func (c *Conn) blame(err error) { c.fault.CompareAndSwap(nil, &err) }

// Fault is why a request could not be read to its end by fault of the caller: an *Error, io.ErrUnexpectedEOF when he
// ends within it; nil when there is none. It is known before the Read that fails returns.
func (c *Conn) Fault() error {
	if err := c.fault.Load(); err != nil {
		return *err
	}
	return nil
}

// Serving tells whether a request that was read is being served: from when its head is read to when its answer is
// written, which is between http.StateActive and the next state.
func (c *Conn) Serving(yes bool) { c.serving.Store(yes) }

// Stop has Read fail from now on. It is for when the rest of a body is not read, behind which the next request would
// begin: net/http then closes the connection.
func (c *Conn) Stop() { c.stopped.Store(true) }

// Stopped reports whether Stop was called.
func (c *Conn) Stopped() bool { return c.stopped.Load() }

// Release ends the parsing: what comes from now on is another protocol. Nobody may be reading.
func (c *Conn) Release() { c.released.Store(true) }
