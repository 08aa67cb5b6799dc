package caller

import (
	"errors"
	"net/http"
	"net/netip"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func mustHTTP(t testing.TB, remote string, header http.Header) *Request {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://example.com/", nil)
	if err != nil {
		t.Fatal(err)
	}
	r.RemoteAddr = remote
	if header != nil {
		r.Header = header
	}
	return FromHTTP(r)
}

func forwarded(lines ...string) http.Header { return http.Header{"X-Forwarded-For": lines} }

// Shows whom each shape of address and of X-Forwarded-For stands for: from the right, over all lines, past whatever a
// client put in front; and that what cannot be told is an error and nobody's bucket.
func TestClientIP(t *testing.T) {
	const peer = "192.0.2.9:4711"
	for name, c := range map[string]struct {
		proxies Proxies
		remote  string
		lines   []string
		want    string // empty: malformed
	}{
		"no proxy":             {Proxies{}, peer, []string{"1.1.1.1"}, "ip:192.0.2.9"},
		"no proxy, IPv6":       {Proxies{}, "[2001:db8:1:2:3:4:5:6]:1", nil, "ip:2001:db8:1:2::/64"},
		"no proxy, zone":       {Proxies{}, "[fe80::1:2%eth0]:1", nil, "ip:fe80::/64"},
		"no proxy, mapped":     {Proxies{}, "[::ffff:192.0.2.9]:1", nil, "ip:192.0.2.9"},
		"no proxy, NAT64":      {Proxies{}, "[64:ff9b::c000:209]:1", nil, "ip:192.0.2.9"},
		"no proxy, 6to4":       {Proxies{}, "[2002:c000:209:1::1]:1", nil, "ip:192.0.2.9"},
		"no proxy, 6to4, net":  {Proxies{}, "[2002:c000:209:ffff::1]:1", nil, "ip:192.0.2.9"},
		"no proxy, 6to4, none": {Proxies{}, "[2002:0:0:1::1]:1", nil, ""},
		"no proxy, compatible": {Proxies{}, "[::192.0.2.9]:1", nil, ""},
		"no proxy, ::2":        {Proxies{}, "[::2]:1", nil, ""},
		"no proxy, loopback":   {Proxies{}, "[::1]:1", nil, "ip:::/64"},
		"no proxy, no port":    {Proxies{}, "192.0.2.9", nil, "ip:192.0.2.9"},
		"no proxy, unix":       {Proxies{}, "@", nil, ""},
		"no proxy, nothing":    {Proxies{}, "", nil, ""},
		"no proxy, unspecific": {Proxies{}, "0.0.0.0:1", nil, ""},

		"one hop":             {Proxies{TrustedHops: 1}, peer, []string{"203.0.113.7"}, "ip:203.0.113.7"},
		"one hop, invented":   {Proxies{TrustedHops: 1}, peer, []string{"6.6.6.6, 203.0.113.7"}, "ip:203.0.113.7"},
		"one hop, two lines":  {Proxies{TrustedHops: 1}, peer, []string{"6.6.6.6", "203.0.113.7"}, "ip:203.0.113.7"},
		"one hop, no spaces":  {Proxies{TrustedHops: 1}, peer, []string{"6.6.6.6,203.0.113.7"}, "ip:203.0.113.7"},
		"one hop, tabs":       {Proxies{TrustedHops: 1}, peer, []string{"\t203.0.113.7 \t"}, "ip:203.0.113.7"},
		"one hop, port":       {Proxies{TrustedHops: 1}, peer, []string{"203.0.113.7:8080"}, "ip:203.0.113.7"},
		"one hop, IPv6":       {Proxies{TrustedHops: 1}, peer, []string{"2001:db8::1"}, "ip:2001:db8::/64"},
		"one hop, IPv6 port":  {Proxies{TrustedHops: 1}, peer, []string{"[2001:db8::1]:8080"}, "ip:2001:db8::/64"},
		"one hop, brackets":   {Proxies{TrustedHops: 1}, peer, []string{"[2001:db8::1]"}, "ip:2001:db8::/64"},
		"one hop, zone":       {Proxies{TrustedHops: 1}, peer, []string{"fe80::1%anything"}, "ip:fe80::/64"},
		"one hop, mapped":     {Proxies{TrustedHops: 1}, peer, []string{"::ffff:203.0.113.7"}, "ip:203.0.113.7"},
		"one hop, over unix":  {Proxies{TrustedHops: 1}, "@", []string{"203.0.113.7"}, "ip:203.0.113.7"},
		"one hop, none":       {Proxies{TrustedHops: 1}, peer, nil, ""},
		"one hop, empty":      {Proxies{TrustedHops: 1}, peer, []string{""}, ""},
		"one hop, last empty": {Proxies{TrustedHops: 1}, peer, []string{"203.0.113.7,"}, ""},
		"one hop, last line":  {Proxies{TrustedHops: 1}, peer, []string{"203.0.113.7", ""}, ""},
		"one hop, word":       {Proxies{TrustedHops: 1}, peer, []string{"unknown"}, ""},
		"one hop, octal":      {Proxies{TrustedHops: 1}, peer, []string{"203.0.113.007"}, ""},
		"one hop, half open":  {Proxies{TrustedHops: 1}, peer, []string{"[2001:db8::1"}, ""},
		"one hop, multicast":  {Proxies{TrustedHops: 1}, peer, []string{"ff02::1"}, ""},
		"one hop, long":       {Proxies{TrustedHops: 1}, peer, []string{"fe80::1%" + strings.Repeat("z", 1<<16)}, ""},

		"two hops":              {Proxies{TrustedHops: 2}, peer, []string{"203.0.113.7, 10.0.0.1"}, "ip:203.0.113.7"},
		"two hops, lines":       {Proxies{TrustedHops: 2}, peer, []string{"6.6.6.6, 203.0.113.7", "10.0.0.1"}, "ip:203.0.113.7"},
		"two hops, more":        {Proxies{TrustedHops: 2}, peer, []string{"a, b, 6.6.6.6, 203.0.113.7, 10.0.0.1"}, "ip:203.0.113.7"},
		"two hops, one passed":  {Proxies{TrustedHops: 2}, peer, []string{"203.0.113.7"}, ""},
		"two hops, empty shift": {Proxies{TrustedHops: 2}, peer, []string{"6.6.6.6, , 10.0.0.1"}, ""},

		"from a proxy": {Proxies{TrustedHops: 1, From: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}},
			peer, []string{"203.0.113.7"}, "ip:203.0.113.7"},
		"from elsewhere": {Proxies{TrustedHops: 1, From: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}},
			peer, []string{"203.0.113.7"}, "ip:192.0.2.9"},
		"from a mapped proxy": {Proxies{TrustedHops: 1, From: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}},
			"[::ffff:192.0.2.9]:1", []string{"203.0.113.7"}, "ip:203.0.113.7"},

		"whole IPv6": {Proxies{IPv6Bits: 128}, "[2001:db8::1]:1", nil, "ip:2001:db8::1"},
		"wide":       {Proxies{IPv6Bits: 48, IPv4Bits: 24}, "[2001:db8:1:2::1]:1", nil, "ip:2001:db8:1::/48"},
		"wide IPv4":  {Proxies{IPv6Bits: 48, IPv4Bits: 24}, peer, nil, "ip:192.0.2.0/24"},
	} {
		got, err := ClientIP(c.proxies).Principal(mustHTTP(t, c.remote, forwarded(c.lines...)))
		if c.want == "" {
			if !errors.Is(err, ErrMalformed) || got != "" {
				t.Errorf("%s: %q, %v, want an error that says malformed", name, got, err)
			}
			continue
		}
		if err != nil || got != c.want {
			t.Errorf("%s: %q, %v, want %q", name, got, err, c.want)
		}
	}
}

