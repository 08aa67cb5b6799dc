package fsm_test

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/quorate/quorate/fsm"
)

// packedKeys is more than some batches unpack.
const packedKeys = 12_000

// mustPack moves a full partition to a new machine whose time is the same, and returns one that did not move beside.
func mustPack(t *testing.T) (moved, stayed *fsm.Machine, h *handoff) {
	t.Helper()
	h = &handoff{t: t, plan: 1, src: mustFill(t, packedKeys), dst: fsm.New(), ranges: allSlots}
	h.dst.Step(1, &fsm.Entry{Kind: fsm.KindBirth, Term: 1, Stamp: h.src.Now(), Birth: &fsm.Birth{
		Bounds: fsm.DefaultBounds(), Install: fsm.NewInstall(1, mustParse(t)),
	}})
	h.freeze()
	h.pull()
	h.open()
	h.seal()
	h.activate(1)
	stayed = mustRestore(t, h.src)
	h.abort(stayed)
	return h.dst, stayed, h
}

// Shows that an import can be told, exported, frozen and saved before it is unpacked, and is the same as what never
// moved.
func TestPackedSlotsAreTold(t *testing.T) {
	moved, stayed, _ := mustPack(t)
	want := stayed.SlotDigests(allSlots)
	if diff := cmp.Diff(want, moved.SlotDigests(allSlots)); diff != "" {
		t.Fatalf("(-stayed +moved) %s", diff)
	}
	slots := fsm.DifferingSlots(want, nil)
	if diff := cmp.Diff(stayed.Images(slots), moved.Images(slots)); diff != "" {
		t.Fatalf("(-stayed +moved) %s", diff)
	}
	packed := moved.Status().PackedSlots
	if s := moved.Status(); s.Keys != packedKeys || packed != len(slots)-1 || moved.Idle() {
		t.Fatalf("%d keys in %d packed slots, of %d", s.Keys, packed, len(slots)-1)
	}
	again := mustRestore(t, moved)
	if again.Digest() != moved.Digest() || !cmp.Equal(want, again.SlotDigests(allSlots)) {
		t.Fatal("what is packed was not read back")
	}
	h := &handoff{t: t, plan: 2, src: again, dst: mustBear(t, nil), ranges: upperHalf}
	h.freeze()
	if n := again.Status().PackedSlots; n < packed/3 || n > packed*2/3 {
		t.Fatalf("%d of %d slots are packed after the freeze of half of them", n, packed)
	}
	if diff := cmp.Diff(want, again.SlotDigests(allSlots)); diff != "" {
		t.Fatalf("(-stayed +moved) %s", diff)
	}
}

// Shows that checks, peeks and forgives of principals whose slots are not unpacked yet are answered as if the
// partition had not moved, and that batches unpack all of it within a bounded number, until its state is the same.
func TestPackedSlotsAreDecided(t *testing.T) {
	moved, stayed, _ := mustPack(t)
	asked := 0
	for i := 0; i < packedKeys; i += 101 {
		p := fmt.Sprint("principal-", i)
		e := &fsm.Entry{Kind: fsm.KindBatch, Term: 1, Stamp: stayed.Now()}
		switch i % 4 {
		case 0:
			e.Peeks = []fsm.Peek{{Principal: p, Class: "a", RouteEpoch: 1}}
		case 1:
			e.Kind, e.Forgive = fsm.KindForgive, &fsm.Forgive{Principal: p, RouteEpoch: 1}
		default: // recorded, or new
			e.Checks = []fsm.Check{{
				Principal: p, Gateway: "g1", DecisionID: fmt.Sprint(i + i%4 - 2), RouteEpoch: 1,
				Charge: fsm.Charge{Class: "a", Cost: 1},
			}}
		}
		if moved.Status().PackedSlots > 0 {
			asked++
		}
		if diff := cmp.Diff(stayed.Step(1, e), moved.Step(1, e)); diff != "" {
			t.Fatalf("principal %d: (-stayed +moved) %s", i, diff)
		}
		if i%5 == 0 {
			moved = mustRestore(t, moved)
		}
	}
	if asked < 8 {
		t.Errorf("%d entries came before all was unpacked", asked)
	}
	if s := moved.Status(); s.PackedSlots > 0 || s.Keys != stayed.Status().Keys {
		t.Errorf("%d slots are packed; %d keys, %d where nothing moved", s.PackedSlots, s.Keys, stayed.Status().Keys)
	}
	if diff := cmp.Diff(stayed.SlotDigests(allSlots), moved.SlotDigests(allSlots)); diff != "" {
		t.Errorf("(-stayed +moved) %s", diff)
	}
}

