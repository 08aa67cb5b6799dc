package gateway

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"maps"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"

	"github.com/quorate/quorate/sdk"
	"github.com/quorate/quorate/sdk/quotahttp"
)

// generation is a configuration that is in force, with all that is made of it. It does not change.
type generation struct {
	config    *Config
	routes    *routes
	upstreams map[string]*upstream
	handler   http.Handler // for a request whose route is found
	tls       *tls.Config  // nil without
	trust     trust
	callers   *callers
	classes   []string // that routes charge
	hosts     map[string]bool
	methods   map[string]bool
	upgrades  map[string]bool
}

// compile judges a configuration as a whole, with the files that it names, and makes a generation of it. Without a
// gateway to run it, it only judges.
func compile(c *Config, g *Gateway, earlier *generation) (*generation, error) {
	p := slices.Clone(c.early)
	c.checkSettings(&p)
	out := &generation{
		config: c, hosts: setOf(c.Hosts), methods: setOf(c.Methods), upgrades: setOf(c.Upgrades),
	}
	out.tls, out.trust = c.compileTLS(&p)
	var was map[string]*upstream
	if earlier != nil {
		was = earlier.upstreams
	}
	out.upstreams = c.compileUpstreams(&p, was)
	who := c.compileCallers(&p)
	var checker quotahttp.Checker = nobody{}
	onError := func(*http.Request, error) {}
	failed := func(http.ResponseWriter, *http.Request, error) {}
	if g != nil {
		checker, onError, failed = g.client, g.undecided, g.failed
	} else if len(c.Cluster.Addrs) > 0 {
		c.Cluster.check(&p)
	}
	table, limit := c.compileRoutes(&p, who, out.upstreams, checker, onError)
	if err := c.source.tell(p); err != nil {
		return nil, err
	}
	out.routes, out.callers, out.classes = table, who, slices.Sorted(maps.Keys(c.charged()))
	out.handler = limit(duplex(newProxy(c.compileHeaders(who), failed)))
	return out, nil
}

func setOf(list []string) map[string]bool {
	out := map[string]bool{}
	for _, s := range list {
		out[s] = true
	}
	return out
}

// nobody decides nothing.
type nobody struct{}

var _ quotahttp.Checker = nobody{}

// CheckAll allows nothing.
func (nobody) CheckAll(context.Context, []sdk.Identity) (sdk.Decisions, error) {
	return sdk.Decisions{}, sdk.ErrClosed
}

// check has the SDK judge what it is told, without a byte to the network.
func (c *ClusterConfig) check(p *problems) {
	client, err := sdk.New(c.Addrs, append(c.options(), sdk.WithDialOptions(
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		})))...)
	if err != nil {
		p.nest("cluster", err)
		return
	}
	_ = client.Close() // it has nothing open
}

// compileTLS reads what callers are shown.
func (c *Config) compileTLS(p *problems) (*tls.Config, trust) {
	t := c.TLS
	if t == (TLSConfig{}) {
		return nil, trust{}
	}
	if t.Cert == "" || t.Key == "" {
		p.add("tls", "name both cert and key, or leave out all of tls")
		return nil, trust{}
	}
	out := &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: []string{"h2", "http/1.1"}}
	cert, certErr := c.files.read(t.Cert)
	if certErr != nil {
		p.add("tls.cert", "%w", certErr)
	}
	key, keyErr := c.files.read(t.Key)
	if keyErr != nil {
		p.add("tls.key", "%w", keyErr)
	}
	if certErr == nil && keyErr == nil {
		pair, err := tls.X509KeyPair(cert, key)
		switch {
		case err != nil:
			p.add("tls.cert", "%s and %s: %w", t.Cert, t.Key, err)
		case time.Now().After(pair.Leaf.NotAfter):
			p.add("tls.cert", "%s has ended on %s: get a fresh one", t.Cert, pair.Leaf.NotAfter.Format(time.DateTime))
		}
		out.Certificates = []tls.Certificate{pair}
	}
	return out, c.trustIn(c.compileClientCA(p, out))
}

// compileClientCA has out ask for callers' certificates, and gives the content of the CAs' file.
func (c *Config) compileClientCA(p *problems, out *tls.Config) []byte {
	t := c.TLS
	if t.ClientCA == "" {
		if t.ClientCertificates != "" {
			p.add("tls.client_certificates", "set tls.client_ca, or remove it")
		}
		return nil
	}
	src, err := c.files.read(t.ClientCA)
	if err != nil {
		p.add("tls.client_ca", "%w", err)
	}
	out.ClientCAs = x509.NewCertPool()
	if err == nil && !out.ClientCAs.AppendCertsFromPEM(src) {
		p.add("tls.client_ca", "%s has no certificate in PEM", t.ClientCA)
	}
	oneOf(p, "tls.client_certificates", t.ClientCertificates, "optional", "required")
	out.ClientAuth = tls.VerifyClientCertIfGiven
	if t.ClientCertificates == "required" {
		out.ClientAuth = tls.RequireAndVerifyClientCert
	}
	return src
}

// bareHost is a Host header's name, in lower case, without its port and the root's dot.
func bareHost(h string) string {
	if name, _, err := net.SplitHostPort(h); err == nil {
		h = name
	}
	return strings.TrimSuffix(strings.ToLower(h), ".")
}
