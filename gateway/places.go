package gateway

import (
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/quorate/quorate/internal/httpanswer"
	"github.com/quorate/quorate/sdk/caller"
)

// refusedUpgrades is the reason for which an upgrade is refused that there is no place for.
const refusedUpgrades = "too_many_upgrades"

// places are what lasts, so that nobody may have all of it: connections, and those that have changed their protocol.
type places struct {
	connections, upgrades shares
}

func newPlaces(b *BoundsConfig, m *metrics) *places {
	return &places{
		connections: shares{most: b.MaxConnections, each: b.MaxConnectionsPerAddress},
		upgrades:    shares{most: b.MaxUpgrades, each: b.MaxUpgradesPerCaller, gauge: m.upgraded},
	}
}

// shares are places that nobody may have more of than his share.
type shares struct {
	most, each int
	gauge      prometheus.Gauge // nil for none

	mu    sync.Mutex // guards the fields below
	taken int
	by    map[string]int
}

// take takes a place for somebody. free is called once, and not when there was none.
func (s *shares) take(who string) (free func(), ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.taken >= s.most || s.by[who] >= s.each {
		return nil, false
	}
	if s.by == nil {
		s.by = map[string]int{}
	}
	s.taken++
	s.by[who]++
	s.show()
	return func() { s.free(who) }, true
}

func (s *shares) free(who string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.taken--
	if s.by[who]--; s.by[who] == 0 {
		delete(s.by, who)
	}
	s.show()
}

func (s *shares) show() {
	if s.gauge != nil {
		s.gauge.Set(float64(s.taken))
	}
}

// count is how many are taken.
func (s *shares) count() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return int64(s.taken)
}

// whole tells a connection's other end as caller.ClientIP does, with all of its bits.
var whole = caller.ClientIP(caller.Proxies{IPv6Bits: 128})

// peer is a connection's other end. One that cannot be read is no address.
func peer(remote string) netip.Addr {
	principal, err := whole.Principal(&caller.Request{RemoteAddr: remote})
	if err != nil {
		return netip.Addr{}
	}
	addr, _ := netip.ParseAddr(strings.TrimPrefix(principal, caller.PrefixIP)) // no address if it cannot be read
	return addr
}

// neighbourhood is what shares one share with an address: itself or, as who has one address of an IPv6 network has all
// of them, its network.
func neighbourhood(a netip.Addr) string {
	if a.Is6() {
		if net, err := a.Prefix(64); err == nil {
			return net.String()
		}
	}
	return a.String()
}

// sharing is a listener of which no address has more than its share of connections.
type sharing struct {
	net.Listener
	gateway *Gateway
}

// share has no address have more than its share of l's connections.
func (g *Gateway) share(l net.Listener) net.Listener { return &sharing{l, g} }

// Accept is the next connection. It closes those that are too many.
func (l *sharing) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		addr := peer(c.RemoteAddr().String())
		proxies := l.gateway.current.Load().callers.proxies
		if slices.ContainsFunc(proxies, func(p netip.Prefix) bool { return p.Contains(addr) }) {
			return c, nil
		}
		free, ok := l.gateway.places.connections.take(neighbourhood(addr))
		if ok {
			return &placed{Conn: c, free: sync.OnceFunc(free)}, nil
		}
		l.gateway.metrics.crowded.Inc()
		l.gateway.sometimes.warn("connections are closed: an address has bounds.max_connections_per_address")
		if half, ok := c.(*net.TCPConn); ok {
			_ = half.SetLinger(0) // what is left of it is to be the caller's; fails when he has gone
		}
		_ = c.Close() // it never was one
	}
}

// placed is a connection with a place.
type placed struct {
	net.Conn
	free func()
}

// CloseWrite tells the other end that nothing more comes.
func (c *placed) CloseWrite() error {
	half, ok := c.Conn.(*net.TCPConn)
	if !ok {
		return net.ErrClosed
	}
	return half.CloseWrite()
}

// Close closes the connection, and frees its place.
func (c *placed) Close() error {
	defer c.free()
	return c.Conn.Close()
}

// upgrade takes a place for a request whose route is found, when it is for another protocol; else there is nothing to
// free. It answers when there is no place.
func (g *Gateway) upgrade(gen *generation, a *answer, r *http.Request, on *passage) (free func(), ok bool) {
	nothing := func() {}
	switch {
	case upgradeOf(r.Header) == "":
		return nothing, true
	case !on.route.upgrades: // a server may go on as if it had not been asked
		r.Header.Del("Upgrade")
		return nothing, true
	}
	if free, ok = g.places.upgrades.take(gen.lasting(r, on.route)); ok {
		return free, true
	}
	httpanswer.SetRetryAfter(a.Header(), busyWait)
	g.refuse(a, http.StatusServiceUnavailable, refusedUpgrades, "too many connections have changed their protocol")
	return nothing, false
}

// lasting is who has a connection that changes its protocol: who pays last, or the address, where nobody pays or it
// cannot be told who does; then the request is refused anyway.
func (gen *generation) lasting(r *http.Request, to *route) string {
	view := caller.FromHTTP(r.WithContext(withPassage(r.Context(), &passage{})))
	key := gen.callers.address
	if n := len(to.rule.Charges); n > 0 {
		key = to.rule.Charges[n-1].Key
	}
	who, err := key.Principal(view)
	if err != nil {
		who, _ = gen.callers.address.Principal(view) // nobody in particular, if that cannot be told either
	}
	if text, ok := strings.CutPrefix(who, caller.PrefixIP); ok {
		if addr, err := netip.ParseAddr(text); err == nil {
			who = caller.PrefixIP + neighbourhood(addr)
		}
	}
	return who
}
