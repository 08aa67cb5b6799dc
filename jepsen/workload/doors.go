package workload

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"

	"github.com/quorate/quorate/internal/errtable"
	"github.com/quorate/quorate/jepsen/history"
	quoratev1 "github.com/quorate/quorate/proto/quorate/v1"
)

// Dial opens a connection to a node, from wherever the clients are.
type Dial func(ctx context.Context, network, address string) (net.Conn, error)

// HTTP asks by POST /v1/check.
type HTTP struct{ client *http.Client }

var _ Door = (*HTTP)(nil)

// NewHTTP makes the door. Without a dial it is this process's own.
func NewHTTP(config *tls.Config, dial Dial) *HTTP {
	if dial == nil {
		dial = new(net.Dialer).DialContext
	}
	return &HTTP{client: &http.Client{Transport: &http.Transport{
		DialContext: dial, TLSClientConfig: config.Clone(), MaxIdleConnsPerHost: 64, TLSHandshakeTimeout: answerWithin,
		IdleConnTimeout: time.Minute,
	}}}
}

// Close closes connections that are not in use.
func (h *HTTP) Close() { h.client.CloseIdleConnections() }

// Ask sends the check, and reads the answer whatever the status.
func (h *HTTP) Ask(ctx context.Context, node *Node, k *Check) (answer history.Answer, err error) {
	body, err := json.Marshal(map[string]any{
		"principal": k.Principal, "api_class": k.Class, "decision_id": k.ID, "cost": k.Cost, "attempt": k.Attempt,
	})
	if err != nil {
		return answer, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://"+node.HTTP+"/v1/check", bytes.NewReader(body))
	if err != nil {
		return answer, err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := h.client.Do(req)
	if err != nil {
		return answer, err
	}
	text, err := io.ReadAll(resp.Body)
	if err = errors.Join(err, resp.Body.Close()); err != nil {
		return answer, err
	}
	if err := json.Unmarshal(text, &answer); err != nil {
		return answer, fmt.Errorf("status %d: %w: %s", resp.StatusCode, err, text)
	}
	if answer.Allowed != (answer.Reason == "allowed") || answer.Allowed != (resp.StatusCode == http.StatusOK) {
		answer.Reason = fmt.Sprintf("status %d, %s", resp.StatusCode, text) // it contradicts itself
	}
	return answer, nil
}

// GRPC asks by CheckAndConsume, over one connection to each node.
type GRPC struct {
	options []grpc.DialOption

	mu    sync.Mutex // guards conns
	conns map[string]*grpc.ClientConn
}

var _ interface {
	Door
	Peeker
} = (*GRPC)(nil)

// NewGRPC makes the door. Without a dial it is this process's own.
func NewGRPC(config *tls.Config, dial Dial) *GRPC {
	if dial == nil {
		dial = new(net.Dialer).DialContext
	}
	return &GRPC{conns: map[string]*grpc.ClientConn{}, options: append(DialOptions(dial),
		grpc.WithTransportCredentials(credentials.NewTLS(config.Clone())),
		grpc.WithNoProxy(), grpc.WithDisableServiceConfig(), grpc.WithDisableRetry(),
		// A node that went away without a word is noticed, and one that comes back is dialled soon.
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 10 * time.Second, Timeout: 3 * time.Second}),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, MaxDelay: time.Second},
			MinConnectTimeout: answerWithin,
		}),
	)}
}

// DialOptions has a gRPC client open its connections by a dial.
func DialOptions(dial Dial) []grpc.DialOption {
	return []grpc.DialOption{grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) {
		return dial(ctx, "tcp", addr)
	})}
}

// Close closes the connections.
func (g *GRPC) Close() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	var errs []error
	for _, c := range g.conns {
		errs = append(errs, c.Close())
	}
	return errors.Join(errs...)
}

func (g *GRPC) conn(addr string) (*grpc.ClientConn, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if c := g.conns[addr]; c != nil {
		return c, nil
	}
	c, err := grpc.NewClient("passthrough:///"+addr, g.options...)
	if err == nil {
		g.conns[addr] = c
	}
	return c, err
}

// Ask sends the check.
func (g *GRPC) Ask(ctx context.Context, node *Node, k *Check) (history.Answer, error) {
	conn, err := g.conn(node.GRPC)
	if err != nil {
		return history.Answer{}, err
	}
	d, err := quoratev1.NewQuotaClient(conn).CheckAndConsume(ctx, &quoratev1.CheckRequest{
		Principal: k.Principal, ApiClass: k.Class, DecisionId: k.ID, Cost: &k.Cost, Attempt: k.Attempt,
	})
	if err != nil {
		return refusal(err)
	}
	answer := history.Answer{
		Allowed: d.GetOutcome() == quoratev1.Outcome_OUTCOME_ALLOWED, Reason: d.GetReason(),
		Revision: d.GetPolicyRevision(), Version: d.GetPolicyVersion(), Remaining: d.GetRemaining(),
		Replayed: d.GetReplayed(), Recorded: d.GetRecorded(), Limit: d.GetLimit(), RetryAfterMS: d.GetRetryAfterMs(),
	}
	for _, l := range d.GetLimits() {
		answer.Limits = append(answer.Limits, history.LimitAnswer{
			Name: l.GetName(), Limit: l.GetLimit(), Remaining: l.GetRemaining(),
		})
	}
	if answer.Allowed != (answer.Reason == "allowed") {
		answer.Reason = fmt.Sprintf("outcome %v, %s", d.GetOutcome(), answer.Reason) // it contradicts itself
	}
	return answer, nil
}

// refusal is what a node has said in place of an answer. What the connection says is none.
func refusal(err error) (history.Answer, error) {
	e := errtable.FromStatus(err)
	if e.Cause != nil {
		return history.Answer{}, err
	}
	return history.Answer{Reason: string(e.Reason), Detail: e.Message}, nil
}

// Peek asks how much is used.
func (g *GRPC) Peek(ctx context.Context, node *Node, principal, class string) (history.Answer, error) {
	conn, err := g.conn(node.GRPC)
	if err != nil {
		return history.Answer{}, err
	}
	p, err := quoratev1.NewQuotaClient(conn).Peek(ctx, &quoratev1.PeekRequest{Principal: principal, ApiClass: class})
	if err != nil {
		return refusal(err)
	}
	answer := history.Answer{
		Revision: p.GetPolicyRevision(), Version: p.GetPolicyVersion(), Remaining: p.GetRemaining(),
	}
	for _, l := range p.GetLimits() {
		answer.Limits = append(answer.Limits, history.LimitAnswer{
			Name: l.GetName(), Limit: l.GetLimit(), Remaining: l.GetRemaining(),
		})
	}
	return answer, nil
}
