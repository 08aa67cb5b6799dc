package rpc

import (
	"context"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/internal/errtable"
	"github.com/quorate/quorate/internal/identity"
	quoratev1 "github.com/quorate/quorate/proto/quorate/v1"
	"github.com/quorate/quorate/quotaerr"
)

// mustFollower is node n1, which does not lead, and knows the given peers as n2, n3 and so on. The
// leader is whom lead names.
func mustFollower(t testing.TB, lead func() string, peers ...*scriptedPeer) (*testNode, *fakeBackend) {
	t.Helper()
	b := allowing()
	b.leader = func() Leadership { return Leadership{Node: lead(), Epoch: 7} }
	for i, p := range peers {
		b.members = append(b.members, Member{ID: "n" + string(rune('2'+i)), GRPC: p.addr})
	}
	n := mustNode(t, "n1", b, func(c *Config) {
		c.Authenticate = func(context.Context) (Identity, error) { return Identity{Name: "gw-1", Roles: identity.Gateway}, nil }
	})
	return n, b
}

func always(node string) func() string { return func() string { return node } }

// Shows what is sent when a leader dies with a check in hand: the next leader gets the very same
// check, with its attempt counted up from the caller's own, and nothing else changed.
func TestSecondAttemptIsTheSameCheck(t *testing.T) {
	var lead atomic.Pointer[string]
	set := func(s string) { lead.Store(&s) }
	set("n2")
	var old, next *scriptedPeer
	old = mustPeer(t, func(ctx context.Context, _ int) (*quoratev1.Decision, error) {
		set("n3")
		go old.server.Stop()
		<-ctx.Done()
		return nil, ctx.Err()
	})
	next = mustPeer(t, func(context.Context, int) (*quoratev1.Decision, error) {
		return allowedByPeer(), nil
	})
	n, own := mustFollower(t, func() string { return *lead.Load() }, old, next)
	req := aCheck()
	req.Attempt, req.Tier, req.Cost, req.PolicyRevision = 4, "pro", cost(3), 11
	req.Also = []*quoratev1.Charge{{ApiClass: "export", Cost: cost(2)}}
	d, err := quoratev1.NewQuotaClient(n.conn).CheckAndConsume(within(t, 10*time.Second), req)
	if err != nil || d.GetOutcome() != quoratev1.Outcome_OUTCOME_ALLOWED {
		t.Fatalf("%v, %v", d, err)
	}
	if len(old.asked()) != 1 || len(next.asked()) != 1 {
		t.Fatalf("old leader asked %d times, next %d times", len(old.asked()), len(next.asked()))
	}
	for i, got := range []*quoratev1.ForwardCheckRequest{old.asked()[0], next.asked()[0]} {
		if a := got.GetCheck().GetAttempt(); a != uint32(4+i) {
			t.Errorf("attempt %d is sent as %d", i, a)
		}
		got.Check.Attempt = 4
		if got.GetClusterId() != testCluster || got.GetFromNode() != "n1" || got.GetGateway() != "gw-1" ||
			got.GetCheck().GetRouteEpoch() != 7 {
			t.Errorf("attempt %d: %v", i, got)
		}
		got.Check.RouteEpoch = 0
		if got.GetCheck().String() != req.String() {
			t.Errorf("attempt %d sends %v, want %v", i, got.GetCheck(), req)
		}
	}
	if len(own.seen()) != 0 {
		t.Error("the follower decided itself")
	}
}

