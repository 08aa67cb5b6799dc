package rpc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"mime"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/quorate/quorate/internal/httpanswer"
	"github.com/quorate/quorate/quotaerr"
)

const (
	maxBodyBytes   = 64 << 10
	maxHeaderBytes = 16 << 10

	readHeaderTimeout = 5 * time.Second
	readTimeout       = 10 * time.Second
	writeTimeout      = 20 * time.Second // above readTimeout and DefaultTimeout together
	idleTimeout       = 60 * time.Second
)

// Condition is one thing that a node needs to be ready.
type Condition struct {
	Name   string
	Ready  bool
	Detail string // what is missing; one line
}

type httpAPI struct {
	desk          *desk
	log           *slog.Logger
	who           Authenticator
	ready         func() []Condition
	legacyHeaders bool
}

func (h *httpAPI) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/v1/check", only(h.check, http.MethodPost))
	mux.HandleFunc("/livez", only(live, http.MethodGet, http.MethodHead))
	mux.HandleFunc("/readyz", only(h.readyz, http.MethodGet, http.MethodHead))
	metrics := promhttp.HandlerFor(h.desk.metrics.registry, promhttp.HandlerOpts{
		MaxRequestsInFlight: 4, Timeout: 10 * time.Second,
	})
	mux.HandleFunc("/metrics", only(h.guarded(metrics.ServeHTTP), http.MethodGet, http.MethodHead))
	// A page in somebody's browser must not spend an allowance through a node on the same machine.
	cross := http.NewCrossOriginProtection()
	cross.SetDenyHandler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		h.writeError(w, quotaerr.New(quotaerr.PermissionDenied, "browsers may not call this from a page"))
	}))
	return h.recovering(h.atHome(cross.Handler(mux)))
}

// atHome refuses what a browser sends under a name that is not this machine's own: a page whose name was
// made to point here (DNS rebinding) is of the same origin as the node, as far as a browser can tell.
func (h *httpAPI) atHome(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		browser := r.Header.Get("Origin") != "" || r.Header.Get("Sec-Fetch-Site") != ""
		if browser && r.Method == http.MethodPost && !loopbackHost(r.Host) {
			h.writeError(w, quotaerr.New(quotaerr.PermissionDenied,
				"browsers may call this under a loopback address only, not under the name %.100q", r.Host))
			return
		}
		next.ServeHTTP(w, r)
	})
}

// loopbackHost reports whether a Host header names this machine itself.
func loopbackHost(host string) bool {
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	host = strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
	ip := net.ParseIP(host)
	return strings.EqualFold(host, "localhost") || ip != nil && ip.IsLoopback()
}

// recovering turns a panic into a 500 if nothing has been written yet; it never becomes an answer.
func (h *httpAPI) recovering(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() {
			if p := recover(); p != nil {
				h.writeError(w, caught(r.Context(), h.desk.metrics, h.log, p))
			}
		}()
		next.ServeHTTP(w, r)
	})
}

// only refuses other methods with 405.
func only(next http.HandlerFunc, methods ...string) http.HandlerFunc {
	allow := strings.Join(methods, ", ")
	return func(w http.ResponseWriter, r *http.Request) {
		for _, m := range methods {
			if r.Method == m {
				next(w, r)
				return
			}
		}
		w.Header().Set("Allow", allow)
		body := jsonError{
			Problem: httpanswer.NewProblem(http.StatusMethodNotAllowed), Reason: string(quotaerr.InvalidArgument),
		}
		body.Detail = "use " + allow
		httpanswer.WriteProblem(w, http.StatusMethodNotAllowed, body)
	}
}

// guarded lets those see the metrics who may look on.
func (h *httpAPI) guarded(next http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		id, err := h.who(r.Context())
		if err == nil {
			err = authorise(id, accessMetrics, "/metrics")
		}
		if err != nil {
			h.writeError(w, err)
			return
		}
		next(w, r)
	}
}

func (h *httpAPI) check(w http.ResponseWriter, r *http.Request) {
	start := time.Now()
	ctx, cancel := context.WithTimeout(r.Context(), DefaultTimeout)
	defer cancel()
	id, err := h.who(ctx)
	if err == nil {
		err = authorise(id, accessCheck, "/v1/check")
	}
	if err != nil {
		h.fail(ctx, w, start, err)
		return
	}
	body, err := readBody(w, r)
	if err != nil {
		h.fail(ctx, w, start, err)
		return
	}
	req, err := parseCheck(body)
	if err != nil {
		h.fail(ctx, w, start, err)
		return
	}
	d, err := h.desk.check(ctx, id, req, protocolHTTP)
	if err != nil {
		h.fail(ctx, w, start, err)
		return
	}
	h.writeDecision(w, d)
}

func (h *httpAPI) fail(ctx context.Context, w http.ResponseWriter, start time.Time, err error) {
	logFailure(ctx, h.log, "/v1/check", start, err)
	h.writeError(w, err)
}

func readBody(w http.ResponseWriter, r *http.Request) ([]byte, error) {
	if ct := r.Header.Get("Content-Type"); ct != "" {
		mt, _, err := mime.ParseMediaType(ct)
		// curl -d calls every body a form, whatever it is; it is read as JSON all the same.
		if err != nil || mt != "application/json" && mt != "application/x-www-form-urlencoded" {
			return nil, quotaerr.New(quotaerr.InvalidArgument, "Content-Type must be application/json")
		}
	}
	if r.Header.Get("Content-Encoding") != "" {
		return nil, quotaerr.New(quotaerr.InvalidArgument, "send the body without Content-Encoding")
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBodyBytes))
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &large):
		return nil, quotaerr.New(quotaerr.InvalidArgument, "the body is larger than %d bytes", maxBodyBytes)
	case err != nil:
		return nil, quotaerr.Wrap(quotaerr.InvalidArgument, err, "the body could not be read")
	}
	return body, nil
}

func live(w http.ResponseWriter, _ *http.Request) { plain(w, http.StatusOK, "ok\n") }

func (h *httpAPI) readyz(w http.ResponseWriter, r *http.Request) {
	status := http.StatusOK
	var lines strings.Builder
	for _, c := range h.ready() {
		mark := "+"
		if !c.Ready {
			mark, status = "-", http.StatusServiceUnavailable
		}
		fmt.Fprintf(&lines, "[%s] %s %s\n", mark, c.Name, c.Detail)
	}
	verdict := "ok\n"
	if status != http.StatusOK {
		verdict = "not ready\n"
	}
	if r.URL.Query().Has("verbose") {
		verdict = lines.String() + verdict
	}
	plain(w, status, verdict)
}

func plain(w http.ResponseWriter, status int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_, _ = io.WriteString(w, text) // the caller has gone when this fails
}
