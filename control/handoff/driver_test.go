package handoff_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/quorate/quorate/control/handoff"
	"github.com/quorate/quorate/control/state"
	"github.com/quorate/quorate/fsm"
)

// trace drives a plan to its end, has before called before each step, and tells the steps.
func (w *world) trace(plan fsm.PlanID, before func(handoff.Kind)) string {
	var steps []string
	d := handoff.NewDriver(plan, w.now)
	for turns := 0; ; turns++ {
		s, open := d.Next(w.now, w.m.State())
		if !open {
			return strings.Join(steps, " ")
		}
		if turns > 200 {
			w.fatalf("%v", steps)
		}
		if n := len(steps); s.Kind != handoff.Wait || steps[n-1] != "wait" {
			steps = append(steps, s.Kind.String())
		}
		before(s.Kind)
		p, _ := w.m.State().Plan(plan)
		w.now += s.PauseNanos
		if s.Kind == handoff.Wait {
			continue
		}
		a := w.carryOut(p, s)
		w.now += 1_000_000
		d.Note(w.now, a)
	}
}

// Shows the steps of each kind of plan while all goes well, admissions go on, and policies are installed while they
// can be: the plan is done, with all that was admitted.
func TestStepsOfEachKind(t *testing.T) {
	const moved = "look-source freeze open pull seal decide activate release close"
	const one, more = "look-source look-destination pull " + moved, "look-source look-destination pull pull " + moved
	half := []fsm.SlotRange{{First: 0, Last: fsm.NumSlots/2 - 1}}
	for _, c := range []struct {
		name     string
		start    state.StartPlan
		restored bool
		want     string
	}{
		{"split", state.StartPlan{Kind: state.PlanSplit, New: []string{"b"}, Ranges: []fsm.SlotRange{{Last: blockSlots - 1}}}, false, one},
		{"merge", state.StartPlan{Kind: state.PlanMerge, Destination: 1}, false, more},
		{"move", state.StartPlan{Kind: state.PlanMove, Destination: 1, Ranges: []fsm.SlotRange{{Last: blockSlots - 1}}}, false, one},
		{
			"recover", state.StartPlan{Kind: state.PlanRecover, New: []string{"b"}, From: "a"}, false,
			"look-destination pull pull open seal decide wait activate close",
		},
		{
			"restore", state.StartPlan{Kind: state.PlanRestore, New: []string{"b"}, From: "a", Ranges: half}, true,
			"look-destination pull pull open seal decide activate close",
		},
	} {
		w := newWorld(t.Fatalf, c.restored)
		r := w.apply(&state.Command{Kind: state.KindStartPlan, Start: &c.start})
		if r.Refused != nil {
			t.Fatal(r.Refused)
		}
		w.replicas[r.Partition].born = true
		if c.start.Kind == state.PlanRecover {
			w.replicas[0].dead = true
		}
		got := w.trace(r.Plan, func(handoff.Kind) {
			if p := w.replicas[0]; p != nil && !p.dead && p.serves[0] && !p.moving[0] {
				p.holds[0]++
			}
			w.check()
		})
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s: %s", c.name, diff)
		}
		p, _ := w.m.State().AnyPlan(r.Plan)
		if d := w.replicas[p.Destination]; p.Standing() != "done" || !d.serves[0] || c.start.Kind < state.PlanRecover && d.holds[0] < 4 {
			t.Errorf("%s is %s: %+v", c.name, p.Standing(), d)
		}
	}
}

