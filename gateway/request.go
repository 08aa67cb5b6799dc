package gateway

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"golang.org/x/net/http/httpguts"

	"github.com/quorate/quorate/internal/httpanswer"
	"github.com/quorate/quorate/sdk/caller"
)

// The reasons for which the gateway itself refuses a request: a closed set, for metrics and for the answer's body.
const (
	refusedTarget    = "target"
	refusedHost      = "host"
	refusedMethod    = "method"
	refusedUpgrade   = "upgrade"
	refusedUnrouted  = "not_found"
	refusedBody      = "body_too_large"
	refusedLate      = "body_timeout"
	refusedBroken    = "body_malformed"
	refusedBusy      = "busy"
	refusedSlow      = "upstream_timeout"
	refusedUpstream  = "upstream_failed"
	refusedNobody    = "unauthenticated"
	refusedMalformed = "malformed"
	refusedUndecided = "undecided"
	refusedTrust     = "certificate"
)

// refusals are all of them.
var refusals = []string{
	refusedTarget, refusedHost, refusedMethod, refusedUpgrade, refusedUnrouted, refusedBody, refusedLate, refusedBroken,
	refusedBusy, refusedSlow, refusedUpstream, refusedNobody, refusedMalformed, refusedUndecided, refusedTrust,
}

// busyWait is what is told to wait when too many requests are under way.
const busyWait = time.Second

// ServeHTTP takes one request.
func (g *Gateway) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	gen := g.current.Load()
	on, begun := &passage{}, time.Now()
	a := &answer{ResponseWriter: w, conn: connOf(r.Context()), old: !r.ProtoAtLeast(1, 1)}
	r = r.WithContext(r.Context()) // net/http looks at its own when it decides about the connection
	if a.conn != nil && r.TLS == nil {
		r.TLS = a.conn.tls
	}
	if r.Body != nil && r.Body != http.NoBody {
		b := &body{ReadCloser: r.Body}
		r.Body = b
		defer b.leave(w, gen.config.Bounds.HeaderTimeout)
		if a.conn != nil && r.Header["Expect"] != nil {
			defer a.conn.unasked(b)
		}
	}
	g.metrics.inFlight.Inc()
	defer func() {
		g.metrics.inFlight.Dec()
		g.metrics.served(on.route, a.status, time.Since(begun))
	}()
	if n := g.underWay.Add(1); n-g.places.upgrades.count() > int64(gen.config.Bounds.MaxRequests) {
		defer g.underWay.Add(-1)
		httpanswer.SetRetryAfter(a.Header(), busyWait)
		g.refuse(a, http.StatusServiceUnavailable, refusedBusy, "there is too much to do at present")
		return
	}
	defer g.underWay.Add(-1)
	if detail := ambiguous(r); detail != "" {
		g.refuse(a, http.StatusBadRequest, refusedMalformed, detail)
		return
	}
	if gen.distrusts(a, r) {
		g.refuse(a, http.StatusMisdirectedRequest, refusedTrust, "connect anew, with a certificate that is accepted now")
		return
	}
	if status, reason, detail := gen.judge(r, on); status != 0 {
		switch {
		case reason == refusedMethod:
			a.Header().Set("Allow", strings.Join(gen.config.Methods, ", "))
		case reason == refusedBody && a.conn != nil: // it is not waited for
			a.Header().Set("Connection", "close")
			a.conn.Stop()
		}
		g.refuse(a, status, reason, detail)
		return
	}
	free, ok := g.upgrade(gen, a, r, on)
	if !ok {
		return
	}
	defer free()
	g.pass(gen, a, r, on)
}

// pass lets a request through whose route is found.
func (g *Gateway) pass(gen *generation, a *answer, r *http.Request, on *passage) {
	limits := &on.route.upstream.config
	ctx, cancel := context.WithCancelCause(r.Context())
	w := &watch{cancel: cancel, rc: http.NewResponseController(a.ResponseWriter)}
	if b, ok := r.Body.(*body); ok {
		limited := http.MaxBytesReader(a.ResponseWriter, b.ReadCloser, limits.MaxBodyBytes)
		b.ReadCloser, b.watch, w.body = &upload{ReadCloser: limited}, w, b
	}
	long := time.AfterFunc(limits.MaxDuration, func() { w.cut(w.blame(errLong)) })
	stop := context.AfterFunc(g.life, func() { w.cut(errDraining) }) //nolint:contextcheck // the gateway's life, not r's
	defer func() {
		long.Stop()
		stop()
		w.end()
		cancel(nil)
	}()
	a.watch = w
	gen.handler.ServeHTTP(a, r.WithContext(context.WithValue(withPassage(ctx, on), watchKey{}, w)))
}

