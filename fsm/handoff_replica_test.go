package fsm_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/policy"
)

// Shows that replicas agree throughout plans: two partitions move random slots to and fro under traffic and changes
// of the policy, with plans undone half-way; each has a second replica that is restored again and again, from
// snapshots whose pieces were written between the entries and steps, and that has the same answers and digest after
// each entry. Steps of plans that have ended, sent once more, change nothing, and what was released is gone.
func TestReplicasAgreeThroughoutPlans(t *testing.T) {
	for seed := range uint64(3) {
		rng := rand.New(rand.NewPCG(seed, 9))
		w := newPairUnderPlans(t, rng)
		for range 25 {
			w.live(20)
			w.plan()
		}
		if w.moves < 5 || w.undone < 2 || w.restored < 20 {
			t.Errorf("seed %d: %d moves, %d undone, %d restored: it shows little", seed, w.moves, w.undone, w.restored)
		}
	}
}

// pairUnderPlans is two partitions between which slots move.
type pairUnderPlans struct {
	t                       *testing.T
	rng                     *rand.Rand
	ends                    [2]*replicated
	bodies                  map[fsm.Revision]*policy.Policy
	revision                fsm.Revision
	plans                   fsm.PlanID
	steps                   []sent
	moves, undone, restored int
	steady                  bool // no policy is installed
}

// sent is a step of a plan, and who got it.
type sent struct {
	to *replicated
	e  *fsm.Entry
}

// replicated is a partition with two replicas, of which the second is replaced by restored ones.
type replicated struct {
	w       *pairUnderPlans
	m, twin *fsm.Machine
	now     fsm.Time
	snap    *fsm.Snapshot
	written []byte
	later   []*fsm.Entry // that were applied since the snapshot began
}

func newPairUnderPlans(t *testing.T, rng *rand.Rand) *pairUnderPlans {
	t.Helper()
	w := &pairUnderPlans{t: t, rng: rng, revision: 1, bodies: map[fsm.Revision]*policy.Policy{1: mustParse(t)}}
	for i := range w.ends {
		half := fsm.Slot(i * fsm.NumSlots / 2)
		e := &fsm.Entry{Kind: fsm.KindBirth, Term: 1, Stamp: fsm.Time(i) * 5e9, Birth: &fsm.Birth{
			Bounds:  fsm.Bounds{MaxKeys: 2000, MaxReplayRecords: 2000},
			Owned:   []fsm.OwnedRange{{SlotRange: fsm.SlotRange{First: half, Last: half + fsm.NumSlots/2 - 1}, Epoch: 1}},
			Install: fsm.NewInstall(1, w.bodies[1]),
		}}
		w.ends[i] = &replicated{w: w, m: fsm.New(), twin: fsm.New(), now: e.Stamp}
		w.ends[i].apply(e)
	}
	return w
}

// apply gives an entry to both replicas.
func (r *replicated) apply(e *fsm.Entry) *fsm.Answers {
	r.w.t.Helper()
	a, b := r.m.Step(1, e), r.twin.Step(1, e)
	if diff := cmp.Diff(a, b); diff != "" || r.m.Digest() != r.twin.Digest() {
		r.w.t.Fatalf("%v: the replicas differ: %s", e.Kind, diff)
	}
	if r.snap != nil {
		r.later = append(r.later, e)
	}
	r.write(r.w.rng.IntN(400))
	return a
}

// write writes some pieces of a snapshot, and replaces the second replica when it is complete.
func (r *replicated) write(pieces int) {
	r.w.t.Helper()
	if r.snap == nil {
		r.snap, r.written, r.later = r.m.BeginSnapshot(), nil, nil
	}
	more := true
	for ; pieces > 0 && more; pieces-- {
		r.written, more = r.snap.Next(r.written)
	}
	if more {
		return
	}
	r.snap.Release()
	r.snap = nil
	twin, err := fsm.Restore(bytes.NewReader(r.written))
	if err != nil {
		r.w.t.Fatal(err)
	}
	for _, e := range r.later {
		twin.Step(1, e)
	}
	if twin.Digest() != r.m.Digest() {
		r.w.t.Fatal("the restored replica went another way")
	}
	r.twin = twin
	r.w.restored++
}