// Shows that a definite answer, a decision as well as a refusal, ends the journey after one attempt,
// whether this node leads or another.
func TestDefiniteAnswersAreFinal(t *testing.T) {
	var definite []quotaerr.Reason
	for _, w := range wire {
		switch w.reason {
		case quotaerr.NotLeader, quotaerr.NoQuorum, quotaerr.OutcomeUnknown,
			quotaerr.WrongEpoch, quotaerr.Frozen: // the node routes anew
		default:
			definite = append(definite, w.reason)
		}
	}
	for _, reason := range definite {
		refusal := &quotaerr.Error{Reason: reason, Message: "do this"}
		peer := mustPeer(t, func(ctx context.Context, _ int) (*quoratev1.Decision, error) {
			return nil, errtable.ToStatus(ctx, refusal).Err()
		})
		far, _ := mustFollower(t, always("n2"), peer)
		near := answering(Answer{}, refusal)
		for where, n := range map[string]*testNode{"far": far, "near": mustNode(t, "n1", near)} {
			_, err := quoratev1.NewQuotaClient(n.conn).CheckAndConsume(within(t, 5*time.Second), aCheck())
			if e := errtable.FromStatus(err); e == nil || e.Reason != reason {
				t.Errorf("%s, %s: %v", reason, where, err)
			}
		}
		if len(peer.asked()) != 1 || len(near.seen()) != 1 {
			t.Errorf("%s: asked %d times far, %d near", reason, len(peer.asked()), len(near.seen()))
		}
	}
	for _, reason := range []fsm.Reason{
		fsm.ReasonAllowed, fsm.ReasonQuotaExhausted, fsm.ReasonBlocked, fsm.ReasonEndpointDisabled,
	} {
		leader, follower := answering(Answer{Decision: fsm.Decision{Reason: reason}}, nil), allowing()
		follower.leader = ledBy("n2")
		nodes := map[string]*testNode{"n1": mustNode(t, "n1", follower), "n2": mustNode(t, "n2", leader)}
		acquaint(nodes, follower)
		for _, n := range nodes {
			d, err := quoratev1.NewQuotaClient(n.conn).CheckAndConsume(within(t, 5*time.Second), aCheck())
			if err != nil || d.GetReason() != reason.String() {
				t.Errorf("%v: %v, %v", reason, d, err)
			}
		}
		if len(leader.seen()) != 2 || len(follower.seen()) != 0 {
			t.Errorf("%v: decided %d times, want once per caller", reason, len(leader.seen()))
		}
	}
}

// Shows that an answer of another node that is no plain decision is an error over both protocols and
// is not asked for again.
func TestUnsoundAnswerOfAPeer(t *testing.T) {
	for name, d := range map[string]*quoratev1.Decision{
		"empty":           {},
		"unset outcome":   {Reason: "allowed", DecisionId: "d1"},
		"unknown outcome": {Outcome: 42, Reason: "allowed", DecisionId: "d1"},
		"unset reason":    {Outcome: quoratev1.Outcome_OUTCOME_ALLOWED, DecisionId: "d1"},
		"unknown reason":  {Outcome: quoratev1.Outcome_OUTCOME_ALLOWED, Reason: "granted", DecisionId: "d1"},
		"contradiction":   {Outcome: quoratev1.Outcome_OUTCOME_ALLOWED, Reason: "blocked", DecisionId: "d1"},
	} {
		peer := mustPeer(t, func(context.Context, int) (*quoratev1.Decision, error) { return d, nil })
		n, _ := mustFollower(t, always("n2"), peer)
		got, err := quoratev1.NewQuotaClient(n.conn).CheckAndConsume(within(t, 5*time.Second), aCheck())
		if got != nil || status.Code(err) != codes.Internal {
			t.Errorf("%s: %v, %v", name, got, err)
		}
		if r := n.mustPost(t, aBody); r.status != 500 || !strings.Contains(r.body, `"allowed":false`) {
			t.Errorf("%s: HTTP %d %s", name, r.status, r.body)
		}
		if len(peer.asked()) != 2 {
			t.Errorf("%s: asked %d times, want once per protocol", name, len(peer.asked()))
		}
	}
}

// Shows that once a leader has died with a check in hand, the caller never hears that nothing was
// consumed, although nobody could be reached afterwards.
func TestNobodyLeftAfterUnknown(t *testing.T) {
	var peer *scriptedPeer
	peer = mustPeer(t, func(ctx context.Context, _ int) (*quoratev1.Decision, error) {
		go peer.server.Stop()
		<-ctx.Done()
		return nil, ctx.Err()
	})
	n, _ := mustFollower(t, always("n2"), peer)
	r := n.mustImpatient(t, 400*time.Millisecond).mustPost(t, aBody)
	if r.status != 503 || !strings.Contains(r.body, `"reason":"outcome_unknown"`) {
		t.Errorf("HTTP %d %s", r.status, r.body)
	}
	if got := len(peer.asked()); got != 1 {
		t.Errorf("the dead leader was asked %d times", got)
	}
}

