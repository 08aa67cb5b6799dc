package handoff_test

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/quorate/quorate/control/handoff"
	"github.com/quorate/quorate/control/state"
	"github.com/quorate/quorate/fsm"
)

// newWorld is a cluster whose two partitions serve, or one of another incarnation that was made of a backup.
func newWorld(fatalf func(string, ...any), restored bool) *world {
	w := &world{
		fatalf: fatalf, m: state.New(), replicas: map[state.PartitionID]*replica{}, freezes: map[fsm.PlanID]int64{}, now: 1,
	}
	init := &state.Init{Cluster: "c", Incarnation: 3, Seed: [16]byte{1}}
	if restored {
		init.Seed, init.Restored = [16]byte{}, &state.Restored{
			Cluster: "c", Incarnation: 2, Seed: [16]byte{1}, NextPartition: 2, LastPlan: 9, Backup: state.Digest{1},
		}
		w.backup = content{3, 1, 4, 1, 5, 9, 2, 6}
	}
	w.apply(&state.Command{Kind: state.KindInit, Init: init})
	for _, id := range []string{"a", "b"} {
		w.apply(&state.Command{Kind: state.KindPutNode, Node: &state.PutNode{
			ID: id, Instance: id + "1", GRPC: id + ":1", Raft: id + ":2",
		}})
	}
	for p := state.PartitionID(0); p < 2 && !restored; p++ {
		half := fsm.SlotRange{First: fsm.Slot(p) * (fsm.NumSlots / 2), Last: fsm.Slot(p+1)*(fsm.NumSlots/2) - 1}
		w.apply(&state.Command{Kind: state.KindCreate, Create: &state.Create{
			Map: w.m.State().MapVersion, Replicas: []string{"a"}, Ranges: []fsm.SlotRange{half},
		}})
		r := w.replicas[p]
		r.born, r.serves = true, blocksOf([]fsm.SlotRange{half})
	}
	return w
}

// drawPlan is a plan that the control state may accept.
func (w *world) drawPlan() *state.StartPlan {
	t, s := w.t, w.m.State()
	ids := []state.PartitionID{0, 1}
	for _, p := range s.Partitions {
		ids = append(ids, p.ID)
	}
	id := rapid.SampledFrom(ids).Draw
	p := &state.StartPlan{
		Kind: state.PlanKind(rapid.IntRange(1, 4).Draw(t, "kind")), Source: id(t, "source"), Destination: id(t, "destination"),
	}
	if s.RestoredFrom != (state.Digest{}) && rapid.Bool().Draw(t, "restore") {
		p.Kind, p.Source = state.PlanRestore, p.Source%2
	}
	if p.Kind == state.PlanRecover { // of what has died: see recoverDead
		p.Kind = state.PlanMove
	}
	if p.Kind == state.PlanRestore {
		p.From, p.AcceptLoss = "a", rapid.Bool().Draw(t, "accept loss")
	}
	if p.Kind != state.PlanMerge && p.Kind != state.PlanMove {
		p.New = []string{"b"}
	}
	if p.Kind == state.PlanRestore {
		p.Ranges = []fsm.SlotRange{{First: fsm.Slot(p.Source) * (fsm.NumSlots / 2), Last: fsm.Slot(p.Source+1)*(fsm.NumSlots/2) - 1}}
	} else if p.Kind != state.PlanMerge {
		first := rapid.IntRange(0, blocks-1).Draw(t, "first")
		last := rapid.IntRange(first, min(first+3, blocks-1)).Draw(t, "last")
		p.Ranges = []fsm.SlotRange{{First: fsm.Slot(first * blockSlots), Last: fsm.Slot((last+1)*blockSlots - 1)}}
	}
	return p
}

// driver is one driver, which may have been replaced and not know it. What it knows of the control state may be old.
type driver struct {
	*handoff.Driver
	plan  fsm.PlanID
	state *state.State
}

