package rpc

import (
	"context"
	"io"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/quorate/quorate/fsm"
	quoratev1 "github.com/quorate/quorate/proto/quorate/v1"
	"github.com/quorate/quorate/quotaerr"
)

// queueing is a backend whose owner holds the checks that it is asked for together, until the test says what they come
// to; what goes on its journey comes to the check of fakeBackend.
type queueing struct {
	*fakeBackend
	came   chan *heldFrame
	faulty func()                          // called by Enqueue
	gaveUp func(id string) *quotaerr.Error // what a check comes to that is given up
	given  chan string                     // the ids of those
	lead   func(principal string) (Leadership, bool)
}

// heldFrame are checks that were asked for together.
type heldFrame struct {
	asked []Asked
	done  func([]Outcome)

	mu   sync.Mutex // guards over
	over map[int]bool
}

func (f *heldFrame) take(index int) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	first := !f.over[index]
	f.over[index] = true
	return first
}

// come has all of the checks without an outcome come to one.
func (f *heldFrame) come(a Answer, err error) {
	var out []Outcome
	for i := range f.asked {
		if f.take(i) {
			out = append(out, Outcome{Index: i, Answer: &a, Err: err})
		}
	}
	f.done(out)
}

func queueingBackend() *queueing {
	return &queueing{fakeBackend: allowing(), came: make(chan *heldFrame, 1<<10), given: make(chan string, 1<<14),
		gaveUp: func(string) *quotaerr.Error { return quotaerr.New(quotaerr.Overloaded, "late") }}
}

func (b *queueing) Leaders(asked []Asked) (out []Leadership) {
	for i := range asked {
		p := asked[i].Check.Principal
		l := b.Leader(p)
		if b.lead != nil {
			if other, ok := b.lead(p); ok {
				l = other
			}
		}
		out = append(out, l)
	}
	return out
}

func (b *queueing) Enqueue(_ context.Context, asked []Asked, done func([]Outcome)) func(int, error) {
	if b.faulty != nil {
		b.faulty()
	}
	f := &heldFrame{asked: append([]Asked(nil), asked...), done: done, over: map[int]bool{}}
	b.came <- f
	return func(index int, _ error) {
		if f.take(index) {
			id := f.asked[index].Check.DecisionID
			b.given <- id
			done([]Outcome{{Index: index, Err: b.gaveUp(id)}})
		}
	}
}

var allowedAnswer = Answer{Decision: fsm.Decision{Reason: fsm.ReasonAllowed, Recorded: true}}

// conversation is a stream apart from any connection.
type conversation struct {
	*checkStream
	in    chan *quoratev1.CheckStreamRequest
	out   chan *quoratev1.StreamedAnswer
	ended chan error
}

