package partition

import (
	"context"
	"testing"
	"time"

	"github.com/quorate/quorate/clock"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/partition/group"
	"github.com/quorate/quorate/quotaerr"
)

// mustGrant is a lease of 10 s for a revision, from a reading of the clock now.
func mustGrant(t *testing.T, c *clock.Fake, r fsm.Revision) PolicyLease {
	t.Helper()
	l, err := clock.GrantLease(c.Read(), int64(10*time.Second), testDriftPPM)
	must(t, err)
	return PolicyLease{Revision: r, Lease: l}
}

// mustAllow has a check decided.
func mustAllow(t *testing.T, p *Partition, s *script, principal, id string) {
	t.Helper()
	out := start(t.Context(), p, convert(principal, id))
	s.commit(s.Leadership().Term)
	if a := <-out; a.err != nil || !a.answer.Allowed() {
		t.Fatalf("check %s: %+v", id, a)
	}
}

// mustExpired wants a check to be refused for want of a lease.
func mustExpired(t *testing.T, p *Partition, id string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	mustReason(t, (<-start(ctx, p, convert("acme", id))).err, quotaerr.PolicyLeaseExpired)
}

// With its node's policy lease ended a leader refuses checks with policy_lease_expired and proposes nothing for
// them; peeks and ticks go on, and so do checks with the next lease.
func TestPolicyLeaseExpires(t *testing.T) {
	scripted(t, func(t *testing.T, p *Partition, s *script, c *clock.Fake) {
		lead(t, p, s)
		s.grant(mustGrant(t, c, 1))
		c.Advance(int64(9 * time.Second))
		mustAllow(t, p, s, "acme", "1")
		c.Advance(int64(time.Second))
		before := s.total()
		for _, id := range []string{"2", "3"} { // the first is refused by the owner, the second before it queues
			mustExpired(t, p, id)
		}
		if n := s.total(); n != before {
			t.Errorf("%d entries were proposed without a lease", n-before)
		}
		if left := checkPeek(t, p, s).Remaining; left != 2 {
			t.Errorf("%d left, want 2", left)
		}
		time.Sleep(2 * tickInterval)
		if e := s.commit(5); len(e.entry.Checks)+len(e.entry.Peeks) != 0 {
			t.Errorf("no tick: %+v", e.entry)
		}
		s.grant(mustGrant(t, c, 1))
		mustAllow(t, p, s, "acme", "4")
	})
}

