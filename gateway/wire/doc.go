// Package wire reads HTTP/1 more strictly than net/http does. What has two readings is what request smuggling lives on:
// one that stands in front of a server reads the end of a request elsewhere than the server itself, and the rest is
// taken for the next caller's request.
//
// A Conn lets through, unchanged, the bytes of well-formed requests. At the first byte that is not, Read fails before
// the line which is at fault is complete, so that the server has seen no such request; net/http answers 400 and closes
// the connection. One empty line before a request is dropped, as RFC 9112 section 2.2 has it.
//
// While net/http serves a request it also reads, to see whether the caller has gone, and takes every error for that. So
// a Conn which is told so by Serving lets nothing through beyond the request that is served, judges nothing of what
// follows it, and fails only when the connection has broken. What follows is read, and refused if it must be, when the
// request is answered. A caller who has ended only his own half is told from one who has gone
//   - over TLS: he has sent close_notify, and has not closed the connection beneath
//   - without TLS: not at all, before something is written to him, which fails when he has gone
//
// Refused are, beside what net/http refuses by itself:
//
//   - Content-Length together with Transfer-Encoding, either of them twice, a length that is not digits alone, a coding
//     other than chunked, a coding in HTTP/1.0
//   - lines that end in a bare LF, and a CR within a line
//   - header lines that go on in the next one, names that are no token, a space before the colon
//   - a second empty line before a request, and versions other than HTTP/1.0 and HTTP/1.1
//   - chunks whose size is not hexadecimal digits alone before the line's end or a semicolon, or whose data is longer
//
// The caller's duties: call Serving as http.Server.ConnState tells the state, and Release when the connection has
// changed to another protocol; use one Conn for one connection, and for no HTTP/2.
//
// It buffers no more than a line and what one Read asked for, writes nothing, and sets no time limit: the server's
// limits hold, as they are set on the connection.
package wire
