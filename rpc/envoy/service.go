package envoy

import (
	"context"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/quorate/quorate/policy"
	quoratev1 "github.com/quorate/quorate/proto/quorate/v1"
	"github.com/quorate/quorate/quotaerr"
)

// Desk is where a call's checks and peeks are answered, for whoever the call's context says is calling. Errors are
// *quotaerr.Error; anything else counts as internal.
type Desk interface {
	// MayAsk refuses a class that the caller may not ask for.
	MayAsk(ctx context.Context, apiClass string) error
	// Check gets a check decided.
	Check(ctx context.Context, req *quoratev1.CheckRequest) (*quoratev1.Decision, error)
	// Peek gets a peek answered, exactly.
	Peek(ctx context.Context, req *quoratev1.PeekRequest) (*quoratev1.PeekResponse, error)
	// Policy is the policy in force. It waits a little for one that this node is about to have.
	Policy(ctx context.Context) (*policy.Policy, error)
}

// Service answers ShouldRateLimit.
type Service struct {
	ratelimitv3.UnsafeRateLimitServiceServer
	desk    Desk
	metrics *metrics
}

var _ ratelimitv3.RateLimitServiceServer = (*Service)(nil)

// New makes a service whose metrics are registered with registerer.
func New(desk Desk, registerer prometheus.Registerer) *Service {
	return &Service{desk: desk, metrics: newMetrics(registerer)}
}

// MaxSpan bounds how long a request is worked on, for callers without a deadline of their own. It is above the longest
// timeout that a class can have.
const MaxSpan = 2 * time.Minute

// ShouldRateLimit decides a request's descriptors.
func (s *Service) ShouldRateLimit(
	ctx context.Context, req *ratelimitv3.RateLimitRequest,
) (out *ratelimitv3.RateLimitResponse, err error) {
	defer func() { s.metrics.answered(out) }()
	if err := bounded(req); err != nil {
		return nil, explained(err, nil)
	}
	ctx, cancel := context.WithTimeout(ctx, MaxSpan)
	defer cancel()
	p, err := s.desk.Policy(ctx)
	if err != nil {
		return nil, explained(err, nil)
	}
	request, err := s.read(ctx, p, req)
	if err != nil {
		return nil, explained(err, nil)
	}
	a := &answer{service: s, policy: p, statuses: make([]*status, len(req.GetDescriptors()))}
	if err := a.decide(ctx, request); err != nil {
		s.metrics.wasted.Add(float64(a.admitted))
		return nil, explained(err, a.asking)
	}
	return a.render(), nil
}

// within is ctx for one question: until its timeout, and a little before the deadline of the call, if it has one, so
// that what there is to answer without a decision reaches Envoy before Envoy gives up. Without any time left nobody is
// asked, and it is no failure mode that decides: that is for an owner who cannot be reached.
func within(ctx context.Context, timeout time.Duration) (context.Context, context.CancelFunc, error) {
	if end, ok := ctx.Deadline(); ok {
		left := time.Until(end)
		timeout = min(timeout, left-min(max(left/10, time.Millisecond), 100*time.Millisecond))
	}
	if timeout <= 0 {
		return nil, nil, errLate(ctx)
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	return ctx, cancel, nil
}

// errLate says that an answer would come too late.
func errLate(ctx context.Context) error {
	return quotaerr.Wrap(quotaerr.OutcomeUnknown, ctx.Err(), "the deadline passed: give the filter a longer timeout")
}
