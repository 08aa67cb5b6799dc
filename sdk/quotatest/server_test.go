package quotatest_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/quorate/quorate/internal/errtable"
	quoratev1 "github.com/quorate/quorate/proto/quorate/v1"
	"github.com/quorate/quorate/quotaerr"
	"github.com/quorate/quorate/router"
	"github.com/quorate/quorate/sdk/quotatest"
)

const testPolicy = `
version: v1
default: {limits: [{name: default, limit: 100, window: 60s}]}
classes:
  convert: {limits: [{name: per-minute, limit: 3, window: 60s}], replay_horizon: 30s}
  lenient: {limits: [{name: per-minute, limit: 3, window: 60s}], on_unavailable: allow, timeout: 70ms}
  local: {limits: [{name: l, limit: 3, window: 60s}], on_unavailable: local, local_limit: {limit: 2, window: 5s}}
`

// TestMain shows that nothing of any server outlives its test.
func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func mustConn(t *testing.T, s *quotatest.Server, n *quotatest.Node) quoratev1.QuotaClient {
	t.Helper()
	opts := append(s.DialOptions(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	conn, err := grpc.NewClient("passthrough:///"+n.Addr, opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
	})
	return quoratev1.NewQuotaClient(conn)
}

func within(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

func aCheck(principal, class, id string) *quoratev1.CheckRequest {
	return &quoratev1.CheckRequest{Principal: principal, ApiClass: class, DecisionId: id}
}

// said is an answer in a word: the reason of a decision or of a refusal.
func said(d *quoratev1.Decision, err error) string {
	if err != nil {
		return string(errtable.FromStatus(err).Reason)
	}
	return d.GetReason()
}

func mustSay(t *testing.T, c quoratev1.QuotaClient, req *quoratev1.CheckRequest, want quotaerr.Reason) *quoratev1.Decision {
	t.Helper()
	d, err := c.CheckAndConsume(within(t, 10*time.Second), req)
	if got := said(d, err); got != string(want) {
		t.Fatalf("%v is answered with %s, want %s: %v %v", req, got, want, d, err)
	}
	return d
}

// Shows in virtual time that whoever comes back exactly when told is admitted, that one millisecond earlier he is not,
// and that a node in memory works in a bubble of synctest.
func TestTheWaitIsExact(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := quotatest.Start(t, testPolicy, quotatest.InMemory())
		c := mustConn(t, s, s.Nodes()[0])
		for i := range 3 {
			mustSay(t, c, aCheck("u1", "convert", fmt.Sprint("a", i)), quotaerr.Allowed)
			<-time.After(time.Second)
		}
		d := mustSay(t, c, aCheck("u1", "convert", "b"), quotaerr.QuotaExhausted)
		wait := time.Duration(d.GetRetryAfterMs()) * time.Millisecond
		if want := 57 * time.Second; wait != want {
			t.Errorf("the wait is %v, want %v", wait, want)
		}
		<-time.After(wait - time.Millisecond)
		mustSay(t, c, aCheck("u1", "convert", "early"), quotaerr.QuotaExhausted)
		<-time.After(time.Millisecond)
		mustSay(t, c, aCheck("u1", "convert", "in time"), quotaerr.Allowed)
		mustSay(t, c, aCheck("u1", "convert", "again"), quotaerr.QuotaExhausted)
		if used := s.Used("u1", "convert", time.Minute); used != 3 {
			t.Errorf("%d are used, want 3", used)
		}
	})
}

// Shows that usage and records follow a clock that the test gives.
func TestGivenClock(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	s := quotatest.Start(t, testPolicy, quotatest.WithClock(func() time.Time { return now }))
	c := mustConn(t, s, s.Nodes()[0])
	for i := range 3 {
		mustSay(t, c, aCheck("u1", "convert", fmt.Sprint("a", i)), quotaerr.Allowed)
	}
	now = now.Add(30*time.Second - 1)
	if d := mustSay(t, c, aCheck("u1", "convert", "a0"), quotaerr.Allowed); !d.GetReplayed() {
		t.Errorf("within the replay horizon: %v", d)
	}
	now = now.Add(1)
	d := mustSay(t, c, aCheck("u1", "convert", "a0"), quotaerr.QuotaExhausted)
	if at := d.GetRetryAt().AsTime(); d.GetReplayed() || at != now.Add(30*time.Second) {
		t.Errorf("at its end: retry at %v: %v", at, d)
	}
	p, err := c.Peek(t.Context(), &quoratev1.PeekRequest{Principal: "u1", ApiClass: "convert"})
	if err != nil || p.GetLimits()[0].GetUsed() != 3 || p.GetRemaining() != 0 || p.GetLimits()[0].GetResetMs() != 30_000 {
		t.Errorf("peek: %v %v", p, err)
	}
	now = now.Add(30 * time.Second)
	mustSay(t, c, aCheck("u1", "convert", "later"), quotaerr.Allowed)
}

