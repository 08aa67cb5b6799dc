package rpc

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/internal/errtable"
	"github.com/quorate/quorate/internal/identity"
	quoratev1 "github.com/quorate/quorate/proto/quorate/v1"
	"github.com/quorate/quorate/quotaerr"
)

// ledBy is the leadership of another node under epoch 7.
func ledBy(node string) func() Leadership {
	return func() Leadership { return Leadership{Node: node, Epoch: 7} }
}

// acquaint makes each backend know all nodes.
func acquaint(nodes map[string]*testNode, backends ...*fakeBackend) {
	for _, b := range backends {
		b.mu.Lock()
		for id, n := range nodes {
			b.members = append(b.members, Member{ID: id, GRPC: n.grpcAddr})
		}
		b.mu.Unlock()
	}
}

// Shows that a check asked at a follower reaches the leader with its decision id, the identity that
// the follower authenticated, the epoch filled in and the caller's deadline, over both protocols.
func TestForwarding(t *testing.T) {
	follower, leader := allowing(), allowing()
	follower.leader = ledBy("n2")
	deadlines := make(chan time.Time, 2)
	allow := leader.check
	leader.check = func(ctx context.Context, c fsm.Check) (Answer, error) {
		end, _ := ctx.Deadline()
		deadlines <- end
		return allow(ctx, c)
	}
	n1 := mustNode(t, "n1", follower, func(c *Config) {
		c.Authenticate = func(context.Context) (Identity, error) { return Identity{Name: "gw-1", Roles: identity.Gateway}, nil }
	})
	n2 := mustNode(t, "n2", leader)
	acquaint(map[string]*testNode{"n1": n1, "n2": n2}, follower)

	ctx := within(t, 30*time.Second)
	d, err := quoratev1.NewQuotaClient(n1.conn).CheckAndConsume(ctx, aCheck())
	if err != nil || d.GetOutcome() != quoratev1.Outcome_OUTCOME_ALLOWED {
		t.Fatalf("%v, %v", d, err)
	}
	end, _ := ctx.Deadline()
	if off := end.Sub(<-deadlines); off < -time.Second || off > time.Second {
		t.Errorf("the deadline moved by %v on the way", off)
	}
	if r := n1.mustPost(t, aBody); r.status != 200 {
		t.Errorf("HTTP %d %s", r.status, r.body)
	}
	want := fsm.Check{Principal: "acme", Gateway: "gw-1", DecisionID: "d1",
		Charge: fsm.Charge{Class: "convert", Cost: 1}, RouteEpoch: 7}
	mustEqual(t, leader.seen(), []fsm.Check{want, want})
	if n := len(follower.seen()); n != 0 {
		t.Errorf("the follower's own backend was asked %d times", n)
	}
}

// Shows that a forwarded check is not passed on again: the node answers not_leader with who leads.
// And that the first node then follows this hint.
func TestForwardedOnce(t *testing.T) {
	first, stale, leader := allowing(), allowing(), allowing()
	first.leader, stale.leader = ledBy("n2"), ledBy("n3")
	stale.check = func(context.Context, fsm.Check) (Answer, error) {
		return Answer{}, &quotaerr.Error{Reason: quotaerr.NotLeader, Leader: "n3", Epoch: 7}
	}
	nodes := map[string]*testNode{"n1": mustNode(t, "n1", first), "n2": mustNode(t, "n2", stale),
		"n3": mustNode(t, "n3", leader)}
	acquaint(nodes, first, stale, leader)

	req := aCheck()
	req.RouteEpoch = 7
	_, err := quoratev1.NewPeerClient(nodes["n2"].conn).ForwardCheck(within(t, 5*time.Second),
		&quoratev1.ForwardCheckRequest{ClusterId: testCluster, Gateway: "gw", Check: req})
	if e := errtable.FromStatus(err); e.Reason != quotaerr.NotLeader || e.Leader != "n3" {
		t.Errorf("got %v, want not_leader naming n3", err)
	}
	if n := len(leader.seen()); n != 0 {
		t.Fatalf("a forwarded check was passed on")
	}
	_, err = quoratev1.NewQuotaClient(nodes["n1"].conn).CheckAndConsume(within(t, 5*time.Second), aCheck())
	if err != nil {
		t.Error(err)
	}
	if len(stale.seen()) != 2 || len(leader.seen()) != 1 {
		t.Errorf("stale node asked %d times, leader %d times", len(stale.seen()), len(leader.seen()))
	}
	// What another node says of where to look is kept, for the checks to come.
	first.mu.Lock()
	defer first.mu.Unlock()
	mustEqual(t, first.learned, []lesson{{"acme", "n2", "n3", quotaerr.NotLeader, 7}})
}

