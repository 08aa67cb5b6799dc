package fsm_test

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/policy"
)

// halves are two partitions that own half of the slots each, under one policy, the first with these bounds.
func halves(t testing.TB, bounds fsm.Bounds) (a, b *fsm.Machine) {
	t.Helper()
	bear := func(first, last fsm.Slot, at fsm.Time, bounds fsm.Bounds) *fsm.Machine {
		m := fsm.New()
		m.Step(1, &fsm.Entry{Kind: fsm.KindBirth, Term: 1, Stamp: at, Birth: &fsm.Birth{
			Bounds: bounds, Install: fsm.NewInstall(1, mustParse(t)),
			Owned: []fsm.OwnedRange{{SlotRange: fsm.SlotRange{First: first, Last: last}, Epoch: 1}},
		}})
		return m
	}
	return bear(0, fsm.NumSlots/2-1, 0, bounds), bear(fsm.NumSlots/2, fsm.NumSlots-1, 7e9, fsm.DefaultBounds())
}

var upperHalf = []fsm.SlotRange{{First: fsm.NumSlots / 2, Last: fsm.NumSlots - 1}}

// admitSome has n principals of m's slots admitted once each.
func admitSome(t testing.TB, m *fsm.Machine, n int) {
	t.Helper()
	e := &fsm.Entry{Kind: fsm.KindBatch, Term: 1, Stamp: m.Now() + 1e6}
	for i := 0; len(e.Checks) < n; i++ {
		p := fmt.Sprint("principal-", i)
		if _, owned := m.EpochOf(m.SlotOf(p)); owned {
			e.Checks = append(e.Checks, fsm.Check{
				Principal: p, Gateway: "g", DecisionID: p, RouteEpoch: 1, Charge: fsm.Charge{Class: "a", Cost: 1},
			})
		}
	}
	for i, d := range m.Step(1, e).Decisions {
		if !d.Allowed() {
			t.Fatalf("check %d: %+v", i, d)
		}
	}
}

// mustRefuse wants an entry to be refused, with words that say why, and the plan to stand as it did.
func (h *handoff) mustRefuse(m *fsm.Machine, e *fsm.Entry, want fsm.Reason, words string) {
	h.t.Helper()
	before, end := m.Digest(), m.PlanEnd(h.plan)
	a := h.step(m, e)
	if a.Refused != want || !strings.Contains(a.Detail, words) {
		h.t.Errorf("%v: %v %q, want %v with %q", e.Kind, a.Refused, a.Detail, want, words)
	}
	if m.PlanEnd(h.plan) != end || e.Kind != fsm.KindStage && m.Digest() != before {
		h.t.Errorf("%v was refused and changed something", e.Kind)
	}
}