// stream is a client of CheckStream.
type stream struct {
	t *testing.T
	grpc.BidiStreamingClient[quoratev1.CheckStreamRequest, quoratev1.CheckStreamResponse]
}

func mustStream(t *testing.T, c quoratev1.QuotaClient) stream {
	t.Helper()
	s, err := c.CheckStream(within(t, 10*time.Second))
	if err != nil {
		t.Fatal(err)
	}
	return stream{t, s}
}

// ask sends checks as one frame. Their sequence numbers count from first.
func (s stream) ask(first uint64, checks ...*quoratev1.CheckRequest) {
	s.t.Helper()
	frame := &quoratev1.CheckStreamRequest{}
	for i, c := range checks {
		frame.Checks = append(frame.Checks, &quoratev1.StreamedCheck{Sequence: first + uint64(i), Check: c})
	}
	if err := s.Send(frame); err != nil {
		s.t.Fatal(err)
	}
}

// answers waits for so many answers and returns them by sequence number.
func (s stream) answers(n int) map[uint64]*quoratev1.StreamedAnswer {
	s.t.Helper()
	out := map[uint64]*quoratev1.StreamedAnswer{}
	for len(out) < n {
		frame, err := s.Recv()
		if err != nil {
			s.t.Fatalf("after %d answers: %v", len(out), err)
		}
		for _, a := range frame.GetAnswers() {
			out[a.GetSequence()] = a
		}
	}
	return out
}

func word(a *quoratev1.StreamedAnswer) string {
	return a.GetDecision().GetReason() + a.GetRefusal().GetReason()
}

// Shows that a frame's checks are decided in order and each alone, that a malformed one fails alone, and what is counted.
func TestStream(t *testing.T) {
	s := quotatest.Start(t, testPolicy)
	c := mustStream(t, mustConn(t, s, s.Nodes()[0]))
	c.ask(7, aCheck("u1", "convert", "a"), aCheck("", "convert", "b"), aCheck("u1", "convert", "c"),
		aCheck("u1", "convert", "d"), aCheck("u1", "convert", "e"), nil)
	got := c.answers(6)
	for i, want := range []string{"allowed", "invalid_argument", "allowed", "allowed", "quota_exhausted", "invalid_argument"} {
		if a := got[7+uint64(i)]; word(a) != want {
			t.Errorf("answer %d is %v, want %s", i, a, want)
		}
	}
	if n := s.Counts(); n.Checks != 6 || n.Frames != 1 || n.Largest != 6 || n.Streams != 1 || n.Allowed != 3 ||
		n.Denied != 1 || n.Refused != 2 || n.Unary != 0 {
		t.Errorf("counted %+v", n)
	}
	if r := s.Requests(); len(r) != 6 || r[2].Check.GetDecisionId() != "c" || r[2].Node != "n0" {
		t.Errorf("kept %v", r)
	}
}

// Shows that a sequence number that is still unanswered, and a frame that is too large, end the stream.
func TestStreamIsStrict(t *testing.T) {
	s := quotatest.Start(t, testPolicy)
	conn := mustConn(t, s, s.Nodes()[0])
	s.Silence()
	twice := mustStream(t, conn)
	twice.ask(1, aCheck("u1", "convert", "a"))
	twice.ask(1, aCheck("u1", "convert", "b"))
	large := mustStream(t, conn)
	checks := make([]*quoratev1.CheckRequest, 1025)
	for i := range checks {
		checks[i] = aCheck("u1", "convert", fmt.Sprint(i))
	}
	large.ask(1, checks...)
	for _, c := range []stream{twice, large} {
		if _, err := c.Recv(); errtable.FromStatus(err).Reason != quotaerr.InvalidArgument {
			t.Errorf("the stream ends with %v", err)
		}
	}
}

