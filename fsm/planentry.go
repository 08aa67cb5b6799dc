package fsm

import (
	"encoding/binary"
	"fmt"
)

// appendPlanStep encodes what is its own of an entry that is a step of a plan.
func appendPlanStep(b []byte, e *Entry) []byte {
	b = binary.AppendUvarint(b, uint64(e.Plan))
	switch e.Kind {
	case KindFreeze:
		b = appendRanges(b, e.Ranges)
		b = binary.AppendUvarint(b, uint64(e.Revision))
	case KindStage:
		b = binary.AppendUvarint(b, uint64(len(e.Pieces)))
		for i := range e.Pieces {
			b = appendPiece(b, &e.Pieces[i])
		}
	case KindOpen:
		b = appendRanges(b, e.Ranges)
		b = appendManifest(b, &e.Manifest)
	case KindSeal:
		b = binary.AppendUvarint(b, uint64(len(e.Policies)))
		for i := range e.Policies {
			b = appendPolicyRef(b, &e.Policies[i].PolicyRef)
		}
	case KindActivate:
		var lost byte
		if e.Lost {
			lost = 1
		}
		b = append(binary.AppendUvarint(b, uint64(e.Epoch)), lost)
	default: // of a release and of an abort the plan says all
	}
	return b
}

func (d *decoder) planStep(e *Entry) {
	e.Plan = PlanID(d.uvarint())
	switch e.Kind {
	case KindFreeze:
		e.Ranges, e.Revision = d.ranges(), Revision(d.uvarint())
	case KindStage:
		for range d.count() {
			e.Pieces = append(e.Pieces, d.piece())
		}
	case KindOpen:
		e.Ranges, e.Manifest = d.ranges(), d.manifest()
	case KindSeal:
		for range d.count() {
			e.Policies = append(e.Policies, Install{PolicyRef: d.policyRef()})
		}
	case KindActivate:
		e.Epoch = Epoch(d.uvarint())
		switch flag := d.byte(); flag {
		case 0, 1:
			e.Lost = flag == 1
		default:
			d.fail(fmt.Errorf("what is lost is said by %d", flag))
		}
	default:
	}
}

func appendRanges(b []byte, ranges []SlotRange) []byte {
	b = binary.AppendUvarint(b, uint64(len(ranges)))
	for _, r := range ranges {
		b = binary.AppendUvarint(b, uint64(r.First))
		b = binary.AppendUvarint(b, uint64(r.Last))
	}
	return b
}

func (d *decoder) ranges() (out []SlotRange) {
	for range d.count() {
		out = append(out, d.slotRange())
	}
	return out
}

func appendPiece(b []byte, p *Piece) []byte {
	b = appendSlotDigest(b, SlotDigest{p.Slot, p.Digest})
	b = binary.AppendUvarint(b, p.Size)
	b = binary.AppendUvarint(b, p.Offset)
	b = binary.AppendUvarint(b, uint64(len(p.Data)))
	return append(b, p.Data...)
}

// piece reads a piece, whose data stays in what is read from.
func (d *decoder) piece() Piece {
	of := d.slotDigest()
	p := Piece{Slot: of.Slot, Digest: of.Digest, Size: d.uvarint(), Offset: d.uvarint()}
	if data := d.bytes(d.uvarint()); len(data) > 0 {
		p.Data = data
	}
	return p
}

func appendManifest(b []byte, m *Manifest) []byte {
	b = binary.AppendVarint(b, int64(m.FrozenAt))
	b = binary.AppendUvarint(b, uint64(m.Revision))
	return append(b, m.Digest[:]...)
}

func (d *decoder) manifest() (m Manifest) {
	m.FrozenAt, m.Revision = d.time(), Revision(d.uvarint())
	d.array(m.Digest[:])
	return m
}

// slot reads a slot up to last.
func (d *decoder) slot(last Slot) Slot {
	s := d.uvarint()
	if s > uint64(last) {
		d.fail(fmt.Errorf("slot %d is out of range", s))
		return 0
	}
	return Slot(s)
}
