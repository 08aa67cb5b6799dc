package fsm

import (
	"encoding/binary"
	"slices"

	"github.com/dchest/siphash"
)

// maxReplayHorizon is the longest replay horizon that a policy can set. The labels of ended revisions
// are kept for as long, since a record may name them.
const maxReplayHorizon = Time(15 * 60 * 1_000_000_000)

// recordID stands for (principal, gateway, decisionId), or for (gateway, principal): a keyed 128-bit
// hash, so that a record costs the same whatever the callers name things.
type recordID [16]byte

// record is a recorded decision. It holds no pointer, so millions of them cost the collector nothing.
type record struct {
	payload   uint64 // hash of the charges: the same id with others is refused
	ends      Time   // exclusive
	retryAt   Time   // of a denial
	remaining int64
	revision  Revision
	// name is the number of the gateway of an allow, or of the limit of a denial.
	name    uint32
	slot    Slot
	allowed bool
}

// label keeps the administrator's name of a revision that is no longer in force.
type label struct {
	revision Revision
	version  string
	ended    Time
}

// hash128 hashes length-prefixed parts under the partition's seed.
func (m *Machine) hash128(domain byte, parts ...string) recordID {
	b := append(m.scratch[:0], domain)
	for _, p := range parts {
		b = binary.AppendUvarint(b, uint64(len(p)))
		b = append(b, p...)
	}
	m.scratch = b
	return m.sum128(b)
}

func (m *Machine) sum128(b []byte) (id recordID) {
	lo, hi := siphash.Hash128(m.key0, m.key1, b)
	binary.LittleEndian.PutUint64(id[:8], lo)
	binary.LittleEndian.PutUint64(id[8:], hi)
	return id
}

// payloadOf hashes what a repeated check must have in common with the first.
func (m *Machine) payloadOf(c *Check) uint64 {
	b := append(m.scratch[:0], hashPayload)
	b = appendCharge(b, &c.Charge)
	for i := range c.Also {
		b = appendCharge(b, &c.Also[i])
	}
	m.scratch = b
	return siphash.Hash(m.key0, m.key1, b)
}

// replay answers c from a record that has not ended.
func (m *Machine) replay(s *shard, id recordID, c *Check) (Decision, bool) {
	rec, ok := s.records[id]
	if !ok || m.now >= rec.ends {
		return Decision{}, false
	}
	if rec.payload != m.payloadOf(c) {
		return m.refuse(ReasonDecisionIDConflict,
			"this decision id was used with another apiClass, tier, cost or also: use a new id"), true
	}
	d := Decision{
		Reason: ReasonAllowed, Remaining: rec.remaining, AsOf: m.now,
		Revision: rec.revision, Version: m.versionOf(rec.revision),
		Replayed: true, Recorded: true,
		Limits: m.standing(c),
	}
	if !rec.allowed {
		d.Reason, d.Limit, d.RetryAt = ReasonQuotaExhausted, m.limitNames.text(rec.name), rec.retryAt
	}
	return d, true
}

func (m *Machine) versionOf(r Revision) string {
	if r == m.rev.number() {
		return m.rev.policy.Version
	}
	i, ok := slices.BinarySearchFunc(m.labels, r, func(l label, r Revision) int {
		return int(int64(l.revision) - int64(r))
	})
	if !ok {
		return ""
	}
	return m.labels[i].version
}

// roomForAllow reports whether one more allow of gateway can be recorded.
func (m *Machine) roomForAllow(gateway string) bool {
	limit := m.bounds.MaxReplayRecords
	return m.allows+m.waiting().allows < limit && m.gateways.uses(gateway) < max(1, limit/4*3)
}

// recordAllow records an allow. The caller has found room for it.
func (m *Machine) recordAllow(s *shard, id recordID, slot Slot, c *Check, d *Decision, horizonNanos int64) {
	m.allows++
	m.addRecord(s, id, record{
		payload: m.payloadOf(c), ends: m.now + Time(horizonNanos), remaining: d.Remaining,
		revision: d.Revision, name: m.gateways.use(c.Gateway), slot: slot, allowed: true,
	})
}

