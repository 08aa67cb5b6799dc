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
	held := int64(1 + s.byName.n + s.byID.n)
	leaves := func(d due) bool {
		slot, ok := s.slotOf(d)
		return !ok || gone[slot%SlotsPerShard]
	}
	s.strike(leaves)
	s.parked = slices.DeleteFunc(s.parked, leaves)
	m.calendar.moved(s)
	for _, r := range slices.Collect(s.byName.each) {
		p := s.principals.at(r)
		if !gone[p.slot%SlotsPerShard] {
			continue
		}
		m.keepPrincipal(s, p.name, r)
		for k := p.first; k != 0; {
			m.countKey(s.keys.at(k).class, -1)
			next := s.keys.at(k).next
			s.keys.remove(k)
			k = next
		}
		m.removePrincipal(s, r)
	}
	for _, r := range slices.Collect(s.byID.each) {
		if rec := s.records.at(r); gone[rec.slot%SlotsPerShard] {
			m.keepRecord(s, rec.id, r)
			m.releaseRecord(rec)
			s.removeRecord(r)
		}
	}
	for _, r := range slices.Collect(s.byCaller.each) {
		if list := s.denials.at(r); gone[list.slot%SlotsPerShard] {
			m.keepDenials(s, list.of, r)
			s.removeDenials(r)
		}
	}
	return held
}