// turn has a driver make a step; false when its plan is closed as far as it knows.
func (w *world) turn(d *driver) bool {
	if !w.faults || rapid.IntRange(0, 9).Draw(w.t, "an old state") > 0 {
		d.state = w.m.State()
	}
	s, open := d.Next(w.now, d.state)
	if !open {
		return false
	}
	p, _ := d.state.Plan(d.plan)
	w.now += s.PauseNanos + 1
	switch {
	case s.Kind == handoff.Wait:
		d.Note(w.now, handoff.Answer{})
	case !w.faults:
		a := w.carryOut(p, s)
		w.now += 1_000_000
		d.Note(w.now, a)
	default:
		w.unreliably(d, p, s)
	}
	return true
}

// unreliably makes a step that may not arrive, arrive late, arrive twice, or whose answer may be lost.
func (w *world) unreliably(d *driver, p *state.Plan, s handoff.Step) {
	fate := rapid.IntRange(0, 9).Draw(w.t, "fate of "+s.Kind.String())
	a := handoff.Answer{Failed: "no answer"}
	if fate <= 2 {
		w.asleep = append(w.asleep, func() { w.carryOut(p, s) })
	}
	if fate > 0 {
		got := w.carryOut(p, s)
		if fate != 1 && fate != 3 {
			a = got
		}
	}
	took := rapid.Int64Range(0, 400_000_000).Draw(w.t, "took")
	if a.Failed != "" {
		took = s.WithinNanos
	}
	w.now += took
	d.Note(w.now, a)
}

func (w *world) carryOut(p *state.Plan, s handoff.Step) handoff.Answer {
	c := &state.Command{Plan: p.ID, Comment: s.Why}
	switch s.Kind {
	case handoff.Decide:
		c.Kind, c.Decide = state.KindDecidePlan, &s.Decision
	case handoff.Abort:
		c.Kind = state.KindAbortPlan
	case handoff.Close:
		c.Kind = state.KindClosePlan
	default:
		return w.step(p, s)
	}
	if r := w.apply(c); r.Refused != nil {
		return handoff.Answer{Refused: r.Refused.Message}
	}
	return handoff.Answer{}
}

// Shows, for random plans of all kinds in a row, whatever steps are lost, late, repeated or unanswered, with drivers
// that are replaced and go on all the same, policies that are installed in between, an operator who aborts, partitions
// that are born late, or die, for good or to come back in the middle of their recovery: no block is ever served twice, ages are counted back from an instant after the
// freeze, what is activated was decided, is all that the source had, and precedes the release; each plan ends, once
// answers come again, in ten minutes of the driver's clock; and what arrives after that changes nothing.
func TestEveryPlanEnds(t *testing.T) {
	ended, undone, decided := map[string]int{}, 0, 0
	check := func(t *rapid.T) {
		w := newWorld(t.Fatalf, rapid.IntRange(0, 3).Draw(t, "restored") == 0)
		w.t = t
		w.doomed = rapid.IntRange(0, 3).Draw(t, "doomed")
		for range rapid.IntRange(2, 8).Draw(t, "plans") {
			r := w.apply(&state.Command{Kind: state.KindStartPlan, Start: w.drawPlan()})
			if r.Refused != nil {
				continue
			}
			w.storm(r.Plan)
			w.finish()
		}
		for _, p := range w.m.State().Ended {
			ended[p.Kind.String()+" "+p.Standing()]++
		}
		undone, decided = undone+w.undone, decided+w.decided
	}
	// What has been seen only says when the test has shown enough: each of its plans must pass, however many there are.
	missing := func() []string {
		var m []string
		for _, k := range []string{"split", "merge", "move", "recover", "restore"} {
			for _, how := range []string{" done", " undone"} {
				if ended[k+how] == 0 {
					m = append(m, k+how)
				}
			}
		}
		if undone == 0 || decided == 0 {
			m = append(m, fmt.Sprintf("recoveries beside another plan: %d undone, %d decided", undone, decided))
		}
		return m
	}
	for round := 0; round < 4 || len(missing()) > 0 && round < 100; round++ {
		rapid.Check(t, check)
	}
	t.Log(ended, undone, decided)
	if m := missing(); len(m) > 0 {
		t.Errorf("the test does not show what it says, for want of %q", m)
	}
}