// recordDenial records a denial unless there are too many already, and reports whether it did.
func (m *Machine) recordDenial(s *shard, id recordID, slot Slot, c *Check, d *Decision, horizonNanos int64) bool {
	if m.denials+m.waiting().denials >= m.bounds.MaxReplayRecords {
		return false
	}
	of := m.hash128(hashDenials, c.Gateway, c.Principal)
	list, known := s.denials[of]
	if len(list.ends) >= MaxDenialRecords {
		list.ends = m.unended(list.ends)
	}
	if len(list.ends) >= MaxDenialRecords {
		return false
	}
	end := m.now + Time(horizonNanos)
	if !known {
		list = denialList{lookAt: end, slot: slot}
		m.remember(s, due{at: end, kind: dueDenials, id: of})
	}
	list.ends = append(list.ends[:len(list.ends):len(list.ends)], end)
	m.setDenials(s, of, list)
	m.denials++
	m.addRecord(s, id, record{
		payload: m.payloadOf(c), ends: end, retryAt: d.RetryAt, remaining: d.Remaining,
		revision: d.Revision, name: m.limitNames.use(d.Limit), slot: slot,
	})
	return true
}

func (m *Machine) addRecord(s *shard, id recordID, rec record) {
	if old, ok := s.records[id]; ok {
		// It has ended but was not swept yet; what is left of it on the agenda is stale.
		m.forgetRecord(s, id, old)
	}
	m.keepRecord(s, id)
	s.records[id] = rec
	m.count(rec.slot, m.hashRecord(id, rec, m.textOf(rec)))
	m.remember(s, due{at: rec.ends, kind: dueRecord, id: id})
}

// textOf is the gateway of a recorded allow, the limit of a recorded denial.
func (m *Machine) textOf(rec record) string {
	if rec.allowed {
		return m.gateways.text(rec.name)
	}
	return m.limitNames.text(rec.name)
}

func (m *Machine) forgetRecord(s *shard, id recordID, rec record) {
	m.keepRecord(s, id)
	m.discount(rec.slot, m.hashRecord(id, rec, m.textOf(rec))) // while its text is still known
	delete(s.records, id)
	m.releaseRecord(rec)
}

// releaseRecord counts a record that goes.
func (m *Machine) releaseRecord(rec record) {
	if rec.allowed {
		m.allows--
		m.gateways.release(rec.name)
	} else {
		m.denials--
		m.limitNames.release(rec.name)
	}
}

// denialList is the ends of the recorded denials of one (gateway, principal), and when it is due to be
// looked at.
type denialList struct {
	lookAt Time
	slot   Slot
	ends   []Time
}

func (m *Machine) unended(ends []Time) []Time {
	return slices.DeleteFunc(slices.Clone(ends), func(t Time) bool { return m.now >= t })
}

func (m *Machine) setDenials(s *shard, of recordID, list denialList) {
	m.keepDenials(s, of)
	if old, ok := s.denials[of]; ok {
		m.discount(old.slot, m.hashDenials(of, old))
	}
	s.denials[of] = list
	m.count(list.slot, m.hashDenials(of, list))
}

func (m *Machine) endDenials(s *shard, of recordID) {
	m.keepDenials(s, of)
	list := s.denials[of]
	m.discount(list.slot, m.hashDenials(of, list))
	delete(s.denials, of)
	if list.ends = m.unended(list.ends); len(list.ends) == 0 {
		return
	}
	list.lookAt = slices.Max(list.ends)
	m.setDenials(s, of, list)
	m.remember(s, due{at: list.lookAt, kind: dueDenials, id: of})
}

// names numbers texts that many records share, and forgets a text with its last use.
type names struct {
	numbers map[string]uint32
	texts   []string
	counts  []int64
	free    []uint32
}

func newNames() names { return names{numbers: map[string]uint32{}} }

// use counts one more use of text and returns its number.
func (n *names) use(text string) uint32 {
	if i, ok := n.numbers[text]; ok {
		n.counts[i]++
		return i
	}
	var i uint32
	if last := len(n.free) - 1; last >= 0 {
		i = n.free[last]
		n.free = n.free[:last]
	} else {
		i = uint32(len(n.texts))
		n.texts = append(n.texts, "")
		n.counts = append(n.counts, 0)
	}
	n.numbers[text], n.texts[i], n.counts[i] = i, text, 1
	return i
}

// release takes one use back.
func (n *names) release(i uint32) {
	if n.counts[i]--; n.counts[i] == 0 {
		delete(n.numbers, n.texts[i])
		n.texts[i] = ""
		n.free = append(n.free, i)
	}
}

func (n *names) text(i uint32) string { return n.texts[i] }

// uses is how often text is in use.
func (n *names) uses(text string) int64 {
	if i, ok := n.numbers[text]; ok {
		return n.counts[i]
	}
	return 0
}
