package partition

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/quorate/quorate/clock"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/partition/group"
	"github.com/quorate/quorate/quotaerr"
)

// asked is what a check that runs in its own goroutine came to.
type asked struct {
	answer Answer
	err    error
}

// start asks in a goroutine, and returns when the check waits for an outcome or has one.
func start(ctx context.Context, p *Partition, c fsm.Check) <-chan asked {
	out := make(chan asked, 1)
	go func() {
		a, err := p.Check(ctx, c)
		out <- asked{a, err}
	}()
	synctest.Wait()
	return out
}

// mustPush queues a request, as Check and Peek do.
func mustPush(t *testing.T, p *Partition, r *request) *request {
	t.Helper()
	must(t, p.owner.queue.push(r))
	return r
}

func checkRequest(ctx context.Context, c fsm.Check) *request {
	r := newRequest(ctx, c.Gateway)
	r.check = &c
	return r
}

// A lone check is proposed at once, a second one while the first is on its way, and no third entry
// follows; what queues meanwhile goes into one entry, in order of arrival, up to the most that an entry
// may hold; each check and peek gets its own answer.
func TestBatch(t *testing.T) {
	scripted(t, func(t *testing.T, p *Partition, s *script, _ *clock.Fake) {
		lead(t, p, s)
		first := start(t.Context(), p, convert("acme", "1"))
		second := start(t.Context(), p, convert("acme", "2"))
		if n := s.inFlight(); n != 2 {
			t.Fatalf("%d entries in flight, want 2", n)
		}
		var queued []*request
		for i := range 2500 {
			principal := fmt.Sprintf("p%04d", i)
			r := newRequest(t.Context(), "gw1")
			if i%5 == 4 { // of the principal before it, whose check is in the same entry or an earlier one
				peek := usageOf(fmt.Sprintf("p%04d", i-1), "other")
				r.peek = &peek
			} else {
				check := convert(principal, principal)
				check.Charge = fsm.Charge{Class: "other", Cost: int64(i%100 + 1)}
				r.check = &check
			}
			queued = append(queued, mustPush(t, p, r))
		}
		if n := s.inFlight(); n != 2 {
			t.Errorf("%d entries in flight, want 2", n)
		}
		before := s.total()
		for s.inFlight() > 0 {
			s.commit(5)
		}
		for _, out := range []<-chan asked{first, second} {
			if a := <-out; a.err != nil || !a.answer.Allowed() {
				t.Errorf("%+v", a)
			}
		}
		var checks []string
		for i, e := range s.sent[before:] {
			if n := len(e.entry.Checks) + len(e.entry.Peeks); n != min(1024, 2500-i*1024) {
				t.Errorf("entry %d holds %d", i, n)
			}
			for j := range e.entry.Checks {
				checks = append(checks, e.entry.Checks[j].Principal)
			}
		}
		for i, r := range queued {
			if r.check != nil {
				if len(checks) == 0 || checks[0] != r.check.Principal {
					t.Fatalf("check %d is not next in the log", i)
				}
				checks = checks[1:]
			}
			out := <-r.done
			want := int64(100 - (i%100 + 1))
			switch {
			case out.err != nil:
				t.Fatalf("%d: %v", i, out.err)
			case r.check != nil && (!out.decision.Allowed() || out.decision.Remaining != want):
				t.Fatalf("check %d: %+v, want %d left", i, out.decision, want)
			case r.peek != nil && out.usage.Remaining != want+1:
				t.Fatalf("peek %d: %+v, want %d left", i, out.usage, want+1)
			}
		}
	})
}

// Entries of the largest checks and peeks that there are stay within the bytes of an entry (the script
// measures each), and are filled.
func TestBatchBytes(t *testing.T) {
	scripted(t, func(t *testing.T, p *Partition, s *script, _ *clock.Fake) {
		lead(t, p, s)
		long := strings.Repeat("x", fsm.MaxPrincipalBytes-4)
		charge := fsm.Charge{
			Class: strings.Repeat("c", fsm.MaxClassBytes), Tier: strings.Repeat("t", fsm.MaxTierBytes),
			Cost: fsm.MaxCost,
		}
		for i := range 400 {
			r := newRequest(t.Context(), "gw1")
			if i%2 == 0 {
				r.check = &fsm.Check{
					Principal: fmt.Sprintf("%s%04d", long, i), Gateway: strings.Repeat("g", fsm.MaxGatewayBytes),
					DecisionID: strings.Repeat("d", fsm.MaxDecisionIDBytes), Charge: charge,
					PolicyRevision: 1<<64 - 1, RouteEpoch: 1<<64 - 1,
				}
				for range fsm.MaxAlso {
					r.check.Also = append(r.check.Also, charge)
				}
			} else {
				r.peek = &fsm.Peek{
					Principal: fmt.Sprintf("%s%04d", long, i), Class: charge.Class, Tier: charge.Tier,
					RouteEpoch: 1<<64 - 1,
				}
			}
			mustPush(t, p, r)
		}
		var sizes []int
		for s.inFlight() > 0 {
			sizes = append(sizes, len(s.commit(5).data))
		}
		if len(sizes) < 3 {
			t.Fatalf("entries of %v bytes: one was to be filled", sizes)
		}
		full := 0
		for _, n := range sizes {
			if n > fsm.MaxEntryBytes*9/10 {
				full++
			}
		}
		if full == 0 {
			t.Errorf("no entry was filled: %v", sizes)
		}
	})
}

