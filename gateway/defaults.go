package gateway

import (
	"cmp"
	"time"

	"github.com/quorate/quorate/sdk"
)

const (
	defaultAdmin          = "127.0.0.1:8081"
	defaultMaxConnections = 4096
	defaultMaxRequests    = 2048
	defaultMaxStreams     = 128
	defaultMaxHeaderBytes = 32 << 10
	defaultHeaderTimeout  = 10 * time.Second
	defaultKeepAlive      = time.Minute
	defaultUpstreamConns  = 1024
	defaultDialTimeout    = 5 * time.Second
	defaultTimeout        = time.Minute
	defaultIdleTimeout    = 5 * time.Minute
	defaultMaxDuration    = 24 * time.Hour
	defaultMaxBodyBytes   = 1 << 30
	defaultDrainDelay     = 5 * time.Second
	defaultDrainTimeout   = 30 * time.Second
	defaultAPIKeyHeader   = "X-Api-Key" //nolint:gosec // a name, no key
)

// Of all connections one of so many parts is one address's, and one may change its protocol; of that one is a caller's.
const (
	addressesShare = 4
	upgradesShare  = 4
	callersShare   = 16
)

// share is one of so many parts, rounded up.
func share(n, parts int) int { return (max(n, 1) + parts - 1) / parts }

// def is v, or d when v is not set.
func def[T comparable](v *T, d T) { *v = cmp.Or(*v, d) }

// SetDefaults fills in what is not set.
func (c *Config) SetDefaults() {
	def(&c.Admin, defaultAdmin)
	if c.TLS.ClientCA != "" {
		def(&c.TLS.ClientCertificates, "optional")
	}
	if c.Methods == nil {
		c.Methods = []string{"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"}
	}
	if c.Upgrades == nil {
		c.Upgrades = []string{"websocket"}
	}
	def(&c.Bounds.MaxConnections, defaultMaxConnections)
	def(&c.Bounds.MaxConnectionsPerAddress, share(c.Bounds.MaxConnections, addressesShare))
	def(&c.Bounds.MaxRequests, defaultMaxRequests)
	def(&c.Bounds.MaxUpgrades, share(c.Bounds.MaxConnections, upgradesShare))
	def(&c.Bounds.MaxUpgradesPerCaller, share(c.Bounds.MaxUpgrades, callersShare))
	def(&c.Bounds.MaxStreams, defaultMaxStreams)
	def(&c.Bounds.MaxHeaderBytes, defaultMaxHeaderBytes)
	def(&c.Bounds.HeaderTimeout, defaultHeaderTimeout)
	def(&c.Bounds.IdleTimeout, defaultKeepAlive)
	def(&c.Cluster.ConfigGrace, sdk.DefaultConfigGrace)
	def(&c.Cluster.MaxInFlight, sdk.DefaultMaxInFlight)
	def(&c.Cluster.PrincipalCeiling, sdk.DefaultPrincipalCeiling)
	for _, list := range c.Callers {
		for i := range list {
			if list[i].APIKey != nil {
				def(&list[i].APIKey.Header, defaultAPIKeyHeader)
			}
		}
	}
	for name, u := range c.Upstreams {
		def(&u.MaxConnections, defaultUpstreamConns)
		def(&u.DialTimeout, defaultDialTimeout)
		def(&u.Timeout, defaultTimeout)
		def(&u.IdleTimeout, defaultIdleTimeout)
		def(&u.MaxDuration, defaultMaxDuration)
		def(&u.MaxBodyBytes, defaultMaxBodyBytes)
		c.Upstreams[name] = u
	}
	for i := range c.Routes {
		c.complete(&c.Routes[i])
		def(&c.Routes[i].Name, c.Routes[i].Match)
	}
	if c.Fallback != nil {
		c.complete(c.Fallback)
		def(&c.Fallback.Name, "fallback")
	}
	if c.Drain.Delay == nil {
		delay := defaultDrainDelay
		c.Drain.Delay = &delay
	}
	def(&c.Drain.Timeout, defaultDrainTimeout)
	def(&c.Log.Level, "info")
	def(&c.Log.Format, "text")
}

// complete fills in what a route need not say.
func (c *Config) complete(r *RouteConfig) {
	if len(c.Upstreams) == 1 {
		for name := range c.Upstreams {
			def(&r.Upstream, name)
		}
	}
	if r.AllowUpgrades == nil {
		allow := !r.Unlimited
		r.AllowUpgrades = &allow
	}
	for i := range r.Charges {
		if r.Charges[i].Cost == nil {
			one := int64(1)
			r.Charges[i].Cost = &one
		}
		if len(c.Callers) == 1 {
			for name := range c.Callers {
				def(&r.Charges[i].By, name)
			}
		}
	}
}
