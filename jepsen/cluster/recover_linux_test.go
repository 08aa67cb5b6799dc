package cluster

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/quorate/quorate/jepsen/check"
	"github.com/quorate/quorate/jepsen/process"
)

// TestRecover shows that a partition that has lost two of its three replicas for good can be made anew of the third:
// without it nobody is admitted; with it each principal is denied until his longest window has passed since, so that
// all that was ever admitted keeps within the caps, and nothing that the old partition's nodes do changes that when they
// come back.
func TestRecover(t *testing.T) {
	load := moveLoad()
	load.Principals, load.Echo, load.Classes = 12, 0, []string{"strict", "wide", "misc", "ledger", "spell", "spell"}
	w := mustWorld(t, Options{Nodes: 5, First: 5, Partitions: 1, Policy: restorePolicy(), Moves: true}, load)
	w.mustControlVoters(5)
	w.mustDecide(500)
	before, err := w.Slots(within(t, 30*time.Second))
	must(t, err)
	s, err := w.Status(within(t, 20*time.Second))
	must(t, err)
	holders := s.Partitions[0].nodes()
	left := holders[w.rand.IntN(len(holders))]
	lost := slices.DeleteFunc(holders, func(id string) bool { return id == left })
	must(t, w.load.Quiet(func() error { // the last that they have admitted is answered
		for _, id := range lost {
			must(t, w.Node(id).Kill())
		}
		return nil
	}))
	w.say("kill -9 %v; %s has the only replica of p0 that is left", lost, left)
	alone := w.load.Now()
	must(t, w.load.AwaitUndecided(within(t, time.Minute), alone, 20, w.Node(left)))
	recovery, id := w.mustRecover("p0", left)
	plan, err := w.AwaitPlan(within(t, 90*time.Second), id)
	must(t, err)
	recovery.ended = w.load.Now()
	w.say("plan %d is %s, %v after: %s", id, plan.Phase, (recovery.ended - recovery.began).Round(time.Millisecond), plan.Message)
	if plan.Phase != planDone {
		t.Fatalf("the plan has ended as %+v", plan)
	}
	after, err := w.Slots(within(t, 30*time.Second))
	must(t, err)
	if err := before.Follow(after, before, plan.Destination); err != nil {
		t.Error(err)
	}
	at, err := w.load.AwaitAnswers(within(t, time.Minute), recovery.ended, 1, "an allow of spell", allowsSpell)
	must(t, err)
	w.say("the first allow within %v is %v after the recovery was begun", spell, at-recovery.began)
	for _, id := range lost {
		must(t, w.Node(id).Start())
	}
	must(t, w.AwaitWhole(within(t, 60*time.Second), 3))
	w.say("%v are back", lost)
	w.mustDecide(300)
	w.examined = true
	h := w.load.Stop(w.policies.revisions)
	// It begins to decide only when no leader of the old one can any more.
	w.mustBeDenied(h, span{began: recovery.began + lease})
	r := check.Examine(h.Bare())
	w.say("%v", r)
	must(t, r.Err())
	must(t, w.AwaitAgreement(within(t, 60*time.Second)))
	w.mustRun()
}

// mustRecover begins to make a partition anew, as soon as it is known to have lost its majority.
func (w *world) mustRecover(partition, from string) (s span, plan uint64) {
	w.t.Helper()
	var err error
	must(w.t, process.Await(within(w.t, time.Minute), partition+" can be recovered", func() bool {
		s.began = w.load.Now()
		plan, err = w.StartPlan(within(w.t, 30*time.Second), "recover", partition, "--from", from, "--comment", "a fire")
		return err == nil || !strings.Contains(err.Error(), "ask again in ten seconds")
	}))
	must(w.t, err)
	return s, plan
}