// Shows which steps are refused, with which reason and words, and that they change nothing then.
func TestRefusedSteps(t *testing.T) {
	a, b := halves(t, fsm.DefaultBounds())
	admitSome(t, b, 40)
	h := &handoff{t: t, plan: 1, src: b, dst: a, ranges: upperHalf}
	freeze := func(first, last fsm.Slot) *fsm.Entry {
		return &fsm.Entry{Kind: fsm.KindFreeze, Revision: 1, Ranges: []fsm.SlotRange{{First: first, Last: last}}}
	}
	open := func(manifest fsm.Manifest) *fsm.Entry {
		return &fsm.Entry{Kind: fsm.KindOpen, Ranges: upperHalf, Manifest: manifest}
	}
	conflict := fsm.ReasonPlanConflict
	h.mustRefuse(b, freeze(8191, 8200), conflict, "slot 8191 is not owned")
	h.mustRefuse(b, &fsm.Entry{Kind: fsm.KindFreeze, Revision: 1}, conflict, "no slots")
	h.mustRefuse(b, &fsm.Entry{Kind: fsm.KindFreeze, Revision: 1, Ranges: []fsm.SlotRange{
		{First: 9000, Last: 9005}, {First: 9005, Last: 9006},
	}}, conflict, "do not follow")
	h.mustRefuse(b, &fsm.Entry{Kind: fsm.KindFreeze, Ranges: upperHalf}, fsm.ReasonPolicyStale, "revision 1 is in force")
	h.mustRefuse(b, &fsm.Entry{Kind: fsm.KindSeal}, conflict, "not open")
	h.must(b, &fsm.Entry{Kind: fsm.KindStage})
	h.mustRefuse(b, freeze(8192, 8200), conflict, "is the destination")
	h.abort(b)

	h.plan = 2
	h.pull()
	h.freeze()
	h.mustRefuse(b, &fsm.Entry{Kind: fsm.KindStage}, conflict, "is the source")
	h.mustRefuse(b, open(h.manifest), conflict, "is the source")
	h.mustRefuse(a, open(fsm.Manifest{Revision: 2}), fsm.ReasonPolicyBehind, "revision 2 must be")
	h.mustRefuse(a, open(fsm.Manifest{Revision: 1, FrozenAt: fsm.MaxTime + 1}), conflict, "out of range")
	h.open()
	h.mustRefuse(a, &fsm.Entry{Kind: fsm.KindStage, Pieces: []fsm.Piece{{Slot: 3, Size: 1, Data: []byte{1}}}},
		conflict, "not of plan 2")
	h.mustRefuse(a, &fsm.Entry{Kind: fsm.KindActivate, Epoch: 2}, conflict, "not sealed")
	h.mustRefuse(a, &fsm.Entry{Kind: fsm.KindSeal, Policies: []fsm.Install{fsm.NewInstall(1, mustParse(t))}},
		conflict, "not those that the history carries")
	h.seal()
	h.mustRefuse(a, open(fsm.Manifest{Revision: 1}), conflict, "another manifest")
	h.mustRefuse(a, &fsm.Entry{Kind: fsm.KindStage, Pieces: []fsm.Piece{{Slot: 9000, Size: 1, Data: []byte{1}}}},
		conflict, "sealed")
	h.mustRefuse(a, &fsm.Entry{Kind: fsm.KindActivate}, conflict, "an epoch is missing")
	h.activate(2)
	h.mustRefuse(a, &fsm.Entry{Kind: fsm.KindRelease}, fsm.ReasonPlanEnded, "plan 2 has ended")
	h.release()
}

// Shows that images that do not hold are refused, and nothing of them stays: with a wrong digest, of another slot,
// damaged at any bit, of a later version, in pieces that do not fit.
func TestImagesThatDoNotHold(t *testing.T) {
	a, b := halves(t, fsm.DefaultBounds())
	admitSome(t, b, 40)
	h := &handoff{t: t, plan: 1, src: b, dst: a, ranges: upperHalf}
	digests := b.SlotDigests(upperHalf)
	for _, img := range []fsm.Image{b.Images([]fsm.Slot{digests[0].Slot})[0], b.Images([]fsm.Slot{fsm.HistorySlot})[0]} {
		whole := inPieces(img, fsm.MaxStageBytes)[0]
		refuse := func(p fsm.Piece, words string) {
			t.Helper()
			h.mustRefuse(a, &fsm.Entry{Kind: fsm.KindStage, Pieces: []fsm.Piece{p}}, fsm.ReasonPlanConflict, words)
			if n := len(a.Staged(1)); n > 0 {
				t.Fatalf("%d images are staged", n)
			}
		}
		h.must(a, &fsm.Entry{Kind: fsm.KindStage})
		wrong := whole
		wrong.Digest[3] ^= 1
		refuse(wrong, "its digest is")
		for i := range 8 * len(whole.Data) {
			flipped := whole
			flipped.Data = bytes.Clone(whole.Data)
			flipped.Data[i/8] ^= 1 << (i % 8)
			refuse(flipped, "does not hold")
		}
		short := whole
		short.Data = append(bytes.Clone(whole.Data), 0)
		refuse(short, "a piece up to byte")
		short.Size++
		refuse(short, "bytes too many")
		other := whole
		if other.Slot++; other.Slot <= fsm.HistorySlot {
			refuse(other, "does not hold")
		}
		none := whole
		none.Size, none.Data = 0, nil
		refuse(none, "without a size")
	}
	huge := fsm.Piece{Slot: 9000, Size: 1 << 40, Data: []byte{1}}
	h.mustRefuse(a, &fsm.Entry{Kind: fsm.KindStage, Pieces: []fsm.Piece{huge}}, fsm.ReasonCapacity, "at most")
	e := &fsm.Entry{Kind: fsm.KindStage, Pieces: []fsm.Piece{
		{Slot: 9000, Size: 1 << 20, Data: make([]byte, fsm.MaxStageBytes+1)},
	}}
	h.mustRefuse(a, e, fsm.ReasonPlanConflict, "in one entry")
}

