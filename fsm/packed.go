package fsm

import (
	"encoding/binary"

	"github.com/quorate/quorate/internal/guard"
)

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
	m.bring(m.unpacked(img))
	m.calendar.moved(m.shardOf(slot))
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
func (m *Machine) bring(h *held) {
	for _, p := range h.principals {
		c := m.callerOf(p.name)
		m.keepPrincipal(c.shard, c.name, c.ref)
		for _, k := range p.keys {
			if guard.On(guard.UsageInHandoff) {
				m.bringKey(&c, *k)
			}
		}
	}
	for i := range h.records {
		if guard.On(guard.ReplayInHandoff) {
			m.bringRecord(&h.records[i])
		}
	}
	for i := range h.denials {
		m.bringDenials(h.denials[i])
	}
}

// bringKey puts a key with its log beside what is here. The calendar does not know of it yet.
func (m *Machine) bringKey(c *caller, k key) {
	r := m.insertKey(c, k)
	d := m.hashLog(c.name, &k)
	m.count(c.slot, d)
	c.shard.push(due{k.lookAt, r, dueKey})
}

// bringRecord is bringKey for a record.
func (m *Machine) bringRecord(h *heldRecord) {
	s, rec := m.shardOf(h.slot), h.record
	if rec.allowed {
		rec.name = m.gateways.use(h.text)
		m.allows++
	} else {
		rec.name = m.limitNames.use(h.text)
		m.denials++
	}
	m.keepRecord(s, rec.id, 0)
	r := s.records.add(rec)
	s.byID.add(rec.id.hash(), r)
	m.count(rec.slot, m.hashRecord(&rec, h.text))
	s.push(due{rec.ends, r, dueRecord})
}

// bringDenials is bringKey for a list of denials.
func (m *Machine) bringDenials(list denialList) {
	s := m.shardOf(list.slot)
	s.push(due{list.lookAt, m.addDenials(s, list), dueDenials})
}

// append encodes all but the images.
func (p *packed) append(b []byte) []byte {
	if p == nil {
		return append(b, 0)
	}
	return binary.AppendVarint(append(b, 1), int64(p.shift))
}
