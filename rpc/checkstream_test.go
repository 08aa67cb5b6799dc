package rpc

import (
	"context"
	"fmt"
	"io"
	"math"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/internal/errtable"
	"github.com/quorate/quorate/internal/identity"
	quoratev1 "github.com/quorate/quorate/proto/quorate/v1"
	"github.com/quorate/quorate/quotaerr"
)

// Shows that frames of checks are answered by sequence, under the gateway's own identity, that a stream whose caller
// has said all ends well after the last answer, also when that is long after, and that all is counted.
func TestCheckStream(t *testing.T) {
	backend, entered, release := holding()
	n := mustNode(t, "n1", backend, func(c *Config) {
		c.Authenticate = func(context.Context) (Identity, error) { return Identity{Name: "gw-1", Roles: identity.Gateway}, nil }
	})
	s := mustStream(t, n.conn)
	mustSend(t, s, several(1, 3)...)
	mustSend(t, s)
	mustSend(t, s, streamed(0), streamed(math.MaxUint64))
	if err := s.CloseSend(); err != nil {
		t.Fatal(err)
	}
	mustEnter(t, entered, 5)
	close(release)
	answers := mustAnswers(t, s, 5)
	for sequence, a := range answers {
		if d := a.GetDecision(); !Allowed(d) || d.GetDecisionId() != fmt.Sprint("d", sequence) || a.GetLeader() != "" {
			t.Errorf("check %d got %v", sequence, a)
		}
	}
	mustEndStream(t, s, "")
	for _, c := range backend.seen() {
		if c.Gateway != "gw-1" || c.RouteEpoch != 7 {
			t.Errorf("decided as %+v", c)
		}
	}
	if got := n.labelled(t, "quorate_decisions_total", "outcome", "allowed"); got != 5 {
		t.Errorf("%v decisions were counted", got)
	}
	if got := n.labelled(t, "quorate_stream_frames_total", "direction", "in"); got != 3 {
		t.Errorf("%v frames were counted", got)
	}
	if got := n.observed(t, protocolStream); got != 5 {
		t.Errorf("%d times were observed", got)
	}
	n.mustBeLeft(t)
}

// observed is how many answers by a protocol were timed.
func (n *testNode) observed(t testing.TB, protocol string) (count uint64) {
	t.Helper()
	families, err := n.Registry().Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() == "quorate_check_duration_seconds" && m.GetLabel()[0].GetValue() == protocol {
				count += m.GetHistogram().GetSampleCount()
			}
		}
	}
	return count
}

// bothWays has a check answered as a single call and over a stream, in virtual time, by a backend that always says the
// same.
func bothWays(t *testing.T, a Answer, err error) (
	single *quoratev1.Decision, failed *quotaerr.Error, answer *quoratev1.StreamedAnswer,
) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		in, out := make(chan *quoratev1.CheckStreamRequest, 1), &quoratev1.CheckStreamResponse{}
		c := idle(answering(a, err), func() (*quoratev1.CheckStreamRequest, error) {
			if f, more := <-in; more {
				return f, nil
			}
			return nil, io.EOF
		}, func(e encoded) error { return proto.Unmarshal(e, out) })
		c.desk.wall = func() time.Time { return time.Unix(1000, 0) }
		asked := streamed(1)
		asked.TimeoutMicros = time.Second.Microseconds()
		in <- frameOf(asked)
		close(in)
		if err := c.run(t.Context()); err != nil || len(out.GetAnswers()) != 1 {
			t.Fatalf("%v %v", out, err)
		}
		answer = out.GetAnswers()[0]
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		var failure error
		single, failure = c.desk.check(ctx, c.id, asked.GetCheck(), protocolGRPC)
		failed = errtable.FromStatus(errtable.ToStatus(ctx, failure).Err())
	})
	return single, failed, answer
}