// Shows that a node that is told of another epoch keeps that too, and asks again under the epoch that it then has.
func TestWrongEpochIsLearned(t *testing.T) {
	first, owner := allowing(), allowing()
	first.leader = func() Leadership {
		first.mu.Lock()
		defer first.mu.Unlock()
		epoch := fsm.Epoch(7)
		if len(first.learned) > 0 {
			epoch = fsm.Epoch(first.learned[0].Epoch)
		}
		return Leadership{Node: "n2", Epoch: epoch}
	}
	owner.check = func(_ context.Context, c fsm.Check) (Answer, error) {
		if c.RouteEpoch != 9 {
			return Answer{}, &quotaerr.Error{Reason: quotaerr.WrongEpoch, Epoch: 9}
		}
		return Answer{Decision: fsm.Decision{Reason: fsm.ReasonAllowed}}, nil
	}
	n1 := mustNode(t, "n1", first)
	acquaint(map[string]*testNode{"n1": n1, "n2": mustNode(t, "n2", owner)}, first)
	d, err := quoratev1.NewQuotaClient(n1.conn).CheckAndConsume(within(t, 10*time.Second), aCheck())
	if err != nil || !Allowed(d) {
		t.Fatalf("%v, %v", d, err)
	}
	first.mu.Lock()
	defer first.mu.Unlock()
	mustEqual(t, first.learned, []lesson{{"acme", "n2", "", quotaerr.WrongEpoch, 9}})
}

// Shows that a check which arrives while nobody leads is answered once somebody does.
func TestFailoverIsAPause(t *testing.T) {
	backend := allowing()
	changed, asked := make(chan struct{}), make(chan struct{}, 1)
	var led atomic.Bool
	backend.leader = func() Leadership {
		if led.Load() {
			return Leadership{Node: "n1", Local: true, Epoch: 8}
		}
		select {
		case asked <- struct{}{}:
		default:
		}
		return Leadership{Epoch: 7, Changed: changed}
	}
	n := mustNode(t, "n1", backend)
	go func() {
		<-asked
		led.Store(true)
		close(changed)
	}()
	d, err := quoratev1.NewQuotaClient(n.conn).CheckAndConsume(within(t, 10*time.Second), aCheck())
	if err != nil || d.GetOutcome() != quoratev1.Outcome_OUTCOME_ALLOWED {
		t.Fatalf("%v, %v", d, err)
	}
	if got := backend.seen(); len(got) != 1 || got[0].RouteEpoch != 8 {
		t.Errorf("decided as %+v, want once, under the new epoch", got)
	}
}

// Shows that without a leader the reason is there a tenth before the caller's own deadline, so that it can reach him, and
// that nothing was proposed.
func TestNoLeaderInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		backend := allowing()
		backend.leader = func() Leadership { return Leadership{Epoch: 7} }
		config := Config{Node: "n1", ClusterID: testCluster, Backend: backend}
		config.setDefaults()
		d, began := newDesk(&config, newMetrics()), time.Now()
		_, err := d.check(within(t, 500*time.Millisecond), Identity{Name: InsecureName, Roles: identity.AnyRole}, aCheck(),
			"grpc")
		if took := time.Since(began); quotaerr.ReasonOf(err) != quotaerr.NoQuorum || took != 450*time.Millisecond {
			t.Errorf("%v after %s", err, took)
		}
		if len(backend.seen()) != 0 {
			t.Error("the check was proposed")
		}
	})
}

