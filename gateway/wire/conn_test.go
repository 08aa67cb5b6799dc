package wire

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/google/go-cmp/cmp"
)

// stream is a connection that has bytes to read, and no other end.
type stream struct {
	net.Conn
	io.Reader
}

func (s stream) Read(b []byte) (int, error) { return s.Reader.Read(b) }

// read is what comes through of text, read in pieces, and the shape that ended it.
func read(t *testing.T, text string, pieces func(io.Reader) io.Reader) (string, Shape) {
	t.Helper()
	told := []Shape{}
	c := New(stream{Reader: pieces(strings.NewReader(text))}, func(s Shape) { told = append(told, s) })
	through, err := io.ReadAll(c)
	if err == nil {
		if len(told) > 0 {
			t.Errorf("%q: told of %v without an error", text, told)
		}
		return string(through), ""
	}
	var e *Error
	if !errors.As(err, &e) {
		t.Fatalf("%q: %v", text, err)
	}
	if diff := cmp.Diff([]Shape{e.Shape}, told); diff != "" {
		t.Errorf("%q: %s", text, diff)
	}
	return string(through), e.Shape
}

var ways = map[string]func(io.Reader) io.Reader{
	"whole": func(r io.Reader) io.Reader { return r }, "bytes": iotest.OneByteReader, "halves": iotest.HalfReader,
}

const (
	get  = "GET / HTTP/1.1\r\nHost: a\r\n\r\n"
	post = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc"
)

// Shows that requests which follow each other, with bodies that look like heads, come through unchanged, however the
// bytes arrive.
func TestWellFormed(t *testing.T) {
	for name, text := range map[string]string{
		"two": get + post + get, "lower case": strings.ToLower("host: A\r\n"), "nothing": "",
		"body like a head": "POST / HTTP/1.1\r\nContent-Length: 29\r\n\r\n\nContent-Length: 1\n x\n\r\r\r\n\r\n" + get,
		"chunked": "POST / HTTP/1.1\r\ntransfer-encoding:CHUNKED\r\n\r\n5\r\na\nb\rc\r\nA;x=y\r\n0123456789\r\n0\r\n" +
			"Digest: x\r\n\r\n" + get,
		"a length of 0": "POST / HTTP/1.1\r\nContent-Length: 0\r\n\r\n" + get,
		"1.0":           "GET / HTTP/1.0\r\n\r\n" + get, "cut short": post[:len(post)-1], "cut in the head": get[:20],
		"long line": "GET /" + strings.Repeat("a", 100_000) + " HTTP/1.1\r\n\r\n" + get,
	} {
		if name == "lower case" {
			text = "GET / HTTP/1.1\r\n" + text + "\r\n"
		}
		for way, pieces := range ways {
			if through, bad := read(t, text, pieces); bad != "" || through != text {
				t.Errorf("%s, %s: %s, %d of %d bytes", name, way, bad, len(through), len(text))
			}
		}
	}
}

// malformed has each shape that is refused, after its request line unless it begins with one.
var malformed = map[string]Shape{
	"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n":    LengthAndCoding,
	"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n":    LengthAndCoding,
	"Content-Length: 5\r\nContent-Length: 6\r\n\r\n":             BadLength,
	"Content-Length: 5\r\ncontent-length: 5\r\n\r\n":             BadLength,
	"Content-Length: 5, 5\r\n\r\n":                               BadLength,
	"Content-Length: +5\r\n\r\n":                                 BadLength,
	"Content-Length: -1\r\n\r\n":                                 BadLength,
	"Content-Length: 0x5\r\n\r\n":                                BadLength,
	"Content-Length: a\r\n\r\n":                                  BadLength,
	"Content-Length:\r\n\r\n":                                    BadLength,
	"Content-Length: 99999999999999999999\r\n\r\n":               BadLength,
	"Transfer-Encoding: gzip, chunked\r\n\r\n":                   BadCoding,
	"Transfer-Encoding: chunked\r\nTransfer-Encoding: x\r\n\r\n": BadCoding,
	"Transfer-Encoding: \vchunked\r\n\r\n":                       BadCoding,
	"Transfer-Encoding: identity\r\n\r\n":                        BadCoding,
	"Host: a\n\r\n":                                              BareLF,
	"Host: a\r\n\n":                                              BareLF,
	"Host: a\rContent-Length: 5\r\n\r\n":                         BareCR,
	"Host: a\r\r\n\r\n":                                          BareCR,
	"Host: a\r\n b\r\n\r\n":                                      Folded,
	"X:\r\n\tTransfer-Encoding: chunked\r\n\r\n":                 Folded,
	"Content-Length : 5\r\n\r\n":                                 BadHeader,
	"Transfer\x00-Encoding: chunked\r\n\r\n":                     BadHeader,
	"no colon\r\n\r\n":                                           BadHeader,
	": empty\r\n\r\n":                                            BadHeader,
	"Transfer-Encoding: chunked\r\n\r\n5 \r\n":                   BadChunk,
	"Transfer-Encoding: chunked\r\n\r\n-5\r\n":                   BadChunk,
	"Transfer-Encoding: chunked\r\n\r\n\r\n":                     BadChunk,
	"Transfer-Encoding: chunked\r\n\r\n0x5\r\n":                  BadChunk,
	"Transfer-Encoding: chunked\r\n\r\nFFFFFFFFFFFFFFFF\r\n":     BadChunk,
	"Transfer-Encoding: chunked\r\n\r\n1\r\nab\r\n":              BadChunk,
	"Transfer-Encoding: chunked\r\n\r\n1\r\na\n":                 BadChunk,
	"Transfer-Encoding: chunked\r\n\r\n1;x\ny\r\n":               BareLF,
	"Transfer-Encoding: chunked\r\n\r\n0\r\nA : b\r\n\r\n":       BadHeader,
	"Transfer-Encoding: chunked\r\n\r\n0\r\nA: b\n\r\n":          BareLF,
	"GET / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n":       BadCoding,
	"\r\n\r\nGET / HTTP/1.1\r\n\r\n":                             BadRequestLine,
	"\rGET / HTTP/1.1\r\n\r\n":                                   BareCR,
	"\nGET / HTTP/1.1\r\n\r\n":                                   BareLF,
	"GET /\r\n\r\n":                                              BadRequestLine,
	"GET / HTTP/2.0\r\n\r\n":                                     BadRequestLine,
	"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n":                           BadRequestLine,
	"GET / HTTP/1.1\n\r\n":                                       BareLF,
	"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n":           BadRequestLine,
}