// Shows that an image may come in pieces, once more, with some lost and from another export, and that it is staged
// when it is complete and never before; and that one which has become empty goes.
func TestImagesInPieces(t *testing.T) {
	a, b := halves(t, fsm.DefaultBounds())
	admitSome(t, b, 1)
	slot := b.SlotDigests(upperHalf)[0].Slot
	h := &handoff{t: t, plan: 1, src: b, dst: a, ranges: upperHalf}
	send := func(pieces ...fsm.Piece) int {
		t.Helper()
		h.must(h.dst, &fsm.Entry{Kind: fsm.KindStage, Pieces: pieces})
		h.dst = mustRestore(t, h.dst)
		return len(h.dst.Staged(1))
	}
	before := inPieces(b.Images([]fsm.Slot{slot})[0], 10)
	forgiven := mustRestore(t, b)
	b.Step(1, &fsm.Entry{Kind: fsm.KindBatch, Term: 1, Stamp: b.Now() + 1, Checks: []fsm.Check{{
		Principal: mustPrincipal(t, b, slot), Gateway: "g", DecisionID: "again", RouteEpoch: 1,
		Charge: fsm.Charge{Class: "a", Cost: 1},
	}}})
	after := inPieces(b.Images([]fsm.Slot{slot})[0], 10)
	if len(before) < 4 || len(after) < 4 {
		t.Fatal("the images are too small")
	}
	for name, got := range map[string]int{
		"the first pieces":            send(before[:3]...),
		"one of the pieces once more": send(before[1]),
		"a piece after a gap":         send(before[len(before)-1]),
		"all but the last":            send(before[:len(before)-1]...),
		"a later export's middle":     send(after[2]),
	} {
		if got != 0 {
			t.Errorf("after %s an image is staged", name)
		}
	}
	if send(before...) != 1 || send(after[2]) != 1 || send(after[0]) != 0 || send(after[1:]...) != 1 {
		t.Error("the image is not staged when it is complete")
	}
	if got := h.dst.Staged(1)[0]; got.Digest != after[0].Digest {
		t.Errorf("%x is staged, want %x", got.Digest, after[0].Digest)
	}
	forgiven.Step(1, &fsm.Entry{Kind: fsm.KindBatch, Term: 1, Stamp: 900e9})
	empty := forgiven.Images([]fsm.Slot{slot})[0]
	if len(forgiven.SlotDigests(upperHalf)) != 1 || len(empty.Data) != 0 {
		t.Fatal("the slot is not empty")
	}
	if send(inPieces(empty, 10)...) != 0 {
		t.Error("what has become empty stays")
	}
}

func mustPrincipal(t testing.TB, m *fsm.Machine, slot fsm.Slot) string {
	t.Helper()
	for i := range 1 << 20 {
		if p := fmt.Sprint("principal-", i); m.SlotOf(p) == slot {
			return p
		}
	}
	t.Fatalf("no principal for slot %d", slot)
	return ""
}

