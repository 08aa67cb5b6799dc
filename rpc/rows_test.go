package rpc

import (
	"context"
	"encoding/json"
	"net/http"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/internal/errtable"
	quoratev1 "github.com/quorate/quorate/proto/quorate/v1"
	"github.com/quorate/quorate/quotaerr"
)

// wire is what the public contract says of a reason, written out apart from the table under test.
var wire = []struct {
	reason quotaerr.Reason
	code   codes.Code
	http   int
	wait   bool // a wait is told
}{
	{quotaerr.InvalidArgument, codes.InvalidArgument, 400, false},
	{quotaerr.CostExceedsLimit, codes.InvalidArgument, 400, false},
	{quotaerr.DecisionIDConflict, codes.AlreadyExists, 409, false},
	{quotaerr.Unauthenticated, codes.Unauthenticated, 401, false},
	{quotaerr.PermissionDenied, codes.PermissionDenied, 403, false},
	{quotaerr.PolicyStale, codes.FailedPrecondition, 503, true},
	{quotaerr.PolicyBehind, codes.Unavailable, 503, true},
	{quotaerr.WrongEpoch, codes.Unavailable, 503, true},
	{quotaerr.NotLeader, codes.Unavailable, 503, true},
	{quotaerr.Frozen, codes.Unavailable, 503, true},
	{quotaerr.Overloaded, codes.ResourceExhausted, 503, true},
	{quotaerr.Capacity, codes.ResourceExhausted, 503, true},
	{quotaerr.NoQuorum, codes.Unavailable, 503, true},
	{quotaerr.PolicyLeaseExpired, codes.Unavailable, 503, true},
	{quotaerr.OutcomeUnknown, codes.Unavailable, 503, true},
	{quotaerr.Internal, codes.Internal, 500, false},
}

// Shows over real sockets that each error of the contract has its code, its ErrorInfo with epoch and
// leader, its RetryInfo, its HTTP status and its problem body, and is never an allow.
func TestEveryErrorOnTheWire(t *testing.T) {
	if got, want := len(wire)+4, len(quotaerr.All()); got != want {
		t.Fatalf("%d reasons here, %d declared", got, want)
	}
	for _, w := range wire {
		t.Run(string(w.reason), func(t *testing.T) {
			t.Parallel()
			backend := answering(Answer{}, &quotaerr.Error{Reason: w.reason, Message: "do this",
				Leader: "n1", Epoch: 9})
			backend.horizon = 0 // an unknown outcome is told at once
			n := mustNode(t, "n1", backend)

			// The caller names its epoch, so that the node answers wrong_epoch at once.
			req := aCheck()
			req.RouteEpoch = 7
			ctx := within(t, 2*time.Second)
			_, err := quoratev1.NewQuotaClient(n.conn).CheckAndConsume(ctx, req)
			st := status.Convert(err)
			if st.Code() != w.code {
				t.Errorf("code %v, want %v (%v)", st.Code(), w.code, err)
			}
			mustDetails(t, st, w.reason, w.wait)
			if w.reason == quotaerr.NotLeader || w.reason == quotaerr.NoQuorum {
				return // over HTTP the node waits for its own timeout; see the failover tests
			}
			if w.reason == quotaerr.Frozen {
				n = n.mustImpatient(t, 300*time.Millisecond) // it waits for the end of the move
			}
			r := n.mustPost(t, aBody[:len(aBody)-1]+`,"route_epoch":7}`)
			if r.status != w.http {
				t.Errorf("HTTP %d, want %d", r.status, w.http)
			}
			var body struct {
				Status  int
				Allowed *bool
				Reason  string
			}
			if err := json.Unmarshal([]byte(r.body), &body); err != nil {
				t.Fatalf("%v in %s", err, r.body)
			}
			if body.Status != w.http || body.Reason != string(w.reason) || body.Allowed == nil || *body.Allowed {
				t.Errorf("body %s", r.body)
			}
			if got := r.header.Get("Retry-After") != ""; got != (w.http == 503) {
				t.Errorf("Retry-After %q with %d", r.header.Get("Retry-After"), r.status)
			}
			if ct := r.header.Get("Content-Type"); ct != "application/problem+json" {
				t.Errorf("Content-Type %q", ct)
			}
			if cc := r.header.Get("Cache-Control"); cc != "no-store" {
				t.Errorf("Cache-Control %q", cc)
			}
		})
	}
}

func mustDetails(t *testing.T, st *status.Status, reason quotaerr.Reason, wait bool) {
	t.Helper()
	var info *errdetails.ErrorInfo
	var retry *errdetails.RetryInfo
	for _, d := range st.Details() {
		switch d := d.(type) {
		case *errdetails.ErrorInfo:
			info = d
		case *errdetails.RetryInfo:
			retry = d
		}
	}
	if info.GetDomain() != "quorate" || info.GetReason() != string(reason) {
		t.Fatalf("ErrorInfo %v, want reason %s", info, reason)
	}
	unknown := reason == quotaerr.OutcomeUnknown // made anew: the attempts' leaders do not matter
	if m := info.GetMetadata(); !unknown && (m["epoch"] != "9" || m["leader"] != "n1") {
		t.Errorf("metadata %v", m)
	}
	if (retry.GetRetryDelay().AsDuration() > 0) != wait {
		t.Errorf("RetryInfo %v, want one: %v", retry, wait)
	}
}

