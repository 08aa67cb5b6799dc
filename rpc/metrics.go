package rpc

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/quorate/quorate/fsm"
	quoratev1 "github.com/quorate/quorate/proto/quorate/v1"
	"github.com/quorate/quorate/quotaerr"
)

// metrics are the edge's own. Label values come from closed sets.
type metrics struct {
	registry  *prometheus.Registry
	decisions *prometheus.CounterVec
	seconds   *prometheus.HistogramVec
	forwards  *prometheus.CounterVec
	inFlight  prometheus.Gauge
	panics    prometheus.Counter
	calls     *prometheus.CounterVec
	refused   *prometheus.CounterVec
	attempts  *prometheus.CounterVec
	frames    *prometheus.CounterVec
}

func newMetrics() *metrics {
	m := &metrics{
		registry: prometheus.NewRegistry(),
		decisions: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "quorate_decisions_total",
			Help: "Answers to checks that callers sent to this node, by outcome and reason.",
		}, []string{"outcome", "reason"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "quorate_check_duration_seconds",
			Help:    "Time from a check's arrival at this node to its answer, by protocol.",
			Buckets: prometheus.ExponentialBuckets(0.00025, 2, 16),
		}, []string{"protocol"}),
		forwards: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "quorate_forwards_total",
			Help: "Attempts to pass a check, peek or operator's call on to another node, by result.",
		}, []string{"result"}),
		inFlight: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "quorate_checks_in_flight",
			Help: "Checks and peeks that this node has not answered yet.",
		}),
		panics: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "quorate_panics_total",
			Help: "Panics caught while serving a request. Any is a defect.",
		}),
		calls: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "quorate_grpc_calls_total",
			Help: "gRPC calls served, by method and code.",
		}, []string{"method", "code"}),
		refused: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "quorate_connections_refused_total",
			Help: "Connections that a door with TLS refused or ended, by door and reason.",
		}, []string{"door", "reason"}),
		attempts: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "quorate_refused_attempts_total",
			Help: "Refused calls that would have changed something, noted in the audit trail or counted only.",
		}, []string{"as"}),
		frames: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "quorate_stream_frames_total",
			Help: "Frames of checks that streams brought in, and of answers that went out, by direction.",
		}, []string{"direction"}),
	}
	m.registry.MustRegister(m.decisions, m.seconds, m.forwards, m.inFlight, m.panics, m.calls, m.refused, m.attempts,
		m.frames, collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

// The protocols of checks: the values of a metric's label.
const (
	protocolGRPC   = "grpc"
	protocolStream = "stream"
	protocolHTTP   = "http"
	protocolEnvoy  = "envoy"
)

// observe counts one answer to a check, and how long after its arrival it came.
func (m *metrics) observe(protocol string, arrived time.Time, d *quoratev1.Decision, err error) {
	m.seconds.WithLabelValues(protocol).Observe(time.Since(arrived).Seconds())
	m.answered(d, err)
}

// answered counts one answer to a check.
func (m *metrics) answered(d *quoratev1.Decision, err error) {
	if err != nil {
		m.decisions.WithLabelValues("error", string(quotaerr.ReasonOf(err))).Inc()
		return
	}
	m.decisions.WithLabelValues(outcomeName(d), d.GetReason()).Inc()
}

// outcomeOf is the outcomeName of a decision that was made for this reason.
func outcomeOf(r fsm.Reason) string {
	if r == fsm.ReasonAllowed {
		return "allowed"
	}
	return "denied"
}

// outcomeName is the JSON name of an outcome. Everything but a plain allow reads as not allowed.
func outcomeName(d *quoratev1.Decision) string {
	switch {
	case Allowed(d):
		return "allowed"
	case d.GetOutcome() == quoratev1.Outcome_OUTCOME_DENIED:
		return "denied"
	default:
		return "unspecified"
	}
}