// A batch whose stamp is drawn after the lease has ended is not proposed, although its checks queued while it
// ran; the peeks of the batch are.
func TestBatchStampedAfterExpiry(t *testing.T) {
	scripted(t, func(t *testing.T, p *Partition, s *script, c *clock.Fake) {
		lead(t, p, s)
		s.grant(mustGrant(t, c, 1))
		flying := []<-chan asked{
			start(t.Context(), p, convert("a", "1")), start(t.Context(), p, convert("a", "2")),
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		late := start(ctx, p, convert("a", "late"))
		peek := newRequest(t.Context(), "")
		usage := usageOf("a", "convert")
		peek.peek = &usage
		mustPush(t, p, peek)
		c.Advance(int64(10 * time.Second))
		s.commit(5)
		mustReason(t, (<-late).err, quotaerr.PolicyLeaseExpired)
		for s.inFlight() > 0 {
			s.commit(5)
		}
		for _, out := range flying { // they were stamped in time
			if a := <-out; a.err != nil || !a.answer.Allowed() {
				t.Errorf("%+v", a)
			}
		}
		if out := <-peek.done; out.err != nil || out.usage.Remaining != 1 {
			t.Errorf("the peek: %+v", out)
		}
		for _, e := range s.sent {
			for i := range e.entry.Checks {
				if e.entry.Checks[i].DecisionID == "late" {
					t.Error("the late check was proposed")
				}
			}
		}
		if n := s.total(); n != 4 { // the birth, two checks, the peek
			t.Errorf("%d entries were proposed", n)
		}
	})
}

// A lease for a revision that the partition has yet to install takes the last one not back, which is good until
// its own end; then nothing is decided before the install.
func TestLeaseOfLaterRevision(t *testing.T) {
	scripted(t, func(t *testing.T, p *Partition, s *script, c *clock.Fake) {
		lead(t, p, s)
		s.grant(mustGrant(t, c, 1))
		mustAllow(t, p, s, "acme", "1")
		c.Advance(int64(5 * time.Second))
		s.grant(mustGrant(t, c, 2))
		mustAllow(t, p, s, "acme", "2")
		c.Advance(int64(5 * time.Second))
		mustExpired(t, p, "3")
		installed := install(t, p, s.policies.add(2, mustPolicy(t, "p2", 4)))
		s.commit(5)
		must(t, <-installed)
		mustAllow(t, p, s, "acme", "4")
		c.Advance(int64(5 * time.Second))
		mustExpired(t, p, "5")
	})
}

// A leader that never had a lease for the partition's revision decides nothing, and neither does one without
// any.
func TestNoLease(t *testing.T) {
	scripted(t, func(t *testing.T, p *Partition, s *script, c *clock.Fake) {
		s.grant(PolicyLease{})
		lead(t, p, s)
		mustExpired(t, p, "1")
		s.elect(group.Leadership{}, "n2", true)
		s.grant(mustGrant(t, c, 2))
		s.elect(group.Leadership{Term: 7, Ready: true}, "n1", true)
		mustExpired(t, p, "2")
		if n := s.total(); n != 1 {
			t.Errorf("%d entries besides the birth", n-1)
		}
	})
}

// The lease is held against a reading of all clocks: time in which the machine slept counts.
func TestLeaseCountsSuspendedTime(t *testing.T) {
	scripted(t, func(t *testing.T, p *Partition, s *script, c *clock.Fake) {
		lead(t, p, s)
		s.grant(mustGrant(t, c, 1))
		mustAllow(t, p, s, "acme", "1")
		c.Suspend(int64(10 * time.Second))
		mustExpired(t, p, "2")
	})
}

// A partition that owns nothing, as its node knows the cluster, decides nothing: what was granted before is taken back
// at once, also from checks that queue, and callers are told to re-route. Peeks and ticks go on.
func TestDisowned(t *testing.T) {
	scripted(t, func(t *testing.T, p *Partition, s *script, c *clock.Fake) {
		lead(t, p, s)
		s.grant(mustGrant(t, c, 1))
		mustAllow(t, p, s, "acme", "1")
		flying := []<-chan asked{
			start(t.Context(), p, convert("b", "1")), start(t.Context(), p, convert("b", "2")),
		}
		queued := start(t.Context(), p, convert("acme", "2"))
		disowned := mustGrant(t, c, 1)
		disowned.Disowned = true
		s.grant(disowned)
		for range flying {
			s.commit(5)
		}
		for _, out := range flying { // they were proposed before
			if a := <-out; a.err != nil || !a.answer.Allowed() {
				t.Errorf("%+v", a)
			}
		}
		mustReason(t, (<-queued).err, quotaerr.WrongEpoch)
		before := s.total()
		mustReason(t, (<-start(t.Context(), p, convert("acme", "3"))).err, quotaerr.WrongEpoch)
		if n := s.total(); n != before {
			t.Errorf("%d entries were proposed", n-before)
		}
		if left := checkPeek(t, p, s).Remaining; left != 2 {
			t.Errorf("%d left, want 2", left)
		}
		s.grant(mustGrant(t, c, 1))
		mustAllow(t, p, s, "acme", "4")
	})
}

// A partition that is given slots while a later policy is in force, which it has yet to install, decides at once under
// the lease that it could have had before: nobody waits for the install.
func TestOwnedUnderAnEarlierLease(t *testing.T) {
	scripted(t, func(t *testing.T, p *Partition, s *script, c *clock.Fake) {
		lead(t, p, s)
		before := mustGrant(t, c, 1)
		before.Disowned = true
		s.grant(before)
		mustReason(t, (<-start(t.Context(), p, convert("acme", "1"))).err, quotaerr.WrongEpoch)
		c.Advance(int64(9 * time.Second))
		s.grant(mustGrant(t, c, 2))
		mustAllow(t, p, s, "acme", "2")
		c.Advance(int64(time.Second))
		mustExpired(t, p, "3")
	})
}
