package gateway

import "time"

// Config is the configuration of a gateway: what `quorate gateway --config` reads. A field that is one value, outside
// of callers, upstreams, routes and fallback, may be set by the environment too: QUORATE_GATEWAY_ and the path in
// capitals, with two underscores between the parts, as in QUORATE_GATEWAY_DRAIN__DELAY. The environment wins over the
// file; names in it that are no field are not read. Relative names of files are taken from the file's folder.
//
// What is changed while the gateway runs is put in force once all its files have been the same for five seconds, or at
// once with SIGHUP, but for listen, admin, bounds, cluster, log, and whether there is TLS: with a change of those a
// configuration is refused until the gateway is started anew. A file whose last line does not end, or in which PEM
// begins and does not end, is refused as half-written. That a file which pauses for longer at the end of a line is not
// complete, nobody can see: write it elsewhere, and rename it into place when all that belongs together is there.
type Config struct {
	// Listen is where callers connect, host:port. Required.
	Listen string `koanf:"listen"`
	// AllowPlaintext lets Listen be more than loopback without TLS: what callers send, keys too, is then for everybody
	// on the way to read. Say so only where something in front ends TLS. Default false.
	AllowPlaintext bool `koanf:"allow_plaintext"`
	// Admin is where /livez, /readyz and /metrics are, host:port, without TLS. Default 127.0.0.1:8081.
	Admin string `koanf:"admin"`
	// AllowOpenAdmin lets Admin be more than loopback. Default false.
	AllowOpenAdmin bool      `koanf:"allow_open_admin"`
	TLS            TLSConfig `koanf:"tls"`
	// Hosts are the names that callers may ask for, without a port; others get 421. Default: any. A request with a whole
	// URL in its first line is refused unless its host is one of these.
	Hosts []string `koanf:"hosts"`
	// Methods are those that are passed on; others get 405. Default GET, HEAD, POST, PUT, PATCH, DELETE and OPTIONS.
	Methods []string `koanf:"methods"`
	// Upgrades are the protocols that a connection may change to, on routes with allow_upgrades. Others are not asked for
	// at the upstream. Default websocket.
	Upgrades []string      `koanf:"upgrades"`
	Bounds   BoundsConfig  `koanf:"bounds"`
	Proxies  ProxiesConfig `koanf:"proxies"`
	Cluster  ClusterConfig `koanf:"cluster"`
	// Callers are ways to find out who calls, by name: each a list of credentials, of which the first that a request
	// shows counts.
	Callers map[string][]CredentialConfig `koanf:"callers"`
	// Upstreams are where requests go, by name. At least one.
	Upstreams map[string]UpstreamConfig `koanf:"upstreams"`
	// Routes say what each request takes, and where it goes.
	Routes []RouteConfig `koanf:"routes"`
	// Fallback is for what no route names; it has no match. Without it that is answered 404.
	Fallback *RouteConfig `koanf:"fallback"`
	// PrincipalHeader is the header in which the upstream is told the principal of the route's last charge, in which
	// bytes other than visible ASCII, and %, are written %XX. Default: none. What callers send under this name is removed.
	PrincipalHeader string `koanf:"principal_header"`
	// RemoveHeaders are further headers that callers cannot send to an upstream.
	RemoveHeaders []string `koanf:"remove_headers"`
	// KeepHeaders are those that callers may send of the ones by which a server may take a request for another than that
	// which was charged for: X-HTTP-Method-Override, X-HTTP-Method, X-Method-Override, X-Original-URL and X-Rewrite-URL.
	// Default: none.
	KeepHeaders []string      `koanf:"keep_headers"`
	Answers     AnswersConfig `koanf:"answers"`
	Drain       DrainConfig   `koanf:"drain"`
	Log         LogConfig     `koanf:"log"`

	path    string   // of the file
	environ []string // that was read
	files   *files   // as they were read
	policy  string   // the content of cluster.policy_file
	source  *source  // where the values stand
	early   problems // what was wrong before anything was judged
}

// TLSConfig is what callers are shown, in PEM. Cert and Key, or none: then Listen must be loopback.
type TLSConfig struct {
	Cert string `koanf:"cert"`
	Key  string `koanf:"key"`
	// ClientCA holds the CAs that callers' certificates must come from. Default: none are asked for.
	ClientCA string `koanf:"client_ca"`
	// ClientCertificates is optional (default with client_ca) or required.
	ClientCertificates string `koanf:"client_certificates"`
}

