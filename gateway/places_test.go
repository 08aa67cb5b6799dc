package gateway

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	"pgregory.net/rapid"
)

const upgradeRoutes = `
callers:
  account: [{api_key: {file: keys.yaml}}]
bounds: {max_requests: 2, max_upgrades: 3, max_upgrades_per_caller: 2}
routes:
  - {match: /plain/, unlimited: true}
  - {match: /open/, unlimited: true, allow_upgrades: true}
  - {match: /never/, charges: [{class: default}], allow_upgrades: false}
  - {match: /, charges: [{class: convert}]}
`

// upgrade asks for another protocol, and gives the answer's status and the begin of its body.
func (l *line) upgrade(t *testing.T, path, key string) (status int, body string) {
	t.Helper()
	l.mustWrite(t, "GET "+path+" HTTP/1.1\r\nHost: a\r\nX-Api-Key: "+key+
		"\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: x\r\n\r\n")
	resp := l.answer(t)
	if resp == nil {
		t.Fatalf("%s: no answer", path)
	}
	if resp.StatusCode == http.StatusSwitchingProtocols {
		return resp.StatusCode, ""
	}
	b := make([]byte, 1024)
	n, _ := resp.Body.Read(b) // as much as there is
	return resp.StatusCode, string(b[:n])
}

// Shows that upgrades have a bound of their own and, in it, a share for each caller, be it a principal or, where nobody
// pays, an address; that what is beyond is 503, reaches no upstream and is charged nothing; that what lasts takes no
// place from other requests; and that a place is free when its connection has ended.
func TestUpgradesAreBounded(t *testing.T) {
	r := mustRig(t, upgradeRoutes, echo)
	beyond := func(what, path, key string) {
		t.Helper()
		reached := r.reached.Load()
		status, body := r.dial(t).upgrade(t, path, key)
		if status != http.StatusServiceUnavailable || !strings.Contains(body, `"reason":"too_many_upgrades"`) {
			t.Errorf("%s: %d %s", what, status, body)
		}
		if r.reached.Load() != reached {
			t.Errorf("%s: the upstream was reached", what)
		}
	}
	var mine, strangers []*line
	for range 2 {
		mine = append(mine, r.dial(t))
		if status, body := mine[len(mine)-1].upgrade(t, "/ws", keyAcme); status != http.StatusSwitchingProtocols {
			t.Fatalf("%d %s", status, body)
		}
	}
	beyond("the caller's share", "/ws", keyAcme)
	beyond("the caller's share by another key of the account", "/ws", keyOther)
	if used := r.cluster.Used("account:acme", "convert", time.Minute); used != 2 {
		t.Errorf("%d were charged, and 2 let through", used)
	}
	strangers = append(strangers, r.dial(t))
	if status, body := strangers[0].upgrade(t, "/open/x", ""); status != http.StatusSwitchingProtocols {
		t.Fatalf("%d %s", status, body)
	}
	beyond("all places", "/open/x", "")
	beyond("all places, another caller", "/ws", keyPro)
	if got := r.metric(t, "quorate_gateway_upgrades"); got != "3" {
		t.Errorf("%q upgrades", got)
	}
	if got := r.metric(t, `quorate_gateway_refused_total{reason="too_many_upgrades"}`); got != "4" {
		t.Errorf("%q refused", got)
	}
	r.do(t, http.MethodGet, "/plain/x").mustBe(t, "a plain request beside more upgrades than max_requests", http.StatusOK, "")
	_ = mine[0].Close()
	until(t, "a place is free", func() bool { return r.metric(t, "quorate_gateway_upgrades") == "2" })
	if status, body := r.dial(t).upgrade(t, "/open/x", ""); status != http.StatusSwitchingProtocols {
		t.Errorf("the second of the address: %d %s", status, body)
	}
	_ = mine[1].Close()
	until(t, "a place is free", func() bool { return r.metric(t, "quorate_gateway_upgrades") == "2" })
	beyond("the address's share", "/open/x", "")
	strangers[0].mustEcho(t, "still there\n")
}

// Shows that a connection does not change its protocol on a route that is unlimited, or says no: the upstream is asked
// as if nobody had wanted to.
func TestUpgradesByRoute(t *testing.T) {
	seen := make(chan string, 1)
	r := mustRig(t, upgradeRoutes, func(_ http.ResponseWriter, q *http.Request) {
		seen <- q.Header.Get("Upgrade") + q.Header.Get("Connection")
	})
	for _, path := range []string{"/plain/x", "/never/x"} {
		status, _ := r.dial(t).upgrade(t, path, keyAcme)
		if got := <-seen; status != http.StatusOK || got != "" {
			t.Errorf("%s: %d, the upstream got %q", path, status, got)
		}
	}
	if got := r.metric(t, "quorate_gateway_upgrades"); got != "0" {
		t.Errorf("%q upgrades", got)
	}
}

