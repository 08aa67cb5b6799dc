package model

import (
	"slices"

	"github.com/quorate/quorate/fsm"
)

// stage is how far the driver of a plan has come.
type stage int

const (
	copying stage = iota
	freezing
	opening
	pulling
	sealing
	activating
	releasing
	undoing // at the destination
	thawing // at the source, then it has ended
	done
)

// plan moves slots from one partition to another: a split when some of the source's stay, a merge when the destination
// has some, a move when all go to one that has none.
type plan struct {
	w        *world
	id       fsm.PlanID
	src, dst *part
	ranges   []fsm.SlotRange
	at       stage
	manifest fsm.Manifest
	epoch    fsm.Epoch
	sent     *fsm.Entry // that no answer has come to
	waited   int        // polls since
	tries    int        // of the stage
	early    bool       // sent is an activation that comes too early
	decided  bool       // an activation was sent, so it is not undone any more
}

// begin begins a plan between two partitions, if there is something to move.
func (w *world) begin() {
	src := w.parts[w.rng.IntN(len(w.parts))]
	dst := w.parts[w.rng.IntN(len(w.parts))]
	owned := src.leader.m.Status().Owned
	if src == dst || len(owned) == 0 || src.leader.m.Clearing() && w.rng.IntN(4) > 0 {
		return
	}
	r := owned[w.rng.IntN(len(owned))].SlotRange
	if w.rng.IntN(3) > 0 { // a part of it, with a principal's slot
		s := slotOf(principals[w.rng.IntN(len(principals))])
		if s < r.First || s > r.Last {
			return
		}
		r.First = s - fsm.Slot(w.rng.IntN(int(s-r.First)+1))
		r.Last = s + fsm.Slot(w.rng.IntN(int(r.Last-s)+1))
	}
	w.plans++
	w.plan = &plan{
		w: w, id: w.plans, src: src, dst: dst, ranges: []fsm.SlotRange{r}, epoch: fsm.Epoch(1 + w.plans),
	}
	w.ranges[w.plans] = w.plan.ranges
	if w.rng.IntN(2) == 0 {
		w.plan.at = freezing
	}
}

// poll takes the plan on: it looks at what became of the last step, and sends the next, or the same again.
func (q *plan) poll() {
	if q.sent != nil {
		a := q.w.outcome(q.sent)
		if q.waited++; a == nil && q.waited < 6 {
			return
		}
		sent, early := q.sent, q.early
		q.sent, q.early = nil, false
		if a != nil {
			q.judge(sent, a, early)
		}
	}
	if !q.decided && q.at < activating && (q.w.rng.IntN(60) == 0 || q.tries > 25) {
		q.at, q.tries = undoing, 0
	}
	q.still()
	if q.at != done {
		q.send()
	}
}

// judge takes the answers to a step.
func (q *plan) judge(sent *fsm.Entry, a *fsm.Answers, early bool) {
	q.tries++
	if a.Refused != fsm.ReasonUnspecified {
		return // the policies differ, or it is too early: tried again, or undone in the end
	}
	switch {
	case sent.Kind == fsm.KindFreeze:
		q.manifest, q.at = *a.Manifest, opening
	case sent.Kind == fsm.KindOpen && q.at == opening:
		q.at = pulling
	case sent.Kind == fsm.KindSeal && *a.Manifest == q.manifest && q.at == sealing:
		q.at = activating
	case sent.Kind == fsm.KindSeal && q.at == sealing:
		q.at = pulling
	case sent.Kind == fsm.KindActivate && (early || q.at == activating):
		q.w.route(q.ranges, q.dst, q.epoch)
		q.w.crowd(q.ranges, q.dst)
		q.at = releasing
	case sent.Kind == fsm.KindRelease:
		q.at = done
		q.w.counts.Moves++
	case sent.Kind == fsm.KindAbort && q.at == undoing:
		q.at = thawing
	case sent.Kind == fsm.KindAbort && q.at == thawing:
		q.at = done
		q.w.counts.Undone++
	}
}