// Shows that what is released is dropped by a bounded number of batches, that a restored replica does the same, and
// that the slots can come back while that goes on.
func TestReleasedSlotsAreDroppedByAndBy(t *testing.T) {
	_, _, h := mustPack(t)
	src := h.src
	check := &fsm.Entry{Kind: fsm.KindBatch, Term: 1, Stamp: src.Now() + 3600e9, Checks: make([]fsm.Check, 1)}
	src.Step(1, check) // all would have ended
	h.release()
	if s := src.Status(); s.Keys != packedKeys || len(s.Owned) > 0 || src.Idle() {
		t.Fatalf("%d keys, %v owned, idle %t", s.Keys, s.Owned, src.Idle())
	}
	halfWay := fsm.New()
	for n := 0; !src.Idle(); n++ {
		twin := mustRestore(t, src)
		src.Step(1, check)
		twin.Step(1, check)
		if src.Digest() != twin.Digest() {
			t.Fatalf("batch %d: a restored replica went another way", n)
		}
		if n == 0 {
			halfWay = twin
		}
		if n > 20 {
			t.Fatalf("%d keys are left after %d batches", src.Status().Keys, n)
		}
	}
	if s := src.Status(); s.Keys+s.Allows+s.Denials != 0 || len(src.SlotDigests(allSlots)) != 1 {
		t.Errorf("left: %+v", s)
	}
	if s := halfWay.Status(); s.Keys == 0 || s.Keys >= packedKeys {
		t.Fatalf("%d keys half-way", s.Keys)
	}
	back := &handoff{t: t, plan: 3, src: h.dst, dst: halfWay, ranges: allSlots}
	back.move(4)
	again := back.dst
	for range 10 {
		again.Step(1, &fsm.Entry{Kind: fsm.KindBatch, Term: 1, Stamp: again.Now()})
	}
	if s := again.Status(); s.Keys != packedKeys || s.Allows != packedKeys {
		t.Errorf("after the way back: %+v", s)
	}
	if !bytes.Equal(snapshotOf(again), snapshotOf(mustRestore(t, again))) {
		t.Error("after the way back a snapshot is another")
	}
}

// Shows that what stays in a shard of which some slots were released is forgotten in its order: as a machine that was
// restored meanwhile does, entry by entry.
func TestPartOfAShardIsReleased(t *testing.T) {
	m := mustBear(t, []fsm.OwnedRange{{SlotRange: allSlots[0], Epoch: 1}})
	for n, i := 0, 0; n < 120; i++ {
		p := fmt.Sprint("principal-", i)
		if m.SlotOf(p) >= fsm.SlotsPerShard {
			continue
		}
		n++
		m.Step(1, &fsm.Entry{Kind: fsm.KindBatch, Term: 1, Stamp: fsm.Time(n*7919%120) * 1e6, Checks: []fsm.Check{{
			Principal: p, Gateway: "g", DecisionID: p, RouteEpoch: 1,
			Charge: fsm.Charge{Class: []string{"a", "b", "other"}[n%3], Cost: 1},
		}}})
	}
	h := &handoff{t: t, plan: 1, src: m, ranges: []fsm.SlotRange{{First: 3, Last: 9}}}
	h.freeze()
	h.release()
	for at := m.Now(); !m.Idle(); at += 5e8 {
		twin := mustRestore(t, m)
		e := &fsm.Entry{Kind: fsm.KindBatch, Term: 1, Stamp: at}
		m.Step(1, e)
		twin.Step(1, e)
		if m.Digest() != twin.Digest() {
			t.Fatalf("at %d the restored machine forgot something else", at)
		}
	}
	if s := m.Status(); s.Keys+s.Allows+s.Denials > 0 {
		t.Errorf("left: %+v", s)
	}
}

// Shows that the bound of recorded denials travels: a principal with as many as may be has no more recorded after a
// move, and has again when the first ones have ended in the time of the machine that it came to.
func TestRecordedDenialsTravel(t *testing.T) {
	src := mustBear(t, []fsm.OwnedRange{{SlotRange: allSlots[0], Epoch: 1}})
	ids := 0
	deny := func(m *fsm.Machine, at fsm.Time, n int) (recorded int) {
		e := &fsm.Entry{Kind: fsm.KindBatch, Term: 1, Stamp: at}
		for range n {
			ids++
			e.Checks = append(e.Checks, fsm.Check{
				Principal: "p", Gateway: "g", DecisionID: fmt.Sprint(ids), RouteEpoch: 1,
				Charge: fsm.Charge{Class: "a", Cost: 4},
			})
		}
		for _, d := range m.Step(1, e).Decisions {
			if d.Reason == fsm.ReasonQuotaExhausted && d.Recorded {
				recorded++
			}
		}
		return recorded
	}
	// The first is admitted. The horizon of class a is 2 s.
	if n := deny(src, 1e9, 41) + deny(src, 1.5e9, 40); n != fsm.MaxDenialRecords {
		t.Fatalf("%d denials are recorded", n)
	}
	h := &handoff{t: t, plan: 1, src: src, dst: mustBear(t, nil), ranges: allSlots}
	h.dst.Step(1, &fsm.Entry{Kind: fsm.KindBatch, Term: 1, Stamp: 500e9})
	h.move(1)
	if n := deny(h.dst, 501.4e9, 5); n != 0 { // the first is admitted again
		t.Errorf("%d more are recorded before the first have ended", n)
	}
	if n := deny(h.dst, 501.5e9, 60); n != 40 {
		t.Errorf("%d are recorded when 40 have ended", n)
	}
}