// Shows each failure of a node by what it does to a check, and that Heal ends it.
func TestFailures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := quotatest.Start(t, testPolicy, quotatest.InMemory(), quotatest.WithNodes(2))
		n := s.Nodes()[0]
		c := mustConn(t, s, n)
		ask := func(id string, most time.Duration) (string, time.Duration) {
			begun := time.Now()
			ctx, cancel := context.WithTimeout(t.Context(), most)
			defer cancel()
			d, err := c.CheckAndConsume(ctx, aCheck("u1", "default", id))
			return said(d, err), time.Since(begun)
		}
		for i, tt := range []struct {
			name string
			fail func()
			want quotaerr.Reason
			took time.Duration
		}{
			{"unavailable", n.Unavailable, quotaerr.NoQuorum, 0},
			{"refuse", func() { n.Refuse(quotaerr.Overloaded) }, quotaerr.Overloaded, 0},
			{"slow", func() { n.Slow(200 * time.Millisecond) }, quotaerr.Allowed, 200 * time.Millisecond},
			{"silent", n.Silence, quotaerr.OutcomeUnknown, time.Second},
			{"lost", func() { n.LoseAnswers(1) }, quotaerr.OutcomeUnknown, time.Second},
			{"answer", func() {
				n.Answer(func(*quoratev1.CheckRequest) (*quoratev1.Decision, *quotaerr.Error) {
					return &quoratev1.Decision{Reason: "blocked"}, nil
				})
			}, quotaerr.Blocked, 0},
		} {
			used := s.Used("u1", "default", time.Minute)
			tt.fail()
			id := fmt.Sprint("d", i)
			if got, took := ask(id, time.Second); got != string(tt.want) || took != tt.took {
				t.Errorf("%s: %s after %v, want %s after %v", tt.name, got, took, tt.want, tt.took)
			}
			decided := tt.name == "slow" || tt.name == "lost"
			if now := s.Used("u1", "default", time.Minute); (now > used) != decided {
				t.Errorf("%s: used %d, then %d", tt.name, used, now)
			}
			s.Heal()
			d := mustSay(t, c, aCheck("u1", "default", id), quotaerr.Allowed)
			if d.GetReplayed() != decided {
				t.Errorf("%s: asked again: %v", tt.name, d)
			}
		}
	})
}