// Shows that whatever the owner says of a check comes over a stream as it does over a single call: decisions with
// all that they have, and errors with reason, message, epoch, leader and wait.
func TestStreamAnswersAsSingleCallsDo(t *testing.T) {
	for _, r := range []fsm.Reason{
		fsm.ReasonAllowed, fsm.ReasonQuotaExhausted, fsm.ReasonBlocked, fsm.ReasonEndpointDisabled,
	} {
		t.Run(r.String(), func(t *testing.T) {
			single, failed, a := bothWays(t, Answer{
				Decision: fsm.Decision{Reason: r, Limit: "minute", Remaining: 2, Version: "p7", Revision: 9, Recorded: true,
					Limits: []fsm.LimitState{{Name: "minute", Max: 3, WindowNanos: 60e9, Remaining: 2}}},
				RetryAfterNanos: 5e9 + 1, ResetAfterNanos: []int64{7},
			}, nil)
			if diff := cmp.Diff(single, a.GetDecision(), protocmp.Transform()); diff != "" || single == nil {
				t.Errorf("%v %s", failed, diff)
			}
		})
	}
	for _, row := range errtable.Rows() {
		if row.Reason.IsDecision() {
			continue
		}
		t.Run(string(row.Reason), func(t *testing.T) {
			_, failed, a := bothWays(t, Answer{}, &quotaerr.Error{Reason: row.Reason, Message: "do this", Epoch: 9, Leader: "n1",
				LeaderAddr: "127.0.0.1:1", RetryAfterNanos: 3e9})
			got := errtable.FromRefusal(a.GetRefusal())
			if a.GetDecision() != nil || failed == nil || *got != *failed {
				t.Errorf("%+v over a stream, %+v as a single call", got, failed)
			}
		})
	}
	t.Run("neither", func(t *testing.T) {
		_, _, a := bothWays(t, Answer{}, nil) // neither an allow nor a denial
		mustRefuse(t, a, quotaerr.Internal)
	})
}

// Shows that a check that is malformed, that names a class which is not in the gateway's certificate, or whose time is
// negative, is refused alone, before the backend sees it, and that those beside it are decided.
func TestChecksFailAlone(t *testing.T) {
	ca := mustCA(t, tlsCluster)
	backend := allowing()
	n := mustSecure(t, ca, "n1", backend)
	s := mustStream(t, mustDial(t, n.grpcAddr, ca.must(t, identity.Gateway, "g", "convert")))
	zero := int64(0)
	bad := []struct {
		change func(*quoratev1.StreamedCheck)
		want   quotaerr.Reason
	}{
		{func(c *quoratev1.StreamedCheck) { c.Check = nil }, quotaerr.InvalidArgument},
		{func(c *quoratev1.StreamedCheck) { c.Check = &quoratev1.CheckRequest{} }, quotaerr.InvalidArgument},
		{func(c *quoratev1.StreamedCheck) { c.Check.Principal = "a\x00" }, quotaerr.InvalidArgument},
		{func(c *quoratev1.StreamedCheck) { c.Check.Cost = &zero }, quotaerr.InvalidArgument},
		{func(c *quoratev1.StreamedCheck) { c.Check.Also = make([]*quoratev1.Charge, 8) }, quotaerr.InvalidArgument},
		{func(c *quoratev1.StreamedCheck) { c.TimeoutMicros = -1 }, quotaerr.InvalidArgument},
		{func(c *quoratev1.StreamedCheck) { c.TimeoutMicros = math.MinInt64 }, quotaerr.InvalidArgument},
		{func(c *quoratev1.StreamedCheck) { c.Check.ApiClass = "login" }, quotaerr.PermissionDenied},
		{func(c *quoratev1.StreamedCheck) { c.Check.Also = []*quoratev1.Charge{{ApiClass: "login"}} }, quotaerr.PermissionDenied},
	}
	checks := several(0, len(bad)+1)
	for i, c := range bad {
		c.change(checks[i])
	}
	mustSend(t, s, checks...)
	answers := mustAnswers(t, s, len(checks))
	for i, c := range bad {
		mustRefuse(t, answers[uint64(i)], c.want)
	}
	if !Allowed(answers[uint64(len(bad))].GetDecision()) {
		t.Errorf("the sound one got %v", answers[uint64(len(bad))])
	}
	if got := backend.seen(); len(got) != 1 || got[0].Gateway != "g" {
		t.Errorf("the backend saw %+v", got)
	}
	if got := n.observed(t, protocolStream); got != uint64(len(checks)) {
		t.Errorf("%d answers were timed", got)
	}
}