// Shows that each decision has its HTTP status, and is a successful call over gRPC.
func TestEveryDecisionOnTheWire(t *testing.T) {
	for reason, want := range map[fsm.Reason]int{
		fsm.ReasonAllowed: 200, fsm.ReasonQuotaExhausted: 429, fsm.ReasonBlocked: 403,
		fsm.ReasonEndpointDisabled: 503,
	} {
		t.Run(reason.String(), func(t *testing.T) {
			t.Parallel()
			n := mustNode(t, "n1", answering(Answer{Decision: fsm.Decision{Reason: reason}}, nil))
			d, err := quoratev1.NewQuotaClient(n.conn).CheckAndConsume(within(t, 5*time.Second), aCheck())
			if err != nil {
				t.Fatal(err)
			}
			allowed := reason == fsm.ReasonAllowed
			if (d.GetOutcome() == quoratev1.Outcome_OUTCOME_ALLOWED) != allowed ||
				d.GetReason() != reason.String() || d.GetDecisionId() != "d1" {
				t.Errorf("decision %v", d)
			}
			if has := d.GetRetryAt() != nil; has != (reason == fsm.ReasonQuotaExhausted) {
				t.Errorf("retry_at: %v", d.GetRetryAt())
			}
			r := n.mustPost(t, aBody)
			var body struct {
				Allowed bool
				Outcome string
			}
			if err := json.Unmarshal([]byte(r.body), &body); err != nil {
				t.Fatal(err)
			}
			if r.status != want || body.Allowed != allowed || (body.Outcome == "allowed") != allowed {
				t.Errorf("HTTP %d %s, want %d", r.status, r.body, want)
			}
			retry := r.header.Get("Retry-After")
			if (retry != "") != (want == 429 || want == 503) {
				t.Errorf("Retry-After %q with %d", retry, want)
			}
		})
	}
}

// Shows that whatever the state machine can answer has a public name with a row, that only its allow
// reads as allowed, and that an unset or unknown answer is an error over both protocols.
func TestNoAllowByZeroValue(t *testing.T) {
	last := fsm.Reason(0)
	for r := fsm.Reason(0); r < 255; r++ {
		p := publicReason(r)
		if !p.Known() || errtable.Lookup(p).Reason != p {
			t.Errorf("%v has the public reason %q without a row", r, p)
		}
		if (p == quotaerr.Allowed) != (r == fsm.ReasonAllowed) {
			t.Errorf("%v reads as %s", r, p)
		}
		if named := quotaerr.Reason(r.String()); named.Known() && p != named {
			t.Errorf("%v reads as %s", r, p)
		}
		d, err := decisionOf(&Answer{Decision: fsm.Decision{Reason: r}}, "d", time.Time{})
		if decided := r == fsm.ReasonAllowed || r.Denied(); (err == nil) != decided {
			t.Errorf("%v: decision %v, error %v", r, d, err)
		}
		if r.String() != "unknown" {
			last = r
		}
	}
	if last < fsm.ReasonUnborn {
		t.Fatalf("the loop saw reasons up to %v only", last)
	}
	for _, d := range []*quoratev1.Decision{
		nil, {}, {Reason: "allowed"}, {Outcome: 99, Reason: "allowed"},
		{Outcome: quoratev1.Outcome_OUTCOME_ALLOWED},
		{Outcome: quoratev1.Outcome_OUTCOME_ALLOWED, Reason: "blocked"},
		{Outcome: quoratev1.Outcome_OUTCOME_DENIED, Reason: "allowed"},
		{Outcome: quoratev1.Outcome_OUTCOME_DENIED, Reason: "overloaded"},
	} {
		if soundDecision(d) == nil {
			t.Errorf("%v passes for a decision", d)
		}
		if got := jsonOf(d); got.Allowed && d.GetOutcome() != quoratev1.Outcome_OUTCOME_ALLOWED {
			t.Errorf("%v is rendered as allowed", d)
		}
	}
	n := mustNode(t, "n1", answering(Answer{}, nil))
	_, err := quoratev1.NewQuotaClient(n.conn).CheckAndConsume(within(t, 5*time.Second), aCheck())
	if status.Code(err) != codes.Internal {
		t.Errorf("an unset answer gives %v", err)
	}
	if r := n.mustPost(t, aBody); r.status != http.StatusInternalServerError {
		t.Errorf("an unset answer gives HTTP %d", r.status)
	}
}

// Shows that a panic while a check is decided is answered as a defect over both protocols, is
// counted, and leaves the server serving.
func TestPanicIsNoAnswer(t *testing.T) {
	backend := allowing()
	allow := backend.check
	backend.check = func(ctx context.Context, c fsm.Check) (Answer, error) {
		if c.DecisionID == "boom" {
			panic("broken invariant")
		}
		return allow(ctx, c)
	}
	n := mustNode(t, "n1", backend)
	quota := quoratev1.NewQuotaClient(n.conn)
	req := aCheck()
	req.DecisionId = "boom"
	if _, err := quota.CheckAndConsume(within(t, 5*time.Second), req); status.Code(err) != codes.Internal {
		t.Errorf("gRPC: %v", err)
	}
	r := n.mustPost(t, `{"principal":"a","api_class":"b","decision_id":"boom"}`)
	if r.status != http.StatusInternalServerError {
		t.Errorf("HTTP: %d", r.status)
	}
	if got := n.metric(t, "quorate_panics_total"); got != 2 {
		t.Errorf("%v panics counted, want 2", got)
	}
	if got := n.metric(t, "quorate_checks_in_flight"); got != 0 {
		t.Errorf("%v checks are still in flight", got)
	}
	if _, err := quota.CheckAndConsume(within(t, 5*time.Second), aCheck()); err != nil {
		t.Errorf("after the panics: %v", err)
	}
}

// metric reads a metric without labels.
func (n *testNode) metric(t testing.TB, name string) float64 {
	t.Helper()
	families, err := n.Registry().Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == name {
			m := f.GetMetric()[0]
			return m.GetCounter().GetValue() + m.GetGauge().GetValue()
		}
	}
	t.Fatalf("there is no metric %s", name)
	return 0
}
