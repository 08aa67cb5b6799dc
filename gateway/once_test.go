package gateway

import (
	"bufio"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"
)

// breaker is an upstream that answers what asks for /warm, and breaks all other connections once it has read a whole
// request.
type breaker struct {
	net.Listener
	work  sync.WaitGroup
	warm  sync.WaitGroup // of connections that are open at once
	mu    sync.Mutex     // guards heads
	heads []string       // of the requests that were broken off
}

func mustBreaker(t *testing.T, warm int) *breaker {
	t.Helper()
	var lc net.ListenConfig
	l, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	b := &breaker{Listener: l}
	b.warm.Add(warm)
	b.work.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			b.work.Go(func() { b.serve(c) })
		}
	})
	return b
}

func (b *breaker) serve(c net.Conn) {
	defer c.Close()
	r := bufio.NewReader(c)
	for {
		var head strings.Builder
		for {
			line, err := r.ReadString('\n')
			if err != nil {
				return
			}
			if line == "\r\n" {
				break
			}
			head.WriteString(line)
		}
		if !strings.Contains(head.String(), " /warm ") {
			b.mu.Lock()
			b.heads = append(b.heads, head.String())
			b.mu.Unlock()
			return
		}
		b.warm.Done()
		b.warm.Wait()
		fmt.Fprint(c, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
	}
}

// Shows that a request without a body, which http.Transport would send again, reaches an upstream that breaks its
// connections once for each admission, whatever the method and the headers that ask for it, and is framed as before.
func TestSentOnce(t *testing.T) {
	const connections = 5
	for _, tt := range []struct {
		method, key, framed string
	}{
		{http.MethodGet, "", ""},
		{http.MethodHead, "", ""},
		{http.MethodOptions, "", ""},
		{http.MethodGet, "Idempotency-Key", ""},
		{http.MethodPost, "Idempotency-Key", "content-length: 0"},
		{http.MethodPut, "X-Idempotency-Key", "content-length: 0"},
		{http.MethodDelete, "Idempotency-Key", ""},
	} {
		t.Run(tt.method+" "+tt.key, func(t *testing.T) {
			b := mustBreaker(t, connections)
			defer b.work.Wait()
			defer b.Close()
			r := mustRig(t, fmt.Sprintf("callers: {address: [{client_ip: {}}]}\nfallback: {charges: [{class: convert}]}\n"+
				"routes: [{match: /warm, unlimited: true}]\nupstreams: {api: {url: \"http://%s\"}}\n", b.Addr()), nil)
			var warm sync.WaitGroup
			for range connections {
				warm.Go(func() { r.do(t, http.MethodGet, "/warm").mustBe(t, "warm", http.StatusOK, "") })
			}
			warm.Wait()
			headers := []string{"Expect", "100-continue"}
			if tt.key != "" {
				headers = append(headers, tt.key, "k")
			}
			begun := time.Now()
			if a := r.do(t, tt.method, "/boom", headers...); a.status != http.StatusBadGateway {
				t.Errorf("%d %s", a.status, a.body)
			}
			if took := time.Since(begun); took > patience/2 {
				t.Errorf("it took %s", took)
			}
			if err := r.stop(); err != nil {
				t.Error(err)
			}
			b.mu.Lock()
			defer b.mu.Unlock()
			if len(b.heads) != 1 {
				t.Fatalf("%d requests came for one admission", len(b.heads))
			}
			head := strings.ToLower(b.heads[0])
			if strings.Contains(head, "transfer-encoding") || strings.Contains(head, "content-length") != (tt.framed != "") ||
				!strings.Contains(head, tt.framed) || tt.key != "" && !strings.Contains(head, strings.ToLower(tt.key)+": k\r\n") {
				t.Errorf("%q", head)
			}
		})
	}
}