// BoundsConfig bounds what callers can cause.
type BoundsConfig struct {
	// MaxConnections are those that are open at once; further ones wait to be accepted. Default 4096.
	MaxConnections int `koanf:"max_connections"`
	// MaxConnectionsPerAddress are those of one address, of IPv6 one /64, as the connection's other end; further ones are
	// closed at once. Those from networks in proxies.from are not counted: a proxy shares one address among all callers.
	// Where something in front that writes no addresses does, set it to max_connections. Default: a quarter of
	// max_connections.
	MaxConnectionsPerAddress int `koanf:"max_connections_per_address"`
	// MaxRequests are those under way at once, changed protocols apart; further ones get 503. Default 2048.
	MaxRequests int `koanf:"max_requests"`
	// MaxUpgrades are the connections at once that have changed their protocol, or ask to; further ones get 503, and are
	// not charged. Default: a quarter of max_connections.
	MaxUpgrades int `koanf:"max_upgrades"`
	// MaxUpgradesPerCaller are those of one caller: the principal of the route's last charge or, on a route that is
	// unlimited, the address, as proxies tells it. Default: a sixteenth of max_upgrades.
	MaxUpgradesPerCaller int `koanf:"max_upgrades_per_caller"`
	// MaxStreams are the requests under way at once on one HTTP/2 connection. Default 128.
	MaxStreams int `koanf:"max_streams"`
	// MaxHeaderBytes bounds the first line and the headers of a request, roughly; more gets 431. Default 32768.
	MaxHeaderBytes int `koanf:"max_header_bytes"`
	// HeaderTimeout is how long they, and a TLS handshake before them, may take. Default 10s.
	HeaderTimeout time.Duration `koanf:"header_timeout"`
	// IdleTimeout is how long a connection may wait for its next request. Default 60s.
	IdleTimeout time.Duration `koanf:"idle_timeout"`
}

// ProxiesConfig says what stands between callers and here, as caller.Proxies does.
type ProxiesConfig struct {
	// TrustedHops is how many proxies of one's own each request passes. Default 0: the connection's other end is the
	// caller.
	TrustedHops int `koanf:"trusted_hops"`
	// From are the networks that the nearest of them connects from. Required with trusted_hops: without it whoever reaches
	// this port past the proxies would be believed any address that he writes, and so pay with anybody's allowance. Where
	// nothing but the proxies can reach it, 0.0.0.0/0 and ::/0 say so.
	From []string `koanf:"from"`
	// Header is where they write addresses. Default X-Forwarded-For. The upstream gets in it, as in X-Forwarded-For, the
	// address that was found.
	Header string `koanf:"header"`
}

// ClusterConfig is the cluster that decides.
type ClusterConfig struct {
	// Addrs are gRPC addresses of some of its nodes, host:port. Required.
	Addrs []string `koanf:"addrs"`
	// TLS is this gateway's certificate for the cluster, of the role gateway. Required unless all addresses are loopback.
	TLS ClusterTLSConfig `koanf:"tls"`
	// PolicyFile has the failure modes, timeouts and disabled classes that hold until the cluster was reached once.
	// Without it every class is denied until then. It is read when the gateway starts: a change of it is refused as that
	// of any other field here.
	PolicyFile string `koanf:"policy_file"`
	// ConfigGrace is how long the last known ones hold when the cluster is away. Default 5m.
	ConfigGrace time.Duration `koanf:"config_grace"`
	// MaxInFlight are the checks that wait for an answer at once. Default 4096.
	MaxInFlight int `koanf:"max_in_flight"`
	// PrincipalCeiling is how many checks of one principal are sent in a second, at most. Default 1000.
	PrincipalCeiling int `koanf:"principal_ceiling"`
}

// ClusterTLSConfig is in PEM. All three, or none.
type ClusterTLSConfig struct {
	CA   string `koanf:"ca"`
	Cert string `koanf:"cert"`
	Key  string `koanf:"key"`
}

// CredentialConfig is one kind of credential: exactly one of its fields.
type CredentialConfig struct {
	APIKey      *APIKeyConfig      `koanf:"api_key"`
	JWT         *JWTConfig         `koanf:"jwt"`
	Certificate *CertificateConfig `koanf:"certificate"`
	ClientIP    *ClientIPConfig    `koanf:"client_ip"`
}

// APIKeyConfig is a key in a header. The principal, and its tier, are as the file says.
type APIKeyConfig struct {
	// Header has the key. Default X-Api-Key.
	Header string `koanf:"header"`
	// File has the keys' digests, as `quorate gateway key` prints them. Required.
	File string `koanf:"file"`
	// Forward leaves the header for the upstream. Default false.
	Forward bool `koanf:"forward"`
}

