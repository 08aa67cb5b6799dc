package gateway

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"log"
	"maps"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/quorate/quorate/sdk/caller"
)

const (
	// copyBytes is the size of the buffers that bodies pass through.
	copyBytes = 32 << 10
	// maxAnswerHeaderBytes bounds the headers of an upstream's answer.
	maxAnswerHeaderBytes = 256 << 10
	upstreamIdle         = 30 * time.Second
	tlsHandshakeTimeout  = 10 * time.Second
	continueTimeout      = time.Second
)

// The causes for which a request is cut off.
var (
	errSlow     = errors.New("the upstream's answer did not begin in time")
	errIdle     = errors.New("no byte has passed for too long")
	errLong     = errors.New("the request took too long")
	errDraining = errors.New("the gateway is stopping")
)

// upstream is where requests go.
type upstream struct {
	name      string
	config    UpstreamConfig
	ca        string // the file's content
	url       *url.URL
	transport *http.Transport
}

// compileUpstreams makes the upstreams. Those that are as in earlier keep their connections.
func (c *Config) compileUpstreams(p *problems, earlier map[string]*upstream) map[string]*upstream {
	out := map[string]*upstream{}
	if len(c.Upstreams) == 0 {
		p.add("upstreams", "name at least one, as {api: {url: \"http://127.0.0.1:9000\"}}")
	}
	for _, name := range slices.Sorted(maps.Keys(c.Upstreams)) {
		config := c.Upstreams[name]
		place := "upstreams." + name
		checkName(p, place, name)
		u := &upstream{name: name, config: config, url: config.check(p, place)}
		var roots *x509.CertPool
		if config.CA != "" {
			src, err := c.files.read(config.CA)
			if err != nil {
				p.add(place+".ca", "%w", err)
			}
			u.ca, roots = string(src), x509.NewCertPool()
			if err == nil && !roots.AppendCertsFromPEM(src) {
				p.add(place+".ca", "%s has no certificate in PEM", config.CA)
			}
		}
		if was := earlier[name]; was != nil && was.config == config && was.ca == u.ca {
			out[name] = was
			continue
		}
		u.transport = u.newTransport(roots)
		out[name] = u
	}
	return out
}

func (u *upstream) newTransport(roots *x509.CertPool) *http.Transport {
	dialer := &net.Dialer{Timeout: u.config.DialTimeout}
	return &http.Transport{
		Proxy:                  nil, // an upstream is called itself, whatever the environment says
		DialContext:            dialer.DialContext,
		TLSClientConfig:        &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12},
		TLSHandshakeTimeout:    tlsHandshakeTimeout,
		MaxConnsPerHost:        u.config.MaxConnections,
		MaxIdleConnsPerHost:    u.config.MaxConnections,
		IdleConnTimeout:        upstreamIdle,
		ExpectContinueTimeout:  continueTimeout,
		MaxResponseHeaderBytes: maxAnswerHeaderBytes,
		DisableCompression:     true, // bodies pass as they are
		Protocols:              http1(),
	}
}

func http1() *http.Protocols {
	p := new(http.Protocols)
	p.SetHTTP1(true)
	return p
}

// RoundTrip sends a request, and cuts it off when its answer does not begin in time.
func (u *upstream) RoundTrip(r *http.Request) (*http.Response, error) {
	w := watchOf(r.Context())
	slow := time.AfterFunc(u.config.Timeout, func() { w.cut(errSlow) })
	resp, err := u.transport.RoundTrip(r)
	if !slow.Stop() && err == nil { // it is being cut off
		err = errors.Join(errSlow, resp.Body.Close())
	}
	if err != nil {
		return nil, err
	}
	w.begin(u.config.IdleTimeout)
	return resp, nil
}

// buffers are what bodies pass through.
type buffers struct{ pool sync.Pool }

// Get is a buffer.
func (b *buffers) Get() []byte {
	if p, ok := b.pool.Get().(*[]byte); ok {
		return *p
	}
	return make([]byte, copyBytes)
}

