package client

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protopath"
	"google.golang.org/protobuf/reflect/protorange"

	"github.com/quorate/quorate/internal/errtable"
	"github.com/quorate/quorate/internal/identity"
	quoratev1 "github.com/quorate/quorate/proto/quorate/v1"
	"github.com/quorate/quorate/quotaerr"
)

const (
	// attemptTimeout bounds one attempt, so that a node which hangs does not take the whole time.
	attemptTimeout = 3 * time.Second
	// reconnectTimeout bounds a further try at a node that could not be reached before.
	reconnectTimeout = 250 * time.Millisecond
	// A call that waits for an answer looks after keepaliveTime of silence whether the node is there still.
	keepaliveTime    = 15 * time.Second
	keepaliveTimeout = 10 * time.Second
	// pause is between two rounds through the addresses, plus as much again at random.
	pause = 100 * time.Millisecond
)

// Why an attempt was not made.
var (
	errUnreachable = errors.New("nothing answers there")
	errUnproven    = errors.New("one end does not accept the other's certificate")
)

// Client asks the nodes of one cluster: the one that answered last, then the others in the order of their addresses,
// of which the first is asked first.
type Client struct {
	tls *identity.Source // nil: plaintext
	// token is behind a pointer so that printing a client does not tell it. nil: none.
	token *string
	conns []*node

	answered atomic.Int32 // which of conns answered last
}

// node is the connection to one address.
type node struct {
	*grpc.ClientConn
	addr string
	tls  *identity.Credentials // nil: plaintext
}

// Option changes how a Client connects.
type Option func(*Client)

// WithTLS has the client show source's certificate and accept nodes of its cluster only. nil is plaintext, as
// without it.
func WithTLS(source *identity.Source) Option { return func(c *Client) { c.tls = source } }

// WithToken has the client show a token with each call, whatever certificate it has. It is shown over TLS only,
// or in plaintext to this machine itself. An empty one is none.
func WithToken(token string) Option {
	return func(c *Client) {
		if c.token = nil; token != "" {
			c.token = &token
		}
	}
}

// New makes a client of the nodes at addrs (host:port). It connects when it is used.
func New(addrs []string, options ...Option) (*Client, error) {
	if len(addrs) == 0 {
		return nil, errors.New("no address: name at least one node")
	}
	c := &Client{}
	for _, o := range options {
		o(c)
	}
	for _, a := range addrs {
		n := &node{addr: a}
		creds := insecure.NewCredentials()
		if c.tls != nil {
			n.tls = c.tls.Credentials("")
			creds = n.tls
		}
		options := []grpc.DialOption{grpc.WithTransportCredentials(creds), grpc.WithNoProxy(),
			grpc.WithDisableServiceConfig(), grpc.WithDisableRetry(),
			grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: keepaliveTime, Timeout: keepaliveTimeout})}
		show, err := c.showing(a)
		if err == nil {
			n.ClientConn, err = grpc.NewClient("passthrough:///"+a, append(options, show...)...)
		}
		if err != nil {
			return nil, errors.Join(fmt.Errorf("address %s: %w", a, err), c.Close())
		}
		c.conns = append(c.conns, n)
	}
	return c, nil
}

// Close ends the connections.
func (c *Client) Close() error {
	var errs []error
	for _, conn := range c.conns {
		errs = append(errs, conn.Close())
	}
	return errors.Join(errs...)
}

// aCheckTakes: its decision id makes a repeat harmless.
var aCheckTakes = manner{timeout: attemptTimeout}

// CheckAndConsume has one check decided. Who sets its route_epoch hears of a wrong_epoch at once.
func (c *Client) CheckAndConsume(ctx context.Context, req *quoratev1.CheckRequest) (*quoratev1.Decision, error) {
	if err := sendable(req); err != nil {
		return nil, err
	}
	req = proto.CloneOf(req)
	m := aCheckTakes
	m.routed = req.GetRouteEpoch() != 0
	return ask(ctx, c, m, func(ctx context.Context, conn *grpc.ClientConn) (*quoratev1.Decision, error) {
		req.Attempt++
		d, err := quoratev1.NewQuotaClient(conn).CheckAndConsume(ctx, req)
		if err != nil {
			return nil, err
		}
		reason := quotaerr.Reason(d.GetReason())
		switch allowed := reason == quotaerr.Allowed; {
		case d.GetOutcome() == quoratev1.Outcome_OUTCOME_ALLOWED && allowed,
			d.GetOutcome() == quoratev1.Outcome_OUTCOME_DENIED && reason.IsDecision() && !allowed:
			return d, nil
		default:
			return nil, quotaerr.New(quotaerr.Internal,
				"the node answered with neither an allow nor a denial; check that versions agree")
		}
	})
}

// Peek tells usage and room.
func (c *Client) Peek(ctx context.Context, req *quoratev1.PeekRequest) (*quoratev1.PeekResponse, error) {
	if err := sendable(req); err != nil {
		return nil, err
	}
	m := aCheckTakes
	m.routed = req.GetRouteEpoch() != 0
	return ask(ctx, c, m, func(ctx context.Context, conn *grpc.ClientConn) (*quoratev1.PeekResponse, error) {
		return quoratev1.NewQuotaClient(conn).Peek(ctx, req)
	})
}

// sendable refuses a request with a string that is not UTF-8: it has no encoding, so no node could judge it.
func sendable(req proto.Message) error {
	return protorange.Range(req.ProtoReflect(), func(path protopath.Values) error {
		last := path.Index(-1)
		if text, ok := last.Value.Interface().(string); ok && !utf8.ValidString(text) {
			return quotaerr.New(quotaerr.InvalidArgument, "%s is not valid UTF-8", fieldOf(path.Path))
		}
		return nil
	})
}

