package client

import (
	"context"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"

	"github.com/quorate/quorate/internal/errtable"
	quoratev1 "github.com/quorate/quorate/proto/quorate/v1"
	"github.com/quorate/quorate/quotaerr"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// scripted is a node that gives the next answer of its script to each check, and the last one for ever.
type scripted struct {
	quoratev1.UnimplementedQuotaServer

	mu     sync.Mutex // guards the rest
	script []any      // an error or a *Decision
	seen   []*quoratev1.CheckRequest
}

func (s *scripted) CheckAndConsume(
	ctx context.Context, req *quoratev1.CheckRequest,
) (*quoratev1.Decision, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seen = append(s.seen, req)
	next := s.script[0]
	if len(s.script) > 1 {
		s.script = s.script[1:]
	}
	if d, ok := next.(*quoratev1.Decision); ok {
		return d, nil
	}
	return nil, errtable.ToStatus(ctx, next.(error)).Err()
}

func (s *scripted) attempts() []*quoratev1.CheckRequest {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]*quoratev1.CheckRequest(nil), s.seen...)
}

// mustServe serves s on a loopback socket until the test ends, and returns where.
func mustServe(t *testing.T, s *scripted) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	g := grpc.NewServer()
	quoratev1.RegisterQuotaServer(g, s)
	done := make(chan error, 1)
	go func() { done <- g.Serve(l) }()
	t.Cleanup(func() {
		g.Stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return l.Addr().String()
}

// mustDeadAddr is an address that nobody listens on.
func mustDeadAddr(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	return l.Addr().String()
}

func mustClient(t *testing.T, addrs ...string) *Client {
	t.Helper()
	c, err := New(addrs)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

func within(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), d)
	t.Cleanup(cancel)
	return ctx
}

var (
	allow = &quoratev1.Decision{Outcome: quoratev1.Outcome_OUTCOME_ALLOWED, Reason: "allowed"}
	deny  = &quoratev1.Decision{Outcome: quoratev1.Outcome_OUTCOME_DENIED, Reason: "blocked"}
)

func aCheck() *quoratev1.CheckRequest {
	return &quoratev1.CheckRequest{Principal: "acme", ApiClass: "convert", DecisionId: "d1"}
}

// Shows that a move is waited for with the same decision id, however often it is met; and that a caller that has routed
// itself hears at once that its map is an older one.
func TestMoves(t *testing.T) {
	frozen, wrong := quotaerr.New(quotaerr.Frozen, ""), &quotaerr.Error{Reason: quotaerr.WrongEpoch, Epoch: 9}
	s := &scripted{script: []any{frozen, wrong, frozen, wrong, allow}}
	c := mustClient(t, mustServe(t, s))
	req := &quoratev1.CheckRequest{Principal: "a", ApiClass: "b", DecisionId: "d1"}
	if _, err := c.CheckAndConsume(within(t, 20*time.Second), req); err != nil {
		t.Error(err)
	}
	for i, got := range s.attempts() {
		if got.GetDecisionId() != "d1" || got.GetAttempt() != uint32(i+1) {
			t.Errorf("attempt %d: %v", i+1, got)
		}
	}
	s = &scripted{script: []any{frozen, wrong, allow}}
	req.RouteEpoch = 8
	_, err := mustClient(t, mustServe(t, s)).CheckAndConsume(within(t, 20*time.Second), req)
	if e := quotaerr.As(err); e == nil || e.Reason != quotaerr.WrongEpoch || e.Epoch != 9 || len(s.attempts()) != 2 {
		t.Errorf("%v after %d attempts", err, len(s.attempts()))
	}
}

// Shows that a check goes past a dead node and past retryable failures to the node that can answer,
// with one decision id and counted attempts, and leaves the caller's request as it was.
func TestRetriesWithTheSameID(t *testing.T) {
	a := &scripted{script: []any{quotaerr.ErrOutcomeUnknown, quotaerr.ErrNoQuorum}}
	b := &scripted{script: []any{quotaerr.ErrNotLeader, allow}}
	c := mustClient(t, mustDeadAddr(t), mustServe(t, a), mustServe(t, b))
	req := aCheck()
	d, err := c.CheckAndConsume(within(t, 20*time.Second), req)
	if err != nil || d.GetOutcome() != quoratev1.Outcome_OUTCOME_ALLOWED {
		t.Fatalf("%v, %v", d, err)
	}
	var attempts []uint32
	for i := range 2 { // a, b, then a and b again
		for _, s := range []*scripted{a, b} {
			r := s.attempts()[i]
			attempts = append(attempts, r.GetAttempt())
			if r.GetDecisionId() != "d1" {
				t.Errorf("decision id %q", r.GetDecisionId())
			}
		}
	}
	for i, n := range attempts {
		if n != uint32(i+1) {
			t.Errorf("attempts are counted %v", attempts)
			break
		}
	}
	if req.GetAttempt() != 0 {
		t.Error("the caller's request was changed")
	}
}

