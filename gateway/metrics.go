package gateway

import (
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/quorate/quorate/gateway/wire"
	"github.com/quorate/quorate/sdk"
	"github.com/quorate/quorate/sdk/quotaprom"
)

// metrics are the gateway's. Labels are names of the configuration, statuses, and closed sets of words: nothing that a
// caller chooses.
type metrics struct {
	registry    *prometheus.Registry
	requests    *prometheus.CounterVec
	seconds     *prometheus.HistogramVec
	refused     *prometheus.CounterVec
	malformed   *prometheus.CounterVec
	reloads     *prometheus.CounterVec
	inFlight    prometheus.Gauge
	connections prometheus.Gauge
	good        prometheus.Gauge
	since       prometheus.Gauge
	upgraded    prometheus.Gauge
	unlisted    prometheus.Gauge
	crowded     prometheus.Counter

	mu   sync.RWMutex    // guards kept, and that no series of a route is made after those of gone ones were dropped
	kept map[string]bool // the present routes' names, and that of none
}

const (
	namespace       = "quorate_gateway"
	reloadApplied   = "applied"
	reloadRefused   = "refused"
	routeOfNoRoutes = "none"
)

func newMetrics(client *sdk.Client) *metrics {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: namespace, Name: name, Help: help}, labels)
	}
	gauge := func(name, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{Namespace: namespace, Name: name, Help: help})
	}
	m := &metrics{
		registry: prometheus.NewRegistry(),
		requests: counter("requests_total", "Requests that have ended, by route and status. Route none: no route was "+
			"found. Status aborted: the caller or the upstream broke off.", "route", "status"),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Namespace: namespace, Name: "request_seconds", Help: "How long requests took, the upstream included.",
			Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 60},
		}, []string{"route"}),
		refused: counter("refused_total", "Requests that were answered without an upstream and without a decision, by "+
			"reason.", "reason"),
		malformed:   counter("malformed_total", "Connections that were closed for a malformed request, by shape.", "shape"),
		reloads:     counter("reloads_total", "Attempts to put a changed configuration in force, by result.", "result"),
		inFlight:    gauge("in_flight", "Requests under way, changed protocols too."),
		connections: gauge("connections", "Connections of callers that are open."),
		upgraded:    gauge("upgrades", "Connections that have changed their protocol, or ask to."),
		unlisted: gauge("unlisted_classes", "Classes that routes charge and the policy in force does not list: they count "+
			"by the rules of its class default."),
		crowded: prometheus.NewCounter(prometheus.CounterOpts{
			Namespace: namespace, Name: "connections_refused_total",
			Help: "Connections that were closed at once, as their address has too many.",
		}),
		good:  gauge("config_good", "1 when the files as they are now are in force, 0 when they were refused."),
		since: gauge("config_since_seconds", "When the configuration was put in force, as Unix time."),
	}
	m.registry.MustRegister(m.requests, m.seconds, m.refused, m.malformed, m.reloads, m.inFlight, m.connections, m.good,
		m.since, m.upgraded, m.unlisted, m.crowded, quotaprom.New(client), collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	for _, reason := range append([]string{refusedUpgrades}, refusals...) {
		m.refused.WithLabelValues(reason)
	}
	for _, shape := range wire.Shapes() {
		m.malformed.WithLabelValues(string(shape))
	}
	m.reloads.WithLabelValues(reloadApplied)
	m.reloads.WithLabelValues(reloadRefused)
	return m
}

func (m *metrics) served(r *route, status int, took time.Duration) {
	name := routeOfNoRoutes
	if r != nil {
		name = r.name
	}
	m.mu.RLock()
	defer m.mu.RUnlock()
	if !m.kept[name] { // the route has gone while the request was under way
		return
	}
	m.requests.WithLabelValues(name, statusLabel(status)).Inc()
	m.seconds.WithLabelValues(name).Observe(took.Seconds())
}

// retain drops the series of routes that are not among these.
func (m *metrics) retain(now *routes) {
	kept := map[string]bool{routeOfNoRoutes: true}
	for _, r := range now.all() {
		kept[r.name] = true
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for name := range m.kept {
		if !kept[name] {
			m.requests.DeletePartialMatch(prometheus.Labels{"route": name})
			m.seconds.DeletePartialMatch(prometheus.Labels{"route": name})
		}
	}
	m.kept = kept
}

func (m *metrics) handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{MaxRequestsInFlight: 4, Timeout: 10 * time.Second})
}