func whole(text string) string {
	if strings.HasPrefix(text, "GET") || strings.HasPrefix(text, "PRI") || text[0] < ' ' {
		return text
	}
	return "POST / HTTP/1.1\r\n" + text
}

// Shows that each malformed shape is refused, after a good request as before any, before the line at fault is complete,
// however the bytes arrive.
func TestMalformed(t *testing.T) {
	for text, want := range malformed {
		for _, before := range []string{"", get, post} {
			for way, pieces := range ways {
				text := before + whole(text)
				through, bad := read(t, text, pieces)
				if bad != want || !strings.HasPrefix(text, through) || len(through) >= len(text) || len(through) < len(before) {
					t.Errorf("%q, %s: %q, want %q; %d bytes came through", text, way, bad, want, len(through))
				}
			}
		}
	}
	long := "GET / HTTP/1.1\r\nX: " + strings.Repeat("a", maxLineBytes) + "\r\n\r\n"
	if _, bad := read(t, long, ways["halves"]); bad != LongLine {
		t.Errorf("a line without end: %q", bad)
	}
}

// Shows that after Release everything comes through.
func TestRelease(t *testing.T) {
	c := New(stream{Reader: strings.NewReader("\n\n\x00\xff")}, nil)
	c.Release()
	if b, err := io.ReadAll(c); string(b) != "\n\n\x00\xff" || err != nil {
		t.Errorf("%q, %v", b, err)
	}
}

// Shows that after Stop nothing comes through.
func TestStop(t *testing.T) {
	c := New(stream{Reader: strings.NewReader(get)}, nil)
	if n, err := c.Read(make([]byte, 4)); n != 4 || err != nil || c.Stopped() {
		t.Errorf("%d, %v", n, err)
	}
	c.Stop()
	if n, err := c.Read(make([]byte, 4)); n != 0 || !errors.Is(err, ErrStopped) || !c.Stopped() {
		t.Errorf("%d, %v", n, err)
	}
}

// Shows by net/http as the second reader that whatever comes through as whole requests it reads as the same requests,
// with no byte between them, and that how the bytes arrive makes no difference.
func FuzzConn(f *testing.F) {
	f.Add([]byte(get + post + get))
	for text := range malformed {
		f.Add([]byte(whole(text) + get))
	}
	f.Add([]byte("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n0\r\nX: y\r\n\r\n" + get))
	f.Fuzz(func(t *testing.T, text []byte) {
		through, bad := read(t, string(text), ways["whole"])
		again, badAgain := read(t, string(text), ways["bytes"])
		if bad != badAgain || bad != LongLine && through != again {
			t.Fatalf("whole: %q, %q; byte for byte: %q, %q", bad, through, badAgain, again)
		}
		p, ends := parser{}, []int{}
		for i := range text { // where requests end by this package
			if _, bad := p.feed(text[i : i+1]); bad != "" {
				break
			}
			if p.state == inRequestLine && len(p.line) == 0 {
				ends = append(ends, i+1)
			}
		}
		begin := 0
		for _, end := range ends {
			r := bufio.NewReader(bytes.NewReader(text[begin:]))
			req, err := http.ReadRequest(r)
			if err != nil {
				return // stricter here: it answers 400 and reads no further
			}
			if _, err := io.Copy(io.Discard, req.Body); err != nil {
				return
			}
			rest, err := io.ReadAll(r)
			if err != nil || len(text)-len(rest) != end {
				t.Fatalf("the request at %d of %q ends at %d, and at %d for net/http: %v", begin, text, end,
					len(text)-len(rest), err)
			}
			begin = end
		}
	})
}