// from dials from an address of this machine's own; nil when the connection was closed again at once.
func (r *rig) from(t *testing.T, address string) *line {
	t.Helper()
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(address)}}
	c, err := d.DialContext(t.Context(), "tcp", r.Addr().String())
	switch {
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		t.Skipf("this machine has not all of 127.0.0.0/8: %v", err)
	case errors.Is(err, syscall.ECONNRESET):
		return nil
	case err != nil:
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	return &line{c, bufio.NewReader(c)}
}

// serves reports whether a request on a connection of its own is answered.
func (l *line) serves(t *testing.T) bool {
	t.Helper()
	if l == nil {
		return false
	}
	if _, err := fmt.Fprint(l, "GET /free/ HTTP/1.1\r\nHost: a\r\n\r\n"); err != nil {
		return false
	}
	resp := l.answer(t)
	if resp == nil || resp.StatusCode != http.StatusOK {
		return false
	}
	body, err := io.ReadAll(resp.Body)
	return err == nil && string(body) == "served"
}

// Shows that one address has no more than its share of connections, that others have theirs beside, that proxies, which
// share one, have no such bound, by the configuration as it is now, and that a place is free when its connection has
// ended.
func TestConnectionsOfOneAddress(t *testing.T) {
	const bound = "bounds: {max_connections: 100, max_connections_per_address: 2}\nproxies: {trusted_hops: 1, from: [127.0.0.3/32]}\n"
	r := mustRig(t, bound+accountRoutes, nil)
	var held []*line
	for i := range 2 {
		held = append(held, r.from(t, "127.0.0.2"))
		if !held[i].serves(t) {
			t.Fatalf("connection %d is not served", i)
		}
	}
	if r.from(t, "127.0.0.2").serves(t) {
		t.Error("one more than the share is served")
	}
	if got := r.metric(t, "quorate_gateway_connections_refused_total"); got != "1" {
		t.Errorf("%q refused", got)
	}
	for i := range 4 {
		if !r.from(t, "127.0.0.3").serves(t) {
			t.Errorf("connection %d of a proxy is not served", i)
		}
	}
	if !r.from(t, "127.0.0.4").serves(t) || !held[1].serves(t) {
		t.Error("another address is not served, or what was there before")
	}
	_ = held[0].Close()
	until(t, "a place is free", func() bool { return r.places.connections.count() == 2 })
	if !r.from(t, "127.0.0.2").serves(t) {
		t.Error("the place that has become free is not to be had")
	}
	r.put(t, "gateway.yaml", r.whole(strings.ReplaceAll(bound, "127.0.0.3/32", "127.0.0.2/32")+accountRoutes))
	r.hangups <- nil
	r.reloads(t, reloadApplied, 1)
	if !r.from(t, "127.0.0.2").serves(t) {
		t.Error("what is a proxy now is not served")
	}
}

// Shows who shares a share: an IPv4 address alone, however it is written, and an IPv6 network of 64 bits.
func TestNeighbourhood(t *testing.T) {
	for remote, want := range map[string]string{
		"203.0.113.7:1": "203.0.113.7", "[::ffff:203.0.113.7]:1": "203.0.113.7", "[64:ff9b::203.0.113.7]:2": "203.0.113.7",
		"[2001:db8:1:2:3:4:5:6]:1": "2001:db8:1:2::/64", "[2001:db8:1:2::]:9": "2001:db8:1:2::/64",
		"[2001:db8:1:3::]:9": "2001:db8:1:3::/64", "[fe80::1%lo]:1": "fe80::/64", "[::1]:1": "::/64", "pipe": "invalid IP",
	} {
		if got := neighbourhood(peer(remote)); got != want {
			t.Errorf("%s: %s, want %s", remote, got, want)
		}
	}
	if !netip.MustParsePrefix("203.0.113.0/24").Contains(peer("[::ffff:203.0.113.7]:1")) {
		t.Error("an address that is written as IPv6 is in no network of IPv4")
	}
}

// Shows with any sequence that never more places are taken than there are, in all and for each, that a place is refused
// only then, and that nothing is kept of those who have none.
func TestShares(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := shares{most: rapid.IntRange(1, 6).Draw(t, "most"), each: rapid.IntRange(1, 4).Draw(t, "each")}
		held := map[string][]func(){}
		total := 0
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			who := rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "who")
			if n := len(held[who]); n > 0 && rapid.Bool().Draw(t, "free") {
				held[who][n-1]()
				held[who] = held[who][:n-1]
				total--
				continue
			}
			free, ok := s.take(who)
			if want := total < s.most && len(held[who]) < s.each; ok != want {
				t.Fatalf("%s with %d of %d: %t", who, len(held[who]), total, ok)
			}
			if ok {
				held[who] = append(held[who], free)
				total++
			}
		}
		having := 0
		for _, list := range held {
			if len(list) > 0 {
				having++
			}
		}
		if int(s.count()) != total || len(s.by) != having {
			t.Fatalf("%d taken by %v, want %d", s.count(), s.by, total)
		}
	})
}
