package cluster

import (
	"slices"
	"testing"
	"time"

	"github.com/quorate/quorate/jepsen/history"
	"github.com/quorate/quorate/jepsen/process"
)

// lease is how long a node goes by what it last heard of the control group. No clock makes it longer.
const lease = 10 * time.Second

// TestPolicyLease shows that a partition with a majority decides nothing when the control group has had none for
// the time of a lease, and says so, and goes on when it has one again.
func TestPolicyLease(t *testing.T) {
	w := mustWorld(t, Options{Nodes: 5, First: 5, Partitions: 1, Policy: basic()}, basicLoad())
	w.mustControlVoters(5)
	s, err := w.Status(within(t, 20*time.Second))
	must(t, err)
	replicas := s.Partitions[0].nodes()
	// Two of the partition's replicas go on, and no other node: three of the control group's five voters are still.
	silent := slices.IndexFunc(replicas, func(id string) bool { return id != s.Partitions[0].Leader })
	awake := slices.DeleteFunc(replicas, func(id string) bool { return id == replicas[silent] })
	begun := w.load.Now()
	for _, n := range w.Nodes {
		if !slices.Contains(awake, n.ID) {
			must(t, n.Pause(within(t, 10*time.Second)))
		}
	}
	from := w.load.Now()
	w.say("all but %v stand still", awake)
	expired := func(a *history.Answer) bool { return a.Reason == "policy_lease_expired" }
	at, err := w.load.AwaitAnswers(within(t, time.Minute), begun, 1, "policy_lease_expired", expired)
	must(t, err)
	w.say("policy_lease_expired, %v after", (at - from).Round(time.Millisecond))
	_, err = w.load.AwaitAnswers(within(t, time.Minute), from+lease, 50, "policy_lease_expired", expired)
	must(t, err)
	before := 0
	for _, a := range w.load.Since(begun) {
		switch {
		case !a.Answer.Decided() || a.Answer.Replayed:
		case a.Sent < from+lease:
			before++
		default:
			t.Errorf("sent %v after the control group stood still, and decided: %+v", a.Sent-from, a)
		}
	}
	if before < 20 {
		t.Errorf("only %d checks were decided while there was a lease", before)
	}
	resumed := w.load.Now()
	for _, n := range w.Nodes {
		must(t, n.Resume())
	}
	at, err = w.load.AwaitAnswers(within(t, time.Minute), resumed, 50, "a decision", (*history.Answer).Decided)
	must(t, err)
	w.say("50 decisions, %v after all go on", (at - resumed).Round(time.Millisecond))
	w.mustHold()
	must(t, w.AwaitAgreement(within(t, 60*time.Second)))
}

// mustControlVoters waits until the control group has so many voters.
func (w *world) mustControlVoters(n int) {
	w.t.Helper()
	must(w.t, process.Await(within(w.t, 60*time.Second), "the control group has its voters", func() bool {
		s, err := w.Status(w.t.Context())
		return err == nil && s.Control.wanting(n) == nil
	}))
}