// Shows, for a plan at any step, decided or aborted, one of whose partitions dies, is recovered up to any step, and comes
// back, that both plans end with nothing left frozen or sealed, whether the recovery was aborted or decided.
func TestRecoveriesOfWhatComesBack(t *testing.T) {
	undone, decided := 0, 0
	check := func(t *rapid.T) {
		w := newWorld(t.Fatalf, false)
		w.t = t
		start := &state.StartPlan{Kind: state.PlanMove, Destination: 1, Ranges: []fsm.SlotRange{{Last: 2*blockSlots - 1}}}
		if rapid.Bool().Draw(t, "split") {
			start.Kind, start.New = state.PlanSplit, []string{"b"}
		}
		old := w.apply(&state.Command{Kind: state.KindStartPlan, Start: start})
		for _, r := range w.replicas {
			r.born = true
		}
		w.turns(old.Plan, rapid.IntRange(4, 12).Draw(t, "steps"))
		w.apply(&state.Command{Kind: state.KindAbortPlan, Plan: old.Plan})
		lost := rapid.SampledFrom([]state.PartitionID{0, old.Partition}).Draw(t, "lost")
		w.replicas[lost].dead = true
		again := w.apply(&state.Command{Kind: state.KindStartPlan, Start: &state.StartPlan{
			Kind: state.PlanRecover, Source: lost, New: []string{"b"}, From: "a",
		}})
		if again.Refused != nil { // it owns nothing
			return
		}
		w.replicas[again.Partition].born = true
		w.turns(old.Plan, rapid.IntRange(0, 4).Draw(t, "steps meanwhile"))
		w.turns(again.Plan, rapid.IntRange(0, 9).Draw(t, "steps of the recovery"))
		if rapid.Bool().Draw(t, "early") {
			w.replicas[lost].dead = false
		}
		if rapid.Bool().Draw(t, "operator") {
			w.apply(&state.Command{Kind: state.KindAbortPlan, Plan: again.Plan})
		}
		w.turns(again.Plan, rapid.IntRange(0, 4).Draw(t, "more"))
		w.turns(old.Plan, rapid.IntRange(0, 4).Draw(t, "more meanwhile"))
		w.replicas[lost].dead = false
		w.finish()
		undone, decided = undone+w.undone, decided+w.decided
	}
	for round := 0; round < 1 || (undone == 0 || decided == 0) && round < 100; round++ {
		rapid.Check(t, check)
	}
	if undone == 0 || decided == 0 {
		t.Errorf("%d recoveries beside another plan were undone, %d decided: the test does not show what it says", undone, decided)
	}
}

// turns has a new driver make some steps.
func (w *world) turns(plan fsm.PlanID, n int) {
	d := &driver{handoff.NewDriver(plan, w.now), plan, w.m.State()}
	for range n {
		w.turn(d)
		w.settle()
		w.check()
	}
}

// storm drives a plan by drivers that are replaced, while everything fails now and then.
func (w *world) storm(plan fsm.PlanID) {
	t := w.t
	w.faults = true
	drivers := []*driver{{handoff.NewDriver(plan, w.now), plan, w.m.State()}}
	for range rapid.IntRange(0, 60).Draw(t, "events") {
		switch rapid.IntRange(0, 19).Draw(t, "event") {
		case 0:
			drivers = append(drivers, &driver{handoff.NewDriver(plan, w.now), plan, w.m.State()})
		case 1:
			if rapid.IntRange(0, 4).Draw(t, "operator") == 0 {
				w.apply(&state.Command{Kind: state.KindAbortPlan, Plan: plan, Comment: "changed my mind"})
			}
		case 2, 3:
			w.wake()
		case 4, 5, 6, 7:
			w.live()
		case 8:
			w.now += rapid.Int64Range(0, 9*second).Draw(t, "time")
		case 9, 10:
			w.turn(rapid.SampledFrom(drivers).Draw(t, "driver"))
		default:
			w.turn(drivers[len(drivers)-1])
		}
		w.check()
	}
}

