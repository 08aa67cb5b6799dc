// Package wire reads HTTP/1 more strictly than net/http does. What has two readings is what request smuggling lives on:
// one that stands in front of a server reads the end of a request elsewhere than the server itself, and the rest is
// taken for the next caller's request.
//
// A Conn lets through, unchanged, the bytes of well-formed requests. At the first byte that is not, Read fails before
// the line which is at fault is complete, so that the server has seen no such request; net/http answers 400 and closes
// the connection. While it serves a request it also reads, one byte, to see whether the caller has gone: when what is
// malformed from its first byte on, as an empty line, comes then, it ends that request, of the same caller, as if he
// had gone. Refused are, beside what net/http refuses by itself:
//
//   - Content-Length together with Transfer-Encoding, either of them twice, a length that is not digits alone, a coding
//     other than chunked, a coding in HTTP/1.0
//   - lines that end in a bare LF, and a CR within a line
//   - header lines that go on in the next one, names that are no token, a space before the colon
//   - empty lines before a request, and versions other than HTTP/1.0 and HTTP/1.1
//   - chunks whose size is not hexadecimal digits alone before the line's end or a semicolon, or whose data is longer
//
// The caller's duties: call Release when the connection has changed to another protocol; use one Conn for one
// connection, and for no HTTP/2.
//
// It buffers no more than a line, writes nothing, and sets no time limit: the server's limits hold, as they are set
// on the connection.
package wire
