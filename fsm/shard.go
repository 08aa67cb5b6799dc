package fsm

import (
	"strings"

	"github.com/quorate/quorate/internal/guard"
)

// Shards divide the state so that a snapshot can be written piece by piece beside the entries that go
// on being applied. All state of a principal is in one shard.
const (
	numShards = 1024
	// SlotsPerShard is how many neighbouring slots one shard holds.
	SlotsPerShard = NumSlots / numShards
)

// shard holds the state of SlotsPerShard slots.
type shard struct {
	index      int
	principals slab[principal]
	keys       slab[key]
	records    slab[record]
	denials    slab[denialList]
	byName     index // of principals
	byID       index // of records
	byCaller   index // of denials
	agenda     []due
	parked     []due // due while its slot is frozen
}

func newShards() []*shard {
	shards := make([]*shard, numShards)
	for i := range shards {
		shards[i] = &shard{index: i}
	}
	return shards
}

// principal is one caller. Its keys are a list, in order of their classes' names.
type principal struct {
	name  string
	slot  Slot
	first ref // key; 0 only while the principal is made
}

// key is the admissions of one principal in one class.
type key struct {
	class  *class
	lookAt Time // when it is due to be looked at
	log    rolling
	owner  ref
	next   ref // key of the owner; 0: it is the last
}

// caller is a principal's name with what is here of it, and of the check that it makes.
type caller struct {
	name  string
	hash  uint64
	slot  Slot
	shard *shard
	ref   ref // of the principal; 0 while it holds nothing
	// record is what is here under the check's id, which may have ended; 0 for nothing.
	id     recordID
	record ref
}

// callerOf finds a principal.
func (m *Machine) callerOf(name string) caller {
	c := caller{name: name, hash: m.hashName(name)}
	c.slot = slotOfHash(c.hash)
	c.shard = m.shardOf(c.slot)
	c.find()
	return c
}

func (c *caller) find() { c.ref = c.shard.principal(c.hash, c.name) }

func (c *caller) findRecord() { c.record = c.shard.record(c.id) }

// principal is the one of this name and hash; 0 when there is none.
func (s *shard) principal(hash uint64, name string) ref {
	return s.byName.find(uint32(hash), func(r ref) bool { return s.principals.at(r).name == name })
}

// key is that of class, or nil.
func (c *caller) key(class string) *key {
	if c.ref == 0 {
		return nil
	}
	for k := c.firstKey(); k != nil; k = c.nextKey(k) {
		if k.class.name == class {
			return k
		}
	}
	return nil
}

func (c *caller) firstKey() *key {
	if c.ref == 0 {
		return nil
	}
	return c.shard.key(c.shard.principals.at(c.ref).first)
}

func (c *caller) nextKey(k *key) *key { return c.shard.key(k.next) }

func (s *shard) key(r ref) *key {
	if r == 0 {
		return nil
	}
	return s.keys.at(r)
}

// keysOf appends the keys of a principal to out.
func (s *shard) keysOf(out []*key, p *principal) []*key {
	for r := p.first; r != 0; {
		k := s.keys.at(r)
		out = append(out, k)
		r = k.next
	}
	return out
}

func (m *Machine) shardOf(s Slot) *shard { return m.shards[int(s)/SlotsPerShard] }

// remember puts d on the agenda of s.
func (m *Machine) remember(s *shard, d due) {
	s.push(d)
	m.calendar.moved(s)
}

// makeKey adds an empty key. The caller has checked the bounds.
func (m *Machine) makeKey(c *caller, of *class) *key {
	r := m.insertKey(c, key{class: of, lookAt: m.now + of.keep(m.now) + 1})
	k := c.shard.keys.at(r)
	m.remember(c.shard, due{k.lookAt, r, dueKey})
	return k
}

// insertKey puts a key into its place among those of a principal, which it makes if need be, and counts it, but not its
// log.
func (m *Machine) insertKey(c *caller, k key) ref {
	s := c.shard
	if c.ref == 0 {
		c.ref = s.principals.add(principal{name: strings.Clone(c.name), slot: c.slot})
		s.byName.add(uint32(c.hash), c.ref)
	}
	k.owner = c.ref
	at := &s.principals.at(c.ref).first
	for *at != 0 && s.keys.at(*at).class.name < k.class.name {
		at = &s.keys.at(*at).next
	}
	k.next = *at
	r := s.keys.add(k)
	*at = r
	m.countKey(k.class, 1)
	m.count(c.slot, m.hashKey(c.name, &k))
	return r
}

// dropKey forgets a key, and its principal with the last one.
func (m *Machine) dropKey(s *shard, r ref) {
	k := s.keys.at(r)
	p := s.principals.at(k.owner)
	m.countKey(k.class, -1)
	m.discount(p.slot, m.hashKey(p.name, k))
	at := &p.first
	for *at != r {
		at = &s.keys.at(*at).next
	}
	*at = k.next
	if p.first == 0 {
		m.removePrincipal(s, k.owner)
	}
	s.keys.remove(r)
}

