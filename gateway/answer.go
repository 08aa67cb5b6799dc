package gateway

import (
	"bufio"
	"net"
	"net/http"
	"slices"
)

// answer is the answer to a request on its way.
type answer struct {
	http.ResponseWriter
	conn   *conn  // nil for HTTP/2
	watch  *watch // nil before it is known where the request goes
	status int    // 0 until it is known
	closes bool   // the connection ends after it
	old    bool   // the caller knows no 1xx answers

	kept    http.Header // the gateway's own headers, when the upstream is asked
	cleared bool        // they were taken away, by a 1xx answer
}

// Unwrap is for http.ResponseController.
func (a *answer) Unwrap() http.ResponseWriter { return a.ResponseWriter }

// WriteHeader notes the final status.
func (a *answer) WriteHeader(status int) {
	if status < http.StatusOK && status != http.StatusSwitchingProtocols {
		a.interim(status)
		return
	}
	if a.status == 0 {
		a.status = status
		a.restore()
		if a.closes {
			a.Header().Set("Connection", "close") // GOAWAY in HTTP/2
		}
	}
	a.ResponseWriter.WriteHeader(status)
}

// keep notes the headers that are set before the upstream is asked.
func (a *answer) keep() { a.kept = a.Header().Clone() }

// interim writes a 1xx answer of the upstream, without the gateway's own headers. httputil.ReverseProxy then clears
// them all; restore brings the gateway's own back.
func (a *answer) interim(status int) {
	h := a.Header()
	if !a.cleared {
		for name, own := range a.kept {
			if h[name] = h[name][len(own):]; len(h[name]) == 0 {
				delete(h, name)
			}
		}
		a.cleared = true
	}
	if !a.old {
		a.ResponseWriter.WriteHeader(status)
	}
}

func (a *answer) restore() {
	if !a.cleared {
		return
	}
	h := a.Header()
	for name, own := range a.kept {
		h[name] = append(slices.Clone(own), h[name]...)
	}
	a.cleared = false
}

func (a *answer) Write(p []byte) (int, error) {
	if a.status == 0 {
		a.WriteHeader(http.StatusOK)
	}
	n, err := a.ResponseWriter.Write(p)
	if n > 0 && a.watch != nil {
		a.watch.touch()
	}
	return n, err
}

// Hijack hands the connection over to another protocol.
func (a *answer) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	c, rw, err := http.NewResponseController(a.ResponseWriter).Hijack()
	if err != nil {
		return nil, nil, err
	}
	a.status = http.StatusSwitchingProtocols
	a.restore()
	if a.conn != nil {
		a.conn.Release()
	}
	return &touching{Conn: c, watch: a.watch}, rw, nil
}

// touching is a connection whose protocol was changed.
type touching struct {
	net.Conn
	watch *watch
}

// Read reads.
func (t *touching) Read(p []byte) (int, error) {
	n, err := t.Conn.Read(p)
	if n > 0 {
		t.watch.touch()
	}
	return n, err
}

func (t *touching) Write(p []byte) (int, error) {
	n, err := t.Conn.Write(p)
	if n > 0 {
		t.watch.touch()
	}
	return n, err
}