// still wants what was frozen to be as it was, at each replica that has applied the freeze and nothing that ends it.
func (q *plan) still() {
	if q.manifest == (fsm.Manifest{}) || q.at > releasing {
		return
	}
	r := q.src.replicas[q.w.rng.IntN(len(q.src.replicas))]
	if r.m.PlanEnd(q.id) != fsm.PlanFrozen {
		return
	}
	if now := r.m.Manifest(q.ranges); now != q.manifest {
		q.w.judge.breaks(FrozenStill, "plan %d: frozen was %+v, and it is %+v", q.id, q.manifest, now)
	}
}

func (q *plan) send() {
	to, e := q.dst, &fsm.Entry{Plan: q.id}
	at := q.at
	if (at == pulling || at == sealing) && q.w.rng.IntN(25) == 0 {
		at, q.early, q.decided = activating, true, true
	}
	switch at {
	case copying:
		if q.tries++; q.w.rng.IntN(3) == 0 || q.tries > 8 {
			q.at = freezing
		}
		e.Kind, e.Pieces = fsm.KindStage, q.pieces()
	case freezing:
		q.w.crowd(q.ranges, q.src)
		to, e.Kind, e.Ranges, e.Revision = q.src, fsm.KindFreeze, q.ranges, q.src.leader.m.Revision()
	case opening:
		e.Kind, e.Ranges, e.Manifest = fsm.KindOpen, q.ranges, q.manifest
	case pulling:
		if e.Kind, e.Pieces = fsm.KindStage, q.pieces(); len(e.Pieces) == 0 {
			q.at = sealing
			return
		}
	case sealing:
		if e.Kind, e.Policies = fsm.KindSeal, q.policies(); e.Policies == nil {
			q.at = pulling
			return
		}
	case activating:
		e.Kind, e.Epoch = fsm.KindActivate, q.epoch
	case releasing:
		to, e.Kind = q.src, fsm.KindRelease
	case undoing:
		e.Kind = fsm.KindAbort
	case thawing:
		to, e.Kind = q.src, fsm.KindAbort
	}
	if q.w.order(to, e) {
		q.sent, q.waited = e, 0
	} else {
		q.early = false
	}
}

// pieces are what the destination does not have, at most a few slots of it at a time.
func (q *plan) pieces() (out []fsm.Piece) {
	from, to := q.src.leader, q.dst.leader
	if q.at == pulling && from.m.PlanEnd(q.id) != fsm.PlanFrozen {
		return nil
	}
	slots := fsm.DifferingSlots(from.m.SlotDigests(q.ranges), to.m.Staged(q.id))
	if len(slots) > 3 && q.w.rng.IntN(2) == 0 {
		slots = slots[:3]
	}
	for _, img := range from.m.Images(slots) {
		half := len(img.Data) / 2
		switch {
		case len(img.Data) == 0:
			out = append(out, fsm.Piece{Slot: img.Slot})
		case half > 0 && q.w.rng.IntN(4) == 0:
			size := uint64(len(img.Data))
			out = append(out, fsm.Piece{Slot: img.Slot, Digest: img.Digest, Size: size, Data: img.Data[:half]},
				fsm.Piece{Slot: img.Slot, Digest: img.Digest, Size: size, Offset: uint64(half), Data: img.Data[half:]})
		default:
			out = append(out, fsm.Piece{Slot: img.Slot, Digest: img.Digest, Size: uint64(len(img.Data)), Data: img.Data})
		}
	}
	return out
}

// policies are those that the seal needs; nil while the history is not staged.
func (q *plan) policies() []fsm.Install {
	refs, err := q.dst.leader.m.StagedPolicies(q.id)
	if err != nil {
		return nil
	}
	out := []fsm.Install{}
	for _, ref := range refs {
		out = append(out, fsm.Install{PolicyRef: ref})
	}
	return out
}

// again sends a step of a plan that has ended once more, as a message that was long on its way.
func (w *world) again() {
	if len(w.steps) == 0 {
		return
	}
	old := w.steps[w.rng.IntN(len(w.steps))]
	if w.plan != nil && old.e.Plan >= w.plan.id {
		return
	}
	e := *old.e
	e.Policies = slices.Clone(e.Policies)
	w.order(old.to, &e)
}