// A check that its caller gave up before it was proposed never is, consumes nothing, and its caller is
// told whether the owner was busy or the majority silent.
func TestDeadlineBeforeProposal(t *testing.T) {
	scripted(t, func(t *testing.T, p *Partition, s *script, _ *clock.Fake) {
		lead(t, p, s)
		gone, cancel := context.WithCancel(t.Context())
		cancel()
		before := s.total()
		mustReason(t, (<-start(gone, p, convert("acme", "gone"))).err, quotaerr.Overloaded)
		if n := s.total(); n != before {
			t.Errorf("%d entries were proposed for a caller who was gone", n-before)
		}
		time.Sleep(time.Hour) // in which nothing was asked, which is no silence of the majority
		for i := range 2 {
			start(t.Context(), p, convert("busy", fmt.Sprint(i)))
		}
		soon, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		late, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		busy, silent := start(soon, p, convert("acme", "busy")), start(late, p, convert("acme", "silent"))
		mustReason(t, (<-busy).err, quotaerr.Overloaded)
		mustReason(t, (<-silent).err, quotaerr.NoQuorum)
		if n := p.owner.queue.len(); n != 2 {
			t.Errorf("%d requests are queued", n)
		}
		for s.inFlight() > 0 {
			s.commit(5)
		}
		peek := checkPeek(t, p, s)
		if peek.Remaining != 3 {
			t.Errorf("%d left, want 3: an abandoned check consumed", peek.Remaining)
		}
		for _, e := range s.sent {
			for i := range e.entry.Checks {
				if e.entry.Checks[i].Principal == "acme" {
					t.Errorf("%s was proposed", e.entry.Checks[i].DecisionID)
				}
			}
		}
	})
}

// checkPeek tells the usage of acme in convert.
func checkPeek(t *testing.T, p *Partition, s *script) UsageAnswer {
	t.Helper()
	var u UsageAnswer
	var err error
	done := make(chan struct{})
	go func() {
		defer close(done)
		u, err = p.Peek(t.Context(), usageOf("acme", "convert"))
	}()
	s.commit(s.Leadership().Term)
	<-done
	must(t, err)
	return u
}

// A queued check whose deadline has passed is not taken, though its caller has not noticed yet: the
// caller still can give it up.
func TestDeadlineUnnoticed(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	q := newQueue()
	ended, waiting := checkRequest(ctx, convert("acme", "1")), checkRequest(t.Context(), convert("acme", "2"))
	must(t, q.push(ended))
	must(t, q.push(waiting))
	cancel()
	if batch := q.pop(); len(batch) != 1 || batch[0] != waiting {
		t.Errorf("%d requests were taken", len(batch))
	}
	if !ended.take() {
		t.Error("the request was taken from its caller")
	}
	if q.len() != 0 || q.numBytes != 0 || len(q.per) != 0 {
		t.Errorf("the queue still counts %d requests, %d bytes, %v", q.len(), q.numBytes, q.per)
	}
}

// A check whose deadline passes while its entry is on its way has an unknown outcome; asked again with
// the same id it is what the log made of it, and counts once.
func TestDeadlineAfterProposal(t *testing.T) {
	for name, committed := range map[string]bool{"committed": true, "lost": false} {
		t.Run(name, func(t *testing.T) {
			scripted(t, func(t *testing.T, p *Partition, s *script, _ *clock.Fake) {
				lead(t, p, s)
				ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
				defer cancel()
				out := start(ctx, p, convert("acme", "1"))
				mustReason(t, (<-out).err, quotaerr.OutcomeUnknown)
				if committed {
					s.commit(5)
				} else {
					s.abandon(group.ErrUnknown)
				}
				again := start(t.Context(), p, convert("acme", "1"))
				s.commit(5)
				if a := <-again; a.err != nil || !a.answer.Allowed() || a.answer.Replayed != committed {
					t.Errorf("%+v", a)
				}
				if left := checkPeek(t, p, s).Remaining; left != 2 {
					t.Errorf("%d left, want 2", left)
				}
			})
		})
	}
}

