package partition

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/quorate/quorate/clock"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/partition/group"
	"github.com/quorate/quorate/policy"
	"github.com/quorate/quorate/quotaerr"
)

// mustPolicy is a policy whose class convert has a limit in 60 s.
func mustPolicy(t *testing.T, version string, limit int) *policy.Policy {
	t.Helper()
	p, err := policy.Parse("policy.yaml", fmt.Appendf(nil, `
version: %s
default: {limits: [{name: default, limit: 100, window: 60s}]}
classes: {convert: {limits: [{name: per-minute, limit: %d, window: 60s}]}}
`, version, limit))
	must(t, err)
	return p
}

// install asks in a goroutine, and returns when the install waits for an outcome or has one.
func install(t *testing.T, p *Partition, ref fsm.PolicyRef) <-chan error {
	t.Helper()
	out := make(chan error, 1)
	go func() { out <- p.Install(t.Context(), ref) }()
	synctest.Wait()
	return out
}

// An install is an entry of the log that names the policy: checks before it are decided under the old one and
// checks after it under the new one, which counts what was admitted before. The same or an older revision
// costs nothing, and one that is overtaken changes nothing.
func TestInstall(t *testing.T) {
	scripted(t, func(t *testing.T, p *Partition, s *script, _ *clock.Fake) {
		lead(t, p, s)
		second := s.policies.add(2, mustPolicy(t, "p2", 2))
		switched, err := mustPolicy(t, "p3", 4).With("off", []fsm.Switch{{Class: "convert", Disabled: true}})
		must(t, err)
		third := s.policies.add(3, switched)

		first := start(t.Context(), p, convert("acme", "1"))
		installed := install(t, p, second)
		s.commit(5)
		if a := <-first; a.err != nil || a.answer.Revision != 1 || a.answer.Remaining != 2 {
			t.Errorf("before it: %+v", a)
		}
		if e := s.commit(5); e.entry.Kind != fsm.KindInstall || e.entry.Install.Revision != 2 {
			t.Fatalf("%+v", e.entry)
		}
		must(t, <-installed)
		after := start(t.Context(), p, convert("acme", "2"))
		s.commit(5)
		if a := <-after; a.err != nil || a.answer.Revision != 2 || a.answer.Remaining != 0 {
			t.Errorf("after it: %+v", a)
		}

		before := s.total()
		must(t, <-install(t, p, second))
		must(t, <-install(t, p, fsm.PolicyRef{Revision: 1}))
		if n := s.total(); n != before {
			t.Errorf("%d entries for what is in force", n-before)
		}
		later := install(t, p, third)
		overtaken := install(t, p, s.policies.add(4, mustPolicy(t, "p4", 7)))
		s.commit(5)
		s.commit(5)
		must(t, <-later)
		must(t, <-overtaken)
		if st := p.Status(); p.Revision() != 4 || st.Revision != 4 || st.Version != "p4" {
			t.Errorf("in force: %d, %+v", p.Revision(), st)
		}
	})
}

// An install that is proposed behind a later one is applied as nothing, and needs no policy then.
func TestInstallOvertaken(t *testing.T) {
	scripted(t, func(t *testing.T, p *Partition, s *script, _ *clock.Fake) {
		lead(t, p, s)
		older := install(t, p, s.policies.add(2, mustPolicy(t, "p2", 2)))
		ref := s.policies.add(3, mustPolicy(t, "p3", 3))
		s.apply(fsm.AppendEntry(nil, &fsm.Entry{
			Kind: fsm.KindInstall, Term: 5, Install: &fsm.Install{PolicyRef: ref},
		}), 5)
		s.commit(5)
		must(t, <-older)
		if p.Revision() != 3 {
			t.Errorf("revision %d is in force", p.Revision())
		}
	})
}