// Shows that the keys and records that are staged count with those that are here: an import that would pass a bound
// is refused, and what is staged leaves that much less room for checks until the plan is undone.
func TestStagedStateCountsForTheBounds(t *testing.T) {
	for name, tc := range map[string]struct {
		bounds fsm.Bounds
		words  string
	}{
		"keys":    {fsm.Bounds{MaxKeys: 60, MaxReplayRecords: 1000}, "keys"},
		"records": {fsm.Bounds{MaxKeys: 1000, MaxReplayRecords: 60}, "replay records"},
	} {
		t.Run(name, func(t *testing.T) {
			a, b := halves(t, tc.bounds)
			admitSome(t, a, 20)
			admitSome(t, b, 40)
			h := &handoff{t: t, plan: 1, src: b, dst: a, ranges: upperHalf}
			h.pull()
			check := func() fsm.Reason {
				e := &fsm.Entry{Kind: fsm.KindBatch, Term: 1, Stamp: a.Now(), Checks: []fsm.Check{{
					Principal: lastOf(a), Gateway: "other", DecisionID: "d", RouteEpoch: 1,
					Charge: fsm.Charge{Class: "b", Cost: 1},
				}}}
				return a.Step(1, e).Decisions[0].Reason
			}
			if got := check(); got != fsm.ReasonCapacity {
				t.Errorf("with a full import a check is answered with %v", got)
			}
			admitSome(t, b, 41)
			h.mustRefuse(a, &fsm.Entry{Kind: fsm.KindStage, Pieces: h.pieces()}, fsm.ReasonCapacity, tc.words)
			h.abort(a)
			if got := check(); got != fsm.ReasonAllowed {
				t.Errorf("after the abort a check is answered with %v", got)
			}
		})
	}
}

// lastOf is a principal of m's slots that admitSome does not reach.
func lastOf(m *fsm.Machine) string {
	for i := 1_000_000; ; i++ {
		p := fmt.Sprint("principal-", i)
		if _, owned := m.EpochOf(m.SlotOf(p)); owned {
			return p
		}
	}
}

// Shows that an import which would have more revisions carried for a name than can be is refused when it is sealed:
// a partition that merges with others faster than its policies become exact.
func TestTooManyCarriedRevisions(t *testing.T) {
	dst := fsm.New()
	bodies := map[fsm.Revision]*policy.Policy{
		1: mustPolicy(t, "{version: v1, default: {limits: [{name: all, limit: 5, window: 1h}]}}"),
	}
	bear := func(m *fsm.Machine, slot fsm.Slot) {
		m.Step(1, &fsm.Entry{Kind: fsm.KindBirth, Term: 1, Birth: &fsm.Birth{
			Bounds: fsm.DefaultBounds(), Install: fsm.NewInstall(1, bodies[1]),
			Owned: []fsm.OwnedRange{{SlotRange: fsm.SlotRange{First: slot, Last: slot}, Epoch: 1}},
		}})
	}
	bear(dst, 0)
	install := func(m *fsm.Machine, revision fsm.Revision, at fsm.Time) {
		i := fsm.NewInstall(revision, bodies[revision])
		m.Step(1, &fsm.Entry{Kind: fsm.KindInstall, Term: 1, Stamp: at, Install: &i})
	}
	const most = 32
	refused := fsm.ReasonUnspecified
	for n := 1; n < 2*most && refused == fsm.ReasonUnspecified; n++ {
		// Each source keeps its usage for a shorter time than the destination does, so that nothing becomes exact.
		at := fsm.Time(n) * 60e9
		revision := fsm.Revision(n + 1)
		bodies[revision] = mustPolicy(t, fmt.Sprintf(
			"{version: v%d, default: {limits: [{name: all, limit: 5, window: %dh}]}}", revision, n+1))
		m := fsm.New()
		bear(m, fsm.Slot(n))
		for r := fsm.Revision(2); r <= revision; r++ {
			install(m, r, at+7e12)
		}
		install(dst, revision, at+7e12)
		h := &handoff{
			t: t, plan: fsm.PlanID(n), src: m, dst: dst, bodies: bodies,
			ranges: []fsm.SlotRange{{First: fsm.Slot(n), Last: fsm.Slot(n)}},
		}
		h.freeze()
		h.open()
		h.pull()
		a := h.step(dst, h.sealing())
		if refused = a.Refused; refused != fsm.ReasonUnspecified {
			if refused != fsm.ReasonCapacity || !strings.Contains(a.Detail, "carried for one name") {
				t.Fatalf("%v: %s", refused, a.Detail)
			}
			break
		}
		h.activate(2)
	}
	if refused == fsm.ReasonUnspecified {
		t.Errorf("%d rules are carried, and no import was refused", len(dst.Carried()))
	}
	if n := len(dst.Carried()); n < most/2 || n > most {
		t.Errorf("%d rules are carried", n)
	}
}
