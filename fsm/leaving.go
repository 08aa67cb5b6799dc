package fsm

import "slices"

// Slots that were released are not owned any more, and what they held is dropped some shards with each batch, so
// that to release costs the same whatever they hold. Until then it is state like any other, that nobody can ask
// for.

const (
	// droppedPerBatch and droppedPerTick is how many keys and records are dropped at least.
	droppedPerBatch = 8192
	droppedPerTick  = 65536
)

// leave has the frozen slots dropped from now on.
func (m *Machine) leave() {
	m.dropSome(everything)
	m.leaving = m.owned.frozen()
}

// dropSome drops the slots that leave, a shard at a time, until there were so many things.
func (m *Machine) dropSome(things int64) {
	if len(m.leaving) == 0 {
		return
	}
	for ; things > 0 && m.left < numShards; m.left++ {
		things -= m.drop(m.shards[m.left])
	}
	if m.left == numShards {
		m.leaving, m.left, m.config = nil, 0, nil
	}
}

// drop drops what is in a shard of the slots that leave, and tells how much the shard held.
func (m *Machine) drop(s *shard) int64 {
	var gone [SlotsPerShard]bool
	for i := range gone {
		slot := Slot(s.index*SlotsPerShard + i)
		if gone[i] = contains(m.leaving, slot); gone[i] {
			m.digest.sub(m.slots[slot])
			m.slots[slot] = digest{}
		}
	}
	if !slices.Contains(gone[:], true) {
		return 0
	}
	held := int64(1 + len(s.principals) + len(s.records))
	leaves := func(d due) bool {
		slot, ok := s.slotOf(&d)
		return !ok || gone[slot%SlotsPerShard]
	}
	s.agenda.strikeAll(leaves)
	s.parked = slices.DeleteFunc(s.parked, leaves)
	m.calendar.moved(s)
	for name, p := range s.principals {
		if gone[p.slot%SlotsPerShard] {
			m.keepPrincipal(s, name)
			for _, k := range p.keys {
				m.countKey(k.class, -1)
			}
			delete(s.principals, name)
		}
	}
	for id, rec := range s.records {
		if gone[rec.slot%SlotsPerShard] {
			m.keepRecord(s, id)
			m.releaseRecord(rec)
			delete(s.records, id)
		}
	}
	for of, list := range s.denials {
		if gone[list.slot%SlotsPerShard] {
			m.keepDenials(s, of)
			delete(s.denials, of)
		}
	}
	s.refresh()
	return held
}