// wake has one late step arrive.
func (w *world) wake() {
	if len(w.asleep) == 0 {
		return
	}
	i := rapid.IntRange(0, len(w.asleep)-1).Draw(w.t, "late step")
	late := w.asleep[i]
	w.asleep = slices.Delete(w.asleep, i, i+1)
	late()
}

// finish has new drivers end all plans without further faults; what has died comes back, or an operator recovers it.
func (w *world) finish() {
	w.faults = false
	for _, r := range w.replicas {
		r.born = true
	}
	for round := 0; len(w.m.State().Plans) > 0; round++ {
		if round > 19 {
			w.fatalf("plans do not end: %+v", w.m.State().Plans[0])
		}
		for _, p := range w.m.State().Plans {
			w.drive(p.ID)
		}
		w.recoverDead()
	}
	after := w.served()
	for len(w.asleep) > 0 {
		w.wake()
	}
	if got := w.served(); got != after {
		w.fatalf("late steps changed what is served: %v, before %v", got, after)
	}
	for _, p := range w.m.State().Partitions {
		r := w.replicas[p.ID]
		if p.Plan != 0 || !r.dead && (r.locked() || r.serves != owns(p)) {
			w.fatalf("%s is left in plan %d: %+v, and owns %v", p.ID, p.Plan, r, p.Ranges)
		}
	}
}

func owns(p *state.Partition) [blocks]bool {
	var ranges []fsm.SlotRange
	for _, r := range p.Ranges {
		ranges = append(ranges, r.SlotRange)
	}
	return blocksOf(ranges)
}

// drive has a new driver go on until the plan is closed, or can only wait for a partition that has died.
func (w *world) drive(plan fsm.PlanID) {
	d := &driver{handoff.NewDriver(plan, w.now), plan, w.m.State()}
	began := w.now
	for w.turn(d) {
		w.settle()
		for _, r := range w.replicas {
			r.born = true
		}
		p, open := w.m.State().Plan(plan)
		if at, ok := w.freezes[plan]; ok && open && p.Phase == state.PlanOpen &&
			w.replicas[p.Source].frozenBy == plan && !w.replicas[p.Source].dead && w.now-max(began, at) > handoff.FreezeLimitNanos+second/2 {
			w.fatalf("plan %d: its slots were frozen for %d ns, and it is open: %s", plan, w.now-max(began, at), d.Progress())
		}
		if w.now-began < 600*second {
			continue
		}
		if open && p.Phase != state.PlanOpen && (w.replicas[p.Source].isDead() || w.replicas[p.Destination].isDead()) {
			return
		}
		w.fatalf("plan %d does not end: %s", plan, d.Progress())
	}
}

func (r *replica) isDead() bool { return r != nil && r.dead }

// recoverDead recovers partitions that have died and own slots, unless they come back, which some do while they are
// recovered. An operator may abort the recovery.
func (w *world) recoverDead() {
	for _, p := range w.m.State().Partitions {
		if !w.replicas[p.ID].dead || len(p.Ranges) == 0 {
			continue
		}
		if rapid.IntRange(0, 2).Draw(w.t, "comes back") == 0 {
			w.replicas[p.ID].dead = false
			continue
		}
		r := w.apply(&state.Command{Kind: state.KindStartPlan, Start: &state.StartPlan{
			Kind: state.PlanRecover, Source: p.ID, New: []string{"b"}, From: "a",
		}})
		if r.Refused != nil {
			w.fatalf("%v", r.Refused)
		}
		if rapid.Bool().Draw(w.t, "a storm again") {
			w.storm(r.Plan)
			w.faults = false
		}
		if rapid.IntRange(0, 3).Draw(w.t, "operator") == 0 {
			w.apply(&state.Command{Kind: state.KindAbortPlan, Plan: r.Plan, Comment: "it comes back"})
		}
	}
}

// served is who serves what.
func (w *world) served() (out [blocks]int) {
	for _, r := range w.replicas {
		for b := range blocks {
			if w.decides(r, b) {
				out[b] += int(r.id) + 1
			}
		}
	}
	return out
}
