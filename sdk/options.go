package sdk

import (
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"google.golang.org/grpc"

	"github.com/quorate/quorate/sdk/internal/watch"
)

// The defaults and bounds of the options.
const (
	DefaultConfigGrace       = 5 * time.Minute
	DefaultMaxInFlight       = 4096
	DefaultPrincipalCeiling  = 1000
	DefaultPrincipalInFlight = 64
	DefaultRetryRatio        = 0.1
	DefaultRetryMin          = 10
	DefaultHintCapacity      = 1 << 16
	DefaultLocalCapacity     = 1 << 16
	maxCapacity              = 1 << 24

	// MinConfigGrace is the shortest grace: by then the watch can tell that the configuration is not confirmed.
	MinConfigGrace = watch.LiveFor
)

// Option is a setting of a client.
type Option func(*settings)

type settings struct {
	tls              *tls.Config
	nilTLS           bool // WithTLS was given none
	ca, cert, key    string
	policyFile       string
	configGrace      time.Duration
	maxInFlight      int
	principalCeiling int
	principalFlight  int
	retryRatio       float64
	retryMin         int
	hintCapacity     int
	localCapacity    int
	logger           *slog.Logger
	dial             []grpc.DialOption
}

// WithTLS has the client speak TLS by a configuration, which is cloned. Without it or WithTLSFiles it speaks plaintext,
// and that to loopback addresses only, or to names under .invalid, which only a dialer of WithDialOptions can reach. A
// nil configuration is an error.
func WithTLS(c *tls.Config) Option {
	return func(s *settings) { s.tls, s.nilTLS = c.Clone(), c == nil }
}

// WithTLSFiles has the client speak TLS by a CA's certificates and its own certificate and key, in PEM, as `quorate
// cert` makes them. The files are read again when they change, and the nodes' identities are verified.
func WithTLSFiles(ca, cert, key string) Option {
	return func(s *settings) { s.ca, s.cert, s.key = ca, cert, key }
}

// WithPolicyFile reads failure modes, timeouts and disabled classes from a policy file. They hold until the cluster was
// reached once; without them every class is denied until then.
func WithPolicyFile(path string) Option { return func(s *settings) { s.policyFile = path } }

// WithConfigGrace is how long the last configuration holds after it could last be confirmed; then every class is denied
// when its owner cannot be reached. 5 minutes if not set; at least 5 seconds, as the cluster confirms it every 2
// seconds and one that was confirmed within 5 seconds counts as live.
func WithConfigGrace(d time.Duration) Option { return func(s *settings) { s.configGrace = d } }

// WithMaxInFlight bounds the checks that wait for an answer; what is beyond gets ErrOverloaded at once. 4096 if not
// set.
func WithMaxInFlight(n int) Option { return func(s *settings) { s.maxInFlight = n } }

// WithPrincipalCeiling bounds, coarsely, the checks of one principal that this client sends in a second; what is beyond
// gets ErrOverloaded at once. It is no quota: it keeps one caller that hammers from his owner. 1000 if not set; 0 for
// none. It takes 2 MiB, whatever the number of principals, and in exchange may refuse one below the ceiling: when this
// client sends N checks of others in the second, his k-th at a ceiling of c with a probability of at most
// (N / (65,536 · (c − k + 1)))⁴. At the default that is nothing; at a ceiling of a few, stay below 20,000 checks per
// second.
func WithPrincipalCeiling(perSecond int) Option {
	return func(s *settings) { s.principalCeiling = perSecond }
}

// WithPrincipalInFlight bounds the checks of one principal that wait for an answer at once; what is beyond gets
// ErrOverloaded at once. So one caller's burst does not take the time of all his checks, and of others', nor gets them
// past the limits of a class whose failure mode lets pass what is not answered in time. 64 if not set; 0 for no bound.
// While an owner is slow or away it also bounds what a failure mode lets pass of one principal: at a timeout of 100 ms
// and 64, that is 640 a second.
func WithPrincipalInFlight(n int) Option { return func(s *settings) { s.principalFlight = n } }

