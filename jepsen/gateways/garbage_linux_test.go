package gateways

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"
)

const (
	// stray is a caller who is in no crowd: what he hides behind another request would be seen to come.
	stray = "X-Forwarded-For: 203.0.113.9\r\n"
	// strayHost begins the headers of a request of his.
	strayHost = "Host: api\r\n" + stray
	// hidden is what stands where a server that reads the end of the request before it elsewhere reads the next.
	hidden = "POST /convert HTTP/1.1\r\n" + strayHost + "Content-Length: 0\r\n\r\n"
	// garbageWithin is how long an answer may take.
	garbageWithin = 20 * time.Second
)

// garbage is one kind of request that must be refused.
type garbage struct {
	text   string
	status int
}

// garbages are those with two readings, and those that are too large.
func garbages() map[string]garbage {
	post := func(headers, rest string) garbage {
		return garbage{"POST /convert HTTP/1.1\r\n" + strayHost + headers + "\r\n" + rest, http.StatusBadRequest}
	}
	large := func(text string) garbage { return garbage{text, http.StatusRequestHeaderFieldsTooLarge} }
	return map[string]garbage{
		"length and coding":  post("Content-Length: 4\r\nTransfer-Encoding: chunked\r\n", "0\r\n\r\n"+hidden),
		"coding and length":  post("Transfer-Encoding: chunked\r\nContent-Length: 4\r\n", "5c\r\n"+hidden),
		"two lengths":        post("Content-Length: 0\r\nContent-Length: 44\r\n", hidden),
		"one length twice":   post("Content-Length: 0\r\nContent-Length: 0\r\n", hidden),
		"list of lengths":    post("Content-Length: 0, 0\r\n", hidden),
		"signed length":      post("Content-Length: +0\r\n", hidden),
		"another coding":     post("Transfer-Encoding: xchunked\r\n", hidden),
		"two codings":        post("Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n", "0\r\n\r\n"+hidden),
		"space before colon": post("Content-Length : 44\r\n", hidden),
		"folded":             post("X: y\r\n Content-Length: 44\r\n", hidden),
		"bare LF":            post("X: y\nContent-Length: 44\r\n", hidden),
		"bare CR":            post("X: y\rContent-Length: 44\r\n", hidden),
		"NUL":                post("X: \x00\r\n", hidden),
		"two hosts":          post("Host: other\r\n", hidden),
		"coding in 1.0": {
			"POST /convert HTTP/1.0\r\n" + strayHost + "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + hidden, http.StatusBadRequest,
		},
		"no HTTP":      {"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\r\n\r\n" + hidden, http.StatusBadRequest},
		"large header": large("POST /convert HTTP/1.1\r\n" + strayHost + "X: " + strings.Repeat("a", 64<<10) + "\r\n\r\n" + hidden),
		"many headers": large("POST /convert HTTP/1.1\r\n" + strayHost + strings.Repeat("X: y\r\n", 12<<10) + "\r\n" + hidden),
		"long target":  large("POST /" + strings.Repeat("a", 64<<10) + " HTTP/1.1\r\n" + strayHost + "\r\n" + hidden),
	}
}

// litter sends one kind after the other, on a connection each, until ctx ends. refused is how often each was, and reset
// how many connections of these were reset instead of ended.
func litter(ctx context.Context, addr string) (refused map[string]int, reset int, err error) {
	all := garbages()
	names := slices.Sorted(maps.Keys(all))
	refused = map[string]int{}
	var f faults
	for k := 0; ctx.Err() == nil; k++ {
		name := names[k%len(names)]
		abrupt, err := all[name].send(ctx, addr)
		switch {
		case err == nil:
			refused[name]++
		case ctx.Err() == nil:
			f.add("%s: %w", name, err)
		}
		if abrupt {
			reset++
		}
	}
	return refused, reset, f.err()
}

// send sends it, and looks whether it is refused, once, and its connection closed: reset, if not all of it was read.
func (g garbage) send(ctx context.Context, addr string) (reset bool, err error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", addr)
	if err != nil {
		return false, err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(garbageWithin)); err != nil {
		return false, err
	}
	_, wrote := io.WriteString(conn, g.text) // which fails when it is refused before its end
	in := bufio.NewReader(conn)
	res, err := http.ReadResponse(in, nil)
	if err != nil {
		return false, errors.Join(err, wrote)
	}
	_ = res.Body.Close() // what is in it, and what follows it, is read below
	if res.StatusCode != g.status {
		return false, fmt.Errorf("it is answered %d, want %d", res.StatusCode, g.status)
	}
	rest, err := io.ReadAll(in)
	var late net.Error
	switch {
	case bytes.Contains(rest, []byte("HTTP/1.")):
		return false, fmt.Errorf("it is answered, and then comes %.200q", rest)
	case errors.As(err, &late) && late.Timeout():
		return false, errors.New("its connection is not closed")
	}
	return err != nil, nil
}

// mustLitter has litter go on beside a load. end ends it and judges it.
func (w *world) mustLitter(addr string) (end func()) {
	ctx, stop := context.WithCancel(w.t.Context())
	var refused map[string]int
	var reset int
	var err error
	done := make(chan struct{})
	go func() {
		defer close(done)
		refused, reset, err = litter(ctx, addr)
	}()
	w.t.Cleanup(func() {
		stop()
		<-done
	})
	return func() {
		w.t.Helper()
		stop()
		<-done
		sum := 0
		for name := range garbages() {
			if sum += refused[name]; refused[name] == 0 {
				w.t.Errorf("%s was not refused once: too little to be worth anything", name)
			}
		}
		w.say("garbage of %d kinds was refused %d times; %d of its connections were reset", len(garbages()), sum, reset)
		if err != nil {
			w.t.Errorf("garbage: %v", err)
		}
	}
}
