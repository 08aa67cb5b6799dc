package wire

import (
	"bytes"
	"math"
	"strings"

	"golang.org/x/net/http/httpguts"
)

const (
	// maxLineBytes is more than any server takes: it bounds this package where the server does not.
	maxLineBytes = 1 << 20
	// keptLineBytes is how much of the buffer of a line is kept for the next request.
	keptLineBytes = 4 << 10
	// maxDigits are those of a length or a chunk's size that cannot overflow.
	maxDigits = 15
)

type state uint8

const (
	inRequestLine state = iota
	inHeader
	inBody      // left bytes of it
	inChunkSize // a line
	inChunk     // left bytes of it, its CRLF included
	inTrailer
)

// parser follows the requests of one connection. The zero value stands before the first.
type parser struct {
	state state
	line  []byte // of the present line, without its LF
	left  int64  // of a body, or of a chunk with its CRLF

	http10, coded, measured bool
	length                  int64
}

// between reports whether a request has ended, or none has come, and nothing is there of the next.
func (p *parser) between() bool { return p.state == inRequestLine && len(p.line) == 0 }

// feed follows b to the end of a request, and returns how many bytes of it are good, and what is wrong with the next.
func (p *parser) feed(b []byte) (good int, bad Shape) {
	for i := 0; i < len(b); {
		var n int
		switch p.state {
		case inBody:
			n, bad = p.body(b[i:]), ""
		case inChunk:
			n, bad = p.chunk(b[i:])
		default:
			n, bad = p.piece(b[i:])
		}
		i += n
		if bad != "" {
			return i, bad
		}
		if p.between() {
			return i, ""
		}
	}
	return len(b), ""
}

func (p *parser) body(b []byte) int {
	n := int(min(p.left, int64(len(b))))
	if p.left -= int64(n); p.left == 0 {
		p.begin()
	}
	return n
}

// chunk takes data, up to the CRLF behind it, and of that one byte at a time.
func (p *parser) chunk(b []byte) (int, Shape) {
	if p.left > 2 {
		n := int(min(p.left-2, int64(len(b))))
		p.left -= int64(n)
		return n, ""
	}
	if b[0] != "\r\n"[2-p.left] {
		return 0, BadChunk
	}
	if p.left--; p.left == 0 {
		p.state = inChunkSize
	}
	return 1, ""
}

// piece takes what of a line is in b; of one at fault, what comes before its end, or the byte at fault.
func (p *parser) piece(b []byte) (int, Shape) {
	end := bytes.IndexByte(b, '\n')
	part := b
	if end >= 0 {
		part = b[:end]
	}
	if len(p.line)+len(part) > maxLineBytes {
		return 0, LongLine
	}
	if len(p.line) > 0 && p.line[len(p.line)-1] == '\r' && len(part) > 0 {
		return 0, BareCR
	}
	if cr := bytes.IndexByte(part, '\r'); cr >= 0 && cr < len(part)-1 {
		return cr + 1, BareCR
	}
	p.line = append(p.line, part...)
	if end < 0 {
		return len(b), ""
	}
	if len(p.line) == 0 || p.line[len(p.line)-1] != '\r' {
		return end, BareLF
	}
	bad := p.whole(p.line[:len(p.line)-1])
	p.line = p.line[:0]
	if bad != "" {
		return end, bad
	}
	return end + 1, ""
}

// whole takes a line without its end.
func (p *parser) whole(line []byte) Shape {
	switch p.state {
	case inRequestLine:
		return p.requestLine(line)
	case inHeader:
		if len(line) == 0 {
			return p.headEnds()
		}
		return p.header(line)
	case inChunkSize:
		return p.chunkSize(line)
	case inTrailer:
		if len(line) == 0 {
			p.begin()
			return ""
		}
		_, _, bad := field(line)
		return bad
	case inBody, inChunk: // have no lines
	}
	return ""
}

// begin stands before the next request.
func (p *parser) begin() {
	line := p.line[:0]
	if cap(line) > keptLineBytes {
		line = nil
	}
	*p = parser{line: line}
}

func (p *parser) requestLine(line []byte) Shape {
	switch {
	case bytes.HasSuffix(line, []byte(" HTTP/1.1")):
	case bytes.HasSuffix(line, []byte(" HTTP/1.0")):
		p.http10 = true
	default:
		return BadRequestLine
	}
	p.state = inHeader
	return ""
}

// field takes a header line apart.
func field(line []byte) (name, value string, bad Shape) {
	if line[0] == ' ' || line[0] == '\t' {
		return "", "", Folded
	}
	before, after, found := bytes.Cut(line, []byte(":"))
	if !found || !httpguts.ValidHeaderFieldName(string(before)) {
		return "", "", BadHeader
	}
	return string(before), string(bytes.Trim(after, " \t")), ""
}

func (p *parser) header(line []byte) Shape {
	name, value, bad := field(line)
	switch {
	case bad != "":
		return bad
	case strings.EqualFold(name, "Content-Length"):
		n, ok := number(value, 10)
		if p.measured || !ok {
			return BadLength
		}
		p.measured, p.length = true, n
	case strings.EqualFold(name, "Transfer-Encoding"):
		if p.coded || p.http10 || !strings.EqualFold(value, "chunked") {
			return BadCoding
		}
		p.coded = true
	}
	if p.coded && p.measured {
		return LengthAndCoding
	}
	return ""
}

func (p *parser) headEnds() Shape {
	switch {
	case p.coded:
		p.state = inChunkSize
	case p.length > 0:
		p.state, p.left = inBody, p.length
	default:
		p.begin()
	}
	return ""
}

func (p *parser) chunkSize(line []byte) Shape {
	digits, _, _ := strings.Cut(string(line), ";")
	n, ok := number(digits, 16)
	switch {
	case !ok || n > math.MaxInt64-2:
		return BadChunk
	case n == 0:
		p.state = inTrailer
	default:
		p.state, p.left = inChunk, n+2
	}
	return ""
}

// number is digits alone, to a base of 10 or 16.
func number(s string, base int64) (n int64, ok bool) {
	if s == "" || len(s) > maxDigits {
		return 0, false
	}
	for _, c := range []byte(s) {
		var d int64
		switch {
		case '0' <= c && c <= '9':
			d = int64(c - '0')
		case 'a' <= c|0x20 && c|0x20 <= 'f':
			d = int64(c|0x20-'a') + 10
		default:
			return 0, false
		}
		if d >= base {
			return 0, false
		}
		n = n*base + d
	}
	return n, true
}
