package envoy

import (
	"github.com/prometheus/client_golang/prometheus"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
)

// metrics have labels of closed sets: Envoy's codes, and the policy's classes.
type metrics struct {
	answers  *prometheus.CounterVec
	bypasses *prometheus.CounterVec
	wasted   prometheus.Counter
}

func newMetrics(registerer prometheus.Registerer) *metrics {
	m := &metrics{
		answers: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "quorate_envoy_answers_total",
			Help: "Answers to requests of Envoy's rate limit protocol, by overall code: ok, over_limit, or error.",
		}, []string{"code"}),
		bypasses: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "quorate_envoy_bypasses_total",
			Help: "Descriptors that Envoy was told to let through without a decision, since nobody could decide and " +
				"the class has on_unavailable: allow; by class.",
		}, []string{"api_class"}),
		wasted: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "quorate_envoy_wasted_admissions_total",
			Help: "Descriptors that consumed although their request was not let through, since a later one was denied or " +
				"could not be decided.",
		}),
	}
	registerer.MustRegister(m.answers, m.bypasses, m.wasted)
	return m
}

// answered counts one answer; nil is an error.
func (m *metrics) answered(out *ratelimitv3.RateLimitResponse) {
	code := "error"
	switch out.GetOverallCode() {
	case codeOK:
		code = "ok"
	case codeOver:
		code = "over_limit"
	case ratelimitv3.RateLimitResponse_UNKNOWN:
	}
	m.answers.WithLabelValues(code).Inc()
}