// Shows that an unknown outcome is retried with the same decision id until a decision settles it.
func TestUnknownOutcomeIsRetried(t *testing.T) {
	follower, leader := allowing(), allowing()
	follower.leader = ledBy("n2")
	var n atomic.Int32
	leader.check = func(context.Context, fsm.Check) (Answer, error) {
		if n.Add(1) == 1 {
			return Answer{}, quotaerr.New(quotaerr.OutcomeUnknown, "leadership was lost")
		}
		return Answer{Decision: fsm.Decision{Reason: fsm.ReasonAllowed, Replayed: true}}, nil
	}
	n1, n2 := mustNode(t, "n1", follower), mustNode(t, "n2", leader)
	acquaint(map[string]*testNode{"n1": n1, "n2": n2}, follower)
	d, err := quoratev1.NewQuotaClient(n1.conn).CheckAndConsume(within(t, 10*time.Second), aCheck())
	if err != nil || !d.GetReplayed() {
		t.Fatalf("%v, %v", d, err)
	}
	if seen := leader.seen(); len(seen) != 2 || seen[0].DecisionID != seen[1].DecisionID {
		t.Errorf("asked as %+v", seen)
	}
}

// Shows that a leader which goes away with a check in hand leaves its fate unknown, and that the same
// decision id then goes to the next leader.
func TestLeaderBreaksOff(t *testing.T) {
	follower, old, next := allowing(), allowing(), allowing()
	var leader atomic.Pointer[string]
	set := func(s string) { leader.Store(&s) }
	set("n2")
	follower.leader = func() Leadership { return Leadership{Node: *leader.Load(), Epoch: 7} }
	nodes := map[string]*testNode{"n1": mustNode(t, "n1", follower), "n2": mustNode(t, "n2", old),
		"n3": mustNode(t, "n3", next)}
	old.check = func(ctx context.Context, _ fsm.Check) (Answer, error) {
		set("n3")
		go nodes["n2"].stop()
		<-ctx.Done()
		return Answer{}, quotaerr.New(quotaerr.OutcomeUnknown, "stopped")
	}
	acquaint(nodes, follower)
	_, err := quoratev1.NewQuotaClient(nodes["n1"].conn).CheckAndConsume(within(t, 10*time.Second), aCheck())
	if err != nil {
		t.Fatal(err)
	}
	if a, b := old.seen(), next.seen(); len(a) != 1 || len(b) != 1 || a[0].DecisionID != b[0].DecisionID {
		t.Errorf("old leader saw %+v, next saw %+v", a, b)
	}

	// The same again where the replay horizon allows no retry: the caller learns that it is unknown.
	set("n3")
	follower.horizon = 0
	next.check = func(ctx context.Context, _ fsm.Check) (Answer, error) {
		go nodes["n3"].stop()
		<-ctx.Done()
		return Answer{}, errors.New("stopped")
	}
	_, err = quoratev1.NewQuotaClient(nodes["n1"].conn).CheckAndConsume(within(t, 10*time.Second), aCheck())
	if e := errtable.FromStatus(err); e.Reason != quotaerr.OutcomeUnknown {
		t.Errorf("got %v, want outcome_unknown", err)
	}
	if n := len(next.seen()); n != 2 {
		t.Errorf("the leader was asked %d times in all, want 2", n)
	}
}

// Shows that a leader nobody listens for has certainly not got the check: even where a retry after an
// unknown outcome is forbidden, the check goes on to the next leader.
func TestUnreachableLeaderIsNoUnknownOutcome(t *testing.T) {
	backend := allowing()
	backend.horizon = 0
	gone := mustListen(t)
	if err := gone.Close(); err != nil {
		t.Fatal(err)
	}
	backend.members = []Member{{ID: "n2", GRPC: gone.Addr().String()}}
	var asked atomic.Int32
	backend.leader = func() Leadership {
		if asked.Add(1) == 1 {
			return Leadership{Node: "n2", Epoch: 7}
		}
		return Leadership{Node: "n1", Local: true, Epoch: 7}
	}
	n := mustNode(t, "n1", backend)
	if _, err := quoratev1.NewQuotaClient(n.conn).CheckAndConsume(within(t, 10*time.Second), aCheck()); err != nil {
		t.Fatal(err)
	}
	if n := len(backend.seen()); n != 1 {
		t.Errorf("decided %d times", n)
	}
}

