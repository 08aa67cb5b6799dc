package cluster

import (
	"fmt"
	"testing"
	"time"

	"github.com/quorate/quorate/jepsen/history"
)

// pause is how a node stands still while a policy is applied.
type pause struct {
	name string
	node func() *Node
	// before: from before the command on; else from a moment after its beginning.
	before bool
	// ends says when the node goes on.
	ends string
}

// When a node that stands still goes on.
const (
	soon     = "soon"             // while the command runs, and before anybody misses it
	returned = "at the return"    // at the very moment when the command returns
	later    = "after the return" // when the others have decided for a while
)

// TestApplyWait shows that when `policy apply --wait` returns, no check that is sent from then on is decided under
// an older revision, though the control group's leader, a partition's leader, or another of its nodes stood still
// meanwhile and goes on at whatever time.
func TestApplyWait(t *testing.T) {
	w := mustWorld(t, Options{Nodes: 5, First: 5, Partitions: 2, Policy: basic()}, basicLoad())
	w.mustControlVoters(5)
	for i, p := range []pause{
		{"the control group's leader", w.leader("control"), false, later},
		{"a partition's leader", w.leader("p0"), true, later},
		{"a partition's follower", w.follower("p1"), true, later},
		{"a partition's leader", w.leader("p1"), false, returned},
		{"a partition's leader", w.leader("p0"), true, soon},
		{"the control group's leader", w.leader("control"), true, soon},
	} {
		w.mustApplyDuring(p, lowered(fmt.Sprint("round-", i), int64(6-i)))
		w.mustDecide(200)
		w.mustRun()
	}
	r := w.mustHold()
	for _, revision := range w.policies.revisions {
		if r.ByRevision[revision.Number] < 50 {
			t.Errorf("only %d decisions under revision %d", r.ByRevision[revision.Number], revision.Number)
		}
	}
	must(t, w.AwaitAgreement(within(t, 60*time.Second)))
}

// mustApplyDuring applies a policy, and waits, while a node stands still.
func (w *world) mustApplyDuring(p pause, next history.Policy) {
	w.t.Helper()
	n := p.node()
	if p.before {
		must(w.t, n.Pause(within(w.t, 10*time.Second)))
	}
	done := make(chan error, 1)
	ctx := within(w.t, 60*time.Second)
	go func() { done <- w.policies.Apply(ctx, next) }()
	if !p.before {
		select {
		case err := <-done: // it was faster
			done <- err
		case <-time.After(time.Duration(w.rand.IntN(150)) * time.Millisecond):
		}
		must(w.t, n.Pause(within(w.t, 10*time.Second)))
	}
	w.say("policy apply --wait; %s, %s, stands still (before: %v, ends: %s)", p.name, n.ID, p.before, p.ends)
	if p.ends == soon {
		select {
		case err := <-done:
			done <- err
		case <-time.After(time.Duration(200+w.rand.IntN(400)) * time.Millisecond):
		}
		must(w.t, n.Resume())
	}
	must(w.t, <-done)
	if p.ends == later {
		w.mustDecide(100)
	}
	must(w.t, n.Resume())
	r := w.policies.revisions[len(w.policies.revisions)-1]
	took := (r.Active - r.Began).Round(time.Millisecond)
	w.say("revision %d was active everywhere after %v; %s goes on", r.Number, took, n.ID)
	if took > 45*time.Second {
		w.t.Errorf("revision %d was active everywhere only after %v", r.Number, took)
	}
	if len(w.policies.Unknown) > 0 {
		w.say("it was not known at first whether it was made: %v", w.policies.Unknown)
		w.policies.Unknown = nil
	}
}

// lowered is the basic policy with another limit for class strict.
func lowered(version string, n int64) history.Policy {
	p := basic()
	p.Version = version
	p.Classes["strict"] = history.Class{Limits: []history.Limit{{Name: "room", Max: n, Window: history.Window(4 * time.Second)}}}
	return p
}

// leader finds the node that leads a group.
func (w *world) leader(group string) func() *Node {
	return func() *Node {
		w.t.Helper()
		n, err := w.Leader(within(w.t, 30*time.Second), group)
		must(w.t, err)
		return n
	}
}

// follower finds a node that holds a replica of a group and does not lead it.
func (w *world) follower(group string) func() *Node {
	return func() *Node {
		w.t.Helper()
		s, err := w.Status(within(w.t, 20*time.Second))
		must(w.t, err)
		for _, g := range s.groups() {
			for _, id := range g.nodes() {
				if g.ID == group && id != g.Leader {
					return w.Node(id)
				}
			}
		}
		w.t.Fatalf("%s has no follower: %+v", group, s)
		return nil
	}
}