// Shows what a deadline means: outcome_unknown where the check may have been proposed, here or at
// another node, and no_quorum where it certainly was not.
func TestDeadlineTellsWhatMayHaveHappened(t *testing.T) {
	const patience = 300 * time.Millisecond
	post := func(n *testNode) string {
		r := n.mustImpatient(t, patience).mustPost(t, aBody)
		if r.status != 503 || r.header.Get("Retry-After") == "" {
			t.Errorf("HTTP %d %s", r.status, r.body)
		}
		return r.body
	}
	hang := mustPeer(t, func(ctx context.Context, _ int) (*quoratev1.Decision, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	})
	n, _ := mustFollower(t, always("n2"), hang)
	if body := post(n); !strings.Contains(body, `"outcome_unknown"`) {
		t.Errorf("a leader that hangs: %s", body)
	}
	for reason, why := range map[quotaerr.Reason]string{
		quotaerr.OutcomeUnknown: "proposed, and not applied in time",
		quotaerr.NoQuorum:       "not proposed when the time was over",
	} {
		b := allowing()
		b.check = func(ctx context.Context, _ fsm.Check) (Answer, error) {
			<-ctx.Done()
			return Answer{}, quotaerr.New(reason, "%s", why)
		}
		if body := post(mustNode(t, "n1", b)); !strings.Contains(body, `"reason":"`+string(reason)+`"`) {
			t.Errorf("%s: %s", why, body)
		}
	}
	n, _ = mustFollower(t, always(""))
	if body := post(n); !strings.Contains(body, `"no_quorum"`) {
		t.Errorf("no leader: %s", body)
	}
	n, _ = mustFollower(t, always("n9"))
	if body := post(n); !strings.Contains(body, `"no_quorum"`) {
		t.Errorf("a leader that is no member: %s", body)
	}
}

// Shows that another node which does not know this one is no refusal of the caller: a check and an operator's change
// are tried again, and answered by that node once it does; and that a caller who cannot wait hears of no_quorum.
func TestStrangersAreNotTheCallersFault(t *testing.T) {
	here, there := allowing(), allowing()
	here.leader = ledBy("n2")
	here.admin.answer = func(context.Context, string, proto.Message, proto.Message) error { return leads("n2") }
	var asked, known atomic.Int32
	there.knows = func(string) bool { return asked.Add(1) >= known.Load() }
	ca := mustCA(t, tlsCluster)
	n1, n2 := mustSecure(t, ca, "n1", here), mustSecure(t, ca, "n2", there)
	acquaint(map[string]*testNode{"n1": n1, "n2": n2}, here)
	quota := quoratev1.NewQuotaClient(mustDial(t, n1.grpcAddr, ca.must(t, identity.Gateway, "edge-1")))
	admin := quoratev1.NewAdminClient(mustDial(t, n1.grpcAddr, ca.must(t, identity.Admin, "ops")))
	check := func(ctx context.Context) error {
		_, err := quota.CheckAndConsume(ctx, aCheck())
		return err
	}
	change := func(ctx context.Context) error {
		_, err := admin.SwitchClass(ctx, &quoratev1.SwitchClassRequest{})
		return err
	}
	for name, call := range map[string]func(context.Context) error{"check": check, "change": change} {
		asked.Store(0)
		known.Store(3)
		if err := call(within(t, 10*time.Second)); err != nil || asked.Load() != 3 {
			t.Errorf("%s: %v after %d", name, err, asked.Load())
		}
		known.Store(1 << 30)
		err := call(telling(t, 300*time.Millisecond))
		if e := errtable.FromStatus(err); e == nil || name == "check" && e.Reason != quotaerr.NoQuorum ||
			name == "change" && e.Reason != quotaerr.NoQuorum && e.Reason != quotaerr.NotLeader {
			t.Errorf("%s, of a node that stays unknown: %v", name, err)
		}
	}
	if len(there.seen()) != 1 || len(there.admin.asked()) != 1 {
		t.Errorf("n2 decided %d checks and made %d changes", len(there.seen()), len(there.admin.asked()))
	}
}