// JWTConfig is a token in the header Authorization; the principal is "sub:" and its subject.
type JWTConfig struct {
	// JWKSFile has the public keys, as RFC 7517 writes them. Required.
	JWKSFile string `koanf:"jwks_file"`
	// Algorithms are those accepted. Required.
	Algorithms []string `koanf:"algorithms"`
	// Issuer and Audience must be in the token, unless AnyIssuer or AnyAudience says otherwise.
	Issuer      string `koanf:"issuer"`
	Audience    string `koanf:"audience"`
	AnyIssuer   bool   `koanf:"any_issuer"`
	AnyAudience bool   `koanf:"any_audience"`
	// Leeway is by how much clocks may differ. Default 0.
	Leeway time.Duration `koanf:"leeway"`
}

// CertificateConfig is a client certificate, of tls.client_ca.
type CertificateConfig struct {
	// Name is what of it names the caller: uri, dns or cn. Required.
	Name string `koanf:"name"`
}

// ClientIPConfig is the caller's address, which every request has: put it last.
type ClientIPConfig struct {
	// IPv6Bits and IPv4Bits are how much of an address tells callers apart. Default 64 and 32.
	IPv6Bits int `koanf:"ipv6_bits"`
	IPv4Bits int `koanf:"ipv4_bits"`
}

// UpstreamConfig is where requests go.
type UpstreamConfig struct {
	// URL is http:// or https://, a host, and maybe a path to which requests' paths are appended. Required.
	URL string `koanf:"url"`
	// CA holds the CAs that an https upstream's certificate must come from. Default: the system's.
	CA string `koanf:"ca"`
	// PreserveHost passes the caller's Host on. Default false: the upstream sees its own, and X-Forwarded-Host.
	PreserveHost bool `koanf:"preserve_host"`
	// MaxConnections are those to it at once; what is beyond waits. Default 1024.
	MaxConnections int `koanf:"max_connections"`
	// DialTimeout is how long it may take to connect. Default 5s.
	DialTimeout time.Duration `koanf:"dial_timeout"`
	// Timeout is how long it may take until the answer begins, the request's body included. Default 60s.
	Timeout time.Duration `koanf:"timeout"`
	// IdleTimeout is the longest that an answer, or a changed protocol, may be without a byte either way. Default 5m.
	IdleTimeout time.Duration `koanf:"idle_timeout"`
	// MaxDuration is the longest that all of it may take. Default 24h.
	MaxDuration time.Duration `koanf:"max_duration"`
	// MaxBodyBytes bounds a request's body; more gets 413. Default 1 GiB.
	MaxBodyBytes int64 `koanf:"max_body_bytes"`
}

// RouteConfig is what a kind of request takes, and where it goes.
type RouteConfig struct {
	// Match is a pattern as http.ServeMux has them, without a host: "POST /convert", "/files/", "/users/{id}". Required
	// but for the fallback.
	Match string `koanf:"match"`
	// Name is what metrics call the route. Default: Match.
	Name string `koanf:"name"`
	// Upstream is one of upstreams. It may be left out where there is only one.
	Upstream string `koanf:"upstream"`
	// Charges are what it takes, decided in order; all must be allowed. Those of one caller are one decision.
	Charges []ChargeConfig `koanf:"charges"`
	// Unlimited lets it pass unasked, whoever calls; only without charges.
	Unlimited bool `koanf:"unlimited"`
	// AllowUpgrades lets connections change here to a protocol of upgrades; otherwise the upstream is not asked for it.
	// Default true, and false where unlimited: a changed connection lasts, and strangers could have as many as there are.
	AllowUpgrades *bool `koanf:"allow_upgrades"`
}

// ChargeConfig is one allowance that a request takes from.
type ChargeConfig struct {
	// Class is the API class. Required. One that the policy does not list counts by the rules of its class default; the
	// log, /readyz?verbose and the metric quorate_gateway_unlisted_classes tell of such.
	Class string `koanf:"class"`
	// By is who pays, one of callers. It may be left out where there is only one.
	By string `koanf:"by"`
	// Cost is how much, 1 to 2^53. Default 1.
	Cost *int64 `koanf:"cost"`
}

// AnswersConfig is about refusals.
type AnswersConfig struct {
	// LegacyHeaders adds X-RateLimit-*. Default false.
	LegacyHeaders bool `koanf:"legacy_headers"`
	// RetryJitter is the most that is added to Retry-After. Default 0.
	RetryJitter time.Duration `koanf:"retry_jitter"`
}

// DrainConfig is what happens at SIGTERM.
type DrainConfig struct {
	// Delay is how long requests are still accepted while /readyz already says no, so that load balancers notice.
	// Default 5s; "0s" is allowed.
	Delay *time.Duration `koanf:"delay"`
	// Timeout is how long those under way have then; what is left is cut off. Default 30s.
	Timeout time.Duration `koanf:"timeout"`
}

// LogConfig is the process's log, on standard error.
type LogConfig struct {
	// Level is debug, info (default), warn or error. Format is text (default) or json.
	Level  string `koanf:"level"`
	Format string `koanf:"format"`
}