// Shows that a node that does not lead has the leader decide, and the answer names it; that without forwarding it names
// the leader in its refusal; and that nobody decides without a leader, an older epoch, or while slots are frozen.
func TestRouting(t *testing.T) {
	s := quotatest.Start(t, testPolicy, quotatest.WithNodes(3), quotatest.WithPartitions(2))
	principal, partition := "u1", s.Partition("u1")
	leader := s.Leader(principal)
	other := s.Nodes()[2]
	c := mustStream(t, mustConn(t, s, other))
	next := uint64(0)
	ask := func(epoch uint64) *quoratev1.StreamedAnswer {
		t.Helper()
		next++
		req := aCheck(principal, "default", fmt.Sprint("d", next))
		req.RouteEpoch = epoch
		c.ask(next, req)
		return c.answers(1)[next]
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	if a := ask(1); word(a) != "allowed" || a.GetLeader() != leader.ID {
		t.Errorf("forwarded: %v", a)
	}
	s.Forward(false)
	if a := ask(0); word(a) != "not_leader" || a.GetRefusal().GetLeader() != leader.ID ||
		a.GetRefusal().GetLeaderAddr() != leader.Addr {
		t.Errorf("not forwarded: %v", a)
	}
	must(s.Lead(partition, other))
	if a := ask(0); word(a) != "allowed" || a.GetLeader() != "" {
		t.Errorf("by the leader: %v", a)
	}
	must(s.Raise(partition))
	if a := ask(1); word(a) != "wrong_epoch" || a.GetRefusal().GetEpoch() != 2 {
		t.Errorf("with an older epoch: %v", a)
	}
	must(s.Freeze(partition))
	if a := ask(2); word(a) != "frozen" {
		t.Errorf("frozen: %v", a)
	}
	must(s.Thaw(partition))
	if a := ask(2); word(a) != "allowed" {
		t.Errorf("thawed: %v", a)
	}
	must(s.Lead(partition, nil))
	if a := ask(2); word(a) != "not_leader" || a.GetRefusal().GetLeader() != "" {
		t.Errorf("without a leader: %v", a)
	}
	id, err := s.Split(partition, leader)
	must(err)
	if s.Partition(principal) == id {
		s.Forward(true)
		if a := ask(3); word(a) != "allowed" {
			t.Errorf("after a split: %v", a)
		}
	}
	if err := s.Raise("p9"); err == nil {
		t.Error("a partition that is not there is raised")
	}
}

// watched is what a client of WatchConfig has been told.
type watched struct {
	m        *quoratev1.RoutingMap
	policy   *quoratev1.PolicySettings
	messages int
}

// listener reads a watch to its end.
type listener struct {
	mu    sync.Mutex // guards got
	got   watched
	ended chan error
}

func (l *listener) run(w grpc.ServerStreamingClient[quoratev1.WatchConfigResponse]) {
	for {
		m, err := w.Recv()
		if err != nil {
			l.ended <- err
			return
		}
		l.mu.Lock()
		l.got.messages++
		if m.GetMap() != nil {
			l.got.m = m.GetMap()
		}
		if m.GetPolicy() != nil {
			l.got.policy = m.GetPolicy()
		}
		l.mu.Unlock()
	}
}

// after is what was told once a time has passed and all is quiet.
func (l *listener) after(d time.Duration) watched {
	<-time.After(d)
	synctest.Wait()
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.got
}

// Shows what a watch is told: the map and the settings at once, each change of either, and every two seconds that it
// lives; that a muted one lives on and then catches up; and that one that is silent or refused is.
func TestWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := quotatest.Start(t, testPolicy, quotatest.InMemory(), quotatest.WithPartitions(2))
		w, err := mustConn(t, s, s.Nodes()[0]).WatchConfig(t.Context(), &quoratev1.WatchConfigRequest{})
		if err != nil {
			t.Fatal(err)
		}
		l := &listener{ended: make(chan error, 1)}
		go l.run(w)
		got := l.after(0)
		parts := router.Parts{Cluster: "c", Version: got.m.GetVersion(), Seed: [16]byte(got.m.GetSeed())}
		for _, n := range got.m.GetNodes() {
			parts.Nodes = append(parts.Nodes, router.Node{ID: n.GetId(), GRPC: n.GetGrpc()})
		}
		for _, p := range got.m.GetPartitions() {
			parts.Partitions = append(parts.Partitions, router.Partition{ID: p.GetId(), Replicas: p.GetReplicas()})
		}
		for _, r := range got.m.GetRanges() {
			parts.Ranges = append(parts.Ranges, router.Range{First: uint16(r.GetSlots().GetFirstSlot()),
				Last: uint16(r.GetSlots().GetLastSlot()), Epoch: r.GetSlots().GetEpoch(), Partition: r.GetPartition()})
		}
		if _, err := router.NewMap(parts); err != nil || len(parts.Ranges) != 2 {
			t.Errorf("the map: %v: %v", err, got.m)
		}
		if c := got.policy.GetClasses(); len(c) != 4 || c[0].GetName() != "default" ||
			c[2].GetTimeout().AsDuration() != 70*time.Millisecond ||
			c[2].GetOnUnavailable() != quoratev1.FailureMode_FAILURE_MODE_ALLOW || c[3].GetLocalLimit() != 2 ||
			c[3].GetLocalWindow().AsDuration() != 5*time.Second {
			t.Errorf("the settings: %v", got.policy)
		}
		before := got.messages
		got = l.after(9 * time.Second)
		if n := got.messages - before; n != 4 {
			t.Errorf("%d signs of life in nine seconds, want 4", n)
		}
		if err := s.Disable("convert"); err != nil {
			t.Fatal(err)
		}
		got = l.after(0)
		if got.policy.GetRevision() != 2 || !got.policy.GetClasses()[1].GetDisabled() {
			t.Errorf("after the switch: %v", got.policy)
		}
		s.MuteWatches(true)
		if err := s.Raise("p0"); err != nil {
			t.Fatal(err)
		}
		before = got.messages
		got = l.after(9 * time.Second)
		if got.m.GetVersion() != 1 || got.messages == before {
			t.Errorf("muted: told %d times, of version %d", got.messages-before, got.m.GetVersion())
		}
		s.MuteWatches(false)
		if got = l.after(0); got.m.GetVersion() != 2 {
			t.Errorf("not muted any more: %v", got.m)
		}
		s.SilenceWatch()
		before = got.messages
		if got = l.after(9 * time.Second); got.messages != before {
			t.Errorf("silent: told %d times", got.messages-before)
		}
		s.RefuseWatch()
		if err := <-l.ended; errtable.FromStatus(err).Reason != quotaerr.NotLeader {
			t.Errorf("refused: %v", err)
		}
	})
}

