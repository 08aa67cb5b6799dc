package fsm

import "encoding/binary"

// SlotDigest is the digest of the state of one slot, or of the policy history for HistorySlot.
type SlotDigest struct {
	Slot   Slot
	Digest [16]byte
}

// Image is all that a slot holds, encoded, or the policy history. Data is empty when the slot is.
type Image struct {
	SlotDigest
	Data []byte
}

// SlotDigests are the digests of the slots of ranges that are not empty, in order, and that of HistorySlot at
// the end. It is linear in the slots and not in what they hold, but for what a plan has just brought. The machine
// must be born.
func (m *Machine) SlotDigests(ranges []SlotRange) []SlotDigest {
	var out []SlotDigest
	for _, r := range ranges {
		for s := r.First; s <= r.Last; s++ {
			if d := m.slotDigest(s); d != (digest{}) {
				out = append(out, SlotDigest{s, d.bytes()})
			}
		}
	}
	return append(out, SlotDigest{HistorySlot, m.hashHistory(m.appendHistory(nil))})
}

func (m *Machine) slotDigest(s Slot) digest {
	if m.packed != nil && m.packed.images[s] != nil {
		return m.sum(m.unpacked(m.packed.images[s]))
	}
	return m.slots[s]
}

// DifferingSlots are the slots whose images have to be sent to one that has have, for him to have what is there:
// in the order of there those that he has otherwise or not at all, then those that he has and that are empty
// there.
func DifferingSlots(there, have []SlotDigest) []Slot {
	has := make(map[Slot][16]byte, len(have))
	for _, d := range have {
		has[d.Slot] = d.Digest
	}
	var out []Slot
	for _, d := range there {
		if got, ok := has[d.Slot]; !ok || got != d.Digest {
			out = append(out, d.Slot)
		}
		delete(has, d.Slot)
	}
	for _, d := range have {
		if _, gone := has[d.Slot]; gone {
			out = append(out, d.Slot)
		}
	}
	return out
}

// Manifest is what an export of ranges amounts to as the state stands. Of slots that a plan has frozen it is what
// the freeze answered, whatever has been applied since.
func (m *Machine) Manifest(ranges []SlotRange) Manifest {
	out := Manifest{FrozenAt: m.now, Revision: m.rev.number(), Digest: m.hashSlots(m.SlotDigests(ranges))}
	if m.frozenBy != 0 && m.owned.frozenWhole(ranges) {
		out.FrozenAt = m.frozenAt
	}
	return out
}

func (m *Machine) hashSlots(of []SlotDigest) [16]byte {
	b := append(m.scratch[:0], hashManifest)
	for i := range of {
		b = binary.LittleEndian.AppendUint16(b, uint16(of[i].Slot))
		b = append(b, of[i].Digest[:]...)
	}
	return m.element(b).bytes()
}

// Images are the images of slots, in the order of slots. It walks once over the state of each run of slots that
// are in one shard, so ask for the slots of a shard together: SlotsPerShard neighbours, from a multiple of it. The
// machine must be born.
func (m *Machine) Images(slots []Slot) []Image {
	out := make([]Image, len(slots))
	for i := 0; i < len(slots); {
		if slots[i] == HistorySlot {
			data := m.appendHistory(nil)
			out[i] = Image{SlotDigest{HistorySlot, m.hashHistory(data)}, data}
			i++
			continue
		}
		s, end := m.shardOf(slots[i]), i+1
		for end < len(slots) && slots[end] < HistorySlot && m.shardOf(slots[end]) == s {
			end++
		}
		var wanted [SlotsPerShard]bool
		for _, slot := range slots[i:end] {
			wanted[slot%SlotsPerShard] = true
		}
		here := m.holdings(s, func(slot Slot) bool { return wanted[slot%SlotsPerShard] })
		for ; i < end; i++ {
			h := here[slots[i]]
			if m.packed != nil && m.packed.images[slots[i]] != nil {
				h = m.unpacked(m.packed.images[slots[i]])
			}
			out[i] = Image{SlotDigest{slots[i], m.slotDigest(slots[i]).bytes()}, appendImage(nil, h)}
		}
	}
	return out
}