// Shows that each check has its own time from its frame's arrival: what it asks for, never more than a check may take
// at most, however much it asks for, and that when it is over the check alone is given up.
func TestStreamedChecksHaveTheirTime(t *testing.T) {
	backend, entered, release := holding()
	defer close(release)
	hold := backend.check
	var mu sync.Mutex
	left := map[string]time.Duration{}
	backend.check = func(ctx context.Context, c fsm.Check) (Answer, error) {
		end, _ := ctx.Deadline()
		mu.Lock()
		left[c.DecisionID] = time.Until(end)
		mu.Unlock()
		return hold(ctx, c)
	}
	backend.horizon = 0 // no retries of an unknown outcome
	n := mustNode(t, "n1", backend)
	s := mustStream(t, n.conn)
	checks := several(0, 5)
	for i, micros := range []int64{0, math.MaxInt64, math.MaxInt64/1000 + 1, 2_000_000, 20_000} {
		checks[i].TimeoutMicros = micros
	}
	mustSend(t, s, checks...)
	mustEnter(t, entered, 5)
	mustRefuse(t, mustAnswers(t, s, 1)[4], quotaerr.OutcomeUnknown)
	mu.Lock()
	defer mu.Unlock()
	for id, most := range map[string]time.Duration{
		"d0": DefaultTimeout, "d1": DefaultTimeout, "d2": DefaultTimeout, "d3": 2 * time.Second, "d4": 20 * time.Millisecond,
	} {
		if got := left[id]; got > most || got < most-time.Second {
			t.Errorf("%s has %s left, want at most %s", id, got, most)
		}
	}
}

// Shows that an answer names the node that leads, where that is another: for a check that was passed on to it, and for
// one that could not be; and not where the check was decided here, or was refused at the door.
func TestStreamNamesTheLeader(t *testing.T) {
	here, there := allowing(), allowing()
	n1, n2 := mustNode(t, "n1", here), mustNode(t, "n2", there)
	here.members = []Member{{ID: "n2", GRPC: n2.grpcAddr}, {ID: "n4", GRPC: n1.grpcAddr}}
	lead := func(node string) {
		here.leader = func() Leadership { return Leadership{Node: node, Local: node == "n1", Epoch: 7} }
	}
	s := mustStream(t, n1.conn)
	ask := func(sequence uint64) *quoratev1.StreamedAnswer {
		c := streamed(sequence)
		c.TimeoutMicros = 100_000
		mustSend(t, s, c)
		return mustAnswers(t, s, 1)[sequence]
	}
	lead("n2")
	if a := ask(1); !Allowed(a.GetDecision()) || a.GetLeader() != "n2" || len(there.seen()) != 1 {
		t.Errorf("passed on: %v", a)
	}
	lead("n3") // of which no address is known
	a := ask(2)
	mustRefuse(t, a, quotaerr.NoQuorum)
	mustEqual(t, a.GetLeader(), "n3")
	lead("n2")
	there.check = func(context.Context, fsm.Check) (Answer, error) {
		return Answer{}, &quotaerr.Error{Reason: quotaerr.CostExceedsLimit}
	}
	a = ask(3)
	mustRefuse(t, a, quotaerr.CostExceedsLimit)
	mustEqual(t, a.GetLeader(), "n2")
	lead("n1")
	if a := ask(4); !Allowed(a.GetDecision()) || a.GetLeader() != "" {
		t.Errorf("decided here: %v", a)
	}
	for named, want := range map[string]string{"n1": "", "n5": "n5", "": ""} { // its term has just ended
		here.check = func(context.Context, fsm.Check) (Answer, error) {
			return Answer{}, &quotaerr.Error{Reason: quotaerr.NotLeader, Leader: named, Epoch: 7}
		}
		a = ask(5)
		mustRefuse(t, a, quotaerr.NotLeader)
		mustEqual(t, a.GetLeader(), want)
	}
	lead("")
	a = ask(6)
	mustRefuse(t, a, quotaerr.NoQuorum)
	mustEqual(t, a.GetLeader(), "")
	lead("n2")
	mustSend(t, s, &quoratev1.StreamedCheck{Sequence: 7})
	a = mustAnswers(t, s, 1)[7]
	mustRefuse(t, a, quotaerr.InvalidArgument)
	mustEqual(t, a.GetLeader(), "")
}

