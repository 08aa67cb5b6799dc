package fsm

import "encoding/binary"

// packed are the slots of an import that is active and whose images are not unpacked yet. A slot is unpacked when
// something is asked of it, and otherwise some of them with each batch, so that to activate an import costs the
// same whatever its size. That it is packed changes no answer: what has ended meanwhile is only forgotten later.
type packed struct {
	images []*image // by slot; nil where nothing is packed
	shift  Time     // of their times
	left   int      // how many there are
	next   Slot     // the first that there may be
	sum    digest   // of images
	counts counts   // of images
}

const (
	// unpackedPerBatch and unpackedPerTick is how many keys and records are unpacked at least.
	unpackedPerBatch = 2048
	unpackedPerTick  = 16384
	everything       = 1 << 62
)

var allSlots = []SlotRange{{First: 0, Last: NumSlots - 1}}

// packAll packs an import.
func (m *Machine) packAll(in *inbound) {
	m.packed = &packed{images: make([]*image, NumSlots), shift: in.shift()}
	for _, img := range in.images[:NumSlots] {
		if img != nil {
			m.pack(img)
		}
	}
	m.packedDone()
}

func (m *Machine) pack(img *image) {
	p := m.packed
	p.images[img.Slot] = img
	p.left++
	p.counts.add(img.counts)
	p.sum.add(m.hashImage(img))
}

// packedDone lets go of packed when nothing is left.
func (m *Machine) packedDone() {
	if m.packed.left == 0 {
		m.packed, m.config = nil, nil
	}
}

// waiting are what is staged or packed of what the bounds count.
func (m *Machine) waiting() (c counts) {
	if m.inbound != nil {
		c.add(m.inbound.counts)
	}
	if m.packed != nil {
		c.add(m.packed.counts)
	}
	return c
}

// unpackSome unpacks the next slots, until they have held so many things.
func (m *Machine) unpackSome(things int64) {
	for things > 0 && m.packed != nil {
		p := m.packed
		for p.images[p.next] == nil {
			p.next++
		}
		c := p.images[p.next].counts
		things -= 1 + c.keys + c.allows + c.denials
		m.unpack(p.next)
	}
}

// unpackAll unpacks the slots of ranges.
func (m *Machine) unpackAll(ranges []SlotRange) {
	for _, r := range ranges {
		for s := r.First; s <= r.Last && m.packed != nil; s++ {
			m.unpack(s)
		}
	}
}

// unpack puts what is packed of a slot beside the state that is here.
func (m *Machine) unpack(slot Slot) {
	p := m.packed
	if p == nil || p.images[slot] == nil {
		return
	}
	img := p.images[slot]
	p.images[slot] = nil
	p.counts.sub(img.counts)
	p.sum.sub(m.hashImage(img))
	p.left--
	s := m.shardOf(slot)
	m.bring(s, m.unpacked(img))
	m.calendar.moved(s)
	m.packedDone()
}

// unpacked is what a packed slot holds, in the time of this partition.
func (m *Machine) unpacked(img *image) *held {
	h, _, err := m.readImage(img.Slot, img.data, func(n string) *class { return m.classes[n] })
	if err != nil {
		panic("fsm: an image that was checked is not read back: " + err.Error())
	}
	h.shift(m.packed.shift)
	return h
}

// bring puts what one slot holds into its shard, which holds nothing of the slot.
func (m *Machine) bring(s *shard, h *held) {
	for _, p := range h.principals {
		m.keepPrincipal(s, p.name)
		s.principals[p.name] = p
		for _, k := range p.keys {
			m.countKey(k.class, 1)
			m.count(p.slot, m.hashKey(k))
			m.hashLog(k, m.count)
			s.agenda.push(due{at: k.lookAt, kind: dueKey, key: k})
		}
	}
	for i := range h.records {
		r := &h.records[i]
		if r.allowed {
			r.name = m.gateways.use(r.text)
			m.allows++
		} else {
			r.name = m.limitNames.use(r.text)
			m.denials++
		}
		m.keepRecord(s, r.id)
		s.records[r.id] = r.record
		m.count(r.slot, m.hashRecord(r.id, r.record, r.text))
		s.agenda.push(due{at: r.ends, kind: dueRecord, id: r.id})
	}
	for i := range h.denials {
		d := &h.denials[i]
		m.setDenials(s, d.of, d.denialList)
		s.agenda.push(due{at: d.lookAt, kind: dueDenials, id: d.of})
	}
}

// append encodes all but the images.
func (p *packed) append(b []byte) []byte {
	if p == nil {
		return append(b, 0)
	}
	return binary.AppendVarint(append(b, 1), int64(p.shift))
}