// What an entry's end means to its callers: no leader is a definite no, all else unknown.
func TestOutcomes(t *testing.T) {
	scripted(t, func(t *testing.T, p *Partition, s *script, _ *clock.Fake) {
		lead(t, p, s)
		out := start(t.Context(), p, convert("acme", "1"))
		s.elect(group.Leadership{}, "n2", false)
		s.abandon(fmt.Errorf("%w: it moved", group.ErrNotLeader))
		if e := mustReason(t, (<-out).err, quotaerr.NotLeader); e.Leader != "n2" {
			t.Errorf("the leader is %q", e.Leader)
		}
		s.elect(group.Leadership{Term: 7, Ready: true}, "n1", true)
		out = start(t.Context(), p, convert("acme", "2"))
		s.abandon(group.ErrUnknown)
		mustReason(t, (<-out).err, quotaerr.OutcomeUnknown)
	})
}

// A gateway fills half of the queue at most, in number and in bytes, and then is refused at once, while
// others get in until the queue is full.
func TestQueueShares(t *testing.T) {
	small := func(gateway string) *request {
		c := convert("acme", "x")
		c.Gateway = gateway
		return checkRequest(context.Background(), c)
	}
	large := func(gateway string) *request {
		r := small(gateway)
		for range fsm.MaxAlso {
			r.check.Also = append(r.check.Also, fsm.Charge{
				Class: strings.Repeat("c", fsm.MaxClassBytes), Tier: strings.Repeat("t", fsm.MaxTierBytes), Cost: 1,
			})
		}
		r.check.Principal = strings.Repeat("p", fsm.MaxPrincipalBytes)
		return r
	}
	for name, request := range map[string]func(string) *request{"requests": small, "bytes": large} {
		t.Run(name, func(t *testing.T) {
			q := newQueue()
			fill := func(gateway string) (n int) {
				t.Helper()
				for {
					if err := q.push(request(gateway)); err != nil {
						mustReason(t, err, quotaerr.Overloaded)
						return n
					}
					n++
				}
			}
			first, second, third := fill("gw1"), fill("gw2"), fill("gw3")
			if first < 1000 || second < first-1 || third > 1 {
				t.Errorf("the gateways got %d, %d and %d into the queue", first, second, third)
			}
			if len(q.requests) > maxQueued || q.numBytes > maxQueuedBytes {
				t.Errorf("%d requests of %d bytes are queued", len(q.requests), q.numBytes)
			}
			for len(q.pop()) > 0 {
			}
			if q.len() != 0 || q.numBytes != 0 || len(q.per) != 0 {
				t.Errorf("the empty queue counts %d requests, %d bytes, %v", q.len(), q.numBytes, q.per)
			}
			if again := fill("gw1"); again != first {
				t.Errorf("afterwards the gateway got %d in, before %d", again, first)
			}
		})
	}
}

// With a full share one gateway's checks are refused at once by the owner, and another's go through.
func TestShareAtTheOwner(t *testing.T) {
	scripted(t, func(t *testing.T, p *Partition, s *script, _ *clock.Fake) {
		lead(t, p, s)
		for i := range 2 {
			start(t.Context(), p, convert("busy", fmt.Sprint(i)))
		}
		for range maxQueued / 2 {
			mustPush(t, p, checkRequest(t.Context(), convert("busy", "x")))
		}
		began := time.Now()
		mustReason(t, (<-start(t.Context(), p, convert("acme", "1"))).err, quotaerr.Overloaded)
		if took := time.Since(began); took != 0 {
			t.Errorf("the refusal took %v", took)
		}
		other := convert("acme", "2")
		other.Gateway = "gw2"
		out := start(t.Context(), p, other)
		for s.inFlight() > 0 {
			s.commit(5)
		}
		if a := <-out; a.err != nil || !a.answer.Allowed() || a.answer.Remaining != 2 {
			t.Errorf("the other gateway: %+v", a)
		}
	})
}

// Close ends while the partition is being made, too.
func TestCloseAtBirth(t *testing.T) {
	scripted(t, func(t *testing.T, p *Partition, s *script, _ *clock.Fake) {
		s.elect(group.Leadership{Term: 5, Ready: true}, "n1", true)
		if n := s.inFlight(); n != 1 {
			t.Fatalf("%d entries in flight", n)
		}
		must(t, p.Close())
	})
}

// Close answers what is queued and what is on its way, and refuses what comes.
func TestClose(t *testing.T) {
	scripted(t, func(t *testing.T, p *Partition, s *script, _ *clock.Fake) {
		lead(t, p, s)
		flying := []<-chan asked{start(t.Context(), p, convert("a", "1")), start(t.Context(), p, convert("a", "2"))}
		queued := start(t.Context(), p, convert("a", "3"))
		must(t, p.Close())
		for _, out := range flying {
			mustReason(t, (<-out).err, quotaerr.OutcomeUnknown)
		}
		mustReason(t, (<-queued).err, quotaerr.NotLeader)
		mustReason(t, (<-start(t.Context(), p, convert("a", "4"))).err, quotaerr.NotLeader)
		mustReason(t, p.owner.queue.push(checkRequest(t.Context(), convert("a", "5"))), quotaerr.NotLeader)
	})
}