// An install is refused where this node does not lead or what is found is another policy, and waits while the
// policy is not found, for as long as the caller does; nothing is proposed then.
func TestInstallRefused(t *testing.T) {
	scripted(t, func(t *testing.T, p *Partition, s *script, _ *clock.Fake) {
		s.elect(group.Leadership{}, "n2", true)
		ref := s.policies.add(2, mustPolicy(t, "p2", 2))
		if e := mustReason(t, <-install(t, p, ref), quotaerr.NotLeader); e.Leader != "n2" {
			t.Errorf("the leader is %q", e.Leader)
		}
		lead(t, p, s)
		other := ref
		other.Version = "p3"
		if err := <-install(t, p, other); err == nil || !strings.Contains(err.Error(), `was taken for "p2"`) {
			t.Errorf("another label: %v", err)
		}
		other = ref
		other.Body[0]++
		if err := <-install(t, p, other); err == nil || !strings.Contains(err.Error(), "was taken for one with body") {
			t.Errorf("another body: %v", err)
		}
		missing := fsm.NewInstall(3, mustPolicy(t, "p3", 2)).PolicyRef
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := p.Install(ctx, missing); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a missing policy: %v", err)
		}
		waiting := install(t, p, missing)
		if n := s.total(); n != 1 {
			t.Errorf("%d entries besides the birth", n-1)
		}
		s.policies.add(3, mustPolicy(t, "p3", 2))
		s.commit(5)
		must(t, <-waiting)

		s.policies.add(4, mustPolicy(t, "p4", 2))
		lost := install(t, p, fsm.NewInstall(4, mustPolicy(t, "p4", 2)).PolicyRef)
		s.abandon(group.ErrUnknown)
		mustReason(t, <-lost, quotaerr.OutcomeUnknown)
		lost = install(t, p, fsm.NewInstall(4, mustPolicy(t, "p4", 2)).PolicyRef)
		s.commit(6) // in another leadership than the one that stamped it
		mustReason(t, <-lost, quotaerr.NotLeader)
	})
}

// forgive asks in a goroutine, and returns when it waits for an outcome or has one.
func forgive(p *Partition, f fsm.Forgive) (<-chan fsm.Forgiven, <-chan error) {
	out, failed := make(chan fsm.Forgiven, 1), make(chan error, 1)
	go func() {
		done, err := p.Forgive(context.Background(), f)
		if err != nil {
			failed <- err
			return
		}
		out <- done
	}()
	synctest.Wait()
	return out, failed
}

// A forgive drops a principal's usage through the log, also without a policy lease, and tells what; it is
// refused as a check is, and its fate may be unknown.
func TestForgive(t *testing.T) {
	scripted(t, func(t *testing.T, p *Partition, s *script, _ *clock.Fake) {
		s.elect(group.Leadership{}, "n2", true)
		of := fsm.Forgive{Principal: "acme", RouteEpoch: testEpoch}
		_, failed := forgive(p, of)
		mustReason(t, <-failed, quotaerr.NotLeader)
		lead(t, p, s)
		mustAllow(t, p, s, "acme", "1")
		mustAllow(t, p, s, "acme", "2")
		mustAllow(t, p, s, "other", "3")
		s.grant(PolicyLease{})
		out, _ := forgive(p, of)
		s.commit(5)
		want := fsm.Forgiven{Reason: fsm.ReasonAllowed, Amounts: []fsm.ClassAmount{{Class: "convert", Amount: 2}}}
		if diff := cmp.Diff(want, <-out); diff != "" {
			t.Error(diff)
		}
		if left := checkPeek(t, p, s).Remaining; left != 3 {
			t.Errorf("%d left, want 3", left)
		}
		before := s.total()
		_, failed = forgive(p, fsm.Forgive{RouteEpoch: testEpoch})
		mustReason(t, <-failed, quotaerr.InvalidArgument)
		if n := s.total(); n != before {
			t.Error("a malformed forgive was proposed")
		}
		_, failed = forgive(p, fsm.Forgive{Principal: "acme", RouteEpoch: 1})
		s.commit(5)
		if e := mustReason(t, <-failed, quotaerr.WrongEpoch); e.Epoch != uint64(testEpoch) {
			t.Errorf("epoch %d", e.Epoch)
		}
		_, failed = forgive(p, of)
		s.abandon(group.ErrUnknown)
		mustReason(t, <-failed, quotaerr.OutcomeUnknown)
	})
}