// fieldOf writes a path within a request as api_class or also[0].api_class.
func fieldOf(path protopath.Path) string {
	return strings.TrimPrefix(path[1:].String(), ".")
}

// manner is how a call is asked for.
type manner struct {
	// once: an attempt whose fate is unknown is not followed by another.
	once bool
	// operator: it is no check, so that what a check is asked again for is an answer.
	operator bool
	// routed: the caller has routed it, and has to do so anew if that was wrong.
	routed bool
	// timeout bounds one attempt; 0: it may take all the time that there is.
	timeout time.Duration
}

// ask makes attempts, one after another and never two at once, until one is definite or ctx ends.
func ask[T any](
	ctx context.Context, c *Client, m manner, attempt func(context.Context, *grpc.ClientConn) (T, error),
) (T, error) {
	var zero T
	var last *quotaerr.Error
	for round := 0; ; round++ {
		unproven, lost := 0, 0
		first := int(c.answered.Load())
		for i := range c.conns {
			at := (first + i) % len(c.conns)
			if ctx.Err() != nil {
				return zero, finally(ctx, last)
			}
			out, err := once(ctx, c.conns[at], m, attempt)
			if err == nil {
				c.answered.Store(int32(at))
				return out, nil
			}
			e := errtable.FromStatus(err)
			unknown := last != nil && last.Reason == quotaerr.OutcomeUnknown
			if errors.Is(e, errUnproven) {
				unproven++ // of this node only: another one's certificate may be good
			} else if m.settles(e) {
				// Once an attempt's fate is unknown, a refusal does not say that nothing was consumed; but a
				// conflict says that the id was another decision's all the time.
				if unknown && e.Reason != quotaerr.DecisionIDConflict {
					return zero, last
				}
				return zero, e
			}
			if e.Reason == quotaerr.NoQuorum && !errors.Is(e, errUnreachable) {
				lost++
			}
			// What a node answered says more than that another one cannot be reached.
			if !unknown && (last == nil || !errors.Is(e, errUnreachable) || errors.Is(last, errUnreachable)) {
				last = e
			}
		}
		if unproven == len(c.conns) {
			return zero, last // waiting mends no certificate
		}
		if m.operator && lost == len(c.conns) && round > 0 {
			return zero, last // all of them have waited already
		}
		rest := time.NewTimer(pause + rand.N(pause))
		select {
		case <-ctx.Done():
			rest.Stop()
			return zero, finally(ctx, last)
		case <-rest.C:
		}
	}
}

// settles reports whether another attempt is of no use, or of harm.
func (m manner) settles(e *quotaerr.Error) bool {
	if !errtable.Lookup(e.Reason).Retryable() {
		return true
	}
	switch e.Reason {
	case quotaerr.OutcomeUnknown:
		return m.once
	case quotaerr.WrongEpoch:
		return m.routed
	case quotaerr.PolicyStale, quotaerr.PolicyBehind, quotaerr.Capacity:
		return m.operator
	default:
		return false
	}
}

// once makes one attempt at one node.
func once[T any](
	ctx context.Context, conn *node, m manner, attempt func(context.Context, *grpc.ClientConn) (T, error),
) (T, error) {
	if m.timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, m.timeout)
		defer cancel()
	}
	if err := reachWithin(ctx, conn, attemptTimeout); err != nil {
		var zero T
		return zero, err
	}
	return attempt(ctx, conn.ClientConn)
}

func reachWithin(ctx context.Context, conn *node, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	return reach(ctx, conn)
}

// reach waits for a connection, so that a node that is not there is told from one that has the request.
func reach(ctx context.Context, conn *node) error {
	if conn.GetState() == connectivity.TransientFailure {
		// Such a connection goes on saying so until it succeeds: a new try shows in time only.
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, reconnectTimeout)
		defer cancel()
		conn.ResetConnectBackoff()
		conn.WaitForStateChange(ctx, connectivity.TransientFailure)
	}
	for {
		state := conn.GetState()
		switch state {
		case connectivity.Ready:
			return nil
		case connectivity.Idle:
			conn.Connect()
		case connectivity.TransientFailure, connectivity.Shutdown:
			return conn.unreached()
		}
		if !conn.WaitForStateChange(ctx, state) {
			return quotaerr.Wrap(quotaerr.NoQuorum, errUnreachable, "no node is reached at %s in time", conn.addr)
		}
	}
}

// unreached is why there is no connection.
func (n *node) unreached() error {
	if n.tls == nil {
		return quotaerr.Wrap(quotaerr.NoQuorum, errUnreachable, "no node is reached at %s: check --addr and that it runs, "+
			"and give --tls-ca, --tls-cert and --tls-key if it speaks TLS", n.addr)
	}
	if err := n.tls.Failure(); err != nil {
		return quotaerr.Wrap(quotaerr.Unauthenticated, errUnproven, "TLS with %s failed: %v: check --addr, and that the "+
			"node and --tls-ca, --tls-cert and --tls-key are of one cluster", n.addr, err)
	}
	return quotaerr.Wrap(quotaerr.NoQuorum, errUnreachable, "no node is reached at %s: check --addr and that it runs",
		n.addr)
}

// finally is what is said when the time is up.
func finally(ctx context.Context, last *quotaerr.Error) error {
	if last == nil {
		return quotaerr.Wrap(quotaerr.NoQuorum, ctx.Err(), "no time was left to ask")
	}
	return last
}