// WithRetryBudget bounds the retries to a node to a share of the first sends to it, and some per second in addition.
// 0.1 and 10 if not set.
func WithRetryBudget(ratio float64, minPerSecond int) Option {
	return func(s *settings) { s.retryRatio, s.retryMin = ratio, minPerSecond }
}

// WithHintCapacity bounds the deny hints that are kept; the least recently used go first. 65536 if not set; 0 for no
// hints.
func WithHintCapacity(n int) Option { return func(s *settings) { s.hintCapacity = n } }

// WithLocalCapacity bounds the admissions that the failure mode local holds at once; what is beyond is refused. One
// class holds at most as many as it leaves free, half of them if it is alone, so that invented principals in one class
// do not take the room of another. 65536 if not set.
func WithLocalCapacity(n int) Option { return func(s *settings) { s.localCapacity = n } }

// WithLogger has the client say where its configuration comes from, and when it is lost. It says nothing if not set.
func WithLogger(l *slog.Logger) Option { return func(s *settings) { s.logger = l } }

// WithDialOptions are applied, last, to each connection. Interceptors see the frames of checks encoded, and not as the
// messages of the contract.
func WithDialOptions(options ...grpc.DialOption) Option {
	return func(s *settings) { s.dial = append(s.dial, options...) }
}

func newSettings(options []Option) (*settings, error) {
	s := &settings{
		configGrace: DefaultConfigGrace, maxInFlight: DefaultMaxInFlight, principalCeiling: DefaultPrincipalCeiling,
		retryRatio: DefaultRetryRatio, retryMin: DefaultRetryMin, hintCapacity: DefaultHintCapacity,
		localCapacity: DefaultLocalCapacity, logger: slog.New(slog.DiscardHandler),
		principalFlight: DefaultPrincipalInFlight,
	}
	for i, o := range options {
		if o == nil {
			return nil, fmt.Errorf("option %d is nil: leave it out instead", i+1)
		}
		o(s)
	}
	return s, s.validate()
}

// validate reports all that is wrong.
func (s *settings) validate() error {
	var errs []error
	must := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	must(s.configGrace >= MinConfigGrace, "the configuration's grace is %s: give at least %s, as the watch cannot tell "+
		"earlier that it was lost", s.configGrace, MinConfigGrace)
	must(s.maxInFlight > 0 && s.maxInFlight <= maxCapacity, "%d checks in flight: give 1 to %d", s.maxInFlight,
		maxCapacity)
	must(s.principalCeiling >= 0, "a principal's ceiling is negative: %d", s.principalCeiling)
	must(s.principalFlight >= 0, "a principal's checks in flight are negative: %d", s.principalFlight)
	must(s.retryRatio >= 0 && s.retryRatio <= 1 && s.retryMin >= 0, "the retry budget is %v and %d: give 0 to 1, and 0 "+
		"or more", s.retryRatio, s.retryMin)
	must(s.hintCapacity >= 0 && s.hintCapacity <= maxCapacity, "%d hints: give 0 to %d", s.hintCapacity, maxCapacity)
	must(s.localCapacity >= 0 && s.localCapacity <= maxCapacity, "%d local admissions: give 0 to %d", s.localCapacity,
		maxCapacity)
	must(!slices.ContainsFunc(s.dial, func(o grpc.DialOption) bool { return o == nil }), "a dial option is nil: leave it "+
		"out instead")
	must(!s.nilTLS, "WithTLS was given no configuration: give one, or leave it out for plaintext to this machine")
	must(s.logger != nil, "the logger is nil: leave it out instead")
	files := s.ca != "" || s.cert != "" || s.key != ""
	must(!files || s.ca != "" && s.cert != "" && s.key != "", "TLS files need all three: CA, certificate and key")
	must(!files || s.tls == nil, "TLS is given twice: by files and by a configuration")
	return errors.Join(errs...)
}

func (s *settings) plaintext() bool { return s.tls == nil && s.ca == "" }