// Shows, for any client-made X-Forwarded-For and any number of proxies, that nothing the client writes changes whom it
// is charged to.
func TestClientIPIgnoresWhatClientsWrite(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		hops := rapid.IntRange(1, maxTrustedHops).Draw(rt, "hops")
		lines := rapid.SliceOfN(rapid.StringMatching(`[0-9a-f:.%, \t\[\]]{0,40}`), 0, 5).Draw(rt, "invented")
		client := "203.0.113.7"
		for i, written := 0, client; i < hops; i, written = i+1, "10.0.0.1" {
			if len(lines) > 0 && rapid.Bool().Draw(rt, "same line") {
				lines[len(lines)-1] += ", " + written
			} else {
				lines = append(lines, written)
			}
		}
		got, err := ClientIP(Proxies{TrustedHops: hops}).Principal(mustHTTP(t, "10.0.0.2:1", forwarded(lines...)))
		if err != nil || got != PrefixIP+client {
			rt.Fatalf("%q after %d hops: %q, %v", lines, hops, got, err)
		}
	})
}

// Shows that no address, however written, gives an unusable principal, and that one network is one caller.
func FuzzClientIP(f *testing.F) {
	for _, s := range []string{"1.2.3.4", "[::1]:80", "::ffff:1.2.3.4", "fe80::1%z", "64:ff9b::1", "2002:102:304::1", "::1.2.3.4", "", ",", "\x00", "[1.2.3.4"} {
		f.Add(s)
	}
	key := ClientIP(Proxies{TrustedHops: 1})
	f.Fuzz(func(t *testing.T, s string) {
		got, err := key.Principal(mustHTTP(t, "", forwarded(s)))
		if err != nil {
			if got != "" || !errors.Is(err, ErrMalformed) {
				t.Fatalf("%q: %q, %v", s, got, err)
			}
			return
		}
		bare := strings.TrimPrefix(got, PrefixIP)
		if net, err := netip.ParsePrefix(bare); err == nil && net.Bits() == defaultIPv6Bits && net == net.Masked() {
			return
		}
		if a, err := netip.ParseAddr(bare); err != nil || !a.Is4() {
			t.Fatalf("%q is charged to %q", s, got)
		}
	})
}

// Shows that a wrong configuration is reported when the key is made, all of it at once.
func TestProxiesAreChecked(t *testing.T) {
	err := ClientIP(Proxies{TrustedHops: 17, IPv6Bits: 129, Header: "a b",
		From: []netip.Prefix{{}, netip.MustParsePrefix("::ffff:10.0.0.0/104")}}).Err()
	if err == nil || strings.Count(err.Error(), "\n") != 4 {
		t.Errorf("got %v, want five problems", err)
	}
	if err := ClientIP(Proxies{From: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}}).Err(); err == nil {
		t.Error("proxies that are named but not counted are accepted")
	}
}
