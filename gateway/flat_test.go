package gateway

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
)

// crowd is so many connections, each with requests one after the other of all kinds: served, denied, refused, broken
// off, malformed.
func (r *rig) crowd(t *testing.T, connections, requests int) (allowed int64) {
	t.Helper()
	var served atomic.Int64
	var work sync.WaitGroup
	for i := range connections {
		work.Go(func() {
			transport := &http.Transport{MaxConnsPerHost: 1}
			defer transport.CloseIdleConnections()
			web := &http.Client{Transport: transport, Timeout: patience}
			for k := range requests {
				if err := r.oneOf(t, web, i, k, &served); err != nil {
					t.Errorf("connection %d, request %d: %v", i, k, err)
					return
				}
			}
			l := r.dial(t)
			_, _ = io.WriteString(l, "GET / HTTP/1.1\r\nbroken\n")
			_ = l.Close()
		})
	}
	work.Wait()
	return served.Load()
}

func (r *rig) oneOf(t *testing.T, web *http.Client, i, k int, served *atomic.Int64) error {
	path, key := "/", keyAcme
	switch k % 4 {
	case 1:
		path = "/convert"
	case 2:
		key = fmt.Sprint("guess-", i, "-", k)
	case 3:
		path = "/free/" + fmt.Sprint(i)
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+r.Addr().String()+path,
		strings.NewReader(strings.Repeat("x", 10<<10)))
	if err != nil {
		return err
	}
	req.Header.Set("X-Api-Key", key)
	resp, err := web.Do(req)
	if err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, resp.Body)
	if path == "/convert" && resp.StatusCode == http.StatusOK {
		served.Add(1)
	}
	return errors.Join(err, resp.Body.Close())
}

// Shows with 200 connections at once that a cap holds, and that goroutines and memory are afterwards what they were
// before, however often it is repeated.
func TestFlat(t *testing.T) {
	const connections, requests, limit = 200, 8, 3
	r := mustRig(t, strings.ReplaceAll(accountRoutes, "callers:", "bounds: {max_connections: 512, max_connections_per_address: 512}\ncallers:"),
		func(_ http.ResponseWriter, q *http.Request) { _, _ = io.Copy(io.Discard, q.Body) })
	allowed := r.crowd(t, connections, requests)
	settle := func() (goroutines int, heap uint64) {
		until(t, "nobody is connected", func() bool { return r.metric(t, "quorate_gateway_connections") == "0" })
		for _, u := range r.current.Load().upstreams {
			u.transport.CloseIdleConnections()
		}
		r.upstream.CloseClientConnections()
		r.web.CloseIdleConnections()
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return runtime.NumGoroutine(), m.HeapAlloc
	}
	goroutines, heap := settle()
	for range 3 {
		allowed += r.crowd(t, connections, requests)
	}
	until(t, "goroutines are as before", func() bool {
		now, _ := settle()
		return now <= goroutines+5
	})
	_, now := settle()
	t.Logf("%d goroutines, %d KiB after one crowd, %d KiB after four", goroutines, heap>>10, now>>10)
	if now > heap+heap/2+4<<20 {
		t.Errorf("the heap grew from %d to %d bytes", heap, now)
	}
	if allowed != limit {
		t.Errorf("%d were served, and the limit is %d", allowed, limit)
	}
}