// Put takes a buffer back.
func (b *buffers) Put(p []byte) { b.pool.Put(&p) }

var bodies = &buffers{}

// headers says what of a request's headers an upstream gets.
type headers struct {
	principal string          // tells the principal; empty for none
	removed   map[string]bool // by plainName
	address   caller.Key
}

// plainName is a header's name as programs see it that know it as a variable: they take one for the other.
func plainName(name string) string { return strings.ReplaceAll(strings.ToLower(name), "_", "-") }

// alwaysRemoved are headers by which callers could say who they are.
var alwaysRemoved = []string{"forwarded", "x-real-ip"}

const forwardedPrefix = "x-forwarded-"

func (c *Config) compileHeaders(who *callers) *headers {
	h := &headers{principal: c.PrincipalHeader, removed: map[string]bool{}, address: who.address}
	for _, name := range append(append([]string{c.PrincipalHeader}, c.RemoveHeaders...), alwaysRemoved...) {
		h.removed[plainName(name)] = true
	}
	for name := range who.secret {
		h.removed[name] = true
	}
	return h
}

// rewrite makes of a caller's request that which the upstream gets.
func (h *headers) rewrite(pr *httputil.ProxyRequest) {
	on := passageOf(pr.In.Context())
	to := on.route.upstream
	pr.SetURL(to.url)
	if to.config.PreserveHost {
		pr.Out.Host = pr.In.Host
	}
	for name := range pr.Out.Header {
		plain := plainName(name)
		if h.removed[plain] || strings.HasPrefix(plain, forwardedPrefix) {
			delete(pr.Out.Header, name)
		}
	}
	pr.Out.Trailer = nil // its values come too late to be judged
	pr.SetXForwarded()
	if addr, err := h.address.Principal(caller.FromHTTP(pr.In)); err == nil {
		pr.Out.Header.Set("X-Forwarded-For", strings.TrimPrefix(addr, caller.PrefixIP))
	}
	if h.principal != "" && on.principal != "" {
		pr.Out.Header.Set(h.principal, visible(on.principal))
	}
}

// visible writes bytes other than visible ASCII, and %, as %XX.
func visible(s string) string {
	const hexadecimal = "0123456789ABCDEF"
	var b strings.Builder
	for i := range len(s) {
		if c := s[i]; c > ' ' && c < 0x7f && c != '%' {
			b.WriteByte(c)
		} else {
			b.Write([]byte{'%', hexadecimal[c>>4], hexadecimal[c&15]})
		}
	}
	return b.String()
}

// newProxy hands requests on to the upstream of their passage's route.
func newProxy(h *headers, failed func(http.ResponseWriter, *http.Request, error)) *httputil.ReverseProxy {
	return &httputil.ReverseProxy{
		Rewrite: h.rewrite,
		Transport: roundTripper(func(r *http.Request) (*http.Response, error) {
			return passageOf(r.Context()).route.upstream.RoundTrip(r)
		}),
		FlushInterval: -1, // what has come is passed on
		BufferPool:    bodies,
		ErrorLog:      log.New(io.Discard, "", 0), // what it would say is counted
		ErrorHandler:  failed,
	}
}

// duplex has bodies pass both ways at once, which HTTP/1 of net/http does not do by itself. Then it does not see either
// whether a body was read to its end before it takes what follows for the next request, so that is seen to here.
func duplex(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		on := watchOf(r.Context())
		if on.body == nil || r.ProtoMajor != 1 {
			next.ServeHTTP(w, r)
			return
		}
		defer func() { //nolint:contextcheck // it looks something up
			if c := connOf(r.Context()); c != nil && !on.body.complete.Load() {
				c.Stop()
			}
		}()
		if err := on.rc.EnableFullDuplex(); err != nil {
			panic(err) // every answer of HTTP/1 can
		}
		next.ServeHTTP(w, r)
	})
}

type roundTripper func(*http.Request) (*http.Response, error)

// RoundTrip calls f.
func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }
