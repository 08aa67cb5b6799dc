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
	"sync"
	"time"
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
	slow := time.AfterFunc(u.config.Timeout, func() { w.cut(w.blame(errSlow)) })
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
		w.(*answer).keep() // the middleware hands on what it got
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
