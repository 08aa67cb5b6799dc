package caller

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"golang.org/x/net/http/httpguts"
)

// PrefixIP begins the principal of a client's address.
const PrefixIP = "ip:"

const (
	defaultIPv6Bits = 64
	maxTrustedHops  = 16
	headerForwarded = "X-Forwarded-For"
)

// What holds all of IPv4 in IPv6: nat64 as a translator shows it, sixToFour with a network behind each address, and
// compatible, which nobody uses. By their prefixes everybody behind one translator would be one caller, and who has one
// IPv4 address would have 65,536 networks.
var (
	nat64      = netip.MustParsePrefix("64:ff9b::/96")
	sixToFour  = netip.MustParsePrefix("2002::/16")
	compatible = netip.MustParsePrefix("::/96")
)

// Proxies says what stands between clients and here. The zero value: nothing, the connection's other end is the client.
type Proxies struct {
	// TrustedHops is how many proxies of one's own each request has passed, the one that connects here included; up
	// to 16. Each must append the address that it was called from to X-Forwarded-For. The client is the entry that
	// the outermost of them wrote, so whatever a client put there himself is left of it and does not count.
	TrustedHops int
	// From are the networks that the nearest proxy connects from. Who connects from elsewhere is the client himself,
	// whatever his headers say. Empty: everybody who can connect is such a proxy.
	From []netip.Prefix
	// Header is read in place of X-Forwarded-For.
	Header string
	// IPv6Bits is how much of an IPv6 address tells clients apart: 64 by default, as a client may use any address
	// of its network. IPv4Bits likewise, 32 by default.
	IPv6Bits, IPv4Bits int
}

// ClientIP is the client's address, as "ip:203.0.113.7" or "ip:2001:db8:1:2::/64". IPv6 that stands for one IPv4
// address (mapped, NAT64, 6to4) is that. An address that cannot be read, and a request that has passed fewer
// proxies than are trusted, is an error.
func ClientIP(p Proxies) Key {
	if err := p.complete(); err != nil {
		return Key{problem: err}
	}
	return Key{find: func(r *Request) (string, error) {
		addr, err := p.client(r)
		if err != nil {
			return "", &Error{Kind: ErrMalformed, Detail: "the client's address cannot be told", Cause: err}
		}
		return PrefixIP + p.fold(addr), nil
	}}
}

// complete fills in the defaults and checks the rest, all problems at once.
func (p *Proxies) complete() error {
	var problems []error
	report := func(format string, args ...any) {
		problems = append(problems, fmt.Errorf("caller: ClientIP: "+format, args...))
	}
	if p.Header == "" {
		p.Header = headerForwarded
	}
	if p.IPv6Bits == 0 {
		p.IPv6Bits = defaultIPv6Bits
	}
	if p.IPv4Bits == 0 {
		p.IPv4Bits = 32
	}
	if p.TrustedHops < 0 || p.TrustedHops > maxTrustedHops {
		report("TrustedHops is %d: it may be 0 to %d", p.TrustedHops, maxTrustedHops)
	}
	if p.TrustedHops == 0 && len(p.From) > 0 {
		report("From names proxies, but TrustedHops is 0: count them")
	}
	for _, net := range p.From {
		if !net.IsValid() || net.Addr().Is4In6() {
			report("From has %s: give a network as 10.0.0.0/8 or 2001:db8::/32", net)
		}
	}
	if !httpguts.ValidHeaderFieldName(p.Header) {
		report("%q is no header's name", p.Header)
	}
	if p.IPv6Bits < 1 || p.IPv6Bits > 128 || p.IPv4Bits < 1 || p.IPv4Bits > 32 {
		report("IPv6Bits %d and IPv4Bits %d: they may be 1 to 128 and 1 to 32", p.IPv6Bits, p.IPv4Bits)
	}
	return errors.Join(problems...)
}

// client is the client's address, unmapped and without a zone.
func (p *Proxies) client(r *Request) (netip.Addr, error) {
	if p.TrustedHops == 0 {
		return parseAddr(r.RemoteAddr)
	}
	if len(p.From) > 0 {
		nearest, err := parseAddr(r.RemoteAddr)
		if err != nil {
			return netip.Addr{}, err
		}
		if !p.isProxy(nearest) {
			return nearest, nil
		}
	}
	element, ok := fromRight(r.Values(p.Header), p.TrustedHops)
	if !ok {
		return netip.Addr{}, fmt.Errorf("%s has fewer than the %d entries of trusted proxies", p.Header, p.TrustedHops)
	}
	return parseAddr(element)
}

func (p *Proxies) isProxy(a netip.Addr) bool {
	for _, net := range p.From {
		if net.Contains(a) {
			return true
		}
	}
	return false
}

// fromRight is the n-th element from the right, counted from 1, of all lines taken as one list. Elements are counted
// as they stand, empty ones too: to skip them would let a client shift the count. It reads no further than it must.
func fromRight(lines []string, n int) (string, bool) {
	for i := len(lines) - 1; i >= 0; i-- {
		rest := lines[i]
		for {
			comma := strings.LastIndexByte(rest, ',')
			if n--; n == 0 {
				return strings.Trim(rest[comma+1:], " \t"), true
			}
			if comma < 0 {
				break
			}
			rest = rest[:comma]
		}
	}
	return "", false
}

// maxAddrBytes is the longest way to write an address: full IPv6 with an IPv4 tail, brackets, a zone and a port.
const maxAddrBytes = 128

// parseAddr reads an address with or without a port, brackets and zone.
func parseAddr(s string) (netip.Addr, error) {
	if len(s) > maxAddrBytes {
		return netip.Addr{}, fmt.Errorf("an address of %d bytes", len(s))
	}
	bare := s
	if inner, ok := strings.CutPrefix(s, "["); ok && strings.HasSuffix(s, "]") {
		bare = strings.TrimSuffix(inner, "]")
	}
	a, err := netip.ParseAddr(bare)
	if err != nil {
		withPort, errPort := netip.ParseAddrPort(s)
		if errPort != nil {
			return netip.Addr{}, err
		}
		a = withPort.Addr()
	}
	a = a.WithZone("").Unmap()
	switch b := a.As16(); {
	case nat64.Contains(a):
		a = netip.AddrFrom4([4]byte(b[12:]))
	case sixToFour.Contains(a):
		a = netip.AddrFrom4([4]byte(b[2:6]))
	case compatible.Contains(a) && !a.IsLoopback():
		return netip.Addr{}, fmt.Errorf("%s is no client's address", a)
	}
	if a.IsUnspecified() || a.IsMulticast() {
		return netip.Addr{}, fmt.Errorf("%s is no client's address", a)
	}
	return a, nil
}

// fold writes the part of an address that tells clients apart.
func (p *Proxies) fold(a netip.Addr) string {
	bits := p.IPv6Bits
	if a.Is4() {
		bits = p.IPv4Bits
	}
	if bits == a.BitLen() {
		return a.String()
	}
	net, err := a.Prefix(bits)
	if err != nil { // bits were checked, and a has no zone
		return a.String()
	}
	return net.String()
}