// What is ordered while this node does not yet lead waits for the leadership, is refused when that goes
// elsewhere, and is given up with its caller; close ends it.
func TestOrderWaits(t *testing.T) {
	scripted(t, func(t *testing.T, p *Partition, s *script, _ *clock.Fake) {
		s.elect(group.Leadership{Term: 5}, "n1", true)
		of := fsm.Forgive{Principal: "acme", RouteEpoch: testEpoch}
		_, failed := forgive(p, of)
		s.elect(group.Leadership{}, "n2", true)
		mustReason(t, <-failed, quotaerr.NotLeader)
		s.elect(group.Leadership{Term: 6}, "n1", true)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := p.Forgive(ctx, of)
		mustReason(t, err, quotaerr.NoQuorum)
		out, _ := forgive(p, of)
		s.elect(group.Leadership{Term: 6, Ready: true}, "n1", true)
		s.commit(6)
		s.commit(6)
		if f := <-out; f.Reason != fsm.ReasonAllowed {
			t.Errorf("%+v", f)
		}
		start(t.Context(), p, convert("a", "1"))
		start(t.Context(), p, convert("a", "2"))
		_, failed = forgive(p, of) // for which there is no place in flight
		must(t, p.Close())
		mustReason(t, <-failed, quotaerr.NotLeader)
		_, failed = forgive(p, of)
		mustReason(t, <-failed, quotaerr.NotLeader)
	})
}

// While the cluster has no policy the partition is not made, and says so at once; it is made when there is
// one.
func TestNotYet(t *testing.T) {
	scripted(t, func(t *testing.T, p *Partition, s *script, _ *clock.Fake) {
		s.mu.Lock()
		s.unborn = fmt.Errorf("%w: no policy", ErrNotYet)
		s.mu.Unlock()
		early := make(chan error, 1)
		s.elect(group.Leadership{Term: 5}, "n1", true)
		go func() {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			_, err := p.Check(ctx, convert("acme", "0"))
			early <- err
		}()
		synctest.Wait()
		s.elect(group.Leadership{Term: 5, Ready: true}, "n1", true)
		mustReason(t, <-early, quotaerr.PolicyLeaseExpired)
		mustExpired(t, p, "1")
		if n := s.total(); n != 0 {
			t.Errorf("%d entries", n)
		}
		s.mu.Lock()
		s.unborn = nil
		s.mu.Unlock()
		time.Sleep(tickInterval)
		s.commit(5)
		mustAllow(t, p, s, "acme", "2")
	})
}

// An entry that names a policy which is not here yet waits for it, and so does what follows; meanwhile the
// replica tells what it awaits.
func TestApplyAwaitsPolicy(t *testing.T) {
	scripted(t, func(t *testing.T, p *Partition, s *script, _ *clock.Fake) {
		lead(t, p, s)
		s.elect(group.Leadership{}, "n2", true)
		named := mustPolicy(t, "p2", 2)
		entry := fsm.AppendEntry(nil, &fsm.Entry{
			Kind: fsm.KindInstall, Term: 6, Install: &fsm.Install{PolicyRef: fsm.NewInstall(2, named).PolicyRef},
		})
		applied := make(chan any, 1)
		go func() { applied <- s.apply(entry, 6) }()
		synctest.Wait()
		if st := p.Status(); st.Awaits != 2 || st.Revision != 1 || p.Revision() != 1 {
			t.Errorf("awaits %d at revision %d", st.Awaits, st.Revision)
		}
		s.policies.add(2, named)
		if a, ok := (<-applied).(*fsm.Answers); !ok || a.Refused != fsm.ReasonUnspecified {
			t.Errorf("%+v", a)
		}
		if st := p.Status(); st.Awaits != 0 || st.Revision != 2 || p.Revision() != 2 {
			t.Errorf("awaits %d at revision %d", st.Awaits, st.Revision)
		}
	})
}

// A replica that closes while it waits for a policy ends, without a complaint, and applies nothing more.
func TestCloseWhileAwaiting(t *testing.T) {
	scripted(t, func(t *testing.T, p *Partition, s *script, _ *clock.Fake) {
		lead(t, p, s)
		before := p.Status().Digest
		ref := fsm.NewInstall(2, mustPolicy(t, "p2", 2)).PolicyRef
		entry := fsm.AppendEntry(nil, &fsm.Entry{Kind: fsm.KindInstall, Term: 5, Install: &fsm.Install{PolicyRef: ref}})
		tick := fsm.AppendEntry(nil, &fsm.Entry{Kind: fsm.KindBatch, Term: 5, Stamp: 1 << 40})
		applied := make(chan any, 2)
		go func() {
			applied <- s.apply(entry, 5)
			applied <- s.apply(tick, 5)
		}()
		synctest.Wait()
		must(t, p.Close())
		if a, b := <-applied, <-applied; a != nil || b != nil || p.Status().Digest != before {
			t.Errorf("applied %v, %v", a, b)
		}
	})
}