// Shows that after an attempt with an unknown fate a refusal does not pass for "nothing consumed".
func TestRefusalAfterUnknownStaysUnknown(t *testing.T) {
	for _, second := range []quotaerr.Reason{quotaerr.Overloaded, quotaerr.PolicyStale, quotaerr.Capacity} {
		backend := allowing()
		var n atomic.Int32
		backend.check = func(context.Context, fsm.Check) (Answer, error) {
			if n.Add(1) == 1 {
				return Answer{}, quotaerr.New(quotaerr.OutcomeUnknown, "")
			}
			return Answer{}, quotaerr.New(second, "")
		}
		node := mustNode(t, "n1", backend)
		_, err := quoratev1.NewQuotaClient(node.conn).CheckAndConsume(within(t, 10*time.Second), aCheck())
		if e := errtable.FromStatus(err); e.Reason != quotaerr.OutcomeUnknown || n.Load() != 2 {
			t.Errorf("then %s: %v after %d attempts", second, err, n.Load())
		}
	}
}

// Shows that a wrong epoch goes back to the caller who named it, and is routed anew for one who left
// the routing to the node.
func TestWrongEpoch(t *testing.T) {
	backend := allowing()
	var epoch atomic.Uint64
	epoch.Store(7)
	backend.leader = func() Leadership {
		return Leadership{Node: "n1", Local: true, Epoch: fsm.Epoch(epoch.Load())}
	}
	backend.check = func(_ context.Context, c fsm.Check) (Answer, error) {
		if c.RouteEpoch == 8 {
			return Answer{Decision: fsm.Decision{Reason: fsm.ReasonAllowed}}, nil
		}
		epoch.Store(8)
		return Answer{Decision: fsm.Decision{Reason: fsm.ReasonWrongEpoch, Epoch: 8}}, nil
	}
	quota := quoratev1.NewQuotaClient(mustNode(t, "n1", backend).conn)
	named := aCheck()
	named.RouteEpoch = 7
	_, err := quota.CheckAndConsume(within(t, 10*time.Second), named)
	if e := errtable.FromStatus(err); e.Reason != quotaerr.WrongEpoch || e.Epoch != 8 {
		t.Errorf("got %v, want wrong_epoch with epoch 8", err)
	}
	epoch.Store(7)
	if _, err = quota.CheckAndConsume(within(t, 10*time.Second), aCheck()); err != nil {
		t.Errorf("routed by the node: %v", err)
	}
}

// Shows whom the Peer service refuses: other clusters, callers that are no nodes, and checks whose
// epoch was not filled in.
func TestPeerAdmission(t *testing.T) {
	backend := allowing()
	node := quoratev1.NewPeerClient(mustNode(t, "n1", backend).conn)
	guest := quoratev1.NewPeerClient(mustNode(t, "n1", backend, func(c *Config) {
		c.Authenticate = func(context.Context) (Identity, error) { return Identity{Name: "gw", Roles: identity.Gateway}, nil }
	}).conn)
	routed := aCheck()
	routed.RouteEpoch = 7
	ctx := within(t, 10*time.Second)
	for name, c := range map[string]struct {
		client quoratev1.PeerClient
		req    *quoratev1.ForwardCheckRequest
		want   quotaerr.Reason
	}{
		"other cluster": {node, &quoratev1.ForwardCheckRequest{ClusterId: "c2", Gateway: "g", Check: routed},
			quotaerr.PermissionDenied},
		"no cluster": {node, &quoratev1.ForwardCheckRequest{Gateway: "g", Check: routed},
			quotaerr.PermissionDenied},
		"gateway": {guest, &quoratev1.ForwardCheckRequest{ClusterId: testCluster, Gateway: "g", Check: routed},
			quotaerr.PermissionDenied},
		"no epoch": {node, &quoratev1.ForwardCheckRequest{ClusterId: testCluster, Gateway: "g", Check: aCheck()},
			quotaerr.InvalidArgument},
		"no gateway": {node, &quoratev1.ForwardCheckRequest{ClusterId: testCluster, Check: routed},
			quotaerr.InvalidArgument},
		"no check": {node, &quoratev1.ForwardCheckRequest{ClusterId: testCluster, Gateway: "g"},
			quotaerr.InvalidArgument},
	} {
		_, err := c.client.ForwardCheck(ctx, c.req)
		if e := errtable.FromStatus(err); e == nil || e.Reason != c.want {
			t.Errorf("%s: %v, want %s", name, err, c.want)
		}
	}
	if _, err := node.NodeStatus(ctx, &quoratev1.NodeStatusRequest{ClusterId: "c2"}); status.Code(err) != codes.PermissionDenied {
		t.Errorf("status for another cluster: %v", err)
	}
	if len(backend.seen()) != 0 {
		t.Error("one of them was decided")
	}
}