// Shows that nothing is fetched while one of the ends says that it still clears up, and that people are told.
func TestWaitsForClearing(t *testing.T) {
	w := newWorld(t.Fatalf, false)
	r := w.apply(&state.Command{Kind: state.KindStartPlan, Start: &state.StartPlan{Kind: state.PlanMerge, Destination: 1}})
	d := handoff.NewDriver(r.Plan, w.now)
	for i, c := range []struct {
		want   handoff.Kind
		answer handoff.Answer
		words  string
	}{
		{handoff.LookSource, handoff.Answer{Clearing: true}, ""},
		{handoff.LookDestination, handoff.Answer{Clearing: true}, ""},
		{handoff.LookSource, handoff.Answer{Clearing: true}, "clears up"},
		{handoff.LookSource, handoff.Answer{Failed: "no leader"}, "clears up"},
		{handoff.LookSource, handoff.Answer{}, "no leader"},
		{handoff.LookDestination, handoff.Answer{Clearing: true}, "clears up"},
		{handoff.LookDestination, handoff.Answer{}, "clears up"},
		{handoff.Pull, handoff.Answer{}, ""},
	} {
		s, open := d.Next(w.now, w.m.State())
		if !open || s.Kind != c.want || !strings.Contains(d.Progress(), c.words) {
			t.Fatalf("step %d: %s, open %t: %s", i, s, open, d.Progress())
		}
		d.Note(w.now, c.answer)
	}
}

// Shows that a policy revision which the source installs just before the freeze is waited for at the destination, and
// that one which the destination installs just after it undoes the plan.
func TestPoliciesInBetween(t *testing.T) {
	for _, c := range []struct {
		name   string
		before handoff.Kind
		who    state.PartitionID
		want   string
		steps  string
	}{
		{
			"the source", handoff.Freeze, 0, "done", "look-source look-destination pull pull look-source freeze look-source " +
				"look-destination freeze open pull seal decide activate release close",
		},
		{
			"the destination", handoff.Open, 1, "undone", "look-source look-destination pull pull look-source freeze open " +
				"abort abort-source abort-destination close",
		},
	} {
		w := newWorld(t.Fatalf, false)
		r := w.apply(&state.Command{Kind: state.KindStartPlan, Start: &state.StartPlan{Kind: state.PlanMerge, Destination: 1}})
		done := false
		got := w.trace(r.Plan, func(k handoff.Kind) {
			switch {
			case k == c.before && !done:
				w.replicas[c.who].revision++
				done = true
			case k == handoff.LookDestination && done:
				w.settle()
			}
		})
		if diff := cmp.Diff(c.steps, got); diff != "" {
			t.Errorf("%s: %s", c.name, diff)
		}
		if p, _ := w.m.State().AnyPlan(r.Plan); p.Standing() != c.want {
			t.Errorf("%s: %s: %s", c.name, p.Standing(), p.Message)
		}
	}
}

// merging is a driver of a plan to merge p0 into p1.
func merging(t *testing.T) (*handoff.Driver, *state.State) {
	t.Helper()
	m, index := mustCluster(t)
	plan := mustStart(t, m, &index, &state.StartPlan{Kind: state.PlanMerge, Source: 0, Destination: 1})
	return handoff.NewDriver(plan, 0), m.State()
}

// must asks for the next step, and wants it to be of a kind.
func must(t *testing.T, d *handoff.Driver, now int64, s *state.State, want handoff.Kind) handoff.Step {
	t.Helper()
	got, open := d.Next(now, s)
	if !open || got.Kind != want {
		t.Fatalf("at %d: %s, %t; want %s", now, got, open, want)
	}
	return got
}

// Shows that an end which says less than it has said before, as a leader does that does not know its successor, is not
// believed; that a look which is refused is asked again; and that a plan is given up after a minute of that.
func TestOldAnswersAndSilence(t *testing.T) {
	d, s := merging(t)
	must(t, d, 0, s, handoff.LookSource)
	d.Note(1, handoff.Answer{End: fsm.PlanFrozen, Revision: 4})
	must(t, d, 2, s, handoff.Freeze)
	d.Note(3, handoff.Answer{Failed: "no answer"})
	must(t, d, 4, s, handoff.Freeze)
	d.Note(5, handoff.Answer{End: fsm.PlanNone, Revision: 4, Refused: "an old leader"})
	got := must(t, d, 6, s, handoff.Abort)
	if !strings.Contains(got.Why, "an old leader") {
		t.Error(got)
	}

	d, s = merging(t)
	must(t, d, 0, s, handoff.LookSource)
	d.Note(1, handoff.Answer{Revision: 4})
	for now := second; now < 60*second; now += second {
		must(t, d, now, s, handoff.LookDestination)
		d.Note(now+1, handoff.Answer{Refused: "p1 is not here"})
	}
	if got := must(t, d, 60*second, s, handoff.Abort); !strings.Contains(got.Why, "p1 is not here") {
		t.Error(got)
	}
}