// Shows, on loopback and in memory, that a stopped node cannot be reached and its calls break, that one that is started
// again at the same address knows everything that was decided, and that dropped connections can be made again at once.
func TestStopAndStart(t *testing.T) {
	for name, opts := range map[string][]quotatest.Option{"loopback": nil, "memory": {quotatest.InMemory()}} {
		t.Run(name, func(t *testing.T) {
			s := quotatest.Start(t, testPolicy, opts...)
			addr := s.Addrs()[0]
			for i, breaks := range []func(){s.DropConnections, s.Stop} {
				c := mustConn(t, s, s.Nodes()[0])
				open := mustStream(t, c)
				s.Silence()
				open.ask(1, aCheck("u1", "convert", "silent"))
				for s.Counts().Checks == 0 { // it must have come in
					select {
					case <-t.Context().Done():
						t.FailNow()
					case <-time.After(time.Millisecond):
					}
				}
				breaks()
				if _, err := open.Recv(); err == nil {
					t.Error("the stream goes on")
				}
				s.Heal()
				if i == 1 {
					mustSay(t, c, aCheck("u1", "convert", "down"), quotaerr.OutcomeUnknown)
				}
				if err := s.Restart(); err != nil {
					t.Fatal(err)
				}
				fresh := mustConn(t, s, s.Nodes()[0])
				if d := mustSay(t, fresh, aCheck("u1", "convert", "kept"), quotaerr.Allowed); d.GetReplayed() != (i == 1) {
					t.Errorf("round %d: %v", i, d)
				}
			}
			if got := s.Addrs()[0]; got != addr {
				t.Errorf("it was at %s and is at %s", addr, got)
			}
			s.Close()
			if err := s.Nodes()[0].Start(); err == nil {
				t.Error("a node of a closed server starts")
			}
		})
	}
}

// Shows that the policy in force is the last that was applied, with everything that was used before, and that a policy
// that is none, and options beyond the bounds, are refused.
func TestPolicies(t *testing.T) {
	s := quotatest.Start(t, testPolicy)
	c := mustConn(t, s, s.Nodes()[0])
	for i := range 3 {
		mustSay(t, c, aCheck("u1", "convert", fmt.Sprint("a", i)), quotaerr.Allowed)
	}
	mustSay(t, c, aCheck("u1", "convert", "b"), quotaerr.QuotaExhausted)
	if err := s.Apply("version: x"); err == nil || s.Revision() != 1 {
		t.Errorf("no policy is applied: revision %d", s.Revision())
	}
	err := s.Apply(`
version: v2
default: {limits: [{name: default, limit: 100, window: 60s}]}
classes: {convert: {limits: [{name: per-minute, limit: 4, window: 60s}]}}`)
	if err != nil {
		t.Fatal(err)
	}
	d := mustSay(t, c, aCheck("u1", "convert", "c"), quotaerr.Allowed)
	if d.GetPolicyVersion() != "v2" || d.GetPolicyRevision() != 2 || d.GetRemaining() != 0 {
		t.Errorf("under the new policy: %v", d)
	}
	s.Forgive("u1")
	if d := mustSay(t, c, aCheck("u1", "convert", "d"), quotaerr.Allowed); d.GetRemaining() != 3 {
		t.Errorf("forgiven: %v", d)
	}
	if err := s.Disable("convert"); err != nil {
		t.Fatal(err)
	}
	mustSay(t, c, aCheck("u1", "convert", "e"), quotaerr.EndpointDisabled)
	if err := s.Enable("convert"); err != nil {
		t.Fatal(err)
	}
	mustSay(t, c, aCheck("u1", "convert", "f"), quotaerr.Allowed)
	if err := s.Disable("none such"); err == nil {
		t.Error("a class that is not listed is switched off")
	}
	for _, bad := range [][]quotatest.Option{
		{quotatest.WithNodes(0)}, {quotatest.WithPartitions(1000)}, {quotatest.WithClock(nil)},
	} {
		if s, err := quotatest.New(testPolicy, bad...); err == nil {
			s.Close()
			t.Error("an option beyond its bounds is taken")
		}
	}
}

// Shows, with the race detector, that addresses may be asked for while nodes end and start again, and stay the same.
func TestAddressesAreFixed(t *testing.T) {
	s := quotatest.Start(t, testPolicy, quotatest.InMemory())
	want := s.Addrs()
	done := make(chan struct{})
	go func() {
		defer close(done)
		for range 2000 {
			if got := s.Addrs(); !slices.Equal(got, want) {
				t.Errorf("the addresses are %v, and were %v", got, want)
				return
			}
		}
	}()
	for range 5 {
		s.Stop()
		if err := s.Restart(); err != nil {
			t.Error(err)
		}
	}
	<-done
}