// Shows that a stream may be opened before the cluster is made: its checks get the reason in their time, and once it is
// made the same stream gets decisions.
func TestStreamBeforeTheCluster(t *testing.T) {
	backend := allowing()
	backend.waiting = "run cluster init"
	var mu sync.Mutex
	var made Leadership
	backend.leader = func() Leadership {
		mu.Lock()
		defer mu.Unlock()
		return made
	}
	n := mustNode(t, "n1", backend)
	s := mustStream(t, n.conn)
	c := streamed(1)
	c.TimeoutMicros = 50_000
	mustSend(t, s, c)
	a := mustAnswers(t, s, 1)[1]
	mustRefuse(t, a, quotaerr.NoQuorum)
	if len(backend.seen()) != 0 {
		t.Error("the backend was asked")
	}
	mu.Lock()
	made = Leadership{Node: "n1", Local: true, Epoch: 1}
	mu.Unlock()
	mustSend(t, s, c)
	if a := mustAnswers(t, s, 1)[1]; !Allowed(a.GetDecision()) {
		t.Errorf("afterwards: %v", a)
	}
}

// Shows that a panic while a check is decided is that check's answer, as a defect, that it is counted, and that the
// stream and the node go on.
func TestPanicOnAStream(t *testing.T) {
	backend := allowing()
	allow := backend.check
	backend.check = func(ctx context.Context, c fsm.Check) (Answer, error) {
		if c.DecisionID == "d2" {
			panic("broken invariant")
		}
		return allow(ctx, c)
	}
	n := mustNode(t, "n1", backend)
	s := mustStream(t, n.conn)
	mustSend(t, s, several(1, 3)...)
	answers := mustAnswers(t, s, 3)
	mustRefuse(t, answers[2], quotaerr.Internal)
	if !Allowed(answers[1].GetDecision()) || !Allowed(answers[3].GetDecision()) {
		t.Errorf("%v", answers)
	}
	if got := n.metric(t, "quorate_panics_total"); got != 1 {
		t.Errorf("%v panics counted", got)
	}
	mustSend(t, s, streamed(2))
	mustRefuse(t, mustAnswers(t, s, 1)[2], quotaerr.Internal)
	if err := s.CloseSend(); err != nil {
		t.Fatal(err)
	}
	mustEndStream(t, s, "")
	n.mustBeLeft(t)
}

// Shows that of many thousands of checks on several streams, answered in whatever order, each gets exactly one answer,
// its own.
func TestEveryCheckIsAnsweredOnce(t *testing.T) {
	const streams, frames, each = 4, 100, 25
	n := mustNode(t, "n1", allowing())
	var all sync.WaitGroup
	for range streams {
		s := mustStream(t, n.conn)
		all.Go(func() {
			for f := range uint64(frames) {
				if err := s.Send(frameOf(several(f*each, each)...)); err != nil {
					t.Error(err)
					return
				}
			}
			if err := s.CloseSend(); err != nil {
				t.Error(err)
			}
		})
		all.Go(func() {
			seen := map[uint64]bool{}
			for {
				m, err := s.Recv()
				if err != nil {
					break
				}
				for _, a := range m.GetAnswers() {
					if seen[a.GetSequence()] || a.GetDecision().GetDecisionId() != fmt.Sprint("d", a.GetSequence()) {
						t.Errorf("answered with %v, twice: %v", a, seen[a.GetSequence()])
					}
					seen[a.GetSequence()] = true
				}
			}
			if len(seen) != frames*each {
				t.Errorf("%d checks were answered, of %d", len(seen), frames*each)
			}
		})
	}
	all.Wait()
	n.mustBeLeft(t)
}