// Shows that a node with its share of unanswered checks refuses the next one, and takes it again
// afterwards.
func TestInFlightIsBounded(t *testing.T) {
	backend := allowing()
	entered, release := make(chan struct{}), make(chan struct{})
	backend.check = func(_ context.Context, c fsm.Check) (Answer, error) {
		if c.DecisionID == "held" {
			close(entered)
			<-release
		}
		return Answer{Decision: fsm.Decision{Reason: fsm.ReasonAllowed}}, nil
	}
	quota := quoratev1.NewQuotaClient(mustNode(t, "n1", backend, func(c *Config) { c.MaxInFlight = 1 }).conn)
	held := make(chan error, 1)
	go func() {
		req := aCheck()
		req.DecisionId = "held"
		_, err := quota.CheckAndConsume(within(t, 10*time.Second), req)
		held <- err
	}()
	<-entered
	_, err := quota.CheckAndConsume(within(t, 10*time.Second), aCheck())
	if e := errtable.FromStatus(err); status.Code(err) != codes.ResourceExhausted || e.Reason != quotaerr.Overloaded {
		t.Errorf("got %v, want overloaded", err)
	}
	close(release)
	if err := <-held; err != nil {
		t.Errorf("the held check: %v", err)
	}
	if _, err := quota.CheckAndConsume(within(t, 10*time.Second), aCheck()); err != nil {
		t.Errorf("afterwards: %v", err)
	}
}

// Shows a peek answered across nodes, room and use included.
func TestPeekIsForwarded(t *testing.T) {
	follower, leader := allowing(), allowing()
	follower.leader = ledBy("n2")
	leader.peek = func(_ context.Context, p fsm.Peek) (UsageAnswer, error) {
		if p.RouteEpoch != 7 || p.Principal != "acme" || p.Class != "convert" {
			return UsageAnswer{}, errors.New("arrived changed")
		}
		return UsageAnswer{ResetAfterNanos: []int64{1}, Usage: fsm.Usage{Reason: fsm.ReasonAllowed,
			Class: "default", Revision: 3, Version: "p3", Remaining: -2, Limits: []fsm.LimitState{
				{Name: "l", Max: 5, Used: 7, WindowNanos: 1e9, Remaining: -2}}}}, nil
	}
	n1, n2 := mustNode(t, "n1", follower), mustNode(t, "n2", leader)
	acquaint(map[string]*testNode{"n1": n1, "n2": n2}, follower)
	r, err := quoratev1.NewQuotaClient(n1.conn).Peek(within(t, 10*time.Second),
		&quoratev1.PeekRequest{Principal: "acme", ApiClass: "convert"})
	if err != nil {
		t.Fatal(err)
	}
	l := r.GetLimits()[0]
	if r.GetApiClass() != "default" || r.GetRemaining() != 0 || l.GetUsed() != 7 || l.GetRemaining() != 0 ||
		l.GetResetMs() != 1 || r.GetAsOf() == nil {
		t.Errorf("got %v", r)
	}
	leader.peek = func(context.Context, fsm.Peek) (UsageAnswer, error) { return UsageAnswer{}, nil }
	_, err = quoratev1.NewQuotaClient(n1.conn).Peek(within(t, 10*time.Second),
		&quoratev1.PeekRequest{Principal: "acme", ApiClass: "convert"})
	if status.Code(err) != codes.Internal {
		t.Errorf("an unset usage gives %v", err)
	}
}
