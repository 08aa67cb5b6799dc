package wire

import (
	"errors"
	"io"
	"net"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// script is a connection that reads one piece after the other, and fails in the end.
type script struct {
	net.Conn
	pieces []string
	end    error
}

func (s *script) Read(b []byte) (int, error) {
	if len(s.pieces) == 0 {
		return 0, s.end
	}
	n := copy(b, s.pieces[0])
	if s.pieces[0] = s.pieces[0][n:]; s.pieces[0] == "" {
		s.pieces = s.pieces[1:]
	}
	return n, nil
}

// mustRead reads exactly want, as a server reads a request.
func mustRead(t *testing.T, c *Conn, want string) {
	t.Helper()
	got := make([]byte, len(want))
	for read := 0; read < len(got); {
		n, err := c.Read(got[read:])
		if read += n; err != nil {
			t.Fatalf("%q %v", got[:read], err)
		}
	}
	if string(got) != want {
		t.Fatalf("%q, want %q", got, want)
	}
}

// Shows that while a request is served nothing that follows it comes through, fails or is counted, however it arrives;
// and that it is read, without one empty line, or refused, when the request is answered.
func TestWhatFollowsWaits(t *testing.T) {
	for follows, want := range map[string]struct {
		through string
		bad     Shape
	}{
		"":                               {},
		"\r\n":                           {},
		"\r":                             {through: "\r"},
		"x":                              {through: "x"},
		get:                              {through: get},
		"\r\n" + post + get:              {through: post + get},
		"\r\n\r\n":                       {"\r", BadRequestLine},
		"\n":                             {"", BareLF},
		"\rx":                            {"\r", BareCR},
		"x\n" + get:                      {"x", BareLF},
		"GET / HTTP/1.1\r\n folded\r\n":  {"GET / HTTP/1.1\r\n folded\r", Folded},
		"\r\nGET / HTTP/9\r\n" + get:     {"GET / HTTP/9\r", BadRequestLine},
		strings.Repeat("x", 9000) + "\n": {strings.Repeat("x", 9000), BareLF},
	} {
		for _, front := range []string{get, post, "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"} {
			for _, pieces := range [][]string{{front + follows}, {front, follows}, append([]string{front}, strings.Split(follows, "")...)} {
				told := []Shape{}
				s := &script{end: io.EOF}
				for _, piece := range pieces {
					if piece != "" {
						s.pieces = append(s.pieces, piece)
					}
				}
				c := New(s, func(bad Shape) { told = append(told, bad) })
				b := make([]byte, 4<<10)
				if n, err := c.Read(b); err != nil || string(b[:n]) != front {
					t.Fatalf("%q: %q %v", follows, b[:n], err)
				}
				c.Serving(true)
				for range 2 { // net/http does it once
					if n, err := c.Read(b[:1]); n != 0 || err != nil {
						t.Errorf("%q: %d %v while the request is served", follows, n, err)
					}
				}
				if len(told) > 0 || c.Fault() != nil {
					t.Errorf("%q: %v %v while the request is served", follows, told, c.Fault())
				}
				c.Serving(false)
				through, err := io.ReadAll(c)
				var e *Error
				if bad := errors.As(err, &e); bad != (want.bad != "") || bad && e.Shape != want.bad || !bad && err != nil ||
					string(through) != want.through {
					t.Errorf("%q: then %q %v, want %+v", follows, through, err, want)
				}
			}
		}
	}
}

// Shows that a connection which breaks while a request is served is told at once, and so is one that breaks after an
// empty line.
func TestBreaksWhileServing(t *testing.T) {
	for _, pieces := range [][]string{{get}, {get + "\r\n"}, {get, "\r", "\n"}} {
		c := New(&script{pieces: pieces, end: syscall.ECONNRESET}, nil)
		mustRead(t, c, get)
		c.Serving(true)
		if n, err := c.Read(make([]byte, 1)); n != 0 || !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("%q: %d %v", pieces, n, err)
		}
		if c.Fault() != nil {
			t.Error(c.Fault())
		}
	}
}

// secured is a connection over another.
type secured struct {
	script
	under net.Conn
}

func (s *secured) NetConn() net.Conn { return s.under }

// Shows that a caller who says over TLS that he ends has gone when the connection beneath ends, and not before.
func TestGoneBeneathTLS(t *testing.T) {
	here, there := net.Pipe()
	c := New(&secured{script{pieces: []string{get}, end: io.EOF}, here}, nil)
	mustRead(t, c, get)
	c.Serving(true)
	failed := make(chan error)
	go func() {
		_, err := c.Read(make([]byte, 1))
		failed <- err
	}()
	select {
	case err := <-failed:
		t.Errorf("it does not wait: %v", err)
	default:
	}
	_ = there.Close()
	if err := <-failed; !errors.Is(err, io.EOF) {
		t.Error(err)
	}
}

// Shows that what is wrong within a request that is served is known as the caller's fault when the read fails, and that
// a connection that breaks is none.
func TestFault(t *testing.T) {
	const chunked = "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"
	for _, tt := range []struct {
		head, rest string
		end        error
		want       error
	}{
		{"POST / HTTP/1.1\r\nContent-Length: 3\r\n\r\n", "ab", io.EOF, io.ErrUnexpectedEOF},
		{"POST / HTTP/1.1\r\nContent-Length: 3\r\n\r\n", "ab", syscall.ECONNRESET, nil},
		{chunked, "2\r\na", io.EOF, io.ErrUnexpectedEOF},
		{chunked, "0\r\n", io.EOF, io.ErrUnexpectedEOF},
		{chunked, "z\r\n", io.EOF, &Error{BadChunk}},
		{chunked, "0\r\n\r\n", io.EOF, nil},
	} {
		c := New(&script{pieces: []string{tt.head, tt.rest}, end: tt.end}, nil)
		mustRead(t, c, tt.head)
		c.Serving(true)
		b := make([]byte, 64)
		for range len(tt.rest) + 1 {
			if _, err := c.Read(b); err != nil {
				break
			}
		}
		if diff := cmp.Diff(tt.want, c.Fault(), cmp.Comparer(func(a, b error) bool {
			return a == nil && b == nil || a != nil && b != nil && a.Error() == b.Error()
		})); diff != "" {
			t.Errorf("%q: %s", tt.rest, diff)
		}
	}
}

// Shows that what came behind a request that asks for another protocol is the first that is read of that.
func TestReleaseOfWhatIsHeld(t *testing.T) {
	c := New(&script{pieces: []string{get + "\n\x00", "\xff"}, end: io.EOF}, nil)
	mustRead(t, c, get)
	c.Serving(true)
	if n, err := c.Read(make([]byte, 1)); n != 0 || err != nil {
		t.Error(n, err)
	}
	c.Release()
	if b, err := io.ReadAll(c); string(b) != "\n\x00\xff" || err != nil {
		t.Errorf("%q %v", b, err)
	}
}