// converse runs a stream over backend until ctx ends or in is closed.
func converse(ctx context.Context, t *testing.T, backend Backend) *conversation {
	config := Config{Node: "n1", ClusterID: testCluster, Backend: backend}
	config.setDefaults()
	v := &conversation{in: make(chan *quoratev1.CheckStreamRequest), out: make(chan *quoratev1.StreamedAnswer, 1<<14),
		ended: make(chan error, 1)}
	own := idle(allowing(), nil, nil)
	v.checkStream = newCheckStream(newDesk(&config, newMetrics()), own.log, own.id)
	v.recv = func() (*checkFrame, error) {
		select {
		case f, more := <-v.in:
			if !more {
				return nil, io.EOF
			}
			return mustDecode(f), nil
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	v.send = func(e encoded) error {
		m := &quoratev1.CheckStreamResponse{}
		if err := proto.Unmarshal(e, m); err != nil {
			t.Error(err)
		}
		for _, a := range m.GetAnswers() {
			v.out <- a
		}
		return nil
	}
	go func() { v.ended <- v.run(ctx) }()
	return v
}

// mustTell wants n answers to have come, one to each sequence, and returns them.
func (v *conversation) mustTell(t *testing.T, n int) map[uint64]*quoratev1.StreamedAnswer {
	t.Helper()
	synctest.Wait()
	out := map[uint64]*quoratev1.StreamedAnswer{}
	for len(v.out) > 0 {
		a := <-v.out
		if out[a.GetSequence()] != nil {
			t.Errorf("check %d has two answers", a.GetSequence())
		}
		out[a.GetSequence()] = a
	}
	if len(out) != n {
		t.Fatalf("%d answers, want %d", len(out), n)
	}
	return out
}

// mustEnd wants the stream to end, and nothing to be left of it.
func (v *conversation) mustEnd(t *testing.T, reason quotaerr.Reason) {
	t.Helper()
	synctest.Wait()
	select {
	case err := <-v.ended:
		if err == nil && reason != "" || err != nil && quotaerr.ReasonOf(err) != reason {
			t.Errorf("it ended with %v, want %q", err, reason)
		}
	default:
		t.Fatal("it has not ended")
	}
	if n := v.desk.inFlight.Load(); n != 0 {
		t.Errorf("%d checks are still counted as unanswered", n)
	}
	if v.desk.streamed.taken != 0 {
		t.Errorf("%d of the gateway's share are still taken", v.desk.streamed.taken)
	}
}

// Shows that the checks of a frame are asked of this node's owner together, with their deadlines and the epoch of their
// slot, without a goroutine each; and that those that are led elsewhere or malformed go their own way, alone.
func TestFrameIsQueued(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := queueingBackend()
		b.lead = func(p string) (Leadership, bool) { return Leadership{Epoch: 7}, p == "elsewhere" }
		v := converse(t.Context(), t, b)
		checks := several(1, 50)
		checks[3].TimeoutMicros = 2000
		checks[5].Check.DecisionId = ""
		checks[6].TimeoutMicros = -1
		checks[7].Check.Principal = "elsewhere"
		v.in <- frameOf(checks...)
		synctest.Wait()
		f := <-b.came
		if len(f.asked) != 47 || len(b.came) != 0 {
			t.Fatalf("%d checks were asked for together, and %d frames more", len(f.asked), len(b.came))
		}
		if a := f.asked[3]; a.Check.RouteEpoch != 7 || time.Until(a.Deadline) != 2*time.Millisecond || a.Check.Gateway != "g" {
			t.Errorf("%+v in %v", a.Check, time.Until(a.Deadline))
		}
		others := v.mustTell(t, 3)
		mustRefuse(t, others[6], quotaerr.InvalidArgument)
		mustRefuse(t, others[7], quotaerr.InvalidArgument)
		if asked := b.seen(); !Allowed(others[8].GetDecision()) || len(asked) != 1 || asked[0].Principal != "elsewhere" {
			t.Errorf("%v of %+v", others[8], asked)
		}
		f.come(allowedAnswer, nil)
		for sequence, a := range v.mustTell(t, 47) {
			if !Allowed(a.GetDecision()) || a.GetDecision().GetDecisionId() != checks[sequence-1].GetCheck().GetDecisionId() {
				t.Errorf("%v", a)
			}
		}
		close(v.in)
		v.mustEnd(t, "")
	})
}

// Shows in virtual time that a queued check is answered when its deadline passes, each at its own though one timer
// watches them all, and that what the owner says of it later is no second answer.
func TestQueuedDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := queueingBackend()
		v := converse(t.Context(), t, b)
		began := time.Now()
		for i, millis := range []int64{300, 100, 200, 100} {
			s := streamed(uint64(i))
			s.TimeoutMicros = millis * 1000
			v.in <- frameOf(s)
		}
		want := map[int][]uint64{100: {1, 3}, 200: {2}, 300: {0}}
		for _, millis := range []int{100, 200, 300} {
			due := began.Add(time.Duration(millis) * time.Millisecond)
			time.Sleep(time.Until(due.Add(-time.Microsecond)))
			v.mustTell(t, 0)
			time.Sleep(time.Until(due))
			late := v.mustTell(t, len(want[millis]))
			for _, sequence := range want[millis] {
				mustRefuse(t, late[sequence], quotaerr.Overloaded)
			}
		}
		for len(b.came) > 0 {
			f := <-b.came
			f.done([]Outcome{{Answer: &allowedAnswer}})
		}
		v.mustTell(t, 0)
		close(v.in)
		v.mustEnd(t, "")
	})
}

// Shows that a queued check which the owner does not settle goes on its journey from there, under the same id and until
// the same deadline, and that one whose fate is unknown ends as such when a refusal comes after it.
func TestQueuedGoesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := queueingBackend()
		b.horizon = time.Minute
		v := converse(t.Context(), t, b)
		for _, reason := range []quotaerr.Reason{
			quotaerr.NotLeader, quotaerr.NoQuorum, quotaerr.Frozen, quotaerr.WrongEpoch, quotaerr.OutcomeUnknown,
		} {
			before := len(b.seen())
			v.in <- frameOf(streamed(4))
			synctest.Wait()
			(<-b.came).come(Answer{}, quotaerr.New(reason, "not here"))
			time.Sleep(100 * time.Millisecond)
			if a := v.mustTell(t, 1)[4]; !Allowed(a.GetDecision()) || a.GetDecision().GetDecisionId() != "d4" {
				t.Errorf("after %s: %v", reason, a)
			}
			if asked := b.seen()[before:]; len(asked) != 1 || asked[0].DecisionID != "d4" || asked[0].RouteEpoch != 7 {
				t.Errorf("after %s it was asked as %+v", reason, asked)
			}
		}
		b.check = func(context.Context, fsm.Check) (Answer, error) {
			return Answer{}, quotaerr.New(quotaerr.Capacity, "full")
		}
		v.in <- frameOf(streamed(5))
		synctest.Wait()
		(<-b.came).come(Answer{}, quotaerr.New(quotaerr.OutcomeUnknown, "lost"))
		time.Sleep(100 * time.Millisecond)
		mustRefuse(t, v.mustTell(t, 1)[5], quotaerr.OutcomeUnknown)
		before := len(b.seen())
		for _, reason := range []quotaerr.Reason{quotaerr.Overloaded, quotaerr.Capacity, quotaerr.PolicyStale} {
			v.in <- frameOf(streamed(6))
			synctest.Wait()
			(<-b.came).come(Answer{}, quotaerr.New(reason, "no"))
			mustRefuse(t, v.mustTell(t, 1)[6], reason)
		}
		if n := len(b.seen()) - before; n != 0 {
			t.Errorf("%d checks were asked again that were settled", n)
		}
		close(v.in)
		v.mustEnd(t, "")
	})
}