// live gives both partitions traffic, and now and then a policy.
func (w *pairUnderPlans) live(n int) {
	w.t.Helper()
	for range n {
		r := w.ends[w.rng.IntN(2)]
		if w.rng.IntN(30) == 0 {
			r.now += fsm.Time(w.rng.Int64N(40e9)) // much ends at once
		}
		e := traffic(w.rng, &r.now)
		r.apply(e)
		if !w.steady && w.rng.IntN(40) == 0 {
			w.install(r)
		}
	}
}

// install puts the next policy in force at one partition.
func (w *pairUnderPlans) install(r *replicated) {
	w.t.Helper()
	next := r.m.Revision() + 1
	if w.bodies[next] == nil {
		p, err := w.bodies[1].With(fmt.Sprint("s", next), nil)
		if err != nil {
			w.t.Fatal(err)
		}
		if next%2 == 0 {
			p = mustPolicy(w.t, fmt.Sprintf(`{version: s%d, default: {limits: [{name: all, limit: %d, window: %ds}]},
				classes: {b: {limits: [{name: m, limit: 9, window: 90s}]}}}`, next, next, next))
		}
		w.bodies[next] = p
	}
	install := fsm.NewInstall(next, w.bodies[next])
	r.apply(&fsm.Entry{Kind: fsm.KindInstall, Term: 1, Stamp: r.now, Install: &install})
}

// plan moves some slots of one partition to the other, or begins to.
func (w *pairUnderPlans) plan() {
	w.t.Helper()
	from := w.rng.IntN(2)
	src, dst := w.ends[from], w.ends[1-from]
	owned := src.m.Status().Owned
	if len(owned) == 0 {
		return
	}
	r := owned[w.rng.IntN(len(owned))].SlotRange
	if w.rng.IntN(3) > 0 {
		r.First += fsm.Slot(w.rng.IntN(int(r.Last-r.First) + 1))
	}
	w.plans++
	h := &handoff{
		t: w.t, plan: w.plans, src: src.m, dst: dst.m, ranges: []fsm.SlotRange{r}, bodies: w.bodies,
		apply: func(m *fsm.Machine, e *fsm.Entry) *fsm.Answers {
			to := src
			if m == dst.m {
				to = dst
			}
			e.Stamp = to.now
			w.steps = append(w.steps, sent{to, e})
			return to.apply(e)
		},
	}
	h.pull()
	w.live(5)
	for src.m.Revision() != dst.m.Revision() {
		behind := src
		if dst.m.Revision() < src.m.Revision() {
			behind = dst
		}
		w.install(behind)
	}
	undo := w.rng.IntN(14)
	for i, step := range []func(){
		h.freeze, h.open, func() { h.pull() }, h.seal, func() { h.activate(1) }, h.release,
	} {
		if i == undo && i < 5 {
			h.abort(dst.m)
			w.live(2)
			h.abort(src.m)
			w.undone++
			w.steady = false
			w.repeat()
			return
		}
		w.steady = i == 0 // or the destination could not be opened
		step()
		w.live(3)
		w.stepAgain()
	}
	w.moves++
	w.repeat()
	if len(src.m.Status().Owned) == 0 {
		for range 40 {
			src.apply(&fsm.Entry{Kind: fsm.KindBatch, Term: 1, Stamp: src.now})
		}
		if s := src.m.Status(); s.Keys+s.Allows+s.Denials > 0 || !src.m.Idle() {
			w.t.Fatalf("what was released is still there: %+v", s)
		}
	}
}

// stepAgain makes the last step once more, which is answered alike and changes nothing.
func (w *pairUnderPlans) stepAgain() {
	w.t.Helper()
	last := w.steps[len(w.steps)-1]
	if a := w.sendAgain(last); a.Refused != fsm.ReasonUnspecified {
		w.t.Fatalf("%v again: %v %s", last.e.Kind, a.Refused, a.Detail)
	}
}

// repeat sends all steps of plans that have ended once more.
func (w *pairUnderPlans) repeat() {
	w.t.Helper()
	for _, s := range w.steps {
		w.sendAgain(s)
	}
	w.steps = w.steps[max(0, len(w.steps)-20):]
}

func (w *pairUnderPlans) sendAgain(s sent) *fsm.Answers {
	w.t.Helper()
	e := *s.e
	e.Stamp = s.to.m.Now()
	s.to.now = e.Stamp
	before := s.to.m.Digest()
	a := s.to.apply(&e)
	if s.to.m.Digest() != before {
		w.t.Fatalf("%v of plan %d made again changed the state", e.Kind, e.Plan)
	}
	return a
}
