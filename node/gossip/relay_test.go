package gossip

import (
	"io"
	"net"
	"sync"
	"testing"
)

// relay passes packets and streams on to a node, whose advertised address it is, until it is cut: a network
// between nodes.
type relay struct {
	udp *net.UDPConn
	tcp *net.TCPListener
	wg  sync.WaitGroup

	mu    sync.Mutex // guards the fields below
	to    string     // empty while it is cut
	conns map[net.Conn]bool
}

func mustRelay(t *testing.T) *relay {
	t.Helper()
	udp, tcp, err := sockets(mustAddr(t, "127.0.0.1:0"))
	if err != nil {
		t.Fatal(err)
	}
	r := &relay{udp: udp, tcp: tcp, conns: make(map[net.Conn]bool)}
	r.wg.Go(r.packets)
	r.wg.Go(r.streams)
	t.Cleanup(func() {
		r.lead("")
		_ = r.udp.Close()
		_ = r.tcp.Close()
		r.wg.Wait()
	})
	return r
}

func (r *relay) addr() string { return r.tcp.Addr().String() }

// lead passes on to an address from now on, or nowhere. Streams that are open end.
func (r *relay) lead(to string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.to = to
	for c := range r.conns {
		_ = c.Close()
	}
	clear(r.conns)
}

func (r *relay) target() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.to
}

func (r *relay) packets() {
	buffer := make([]byte, maxPacketBytes)
	for {
		n, _, err := r.udp.ReadFromUDP(buffer)
		if err != nil {
			return
		}
		if to, err := net.ResolveUDPAddr("udp", r.target()); err == nil && to != nil && to.Port > 0 {
			_, _ = r.udp.WriteToUDP(buffer[:n], to)
		}
	}
}

func (r *relay) streams() {
	for {
		in, err := r.tcp.Accept()
		if err != nil {
			return
		}
		out, err := net.Dial("tcp", r.target())
		if err != nil {
			_ = in.Close()
			continue
		}
		r.mu.Lock()
		cut := r.to == ""
		r.conns[in], r.conns[out] = true, true
		r.mu.Unlock()
		if cut {
			r.end(in, out)
			continue
		}
		r.wg.Go(func() {
			defer r.end(in, out)
			var both sync.WaitGroup
			both.Go(func() {
				_, _ = io.Copy(out, in)
				_ = out.(*net.TCPConn).CloseWrite()
			})
			_, _ = io.Copy(in, out)
			_ = in.Close()
			both.Wait()
		})
	}
}

func (r *relay) end(conns ...net.Conn) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range conns {
		_ = c.Close()
		delete(r.conns, c)
	}
}
