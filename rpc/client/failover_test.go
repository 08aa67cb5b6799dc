package client

import (
	"context"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/quorate/quorate/internal/errtable"
	quoratev1 "github.com/quorate/quorate/proto/quorate/v1"
	"github.com/quorate/quorate/quotaerr"
)

// mortal is a node that dies with its first check in hand.
type mortal struct {
	quoratev1.UnimplementedQuotaServer
	server *grpc.Server
	asked  atomic.Int32
}

func (m *mortal) CheckAndConsume(
	ctx context.Context, _ *quoratev1.CheckRequest,
) (*quoratev1.Decision, error) {
	m.asked.Add(1)
	go m.server.Stop()
	<-ctx.Done()
	return nil, ctx.Err()
}

// mustMortal serves a mortal and returns where.
func mustMortal(t *testing.T) (*mortal, string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	m := &mortal{server: grpc.NewServer()}
	quoratev1.RegisterQuotaServer(m.server, m)
	done := make(chan error, 1)
	go func() { done <- m.server.Serve(l) }()
	t.Cleanup(func() {
		m.server.Stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return m, l.Addr().String()
}

// Shows that a check in the hands of a node that dies goes to the next one under the same id, and that
// a denial there is the answer.
func TestNodeDiesWithTheCheck(t *testing.T) {
	m, addr := mustMortal(t)
	next := &scripted{script: []any{deny}}
	d, err := mustClient(t, addr, mustServe(t, next)).CheckAndConsume(within(t, 10*time.Second), aCheck())
	if err != nil || d.GetOutcome() != quoratev1.Outcome_OUTCOME_DENIED {
		t.Fatalf("%v, %v", d, err)
	}
	got := next.attempts()
	if m.asked.Load() != 1 || len(got) != 1 || got[0].GetDecisionId() != "d1" || got[0].GetAttempt() != 2 {
		t.Errorf("dead node asked %d times, next saw %v", m.asked.Load(), got)
	}
}

// Shows that a definite answer of the first node keeps the second from being asked, and that every
// other failure brings the second its turn.
func TestWhoIsAskedNext(t *testing.T) {
	for _, row := range errtable.Rows() {
		if row.Reason.IsDecision() {
			continue
		}
		first := &scripted{script: []any{&quotaerr.Error{Reason: row.Reason, Message: "do this"}}}
		second := &scripted{script: []any{allow}}
		d, err := mustClient(t, mustServe(t, first), mustServe(t, second)).
			CheckAndConsume(within(t, 10*time.Second), aCheck())
		goesOn := true
		switch row.Reason {
		case quotaerr.InvalidArgument, quotaerr.CostExceedsLimit, quotaerr.DecisionIDConflict,
			quotaerr.Unauthenticated, quotaerr.PermissionDenied, quotaerr.Internal:
			goesOn = false
		}
		if (err == nil) != goesOn || (d != nil) != goesOn {
			t.Errorf("%s: %v, %v", row.Reason, d, err)
		}
		if len(first.attempts()) != 1 || (len(second.attempts()) == 1) != goesOn {
			t.Errorf("%s: asked %d and %d times", row.Reason, len(first.attempts()), len(second.attempts()))
		}
	}
}

// Shows that a node which takes the connection and says nothing holds the caller until its deadline
// only, and that nothing was sent then.
func TestSilentNodeAndTheDeadline(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0") // nobody accepts
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	ctx := within(t, 300*time.Millisecond)
	start := time.Now()
	d, err := mustClient(t, l.Addr().String()).CheckAndConsume(ctx, aCheck())
	if d != nil || quotaerr.ReasonOf(err) != quotaerr.NoQuorum {
		t.Errorf("%v, %v", d, err)
	}
	if took := time.Since(start); took > attemptTimeout-time.Second {
		t.Errorf("answered after %v", took)
	}
}

// Shows that an answer whose outcome and reason differ is not handed out as an allow.
func TestContradictionIsNoAllow(t *testing.T) {
	for _, reason := range []string{"", "blocked", "granted", "internal"} {
		s := &scripted{script: []any{
			&quoratev1.Decision{Outcome: quoratev1.Outcome_OUTCOME_ALLOWED, Reason: reason}}}
		d, err := mustClient(t, mustServe(t, s)).CheckAndConsume(within(t, 10*time.Second), aCheck())
		if d != nil || quotaerr.ReasonOf(err) != quotaerr.Internal {
			t.Errorf("reason %q: %v, %v", reason, d, err)
		}
	}
}
