package fsm_test

import (
	"encoding/hex"
	"strings"
	"testing"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/policy"
)

// FuzzImport shows that no bytes that are sent as the image of a slot and of a history make a destination panic, not
// even when their digests are what it finds them to be; and that whatever it takes over, it decides on, exports and
// has in its snapshots.
func FuzzImport(f *testing.F) {
	a, b := halves(f, fsm.DefaultBounds())
	admitSome(f, b, 60)
	next := mustPolicy(f, "{version: v2, default: {limits: [{name: all, limit: 5, window: 90d}]}}")
	install := fsm.NewInstall(2, next)
	for _, m := range []*fsm.Machine{a, b} {
		m.Step(1, &fsm.Entry{Kind: fsm.KindInstall, Term: 1, Stamp: m.Now() + 9e9, Install: &install})
	}
	admitSome(f, b, 61)
	begin := snapshotOf(a)
	for _, d := range b.SlotDigests(upperHalf)[:5] {
		f.Add(uint16(d.Slot), b.Images([]fsm.Slot{d.Slot})[0].Data, b.Images([]fsm.Slot{fsm.HistorySlot})[0].Data, int64(b.Now()), true)
	}
	f.Fuzz(func(t *testing.T, slot uint16, image, history []byte, frozenAt int64, empty bool) {
		h := &handoff{
			t: t, plan: 1, dst: mustReadBack(t, begin), ranges: upperHalf,
			bodies: map[fsm.Revision]*policy.Policy{1: mustParse(t), 2: next},
		}
		if empty {
			h.dst = fsm.New()
			h.dst.Step(1, &fsm.Entry{Kind: fsm.KindBirth, Term: 1, Stamp: 3, Birth: &fsm.Birth{
				Bounds: fsm.DefaultBounds(), Install: install,
			}})
		}
		h.force(fsm.Slot(slot%(fsm.NumSlots/2)+fsm.NumSlots/2), image)
		h.force(fsm.HistorySlot, history)
		refs, err := h.dst.StagedPolicies(1)
		if err != nil || len(refs) > 1 || len(refs) == 1 && refs[0].Check(h.bodies[refs[0].Revision]) != nil {
			return
		}
		h.manifest = fsm.Manifest{FrozenAt: fsm.Time(frozenAt), Revision: 2}
		open := &fsm.Entry{Kind: fsm.KindOpen, Ranges: h.ranges, Manifest: h.manifest}
		if h.step(h.dst, open).Refused != fsm.ReasonUnspecified {
			return
		}
		h.manifest = *h.must(h.dst, h.sealing()).Manifest
		h.open()
		if h.step(h.dst, h.sealing()).Refused != fsm.ReasonUnspecified {
			return
		}
		h.dst = mustRestore(t, h.dst)
		h.activate(1)
		h.dst = mustRestore(t, h.dst)
		for _, later := range []fsm.Time{0, 1, 5e9, 1e15} {
			h.dst.Step(1, &fsm.Entry{Kind: fsm.KindBatch, Term: 1, Stamp: h.dst.Now() + later, Checks: []fsm.Check{
				{Principal: "p", Gateway: "g", DecisionID: "new", Charge: fsm.Charge{Class: "a", Cost: 1}, RouteEpoch: 1},
				{
					Principal: mustPrincipal(t, h.dst, fsm.Slot(slot%(fsm.NumSlots/2)+fsm.NumSlots/2)), Gateway: "g",
					DecisionID: "new", Charge: fsm.Charge{Class: "b", Cost: 1}, RouteEpoch: 1,
				},
			}})
			h.dst.SlotDigests(allSlots)
		}
		mustRestore(t, h.dst)
	})
}

// force stages an image, under the digest that the machine finds it to have.
func (h *handoff) force(slot fsm.Slot, data []byte) {
	img := fsm.Image{SlotDigest: fsm.SlotDigest{Slot: slot}, Data: data}
	for range 2 {
		if len(data) == 0 || len(data) > fsm.MaxStageBytes {
			return
		}
		detail := h.step(h.dst, &fsm.Entry{Kind: fsm.KindStage, Pieces: inPieces(img, fsm.MaxStageBytes)}).Detail
		_, found, _ := strings.Cut(detail, "its digest is ")
		found, _, _ = strings.Cut(found, ",")
		digest, err := hex.DecodeString(found)
		if err != nil || len(digest) != 16 {
			return
		}
		img.Digest = [16]byte(digest)
	}
}
