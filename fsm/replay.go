package fsm

import (
	"encoding/binary"
	"slices"
	"strings"

	"github.com/dchest/siphash"

	"github.com/quorate/quorate/internal/guard"
)

// maxReplayHorizon is the longest replay horizon that a policy can set. The labels of ended revisions
// are kept for as long, since a record may name them.
const maxReplayHorizon = Time(15 * 60 * 1_000_000_000)

// recordID stands for (principal, gateway, decisionId), or for (gateway, principal): a keyed 128-bit
// hash, so that a record costs the same whatever the callers name things.
type recordID [16]byte

// hash is that of the id in an index.
func (id *recordID) hash() uint32 { return binary.LittleEndian.Uint32(id[:4]) }

// record is a recorded decision. It holds no pointer, so millions of them cost the collector nothing.
type record struct {
	id        recordID
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

// record is the one of this id, which may have ended; 0 when there is none.
func (s *shard) record(id recordID) ref {
	return s.byID.find(id.hash(), func(r ref) bool { return s.records.at(r).id == id })
}

// replay answers c from a record that has not ended.
func (m *Machine) replay(p *caller, c *Check) (Decision, bool) {
	if p.record == 0 {
		return Decision{}, false
	}
	rec := p.shard.records.at(p.record)
	if m.now >= rec.ends {
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
		Limits: m.standing(p, c),
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
func (m *Machine) recordAllow(p *caller, c *Check, d *Decision, horizonNanos int64) {
	m.allows++
	if !guard.On(guard.WholeHorizon) {
		horizonNanos -= horizonNanos / 100
	}
	m.addRecord(p, record{
		id: p.id, payload: m.payloadOf(c), ends: m.now + Time(horizonNanos), remaining: d.Remaining,
		revision: d.Revision, name: m.gateways.use(c.Gateway), slot: p.slot, allowed: true,
	})
}

// recordDenial records a denial unless there are too many already, and reports whether it did.
func (m *Machine) recordDenial(p *caller, c *Check, d *Decision, horizonNanos int64) bool {
	if m.denials+m.waiting().denials >= m.bounds.MaxReplayRecords {
		return false
	}
	s := p.shard
	of := m.hash128(hashDenials, c.Gateway, c.Principal)
	r := s.denialsOf(of)
	var ends []Time
	if r != 0 {
		ends = s.denials.at(r).ends
	}
	if len(ends) >= MaxDenialRecords {
		ends = m.unended(ends)
	}
	if len(ends) >= MaxDenialRecords {
		return false
	}
	end := m.now + Time(horizonNanos)
	ends = append(ends[:len(ends):len(ends)], end)
	if r != 0 {
		m.setDenials(s, r, s.denials.at(r).lookAt, ends)
	} else {
		r = m.addDenials(s, denialList{of: of, lookAt: end, slot: p.slot, ends: ends})
		m.remember(s, due{end, r, dueDenials})
	}
	m.denials++
	m.addRecord(p, record{
		id: p.id, payload: m.payloadOf(c), ends: end, retryAt: d.RetryAt, remaining: d.Remaining,
		revision: d.Revision, name: m.limitNames.use(d.Limit), slot: p.slot,
	})
	return true
}

// addRecord adds a record, in the place of one that has ended and was not swept yet: what is left of that on the
// agenda is stale, and is met before the new one ends.
func (m *Machine) addRecord(p *caller, rec record) {
	s, r := p.shard, p.record
	if r != 0 {
		m.forgetting(s, r)
		*s.records.at(r) = rec
	} else {
		m.keepRecord(s, rec.id, 0)
		r = s.records.add(rec)
		s.byID.add(rec.id.hash(), r)
	}
	m.count(rec.slot, m.hashRecord(&rec, m.textOf(&rec)))
	m.remember(s, due{rec.ends, r, dueRecord})
}

// textOf is the gateway of a recorded allow, the limit of a recorded denial.
func (m *Machine) textOf(rec *record) string {
	if rec.allowed {
		return m.gateways.text(rec.name)
	}
	return m.limitNames.text(rec.name)
}

func (m *Machine) forgetRecord(s *shard, r ref) {
	m.forgetting(s, r)
	s.removeRecord(r)
}

// forgetting is what a record leaves behind when it goes.
func (m *Machine) forgetting(s *shard, r ref) {
	rec := s.records.at(r)
	m.keepRecord(s, rec.id, r)
	m.discount(rec.slot, m.hashRecord(rec, m.textOf(rec))) // while its text is still known
	m.releaseRecord(rec)
}

func (s *shard) removeRecord(r ref) {
	s.byID.remove(s.records.at(r).id.hash(), r)
	s.records.remove(r)
}

// releaseRecord counts a record that goes.
func (m *Machine) releaseRecord(rec *record) {
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
	of     recordID
	lookAt Time
	slot   Slot
	ends   []Time // never changed in place
}

// denialsOf is the list of one (gateway, principal); 0 when there is none.
func (s *shard) denialsOf(of recordID) ref {
	return s.byCaller.find(of.hash(), func(r ref) bool { return s.denials.at(r).of == of })
}

func (m *Machine) unended(ends []Time) []Time {
	ended := func(t Time) bool { return m.now >= t }
	if !slices.ContainsFunc(ends, ended) {
		return ends
	}
	return slices.DeleteFunc(slices.Clone(ends), ended)
}

func (m *Machine) addDenials(s *shard, list denialList) ref {
	m.keepDenials(s, list.of, 0)
	r := s.denials.add(list)
	s.byCaller.add(list.of.hash(), r)
	m.count(list.slot, m.hashDenials(&list))
	return r
}

func (m *Machine) setDenials(s *shard, r ref, lookAt Time, ends []Time) {
	list := s.denials.at(r)
	m.keepDenials(s, list.of, r)
	m.discount(list.slot, m.hashDenials(list))
	list.lookAt, list.ends = lookAt, ends
	m.count(list.slot, m.hashDenials(list))
}

func (s *shard) removeDenials(r ref) {
	s.byCaller.remove(s.denials.at(r).of.hash(), r)
	s.denials.remove(r)
}

func (m *Machine) endDenials(s *shard, r ref) {
	list := s.denials.at(r)
	if ends := m.unended(list.ends); len(ends) > 0 {
		m.setDenials(s, r, slices.Max(ends), ends)
		s.push(due{list.lookAt, r, dueDenials})
		return
	}
	m.keepDenials(s, list.of, r)
	m.discount(list.slot, m.hashDenials(list))
	s.removeDenials(r)
}

// names numbers texts that many records share, and forgets a text with its last use.
type names struct {
	numbers map[string]uint32
	texts   []string
	counts  []int64
	free    []uint32
	last    uint32 // the number that was asked for last, mostly the next one too
}

func newNames() names { return names{numbers: map[string]uint32{}} }

// number is the number of text, if it is in use.
func (n *names) number(text string) (uint32, bool) {
	if int(n.last) < len(n.texts) && n.counts[n.last] > 0 && n.texts[n.last] == text {
		return n.last, true
	}
	i, ok := n.numbers[text]
	if ok {
		n.last = i
	}
	return i, ok
}

// use counts one more use of text and returns its number.
func (n *names) use(text string) uint32 {
	if i, ok := n.number(text); ok {
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
	text = strings.Clone(text) // of an entry, which need not be kept for it
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
	if i, ok := n.number(text); ok {
		return n.counts[i]
	}
	return 0
}
