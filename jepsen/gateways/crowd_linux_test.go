package gateways

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"sync"
	"testing"
	"time"
)

// proxyPause is the mean between two requests of a connection of TestProxyUnderLoad.
const proxyPause = 1500 * time.Millisecond

// proxied is one request through the proxy, as its caller sees it.
type proxied struct {
	Passed
	status int
}

// TestProxyUnderLoad shows that the reference gateway, with two thousand connections and leaders killed every few seconds,
// keeps every caller's cap, as its callers and its upstream see it; and that it leaves no goroutine, and no memory, behind.
func TestProxyUnderLoad(t *testing.T) {
	w, up, p := mustProxied(t)
	calm := p.mustMeasure(t)

	load, stop := context.WithCancel(w.t.Context())
	defer stop()
	var mu sync.Mutex
	var all []proxied
	var crowd sync.WaitGroup
	for k := range proxyConnections {
		crowd.Go(func() {
			mine := w.converse(load, p.listen, k)
			mu.Lock()
			defer mu.Unlock()
			all = append(all, mine...)
		})
	}
	w.run(10 * time.Second) // until the crowd is complete, and buffers have their size
	crowded := p.mustMeasure(t)
	w.mustKillLeaders(mustSeconds(t, "QUORATE_GATEWAYS_SECONDS", 30*time.Second))
	busy := p.mustMeasure(t)
	stop()
	crowd.Wait()
	w.say("calm: %v; with %d connections: %v; and later: %v", calm, proxyConnections, crowded, busy)
	mustBeFlat(t, crowded, busy)

	statuses := map[int]int{}
	var let []Passed
	for _, r := range all {
		statuses[r.status]++
		if r.status == http.StatusOK {
			let = append(let, r.Passed)
		}
	}
	w.mustKeepCaps("its callers", let)
	w.mustBeWorth(proxyCallers, up.mustKeepCaps(), statuses)
	p.mustLeaveNothing(w, calm)
}

// mustWarm has it connect to every node, and to the upstream.
func (w *world) mustWarm(p *proxy) {
	w.t.Helper()
	few, stop := context.WithTimeout(w.t.Context(), 5*time.Second)
	defer stop()
	var some sync.WaitGroup
	for k := range 50 {
		some.Go(func() { w.converse(few, p.listen, -k) })
	}
	some.Wait()
}

// converse is one connection's: a caller who asks again and again, and connects anew when the connection is closed.
func (w *world) converse(ctx context.Context, addr string, k int) (out []proxied) {
	rng := rand.New(rand.NewPCG(7, uint64(k)))
	var conn net.Conn
	var in *bufio.Reader
	hangUp := func() {
		if conn != nil {
			_ = conn.Close()
			conn = nil
		}
	}
	defer hangUp()
	for {
		select {
		case <-ctx.Done():
			return out
		case <-time.After(time.Duration(rng.ExpFloat64() * float64(proxyPause))):
		}
		if conn == nil {
			c, err := (&net.Dialer{}).DialContext(ctx, "tcp", addr)
			if err != nil {
				continue
			}
			conn, in = c, bufio.NewReaderSize(c, 2048)
		}
		r := proxied{Passed: Passed{Caller: rng.IntN(proxyCallers), Sent: w.now()}}
		_ = conn.SetDeadline(time.Now().Add(20 * time.Second)) // of a connection, it never fails
		_, err := fmt.Fprintf(conn, "POST /convert HTTP/1.1\r\nHost: api\r\nX-Forwarded-For: %s\r\n%s: %d %d\r\nContent-Length: 0\r\n\r\n",
			forwardedFor(r.Caller), asked, r.Caller, w.begun+int64(r.Sent))
		if err == nil {
			r.status, err = answer(in)
		}
		if err != nil {
			hangUp() // its fate is known to the upstream alone
			continue
		}
		r.Received = w.now()
		out = append(out, r)
	}
}

// answer reads an answer to its end.
func answer(in *bufio.Reader) (status int, err error) {
	res, err := http.ReadResponse(in, nil)
	if err != nil {
		return 0, err
	}
	_, err = io.Copy(io.Discard, res.Body)
	return res.StatusCode, errors.Join(err, res.Body.Close())
}
