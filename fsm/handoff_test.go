package fsm_test

import (
	"pgregory.net/rapid"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/policy"
)

// handoff makes the steps of one plan at both of its ends, as a driver and the ends' leaders would. Each entry is
// stamped with the partition time that its machine has, and passes through its encoding.
type handoff struct {
	t        rapid.TB
	plan     fsm.PlanID
	src, dst *fsm.Machine
	ranges   []fsm.SlotRange
	// bodies are the policies that may be carried.
	bodies   map[fsm.Revision]*policy.Policy
	manifest fsm.Manifest
	// apply, where it is set, takes the entries instead of the machines.
	apply func(*fsm.Machine, *fsm.Entry) *fsm.Answers
}

var allSlots = []fsm.SlotRange{{Last: fsm.NumSlots - 1}}

func (h *handoff) step(m *fsm.Machine, e *fsm.Entry) *fsm.Answers {
	h.t.Helper()
	e.Term, e.Stamp, e.Plan = 1, m.Now(), h.plan
	decoded, err := fsm.DecodeEntry(fsm.AppendEntry(nil, e))
	if err != nil {
		h.t.Fatalf("%v does not decode: %v", e.Kind, err)
	}
	for i := range e.Policies {
		decoded.Policies[i].Policy = e.Policies[i].Policy
	}
	if h.apply != nil {
		return h.apply(m, decoded)
	}
	return m.Step(1, decoded)
}

func (h *handoff) must(m *fsm.Machine, e *fsm.Entry) *fsm.Answers {
	h.t.Helper()
	a := h.step(m, e)
	if a.Refused != fsm.ReasonUnspecified {
		h.t.Fatalf("%v: %v: %s", e.Kind, a.Refused, a.Detail)
	}
	return a
}

// pull stages at the destination what it does not have of the source, and tells how many pieces came.
func (h *handoff) pull() int {
	h.t.Helper()
	pieces := h.pieces()
	e := &fsm.Entry{Kind: fsm.KindStage}
	numBytes := 0
	for _, p := range pieces {
		if numBytes += len(p.Data); numBytes > fsm.MaxStageBytes {
			h.must(h.dst, e)
			e, numBytes = &fsm.Entry{Kind: fsm.KindStage}, len(p.Data)
		}
		e.Pieces = append(e.Pieces, p)
	}
	h.must(h.dst, e)
	return len(pieces)
}

// pieces are what the destination does not have.
func (h *handoff) pieces() (out []fsm.Piece) {
	slots := fsm.DifferingSlots(h.src.SlotDigests(h.ranges), h.dst.Staged(h.plan))
	for _, img := range h.src.Images(slots) {
		out = append(out, inPieces(img, fsm.MaxStageBytes)...)
	}
	return out
}

func (h *handoff) freeze() {
	h.t.Helper()
	h.manifest = *h.must(h.src, &fsm.Entry{Kind: fsm.KindFreeze, Ranges: h.ranges, Revision: h.src.Revision()}).Manifest
}

func (h *handoff) open() {
	h.t.Helper()
	h.must(h.dst, &fsm.Entry{Kind: fsm.KindOpen, Ranges: h.ranges, Manifest: h.manifest})
}

func (h *handoff) sealing() *fsm.Entry {
	h.t.Helper()
	refs, err := h.dst.StagedPolicies(h.plan)
	if err != nil {
		h.t.Fatalf("%v", err)
	}
	e := &fsm.Entry{Kind: fsm.KindSeal}
	for _, ref := range refs {
		p := h.bodies[ref.Revision]
		if err := ref.Check(p); err != nil {
			h.t.Fatalf("%v", err)
		}
		e.Policies = append(e.Policies, fsm.Install{PolicyRef: ref, Policy: p})
	}
	return e
}

func (h *handoff) seal() {
	h.t.Helper()
	if got := *h.must(h.dst, h.sealing()).Manifest; got != h.manifest {
		h.t.Fatalf("sealed %+v, frozen was %+v", got, h.manifest)
	}
}

func (h *handoff) activate(epoch fsm.Epoch) {
	h.t.Helper()
	h.must(h.dst, &fsm.Entry{Kind: fsm.KindActivate, Epoch: epoch})
}

func (h *handoff) release() {
	h.t.Helper()
	h.must(h.src, &fsm.Entry{Kind: fsm.KindRelease})
}

func (h *handoff) abort(m *fsm.Machine) {
	h.t.Helper()
	h.must(m, &fsm.Entry{Kind: fsm.KindAbort})
}

// move makes all steps.
func (h *handoff) move(epoch fsm.Epoch) {
	h.t.Helper()
	h.pull()
	h.freeze()
	h.open()
	h.pull()
	h.seal()
	h.activate(epoch)
	h.release()
}

// inPieces cuts an image into pieces of at most maxBytes of data each; an empty slot is one piece without data.
func inPieces(i fsm.Image, maxBytes int) []fsm.Piece {
	size := uint64(len(i.Data))
	if size == 0 {
		return []fsm.Piece{{Slot: i.Slot}}
	}
	var out []fsm.Piece
	for data := i.Data; len(data) > 0; {
		n := min(maxBytes, len(data))
		out = append(out, fsm.Piece{Slot: i.Slot, Digest: i.Digest, Size: size, Offset: size - uint64(len(data)), Data: data[:n]})
		data = data[n:]
	}
	return out
}
