package gateway

import (
	"cmp"
	"context"
	"crypto/sha256"
	"maps"
	"net/netip"
	"slices"

	"golang.org/x/net/http/httpguts"

	"github.com/quorate/quorate/sdk/caller"
)

// callers are the ways to find out who calls.
type callers struct {
	keys map[string]caller.Key
	// secret are the headers, by plainName, whose credentials upstreams do not get.
	secret map[string]bool
	// address is the caller's whole address, for X-Forwarded-For.
	address caller.Key
	// proxies are the networks that proxies of one's own connect from.
	proxies []netip.Prefix
}

// compileCallers makes the keys, and reads their files.
func (c *Config) compileCallers(p *problems) *callers {
	out := &callers{keys: map[string]caller.Key{}, secret: map[string]bool{}}
	proxies, ok := c.Proxies.compile(p)
	out.proxies = proxies.From
	all := proxies
	all.IPv6Bits, all.IPv4Bits = 128, 32
	out.address = caller.ClientIP(all)
	if err := out.address.Err(); err != nil {
		p.nest("proxies", err)
		ok = false
	}
	for _, name := range slices.Sorted(maps.Keys(c.Callers)) {
		place := "callers." + name
		checkName(p, place, name)
		before := len(*p)
		var keys []caller.Key
		for i := range c.Callers[name] {
			if k, good := c.compileCredential(p, index(place, i), &c.Callers[name][i], proxies, ok, out.secret); good {
				keys = append(keys, k)
			}
		}
		if len(c.Callers[name]) == 0 {
			p.add(place, "list at least one credential: api_key, jwt, certificate or client_ip")
		}
		if len(*p) == before && ok {
			out.keys[name] = noting(caller.FirstOf(keys...))
		}
	}
	return out
}

// noting is a key that tells the passage of the request whom it has found.
func noting(k caller.Key) caller.Key {
	return caller.KeyFunc(func(r *caller.Request) (string, error) {
		on := passageOf(r.Context)
		on.tier, on.principal = "", ""
		principal, err := k.Principal(r)
		on.principal = principal
		return principal, err
	})
}

func (c *ProxiesConfig) compile(p *problems) (out caller.Proxies, ok bool) {
	out = caller.Proxies{TrustedHops: c.TrustedHops, Header: c.Header}
	ok = true
	if c.TrustedHops > 0 && len(c.From) == 0 {
		p.add("proxies.from", "name the networks that your proxies connect from, as [10.0.0.0/8]: without it anybody who "+
			"reaches this port himself is believed what he writes in %s", cmp.Or(c.Header, "X-Forwarded-For"))
		ok = false
	}
	for i, text := range c.From {
		net, err := netip.ParsePrefix(text)
		if err != nil {
			p.add(index("proxies.from", i), "%q: write a network, as 10.0.0.0/8", text)
			ok = false
			continue
		}
		out.From = append(out.From, net)
	}
	return out, ok
}

func (c *Config) compileCredential(
	p *problems, place string, one *CredentialConfig, proxies caller.Proxies, proxiesOK bool, secret map[string]bool,
) (caller.Key, bool) {
	kinds := 0
	for _, given := range []bool{one.APIKey != nil, one.JWT != nil, one.Certificate != nil, one.ClientIP != nil} {
		if given {
			kinds++
		}
	}
	if kinds != 1 {
		if c.lost(place) {
			return caller.Key{}, false
		}
		p.add(place, "it has %d kinds of credential: write one of api_key, jwt, certificate and client_ip", kinds)
		return caller.Key{}, false
	}
	var k caller.Key
	before := len(*p)
	switch {
	case one.APIKey != nil:
		if !one.APIKey.Forward {
			secret[plainName(one.APIKey.Header)] = true
		}
		k = c.apiKey(p, place+".api_key", one.APIKey)
	case one.JWT != nil:
		k = c.jwt(p, place+".jwt", one.JWT)
	case one.Certificate != nil:
		if c.TLS.ClientCA == "" {
			p.add(place+".certificate", "no caller is asked for one: set tls.client_ca")
		}
		place, k = place+".certificate", certificate(p, place+".certificate", one.Certificate.Name)
	default:
		if !proxiesOK {
			return caller.Key{}, false
		}
		proxies.IPv6Bits, proxies.IPv4Bits = one.ClientIP.IPv6Bits, one.ClientIP.IPv4Bits
		place, k = place+".client_ip", caller.ClientIP(proxies)
	}
	if len(*p) > before {
		return caller.Key{}, false
	}
	if err := k.Err(); err != nil {
		p.nest(place, err)
		return caller.Key{}, false
	}
	return k, true
}

func (c *Config) apiKey(p *problems, place string, one *APIKeyConfig) caller.Key {
	if !httpguts.ValidHeaderFieldName(one.Header) {
		p.add(place+".header", "%q is no header's name", one.Header)
	}
	if one.File == "" {
		p.add(place+".file", "name the file with the keys' digests, as `quorate gateway key` prints them")
		return caller.Key{}
	}
	src, err := c.files.read(one.File)
	if err != nil {
		p.add(place+".file", "%w", err)
		return caller.Key{}
	}
	accounts, err := parseKeys(one.File, src)
	if err != nil {
		p.nest(place+".file", err)
		return caller.Key{}
	}
	return caller.APIKey(one.Header, func(ctx context.Context, key string) (string, error) {
		found := accounts[sha256.Sum256([]byte(key))]
		passageOf(ctx).tier = found.tier
		return found.principal, nil
	})
}

func (c *Config) jwt(p *problems, place string, one *JWTConfig) caller.Key {
	rule := caller.JWT{
		Algorithms: one.Algorithms, Issuer: one.Issuer, Audience: one.Audience, AnyIssuer: one.AnyIssuer,
		AnyAudience: one.AnyAudience, Leeway: one.Leeway,
	}
	for i, a := range one.Algorithms {
		if len(a) > 1 && a[:2] == "HS" {
			p.add(index(place+".algorithms", i), "%s has a shared secret: use one with public keys, as ES256", a)
		}
	}
	if one.JWKSFile == "" {
		p.add(place+".jwks_file", "name the file with the issuer's public keys (a JWK Set)")
		return caller.Key{}
	}
	src, err := c.files.read(one.JWKSFile)
	if err != nil {
		p.add(place+".jwks_file", "%w", err)
		return caller.Key{}
	}
	if rule.Keyfunc, err = parseJWKS(one.JWKSFile, src); err != nil {
		p.nest(place+".jwks_file", err)
		return caller.Key{}
	}
	k := caller.JWTSubject(rule)
	if err := k.Err(); err != nil {
		p.nest(place, err)
	}
	return k
}

func certificate(p *problems, place, name string) caller.Key {
	of := map[string]caller.CertificateName{"uri": caller.URIName, "dns": caller.DNSName, "cn": caller.CommonName}
	if of[name] == nil {
		p.add(place+".name", "%q: write uri, dns or cn", name)
	}
	return caller.Certificate(of[name])
}

// passage is what is known of a request on its way.
type passage struct {
	route           *route
	principal, tier string // of the charge that was looked at last
}

type passageKey struct{}

func withPassage(ctx context.Context, p *passage) context.Context {
	return context.WithValue(ctx, passageKey{}, p)
}

// passageOf is the passage of a request's context. The gateway puts one into each.
func passageOf(ctx context.Context) *passage {
	p, ok := ctx.Value(passageKey{}).(*passage)
	if !ok {
		panic("gateway: a request without a passage")
	}
	return p
}
