package fsm_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/internal/reference"
	"github.com/quorate/quorate/policy"
)

// A partition that is moved to another machine again and again, whose time is another, answers as the naive model
// that never moves: every kind of state travels, and ages and what is left of horizons with it. Now and then the
// new machine has a later policy, which then follows the one that came; a plan is undone instead, admissions are
// said to be lost, or a machine is replaced by its restored snapshot.
func TestMovedMachineAnswersAsTheReference(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := reference.NewSession(t)
		m := fsm.New()
		m.Step(reference.Term, s.Birth)
		w := &wanderer{t: t, s: s, m: m}
		w.h.entry(s.Birth, nil)
		for range rapid.IntRange(1, propertyEntries).Draw(t, "entries") {
			switch rapid.IntRange(0, 19).Draw(t, "event") {
			case 19:
				w.m = restored(t, w.m)
				w.h.add("restored")
			case 18, 17:
				w.move()
			}
			w.entry()
		}
	})
}

// wanderer is a session whose machine moves.
type wanderer struct {
	t    *rapid.T
	s    *reference.Session
	m    *fsm.Machine
	plan fsm.PlanID
	huge bool // a cost of the largest limit was sent
	h    history
}

// entry draws one entry, and wants the machine to answer it as the model does.
func (w *wanderer) entry() {
	e := w.s.Next(w.t)
	w.huge = w.huge || hasHugeCost(e)
	ever := admittedTo(w.s.Model, e.Forgive)
	want := w.s.Apply(e)
	w.h.entry(e, &want)
	got := w.m.Step(reference.Term, e)
	if !w.huge {
		mustForgive(w.t, want.Forgiven, got.Forgiven, ever)
	}
	if diff := cmp.Diff(told(want, w.huge), told(*got, w.huge), cmpopts.EquateEmpty()); diff != "" {
		w.t.Fatalf("after (answers of the reference)\n%s(-reference +machine):\n%s", (*strings.Builder)(&w.h), diff)
	}
}

// move moves the machine's slots to a new one, with entries and restarts between the steps, or undoes the plan.
func (w *wanderer) move() {
	w.plan++
	h := &handoff{t: w.t, plan: w.plan, src: w.m, ranges: allSlots, bodies: bodies(w.s.Policies())}
	h.dst = w.bear(fsm.Time(rapid.Int64Range(-1e9, 60e9).Draw(w.t, "ahead")))
	for range rapid.IntRange(0, 2).Draw(w.t, "precopies") {
		h.pull()
		w.entry()
		if rapid.Bool().Draw(w.t, "restart source") {
			w.m = restored(w.t, w.m)
			h.src = w.m
		}
	}
	later := rapid.IntRange(0, 3).Draw(w.t, "later policy") == 3
	if later && !w.s.Behind() {
		w.s.Publish(w.t)
	}
	h.bodies = bodies(w.s.Policies())
	if later || h.dst.Revision() < h.src.Revision() {
		w.install(h.dst)
	}
	h.freeze()
	h.open()
	by := h.dst.Now() - h.src.Now()
	undo, lost := rapid.IntRange(0, 3).Draw(w.t, "undo") == 3, rapid.IntRange(0, 5).Draw(w.t, "lost") == 5
	activate := func() {
		h.must(h.dst, &fsm.Entry{Kind: fsm.KindActivate, Epoch: fsm.Epoch(1 + w.plan), Lost: lost})
	}
	for _, step := range []func(){func() { h.pull() }, h.seal, activate} {
		if undo && rapid.Bool().Draw(w.t, "now") {
			h.abort(h.dst)
			h.abort(h.src)
			w.h.add("undone")
			return
		}
		pass := fsm.Time(rapid.SampledFrom([]int64{0, 0, 1, 1e6, 2e9}).Draw(w.t, "pass"))
		h.dst.Step(1, &fsm.Entry{Kind: fsm.KindBatch, Term: 1, Stamp: h.dst.Now() + pass})
		step()
		if rapid.IntRange(0, 3).Draw(w.t, "restart destination") == 3 {
			h.dst = restored(w.t, h.dst)
		}
	}
	h.release()
	w.m = h.dst
	w.s.Move(by, fsm.Epoch(1+w.plan))
	w.s.Model.Tick(w.m.Now())
	if lost {
		w.s.Model.Lose()
	}
	for w.s.Behind() {
		e := w.s.Install(w.m.Now())
		w.s.Apply(e)
		w.h.entry(e, nil)
	}
	w.h.add("moved by %d to epoch %d, lost %t", by, 1+w.plan, lost)
}

// bear makes a machine that owns nothing, ahead of the present one by so much if its time can be.
func (w *wanderer) bear(ahead fsm.Time) *fsm.Machine {
	birth := *w.s.Birth.Birth
	birth.Owned = nil
	policies := w.s.Policies()
	birth.Install = fsm.NewInstall(fsm.Revision(len(policies)), policies[len(policies)-1])
	m := fsm.New()
	m.Step(reference.Term, &fsm.Entry{
		Kind: fsm.KindBirth, Term: reference.Term, Stamp: max(0, w.m.Now()+ahead), Birth: &birth,
	})
	return m
}

// install puts the latest policy in force at m.
func (w *wanderer) install(m *fsm.Machine) {
	policies := w.s.Policies()
	install := fsm.NewInstall(fsm.Revision(len(policies)), policies[len(policies)-1])
	m.Step(reference.Term, &fsm.Entry{
		Kind: fsm.KindInstall, Term: reference.Term, Stamp: m.Now(), Install: &install,
	})
}

func bodies(policies []*policy.Policy) map[fsm.Revision]*policy.Policy {
	out := map[fsm.Revision]*policy.Policy{}
	for i, p := range policies {
		out[fsm.Revision(i+1)] = p
	}
	return out
}
