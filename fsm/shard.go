package fsm

import (
	"slices"
	"strings"
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
	principals map[string]*principal
	records    map[recordID]record
	denials    map[recordID]denialList
	agenda     agenda
	parked     []due // due while its slot is frozen
	place      int   // in the calendar
}

func newShards() []*shard {
	shards := make([]*shard, numShards)
	for i := range shards {
		shards[i] = &shard{
			index:      i,
			principals: map[string]*principal{},
			records:    map[recordID]record{},
			denials:    map[recordID]denialList{},
		}
	}
	return shards
}

// refresh lets go of the memory of maps that have become empty.
func (s *shard) refresh() {
	if len(s.principals) == 0 {
		s.principals = map[string]*principal{}
	}
	if len(s.records) == 0 {
		s.records = map[recordID]record{}
	}
	if len(s.denials) == 0 {
		s.denials = map[recordID]denialList{}
	}
}

// before orders shards by what is due first in them; the index makes the order total.
func (s *shard) before(o *shard) bool {
	switch {
	case len(s.agenda) == 0 || len(o.agenda) == 0:
		if len(s.agenda) == len(o.agenda) {
			return s.index < o.index
		}
		return len(o.agenda) == 0
	case s.agenda[0].at != o.agenda[0].at:
		return s.agenda[0].at < o.agenda[0].at
	default:
		return s.index < o.index
	}
}

// principal is one caller with its keys, in order of their classes' names.
type principal struct {
	name string
	slot Slot
	keys []*key
}

// key is the admissions of one principal in one class.
type key struct {
	owner  *principal
	class  *class
	log    rolling
	lookAt Time // when it is due to be looked at
}

func (p *principal) find(class string) (int, bool) {
	return slices.BinarySearchFunc(p.keys, class, func(k *key, class string) int {
		return strings.Compare(k.class.name, class)
	})
}

// key is that of class, or nil.
func (p *principal) key(class string) *key {
	if p == nil {
		return nil
	}
	i, ok := p.find(class)
	if !ok {
		return nil
	}
	return p.keys[i]
}

func (m *Machine) shardOf(s Slot) *shard { return m.shards[int(s)/SlotsPerShard] }

// remember puts d on the agenda of s.
func (m *Machine) remember(s *shard, d due) {
	s.agenda.push(d)
	if s.agenda[0] == d {
		m.calendar.moved(s)
	}
}

// makeKey adds an empty key. The caller has checked the bounds.
func (m *Machine) makeKey(s *shard, p *principal, c *class) *key {
	i, _ := p.find(c.name)
	k := &key{owner: p, class: c, lookAt: m.now + c.keep(m.now) + 1}
	p.keys = slices.Insert(p.keys, i, k)
	s.principals[p.name] = p
	m.countKey(c, 1)
	m.count(k.owner.slot, m.hashKey(k))
	m.remember(s, due{at: k.lookAt, kind: dueKey, key: k})
	return k
}

func (m *Machine) dropKey(s *shard, k *key) {
	i, _ := k.owner.find(k.class.name)
	k.owner.keys = slices.Delete(k.owner.keys, i, i+1)
	if len(k.owner.keys) == 0 {
		delete(s.principals, k.owner.name)
	}
	m.countKey(k.class, -1)
	m.discount(k.owner.slot, m.hashKey(k))
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

// trim forgets the admissions of k that can never count again.
func (m *Machine) trim(k *key) {
	before := k.class.horizon(m.now)
	n := k.log.after(before-1) - k.log.head
	m.dropPairs(k, n)
}

func (m *Machine) dropPairs(k *key, n int) {
	for i := k.log.head; i < k.log.head+n; i++ {
		m.discount(k.owner.slot, m.hashPair(k, k.log.pairs[i].at, k.log.weight(i)))
	}
	k.log.drop(n)
}

// admit appends cost to the log of k at the present time.
func (m *Machine) admit(k *key, cost int64) {
	l := &k.log
	m.trim(k)
	if n := len(l.pairs); l.len() > 0 && l.newest() == m.now {
		m.discount(k.owner.slot, m.hashPair(k, m.now, l.weight(n-1)))
	} else if l.len() >= maxPairs {
		m.hashLog(k, m.discount)
		l.round(m.now)
		m.hashLog(k, m.count)
	}
	l.append(m.now, uint64(cost))
	m.count(k.owner.slot, m.hashPair(k, m.now, l.weight(len(l.pairs)-1)))
	m.dropPairs(k, l.superfluous())
}

func (m *Machine) hashLog(k *key, each func(Slot, digest)) {
	for i := k.log.head; i < len(k.log.pairs); i++ {
		each(k.owner.slot, m.hashPair(k, k.log.pairs[i].at, k.log.weight(i)))
	}
}

// sweep forgets what has ended, the earliest first, at most limit things. What is in a frozen slot
// stays as it is.
func (m *Machine) sweep(limit int) {
	for limit > 0 {
		s := m.calendar.first()
		if len(s.agenda) == 0 || s.agenda[0].at > m.now {
			return
		}
		d := s.agenda.pop()
		m.calendar.moved(s)
		slot, ok := s.slotOf(&d)
		switch {
		case !ok:
			// Stale: a restored replica does not have it, so it must not cost anything.
		case m.frozen(slot):
			s.parked = append(s.parked, d)
		default:
			m.end(s, &d)
			limit--
		}
	}
}

// slotOf is the slot of what d stands for; ok is false when d is stale.
func (s *shard) slotOf(d *due) (Slot, bool) {
	switch d.kind {
	case dueRecord:
		rec, ok := s.records[d.id]
		return rec.slot, ok && rec.ends == d.at
	case dueDenials:
		list, ok := s.denials[d.id]
		return list.slot, ok && list.lookAt == d.at
	default:
		return d.key.owner.slot, true
	}
}

// end forgets what d stands for, or puts off looking at it.
func (m *Machine) end(s *shard, d *due) {
	switch d.kind {
	case dueRecord:
		m.forgetRecord(s, d.id, s.records[d.id])
	case dueDenials:
		m.endDenials(s, d.id)
	default:
		m.endKey(s, d.key)
	}
}

func (m *Machine) endKey(s *shard, k *key) {
	m.keepPrincipal(s, k.owner.name)
	m.trim(k)
	if k.log.len() == 0 {
		m.dropKey(s, k)
		return
	}
	m.discount(k.owner.slot, m.hashKey(k))
	k.lookAt = max(k.log.newest()+k.class.keep(m.now), m.now) + 1
	m.count(k.owner.slot, m.hashKey(k))
	m.remember(s, due{at: k.lookAt, kind: dueKey, key: k})
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
	return ok && r.FrozenBy != 0 || !ok && contains(m.leaving, s)
}