// Shows that what another node refuses of an operator's call is the answer to it, and not tried again.
func TestRefusalOfAnOperatorIsFinal(t *testing.T) {
	for _, reason := range []quotaerr.Reason{quotaerr.PermissionDenied, quotaerr.Unauthenticated, quotaerr.InvalidArgument} {
		peer := mustPeer(t, func(ctx context.Context, _ int) (*quoratev1.Decision, error) {
			return nil, errtable.ToStatus(ctx, quotaerr.New(reason, "not you")).Err()
		})
		b := allowing()
		b.members = []Member{{ID: "n2", GRPC: peer.addr}}
		b.admin.answer = func(context.Context, string, proto.Message, proto.Message) error { return leads("n2") }
		admin := quoratev1.NewAdminClient(mustNode(t, "n1", b).conn)
		_, err := admin.SwitchClass(within(t, 5*time.Second), &quoratev1.SwitchClassRequest{})
		if e := errtable.FromStatus(err); e == nil || e.Reason != reason || peer.operated.Load() != 1 {
			t.Errorf("%s: %v after %d", reason, err, peer.operated.Load())
		}
	}
}

// Shows that a leader which hangs costs no more than one that dies: once another node is known to lead, the same
// check goes there, long before the deadline.
func TestAHangingLeaderIsLeft(t *testing.T) {
	var lead atomic.Pointer[string]
	set := func(s string) { lead.Store(&s) }
	set("n2")
	hangs := mustPeer(t, func(ctx context.Context, _ int) (*quoratev1.Decision, error) {
		set("n3")
		<-ctx.Done()
		return nil, ctx.Err()
	})
	next := mustPeer(t, func(context.Context, int) (*quoratev1.Decision, error) { return allowedByPeer(), nil })
	n, _ := mustFollower(t, func() string { return *lead.Load() }, hangs, next)
	ctx := within(t, time.Minute)
	d, err := quoratev1.NewQuotaClient(n.conn).CheckAndConsume(ctx, aCheck())
	if err != nil || d.GetOutcome() != quoratev1.Outcome_OUTCOME_ALLOWED {
		t.Fatalf("%v, %v", d, err)
	}
	if end, _ := ctx.Deadline(); time.Until(end) < 30*time.Second {
		t.Error("it took most of the deadline")
	}
}

// Shows that a node which hangs with an operator's call in hand is left once another one leads the control group, and
// that reading then goes there, long before the deadline; and that a call which a partition's leader answers does
// not look who leads the control group.
func TestOperationsFollowTheirOwnLeader(t *testing.T) {
	b1, b2, b3 := allowing(), allowing(), allowing()
	var lead atomic.Pointer[string]
	set := func(s string) { lead.Store(&s) }
	set("n2")
	var looked atomic.Int32
	b1.control = func() string {
		looked.Add(1)
		return *lead.Load()
	}
	b1.admin.answer = func(context.Context, string, proto.Message, proto.Message) error { return leads(*lead.Load()) }
	b2.admin.answer = func(ctx context.Context, _ string, _, _ proto.Message) error {
		set("n3")
		<-ctx.Done()
		return ctx.Err()
	}
	n1 := mustNode(t, "n1", b1)
	acquaint(map[string]*testNode{"n1": n1, "n2": mustNode(t, "n2", b2), "n3": mustNode(t, "n3", b3)}, b1)
	ctx := within(t, time.Minute)
	_, err := quoratev1.NewAdminClient(n1.conn).SearchAudit(ctx, &quoratev1.SearchAuditRequest{})
	if end, _ := ctx.Deadline(); err != nil || time.Until(end) < 30*time.Second {
		t.Errorf("%v, %v before the deadline", err, time.Until(end))
	}
	for full, o := range operations {
		if o.here {
			continue
		}
		looked.Store(0)
		if err := callEmpty(t, n1.conn, full); err != nil {
			t.Errorf("%s: %v", full, err)
		}
		ofPartition := slices.Contains([]string{"ForgiveUsage", "TransferLeader"}, lastOf(full))
		if n := looked.Load(); (n == 0) != ofPartition {
			t.Errorf("%s looked %d times who leads the control group", full, n)
		}
	}
}