// A policy that is not the one named stops the replica, and says where.
func TestWrongPolicyStops(t *testing.T) {
	line, err := clock.NewTimeline(&clock.Fake{}, testDriftPPM, clock.TrustNever)
	must(t, err)
	c := quiet(t, line)
	var ends []error
	c.fatal = func(err error) { ends = append(ends, err) }
	r := newReplica(c)
	applyUntil(t, r, 1, 1)
	before := r.basis()
	install := fsm.NewInstall(2, mustPolicy(t, "p2", 2))
	r.Apply(2, 1, fsm.AppendEntry(nil, &fsm.Entry{Kind: fsm.KindInstall, Term: 1, Install: &install}), true)
	if len(ends) != 1 || !strings.Contains(ends[0].Error(), "log index 2: policy revision 2 has body") {
		t.Errorf("it ends with %v", ends)
	}
	if r.basis() != before {
		t.Error("the state has changed")
	}
}

// When the log names 32 policies, or fewer large ones, since the last snapshot that was written, the group is
// asked to compact it; a snapshot that is not written counts for nothing.
func TestCompactionAfterInstalls(t *testing.T) {
	scripted(t, func(t *testing.T, p *Partition, s *script, _ *clock.Fake) {
		lead(t, p, s)
		r := fsm.Revision(1)
		put := func(n int, numBytes int64) {
			t.Helper()
			for range n {
				r++
				ref := s.policies.add(r, mustPolicy(t, fmt.Sprint("p", r), 2))
				ref.Bytes += numBytes
				installed := install(t, p, ref)
				s.commit(5)
				must(t, <-installed)
			}
		}
		write := func(whole bool) {
			t.Helper()
			snapshot, err := p.replica.Snapshot()
			must(t, err)
			defer snapshot.Release()
			if whole {
				_, err = snapshot.WriteTo(&bytes.Buffer{})
				must(t, err)
			}
		}
		put(30, 0) // with the birth, one fewer
		if n := s.compactions(); n != 0 {
			t.Fatalf("%d compactions of 31 policies", n)
		}
		put(1, 0)
		if n := s.compactions(); n != 1 {
			t.Errorf("%d compactions of 32 policies", n)
		}
		write(false)
		put(1, 0)
		if n := s.compactions(); n != 2 {
			t.Errorf("%d compactions, after one that came to nothing", n)
		}
		write(true)
		put(31, 0)
		if n := s.compactions(); n != 2 {
			t.Errorf("%d compactions, 31 policies after a snapshot", n)
		}
		write(true)
		put(1, 1<<30)
		put(1, 1<<30)
		if n := s.compactions(); n != 3 {
			t.Errorf("%d compactions, after two policies of a gibibyte", n)
		}
	})
}

// What is carried is told with the real time until it ends.
func TestCarried(t *testing.T) {
	scripted(t, func(t *testing.T, p *Partition, s *script, c *clock.Fake) {
		lead(t, p, s)
		c.Advance(int64(time.Hour))
		mustAllow(t, p, s, "acme", "1")
		if got := p.Carried(); got != nil {
			t.Errorf("carried: %+v", got)
		}
		longer, err := policy.Parse("policy.yaml", []byte(`
version: p2
default: {limits: [{name: default, limit: 100, window: 60s}]}
classes: {convert: {limits: [{name: hour, limit: 9, window: 1h}]}}
`))
		must(t, err)
		installed := install(t, p, s.policies.add(2, longer))
		s.commit(5)
		must(t, <-installed)
		got := p.Carried()
		if len(got) != 1 || got[0].Class != "convert" || got[0].Revision != 1 || got[0].Version != "p1" {
			t.Fatalf("carried: %+v", got)
		}
		// What is known goes back one old window.
		if want := p.timeline.RealWait(int64(59 * time.Minute)); got[0].EndsInNanos != want {
			t.Errorf("it ends in %v, want %v", time.Duration(got[0].EndsInNanos), time.Duration(want))
		}
	})
}