// Shows that a pull which takes long and then fails counts as little of a plan's patience, one that never succeeds ends
// it, and one that succeeds restores it.
func TestPullsThatFail(t *testing.T) {
	for _, c := range []struct {
		name   string
		heals  bool
		failed int
	}{{"it never succeeds", false, 6}, {"it succeeds in between", true, 11}} {
		d, s := merging(t)
		now, failed := int64(0), 0
		for steps := 0; ; steps++ {
			step, _ := d.Next(now, s)
			if step.Kind == handoff.Abort {
				break
			}
			if steps > 99 {
				t.Fatalf("%s: after %d steps %s", c.name, steps, d.Progress())
			}
			a := handoff.Answer{Revision: 4}
			if step.Kind == handoff.Pull {
				now += 500 * second
				if failed != 5 || !c.heals {
					a.Failed = "the source has no leader"
					failed++
				} else {
					a.Bytes, c.heals = 1<<40, false
				}
			}
			d.Note(now, a)
		}
		if failed != c.failed {
			t.Errorf("%s: %d failed", c.name, failed)
		}
	}
}

// Shows that a step which was answered as one that was not made is not taken for made.
func TestHollowAnswers(t *testing.T) {
	d, s := merging(t)
	must(t, d, 0, s, handoff.LookSource)
	d.Note(1, handoff.Answer{End: fsm.PlanFrozen, Revision: 4})
	must(t, d, 2, s, handoff.Freeze)
	d.Note(3, handoff.Answer{End: fsm.PlanFrozen, Revision: 4})
	if got := must(t, d, 4, s, handoff.Abort); !strings.Contains(got.Why, "digest") {
		t.Error(got)
	}
}

// Shows what people read of a plan's progress.
func TestProgress(t *testing.T) {
	d, s := merging(t)
	want := []string{
		"look-source", "look-destination", "pull", "pull 2: the one before fetched 300000 bytes",
		"pull 3: the one before fetched 150000 bytes",
	}
	answers := []handoff.Answer{{Revision: 4}, {Revision: 4}, {Bytes: 300_000}, {Bytes: 150_000}}
	var got []string
	for i, a := range answers {
		if _, open := d.Next(int64(i), s); !open {
			t.Fatal("closed")
		}
		got = append(got, d.Progress())
		d.Note(int64(i), a)
	}
	step, _ := d.Next(9, s)
	if step.Kind != handoff.LookSource { // little was left
		t.Error(step)
	}
	d.Note(9, handoff.Answer{Failed: "no leader is known"})
	got = append(got, d.Progress())
	want[4] = "look-source: no leader is known"
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// Shows that a replica which changes between pulls is not recovered from: it is pulled until nothing is left to fetch,
// and given up when that does not happen.
func TestRecoveringFromWhatChanges(t *testing.T) {
	w := newWorld(t.Fatalf, false)
	r := w.apply(&state.Command{Kind: state.KindStartPlan, Start: &state.StartPlan{Kind: state.PlanRecover, New: []string{"b"}, From: "a"}})
	w.replicas[r.Partition].born = true
	got := w.trace(r.Plan, func(handoff.Kind) { w.replicas[0].holds[0]++ })
	want := "look-destination" + strings.Repeat(" pull", handoff.MaxPulls) + " abort abort-destination close"
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if p, _ := w.m.State().AnyPlan(r.Plan); !strings.Contains(p.Message, "still changes") {
		t.Error(p.Message)
	}
	if _, there := w.m.State().Partition(r.Partition); there {
		t.Error("what was made for the plan is still there")
	}
}