// Shows that a stream which breaks with checks queued waits for none of them, gives up each once, and leaves nothing
// behind; what their owner says later is dropped.
func TestStreamEndsWithChecksQueued(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := queueingBackend()
		ctx, cancel := context.WithCancel(t.Context())
		v := converse(ctx, t, b)
		v.in <- frameOf(several(1, 20)...)
		v.in <- frameOf(several(21, 20)...)
		synctest.Wait()
		cancel()
		v.mustEnd(t, quotaerr.OutcomeUnknown)
		if n := len(b.given); n != 40 {
			t.Errorf("%d checks were given up", n)
		}
		(<-b.came).done([]Outcome{{Answer: &allowedAnswer}})
		time.Sleep(time.Minute)
		if n := v.desk.inFlight.Load(); n != 0 || len(b.given) != 40 {
			t.Errorf("later %d are counted as unanswered, %d given up", n, len(b.given))
		}
	})
}

// Shows that a node which stops answers the checks that are queued before it ends their stream, those that the owner
// refuses because it stops as well.
func TestShutdownWithChecksQueued(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := queueingBackend()
		v := converse(t.Context(), t, b)
		v.in <- frameOf(several(1, 5)...)
		v.in <- frameOf(several(6, 5)...)
		synctest.Wait()
		close(v.desk.ending)
		v.mustTell(t, 0)
		(<-b.came).come(allowedAnswer, nil)
		v.mustTell(t, 5)
		if len(v.ended) != 0 {
			t.Fatal("it has ended before the last answers")
		}
		b.leader = func() Leadership { return Leadership{Epoch: 7} }
		(<-b.came).come(Answer{}, quotaerr.New(quotaerr.NotLeader, "this node is stopping"))
		time.Sleep(DefaultTimeout)
		for _, a := range v.mustTell(t, 5) {
			mustRefuse(t, a, quotaerr.NoQuorum)
		}
		close(v.in)
		v.mustEnd(t, quotaerr.NotLeader)
	})
}

// Shows that a panic of the backend while it takes checks gets each of them one answer, internal, and that the stream
// goes on.
func TestPanicWhileQueueing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := queueingBackend()
		b.faulty = func() { panic("a defect") }
		v := converse(t.Context(), t, b)
		v.in <- frameOf(several(1, 5)...)
		for _, a := range v.mustTell(t, 5) {
			mustRefuse(t, a, quotaerr.Internal)
		}
		b.faulty = nil
		b.lead = func(string) (Leadership, bool) { panic("another") }
		v.in <- frameOf(several(1, 5)...)
		v.mustTell(t, 5) // each on its journey
		b.lead = nil
		v.in <- frameOf(streamed(1))
		synctest.Wait()
		(<-b.came).come(allowedAnswer, nil)
		v.mustTell(t, 1)
		close(v.in)
		v.mustEnd(t, "")
	})
}

// Shows that each check of a frame has the shortest replay horizon of the classes that it charges, in whatever order
// they come.
func TestQueuedHorizons(t *testing.T) {
	backend := &fakeBackend{horizons: map[string]time.Duration{"a": 3, "b": 2, "c": 1}}
	charges := [][]string{{"a"}, {"a"}, {"b"}, {"a"}, {"a", "c"}, {"a"}, {"c", "a"}, {"b"}, {"b", "a"}, {"c"}}
	f := &queuedFrame{stream: idle(backend, nil, nil), checks: make([]framedCheck, len(charges))}
	for _, classes := range charges {
		c := fsm.Check{Charge: fsm.Charge{Class: classes[0]}}
		for _, class := range classes[1:] {
			c.Also = append(c.Also, fsm.Charge{Class: class})
		}
		f.asked = append(f.asked, Asked{Check: c})
	}
	f.findHorizons()
	var got []time.Duration
	for i := range f.checks {
		got = append(got, f.checks[i].horizon)
	}
	mustEqual(t, got, []time.Duration{3, 3, 2, 3, 1, 3, 1, 2, 2, 1})
}