// Shows that every definite answer ends the asking at once.
func TestDefiniteAnswersEndIt(t *testing.T) {
	for _, row := range errtable.Rows() {
		if row.Reason.IsDecision() || row.Retryable() {
			continue
		}
		s := &scripted{script: []any{&quotaerr.Error{Reason: row.Reason, Message: "do this"}}}
		_, err := mustClient(t, mustServe(t, s)).CheckAndConsume(within(t, 10*time.Second), aCheck())
		if quotaerr.ReasonOf(err) != row.Reason || len(s.attempts()) != 1 {
			t.Errorf("%s: %v after %d attempts", row.Reason, err, len(s.attempts()))
		}
	}
	s := &scripted{script: []any{deny}}
	d, err := mustClient(t, mustServe(t, s)).CheckAndConsume(within(t, 10*time.Second), aCheck())
	if err != nil || d.GetOutcome() != quoratev1.Outcome_OUTCOME_DENIED || len(s.attempts()) != 1 {
		t.Errorf("a denial: %v, %v after %d attempts", d, err, len(s.attempts()))
	}
}

// Shows that an outcome which is neither an allow nor a denial is an error.
func TestNoAllowByZeroValue(t *testing.T) {
	for _, outcome := range []quoratev1.Outcome{0, 99} {
		s := &scripted{script: []any{&quoratev1.Decision{Outcome: outcome, Reason: "allowed"}}}
		d, err := mustClient(t, mustServe(t, s)).CheckAndConsume(within(t, 10*time.Second), aCheck())
		if d != nil || quotaerr.ReasonOf(err) != quotaerr.Internal {
			t.Errorf("outcome %d: %v, %v", outcome, d, err)
		}
	}
}

// Shows what is said at the deadline: that nobody could be reached, and once an attempt may have been
// counted, that, whatever came later.
func TestAtTheDeadline(t *testing.T) {
	_, err := mustClient(t, mustDeadAddr(t)).CheckAndConsume(within(t, 300*time.Millisecond), aCheck())
	if quotaerr.ReasonOf(err) != quotaerr.NoQuorum {
		t.Errorf("nobody there: %v", err)
	}
	s := &scripted{script: []any{quotaerr.ErrOutcomeUnknown, quotaerr.ErrOverloaded}}
	_, err = mustClient(t, mustServe(t, s)).CheckAndConsume(within(t, 700*time.Millisecond), aCheck())
	if quotaerr.ReasonOf(err) != quotaerr.OutcomeUnknown {
		t.Errorf("after %d attempts: %v", len(s.attempts()), err)
	}
	if _, err := New(nil); err == nil {
		t.Error("a client without addresses was made")
	}
}

// Shows that a string that is not UTF-8 is an invalid argument that names its field, and that no
// node is asked, for every string of a check and a peek.
func TestInvalidUTF8IsInvalidArgument(t *testing.T) {
	const bad = "con\xffvert"
	c := mustClient(t, mustDeadAddr(t))
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	for field, req := range map[string]*quoratev1.CheckRequest{
		"principal":         {Principal: bad},
		"api_class":         {ApiClass: bad},
		"decision_id":       {DecisionId: bad},
		"tier":              {Tier: bad},
		"also[0].api_class": {Also: []*quoratev1.Charge{{ApiClass: bad}}},
	} {
		d, err := c.CheckAndConsume(ctx, req)
		if d != nil || quotaerr.ReasonOf(err) != quotaerr.InvalidArgument || !strings.Contains(err.Error(), " "+field+" ") {
			t.Errorf("%s: %v, %v", field, d, err)
		}
	}
	for field, req := range map[string]*quoratev1.PeekRequest{
		"principal": {Principal: bad}, "api_class": {ApiClass: bad}, "tier": {Tier: bad},
	} {
		if p, err := c.Peek(ctx, req); p != nil || quotaerr.ReasonOf(err) != quotaerr.InvalidArgument {
			t.Errorf("peek, %s: %v, %v", field, p, err)
		}
	}
}
