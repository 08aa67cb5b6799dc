package fsm

// prepare finds who asks in a batch, and reads in several passes what deciding each check is going to read. With many
// principals all of it is out of the processor's caches, and one decision after the other would wait for a dozen
// lines of memory, each only known when the one before has come. Within a pass the checks do not depend on each other,
// so the processor waits for many at once. It changes nothing, and what it finds is looked up again.
func (m *Machine) prepare(checks []Check) []caller {
	if cap(m.callers) < len(checks) {
		m.callers = make([]caller, max(len(checks), MaxChecksPerEntry))
	}
	callers := m.callers[:len(checks)]
	sum := uint64(0)
	for i := range checks {
		c, p := &checks[i], &callers[i]
		*p = caller{name: c.Principal, hash: m.hashName(c.Principal)}
		p.slot = slotOfHash(p.hash)
		p.shard = m.shardOf(p.slot)
		p.id = m.hash128(hashReplay, c.Principal, c.Gateway, c.DecisionID)
		sum += m.slots[p.slot].lo
	}
	for i := range callers {
		s := callers[i].shard
		sum += uint64(s.byName.n + s.byID.n + s.records.used + s.keys.used + s.principals.used + len(s.agenda))
	}
	for i := range callers {
		p := &callers[i]
		s := p.shard
		sum += s.byName.touch(uint32(p.hash)) + s.byID.touch(p.id.hash())
		if n := len(s.agenda); n > 0 {
			sum += uint64(s.agenda[n-1].at)
		}
		if n := s.records.used; n%chunkLen != 0 { // where the next record goes, as long as none has gone
			sum += s.records.at(ref(n)).payload
		}
	}
	for i := range callers {
		callers[i].find()
	}
	for i := range callers {
		if k := callers[i].firstKey(); k != nil {
			sum += uint64(len(k.log.pairs))
		}
	}
	for i := range callers {
		if k := callers[i].firstKey(); k != nil && k.log.len() > 0 {
			sum += k.log.pairs[k.log.head].sum + k.log.total()
		}
	}
	m.touched = sum
	return callers
}

// touch reads where a thing with this hash would be.
func (x *index) touch(hash uint32) uint64 {
	if len(x.places) == 0 {
		return 0
	}
	return uint64(x.places[x.home(hash)].hash)
}
