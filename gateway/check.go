package gateway

import (
	"net"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"

	"golang.org/x/net/http/httpguts"

	"github.com/quorate/quorate/sdk"
)

// The bounds of the bounds.
const (
	maxConnections = 1 << 20
	maxHeaderBytes = 1 << 20
	maxRoutes      = 4096
	maxWait        = 366 * 24 * time.Hour
	maxShortWait   = time.Hour
)

// namePattern is what callers and upstreams are called.
var namePattern = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_-]{0,62}$`)

func checkName(p *problems, place, name string) {
	if !namePattern.MatchString(name) {
		p.add(place, "the name: use letters, digits, '_' and '-', at most 63")
	}
}

// checkSettings judges what stands alone in the configuration.
func (c *Config) checkSettings(p *problems) {
	c.checkAddresses(p)
	c.checkBounds(p)
	c.checkRequests(p)
	if len(c.Cluster.Addrs) == 0 {
		p.add("cluster.addrs", "name gRPC addresses of some of the cluster's nodes, host:port")
	}
	lasting(p, "drain.delay", *c.Drain.Delay, 0, maxShortWait)
	lasting(p, "drain.timeout", c.Drain.Timeout, time.Millisecond, maxShortWait)
	oneOf(p, "log.level", c.Log.Level, "debug", "info", "warn", "error")
	oneOf(p, "log.format", c.Log.Format, "text", "json")
}

func (c *Config) checkAddresses(p *problems) {
	tls := c.TLS.Cert != "" || c.TLS.Key != ""
	for _, a := range []struct {
		place, addr, allow string
		open               bool
	}{
		{"listen", c.Listen, "give tls.cert and tls.key, or say allow_plaintext where something in front ends TLS",
			tls || c.AllowPlaintext},
		{"admin", c.Admin, "say allow_open_admin where only your own probes reach it", c.AllowOpenAdmin},
	} {
		host, _, err := net.SplitHostPort(a.addr)
		switch {
		case err != nil:
			p.add(a.place, "%q is not host:port", a.addr)
		case !a.open && !isLoopback(host):
			p.add(a.place, "%s is not loopback, and there is no TLS: %s", a.addr, a.allow)
		}
	}
	if _, port, err := net.SplitHostPort(c.Listen); err == nil && c.Listen == c.Admin && port != "0" {
		p.add("admin", "%s is also listen: give it a port of its own", c.Admin)
	}
}

func isLoopback(host string) bool {
	ip := net.ParseIP(host)
	return strings.EqualFold(host, "localhost") || ip != nil && ip.IsLoopback()
}

func (c *Config) checkBounds(p *problems) {
	between(p, "bounds.max_connections", c.Bounds.MaxConnections, 1, maxConnections)
	between(p, "bounds.max_connections_per_address", c.Bounds.MaxConnectionsPerAddress, 1, max(c.Bounds.MaxConnections, 1))
	between(p, "bounds.max_upgrades", c.Bounds.MaxUpgrades, 1, maxConnections)
	between(p, "bounds.max_upgrades_per_caller", c.Bounds.MaxUpgradesPerCaller, 1, max(c.Bounds.MaxUpgrades, 1))
	between(p, "bounds.max_requests", c.Bounds.MaxRequests, 1, maxConnections)
	between(p, "bounds.max_streams", c.Bounds.MaxStreams, 1, 1<<16)
	between(p, "bounds.max_header_bytes", c.Bounds.MaxHeaderBytes, 1<<10, maxHeaderBytes)
	lasting(p, "bounds.header_timeout", c.Bounds.HeaderTimeout, time.Millisecond, maxShortWait)
	lasting(p, "bounds.idle_timeout", c.Bounds.IdleTimeout, time.Millisecond, maxShortWait)
	if c.Cluster.ConfigGrace < sdk.MinConfigGrace {
		p.add("cluster.config_grace", "%s: set it to %s or more", c.Cluster.ConfigGrace, sdk.MinConfigGrace)
	}
	between(p, "cluster.max_in_flight", c.Cluster.MaxInFlight, 1, 1<<24)
	between(p, "cluster.principal_ceiling", c.Cluster.PrincipalCeiling, 1, 1<<30)
}

// checkRequests judges which requests are taken at all.
func (c *Config) checkRequests(p *problems) {
	for i, h := range c.Hosts {
		if h != bareHost(h) || h == "" || !httpguts.ValidHostHeader(h) {
			p.add(index("hosts", i), "%q: write a name in lower case, without a port", h)
		}
	}
	for i, m := range c.Methods {
		switch {
		case m == http.MethodConnect || m == http.MethodTrace:
			p.add(index("methods", i), "%s is not passed on: remove it", m)
		case m != strings.ToUpper(m) || !httpguts.ValidHeaderFieldName(m):
			p.add(index("methods", i), "%q is no method in capitals", m)
		}
	}
	if len(c.Methods) == 0 {
		p.add("methods", "no request could pass: name some, or leave it out")
	}
	for i, u := range c.Upgrades {
		if u == "h2c" || u != strings.ToLower(u) || !httpguts.ValidHeaderFieldName(u) {
			p.add(index("upgrades", i), "%q: write a protocol in lower case; h2c would carry requests past the limits", u)
		}
	}
	for i, h := range c.RemoveHeaders {
		if !httpguts.ValidHeaderFieldName(h) {
			p.add(index("remove_headers", i), "%q is no header's name", h)
		}
	}
	for i, h := range c.KeepHeaders {
		if !slices.Contains(overriding, plainName(h)) {
			p.add(index("keep_headers", i), "%q is not removed by itself: write one of %s", h, strings.Join(overriding, ", "))
		}
	}
	h := c.PrincipalHeader
	if h != "" && plainName(h) == plainName(c.Proxies.Header) {
		p.add("principal_header", "%q is also proxies.header: write another", h)
	}
	if h != "" && (!httpguts.ValidHeaderFieldName(h) || slices.Contains(notForPrincipals, plainName(h))) {
		p.add("principal_header", "%q: write the name of a header that means nothing else, as X-Quorate-Principal", h)
	}
}

// notForPrincipals are headers that mean something to a server, or are set here.
var notForPrincipals = []string{
	"host", "content-length", "transfer-encoding", "connection", "upgrade", "te", "trailer", "authorization", "cookie",
	"x-forwarded-for", "x-forwarded-host", "x-forwarded-proto", "forwarded", "keep-alive", "expect", "content-type",
}

// checkUpstream judges one upstream, and gives its URL.
func (u *UpstreamConfig) check(p *problems, place string) *url.URL {
	target, err := url.Parse(u.URL)
	if err != nil || target.Scheme != "http" && target.Scheme != "https" || target.Host == "" || target.User != nil ||
		target.RawQuery != "" || target.Fragment != "" {
		p.add(place+".url", "%q: write http:// or https://, a host, and nothing behind the path", u.URL)
		target = nil
	}
	if u.CA != "" && target != nil && target.Scheme != "https" {
		p.add(place+".ca", "the URL is not https: remove ca, or use TLS")
	}
	between(p, place+".max_connections", u.MaxConnections, 1, maxConnections)
	lasting(p, place+".dial_timeout", u.DialTimeout, time.Millisecond, maxShortWait)
	lasting(p, place+".timeout", u.Timeout, time.Millisecond, maxWait)
	lasting(p, place+".idle_timeout", u.IdleTimeout, time.Millisecond, maxWait)
	lasting(p, place+".max_duration", u.MaxDuration, time.Millisecond, maxWait)
	between(p, place+".max_body_bytes", u.MaxBodyBytes, 1, 1<<50)
	return target
}

// options are what the SDK's client is made with.
func (c *ClusterConfig) options() []sdk.Option {
	out := []sdk.Option{
		sdk.WithConfigGrace(c.ConfigGrace), sdk.WithMaxInFlight(c.MaxInFlight),
		sdk.WithPrincipalCeiling(c.PrincipalCeiling),
	}
	if c.TLS != (ClusterTLSConfig{}) {
		out = append(out, sdk.WithTLSFiles(c.TLS.CA, c.TLS.Cert, c.TLS.Key))
	}
	if c.PolicyFile != "" {
		out = append(out, sdk.WithPolicyFile(c.PolicyFile))
	}
	return out
}