func (m *Machine) removePrincipal(s *shard, r ref) {
	s.byName.remove(uint32(m.hashName(s.principals.at(r).name)), r)
	s.principals.remove(r)
}

// countKey counts a key of c that comes or goes.
func (m *Machine) countKey(c *class, n int64) {
	m.keys += n
	m.unreserved -= max(0, c.keys-c.reserve)
	c.keys += n
	m.unreserved += max(0, c.keys-c.reserve)
}

// shareKeys reserves half of the keys for the classes of the policy in force, in equal parts. The
// other half goes to whoever comes first, so a flood in one class leaves room in every other.
func (m *Machine) shareKeys() {
	share := m.bounds.MaxKeys / 2 / int64(len(m.rev.policy.Classes)+1)
	m.reserved, m.unreserved = 0, 0
	for _, c := range m.sortedClasses() {
		c.reserve = 0
		if c.listed(m.rev.policy) {
			c.reserve = share
			m.reserved += share
		}
		m.unreserved += max(0, c.keys-c.reserve)
	}
}

// trim forgets the admissions of a key of p that can never count again.
func (m *Machine) trim(p *principal, k *key) {
	before := k.class.horizon(m.now)
	m.dropPairs(p, k, k.log.after(before-1)-int(k.log.head))
}

func (m *Machine) dropPairs(p *principal, k *key, n int) {
	if n == 0 {
		return
	}
	for i := int(k.log.head); i < int(k.log.head)+n; i++ {
		m.discount(p.slot, m.hashPair(p.name, k.class, k.log.pairs[i].at, k.log.weight(i)))
	}
	k.log.drop(n)
}

// admit appends cost to the log of a key of p at the present time.
func (m *Machine) admit(p *principal, k *key, cost int64) {
	l := &k.log
	m.trim(p, k)
	if n := len(l.pairs); l.len() > 0 && l.newest() == m.now {
		m.discount(p.slot, m.hashPair(p.name, k.class, m.now, l.weight(n-1)))
	} else if l.len() >= maxPairs {
		d := m.hashLog(p.name, k)
		m.discount(p.slot, d)
		l.round(m.now)
		d = m.hashLog(p.name, k)
		m.count(p.slot, d)
	}
	l.append(m.now, uint64(cost))
	m.count(p.slot, m.hashPair(p.name, k.class, m.now, l.weight(len(l.pairs)-1)))
	m.dropPairs(p, k, l.superfluous())
}

// sweep forgets what has ended, the earliest first, at most limit things. What is in a frozen slot
// stays as it is.
func (m *Machine) sweep(limit int) {
	for limit > 0 && guard.On(guard.Forgetting) {
		first := m.calendar.first()
		if first.at > m.now {
			return
		}
		s := m.shards[first.shard]
		d := s.pop()
		slot, ok := s.slotOf(d)
		switch {
		case !ok:
			// Stale: a restored replica does not have it, so it must not cost anything.
		case m.frozen(slot):
			s.parked = append(s.parked, d)
		default:
			m.end(s, d)
			limit--
		}
		m.calendar.moved(s)
	}
}

// slotOf is the slot of what d stands for; ok is false when d is stale.
func (s *shard) slotOf(d due) (Slot, bool) {
	switch d.kind {
	case dueRecord:
		rec := s.records.at(d.what)
		return rec.slot, rec.ends == d.at
	case dueDenials:
		list := s.denials.at(d.what)
		return list.slot, list.lookAt == d.at
	default:
		return s.principals.at(s.keys.at(d.what).owner).slot, true
	}
}

// end forgets what d stands for, or puts off looking at it.
func (m *Machine) end(s *shard, d due) {
	switch d.kind {
	case dueRecord:
		m.forgetRecord(s, d.what)
	case dueDenials:
		m.endDenials(s, d.what)
	default:
		m.endKey(s, d.what)
	}
}

func (m *Machine) endKey(s *shard, r ref) {
	k := s.keys.at(r)
	p := s.principals.at(k.owner)
	m.keepPrincipal(s, p.name, k.owner)
	m.trim(p, k)
	if k.log.len() == 0 {
		m.dropKey(s, r)
		return
	}
	m.discount(p.slot, m.hashKey(p.name, k))
	k.lookAt = max(k.log.newest()+k.class.keep(m.now), m.now) + 1
	m.count(p.slot, m.hashKey(p.name, k))
	s.push(due{k.lookAt, r, dueKey})
}

// unpark puts what waited for a thaw on the agendas again.
func (m *Machine) unpark() {
	for _, s := range m.shards {
		parked := s.parked
		s.parked = nil
		for _, d := range parked {
			m.remember(s, d)
		}
	}
}

// frozen reports that nothing in s ends: it is frozen, or it was and is about to be dropped.
func (m *Machine) frozen(s Slot) bool {
	r, ok := m.owned.find(s)
	return ok && r.FrozenBy != 0 && guard.On(guard.FrozenStill) || !ok && contains(m.leaving, s)
}
