package envoy

import (
	"math"
	"net/http"
	"slices"
	"strings"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/quorate/quorate/internal/errtable"
	"github.com/quorate/quorate/internal/httpanswer"
	"github.com/quorate/quorate/policy"
	quoratev1 "github.com/quorate/quorate/proto/quorate/v1"
	"github.com/quorate/quorate/quotaerr"
)

const (
	codeOK   = ratelimitv3.RateLimitResponse_OK
	codeOver = ratelimitv3.RateLimitResponse_OVER_LIMIT
)

type status = ratelimitv3.RateLimitResponse_DescriptorStatus

// answer is one request's, while it is made.
type answer struct {
	service *Service
	policy  *policy.Policy

	statuses []*status // nil: not asked
	over     *over     // the denial; nil without one
	shown    *quoratev1.Decision
	admitted int      // descriptors that have consumed, by this request
	bypassed []string // the classes of those that were let through without a decision, resolved
	asking   []string // the classes of the question under way
}

// render is the answer, and counts what came of it.
func (a *answer) render() *ratelimitv3.RateLimitResponse {
	out := &ratelimitv3.RateLimitResponse{
		OverallCode: codeOK, Statuses: a.statuses, ResponseHeadersToAdd: a.headers(), DynamicMetadata: a.over.metadata(),
	}
	for i, s := range out.Statuses {
		if s == nil {
			out.Statuses[i] = denied()
		}
		if out.Statuses[i].GetCode() != codeOK {
			out.OverallCode = codeOver
		}
	}
	if a.over != nil {
		out.OverallCode = codeOver
	}
	if out.OverallCode != codeOK {
		a.service.metrics.wasted.Add(float64(a.admitted))
		return out
	}
	for _, class := range a.bypassed {
		a.service.metrics.bypasses.WithLabelValues(class).Inc()
	}
	return out
}

// denied is the status of a descriptor of which no more is to be told.
func denied() *status { return &status{Code: codeOver} }

// through is that of one that nobody was asked about.
func through() *status { return &status{Code: codeOK} }

// unlimited is that of one without any limit.
func unlimited() *status { return &status{Code: codeOK, LimitRemaining: math.MaxUint32} }

// statusOf is the status of a descriptor with these limits, by a decision that allows it.
func statusOf(d *quoratev1.Decision, limits []*quoratev1.LimitState) *status {
	l := tightest(limits)
	if l == nil {
		return &status{Code: codeOK, LimitRemaining: clamp(d.GetRemaining())}
	}
	return &status{
		Code: codeOK, CurrentLimit: limitOf(l), LimitRemaining: clamp(l.GetRemaining()),
		DurationUntilReset: millis(l.GetResetMs()),
	}
}

// tightest is the limit with the least room, the first where equal.
func tightest(limits []*quoratev1.LimitState) (out *quoratev1.LimitState) {
	for _, l := range limits {
		if out == nil || l.GetRemaining() < out.GetRemaining() {
			out = l
		}
	}
	return out
}

// clamp is n as Envoy has room for it: never more than there is.
func clamp(n int64) uint32 { return uint32(min(max(0, n), math.MaxUint32)) }

const day = 24 * time.Hour

// units are the windows that Envoy has a name for. It counts 30 days as a month, 365 as a year.
var units = map[time.Duration]ratelimitv3.RateLimitResponse_RateLimit_Unit{
	time.Second: ratelimitv3.RateLimitResponse_RateLimit_SECOND,
	time.Minute: ratelimitv3.RateLimitResponse_RateLimit_MINUTE,
	time.Hour:   ratelimitv3.RateLimitResponse_RateLimit_HOUR,
	day:         ratelimitv3.RateLimitResponse_RateLimit_DAY,
	7 * day:     ratelimitv3.RateLimitResponse_RateLimit_WEEK,
	30 * day:    ratelimitv3.RateLimitResponse_RateLimit_MONTH,
	365 * day:   ratelimitv3.RateLimitResponse_RateLimit_YEAR,
}

// limitOf is a limit as Envoy has it. The unit of a window that Envoy has no name for is unknown: Envoy then leaves it
// out of its own headers, where a multiple of a unit would be taken for the unit by versions that know no multiples.
func limitOf(l *quoratev1.LimitState) *ratelimitv3.RateLimitResponse_RateLimit {
	return &ratelimitv3.RateLimitResponse_RateLimit{
		Name: l.GetName(), RequestsPerUnit: clamp(l.GetLimit()), Unit: units[l.GetWindow().AsDuration()],
	}
}

// headers are what the caller is told, in lower case and in the order of their names.
func (a *answer) headers() (out []*corev3.HeaderValue) {
	h := http.Header{}
	if a.shown != nil {
		httpanswer.SetRateLimit(h, a.shown, false)
	}
	if a.over != nil && a.over.reason != "" {
		h.Set(reasonHeader, a.over.reason)
	}
	if a.shown != nil && !allowed(a.shown) {
		if a.shown.GetRetryAt() != nil {
			httpanswer.SetRetryAfter(h, millis(a.shown.GetRetryAfterMs()).AsDuration())
		} else if wait := errtable.Lookup(quotaerr.Reason(a.shown.GetReason())).Wait; wait > 0 {
			httpanswer.SetRetryAfter(h, wait)
		}
	}
	for key, values := range h {
		for _, v := range values {
			out = append(out, &corev3.HeaderValue{Key: strings.ToLower(key), Value: v})
		}
	}
	slices.SortFunc(out, func(a, b *corev3.HeaderValue) int { return strings.Compare(a.GetKey(), b.GetKey()) })
	return out
}