// judge finds r's route, or says why it is refused.
func (gen *generation) judge(r *http.Request, on *passage) (status int, reason, detail string) {
	switch whole := r.URL.Host != "" || r.URL.Scheme != ""; {
	case r.Method == http.MethodConnect || !gen.methods[r.Method]:
		return http.StatusMethodNotAllowed, refusedMethod, "this method is not served"
	case whole && !gen.isOurs(r.URL):
		return http.StatusBadRequest, refusedTarget, "send the path alone: this is not a proxy to other hosts"
	case !strings.HasPrefix(r.URL.Path, "/") || climbs(r.URL.Path):
		return http.StatusBadRequest, refusedTarget, "the path must begin with / and have no . or .. segments"
	case !printable(r.URL.RawQuery): // HTTP/2 can carry what begins another line, or ends this one, in HTTP/1
		return http.StatusBadRequest, refusedTarget, "write spaces, controls and other bytes than ASCII as %XX"
	case len(gen.hosts) > 0 && !gen.hosts[bareHost(r.Host)]:
		return http.StatusMisdirectedRequest, refusedHost, "this host is not served here"
	}
	if protocol := upgradeOf(r.Header); protocol != "" {
		switch {
		case !gen.upgrades[protocol]: // a server may go on as if it had not been asked
			r.Header.Del("Upgrade")
		case r.Method != http.MethodGet || r.ContentLength != 0:
			return http.StatusBadRequest, refusedUpgrade, "ask for another protocol with GET and no body"
		}
	}
	on.route = gen.routes.find(r)
	switch {
	case on.route == nil:
		return http.StatusNotFound, refusedUnrouted, "no such resource"
	case r.ContentLength > on.route.upstream.config.MaxBodyBytes:
		return http.StatusRequestEntityTooLarge, refusedBody, "the body is too large"
	}
	return 0, "", ""
}

// printable reports whether there are only visible bytes of ASCII.
func printable(s string) bool {
	for i := range len(s) {
		if s[i] <= ' ' || s[i] >= 0x7f {
			return false
		}
	}
	return true
}

// climbs reports whether a path, decoded, has segments that lead out of the upstream's own path. quotahttp refuses such
// a path too, and more, but answers later.
func climbs(path string) bool {
	for segment := range strings.FieldsFuncSeq(path, func(c rune) bool { return c == '/' || c == '\\' }) {
		if name, _, _ := strings.Cut(segment, ";"); name == "." || name == ".." {
			return true
		}
	}
	return false
}

// isOurs reports whether a whole URL is of a host that is served here.
func (gen *generation) isOurs(u *url.URL) bool {
	return gen.hosts[bareHost(u.Host)] && (u.Scheme == "http" || u.Scheme == "https") && u.User == nil
}

// upgradeOf is the protocol that a request wants to change to, in lower case; empty for none.
func upgradeOf(h http.Header) string {
	if !httpguts.HeaderValuesContainsToken(h["Connection"], "Upgrade") {
		return ""
	}
	return strings.ToLower(strings.Join(h["Upgrade"], ","))
}

// problem is the body of the gateway's own refusals.
type problem struct {
	httpanswer.Problem
	Reason string `json:"reason"`
}

func (g *Gateway) refuse(a *answer, status int, reason, detail string) {
	g.metrics.refused.WithLabelValues(reason).Inc()
	body := problem{httpanswer.NewProblem(status), reason}
	body.Detail = detail
	httpanswer.WriteProblem(a, status, body)
}

// undecided counts the refusals of the middleware that are no decision.
func (g *Gateway) undecided(_ *http.Request, err error) {
	reason := refusedUndecided
	var e *caller.Error
	switch {
	case errors.Is(err, context.Canceled): // nobody waits for the answer
		return
	case !errors.As(err, &e):
		g.sometimes.warn("a request could not be decided", "error", err)
	case errors.Is(e.Kind, caller.ErrMissing), errors.Is(e.Kind, caller.ErrInvalid):
		reason = refusedNobody
	case errors.Is(e.Kind, caller.ErrMalformed):
		reason = refusedMalformed
	}
	g.metrics.refused.WithLabelValues(reason).Inc()
}

// failed answers a request that the upstream did not.
func (g *Gateway) failed(w http.ResponseWriter, r *http.Request, err error) {
	a := w.(*answer) // the middleware hands on what it got
	cause := context.Cause(r.Context())
	switch status, reason, detail := a.fault(r, cause); {
	case errors.Is(cause, errDraining):
		g.refuse(a, http.StatusServiceUnavailable, refusedBusy, "the service is stopping: try again")
		return
	case status != 0:
		if a.conn != nil { // with HTTP/2 it is one stream's
			a.Header().Set("Connection", "close")
		}
		g.refuse(a, status, reason, detail)
		return
	case errors.Is(cause, errSlow), errors.Is(cause, errIdle), errors.Is(cause, errLong), cause == nil && isTimeout(err):
		g.sometimes.warn("an upstream was too slow", "upstream", passageOf(r.Context()).route.upstream.name, "error", err)
		g.refuse(a, http.StatusGatewayTimeout, refusedSlow, "the service behind did not answer in time")
		return
	case cause != nil: // the caller has gone
		panic(http.ErrAbortHandler)
	}
	g.sometimes.warn("an upstream failed", "upstream", passageOf(r.Context()).route.upstream.name, "error", err)
	g.refuse(a, http.StatusBadGateway, refusedUpstream, "the service behind did not answer")
}

func isTimeout(err error) bool {
	var e net.Error
	return errors.As(err, &e) && e.Timeout()
}

// statusLabel is a status as metrics have it: those that are no status of HTTP are one.
func statusLabel(status int) string {
	switch {
	case status == 0:
		return "aborted"
	case http.StatusText(status) == "":
		return "other"
	}
	return strconv.Itoa(status)
}
