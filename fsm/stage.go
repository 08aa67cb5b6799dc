package fsm

import (
	"bytes"
	"encoding/binary"
	"fmt"
)

// MaxStageBytes bounds the data of the pieces of one entry.
const MaxStageBytes = 256 << 10

const (
	// maxImageBytes bounds the image of one slot, and maxStagedBytes all that is staged. The keys and records of
	// an import are bounded as well, together with those that are here.
	maxImageBytes  = 1 << 28
	maxStagedBytes = 1 << 32
)

// Piece is a piece of the image of a slot.
type Piece struct {
	Slot   Slot
	Digest [16]byte // of the slot
	// Size is that of the whole image in bytes, 0 when the slot is empty; Offset is where Data belongs in it.
	Size, Offset uint64
	Data         []byte
}

// inbound is what a destination holds of a plan until it is activated. Nothing of it is decided on.
type inbound struct {
	plan     PlanID
	phase    PlanEnd
	ranges   []SlotRange // from PlanOpen on
	manifest Manifest    // from PlanOpen on
	// base is the partition time here that manifest.FrozenAt became: ages are counted back from it.
	base    Time
	carried []*revision // of the history, from PlanSealed on

	images []*image // complete, by slot, that of the history last; nil where nothing is staged
	parts  []*part  // begun, as images
	sum    digest   // of images and parts
	counts counts   // of images
	// numBytes is the size of images and parts.
	numBytes int
}

// image is a complete image. It is never changed.
type image struct {
	SlotDigest
	data    []byte
	counts  counts
	classes []string // of its keys
	span    span
}

// part is the beginning of an image.
type part struct {
	SlotDigest
	size uint64
	data []byte
	// chain hashes the pieces one after another.
	chain digest
}

func newInbound(plan PlanID) *inbound {
	return &inbound{
		plan: plan, phase: PlanStaging, images: make([]*image, NumSlots+1), parts: make([]*part, NumSlots+1),
	}
}

// begin makes this partition the destination of plan. What is left of earlier plans is cleared first.
func (m *Machine) begin(plan PlanID) {
	if m.inbound != nil {
		return
	}
	m.unpackAll(allSlots)
	m.dropSome(everything)
	m.inbound, m.config = newInbound(plan), nil
}

// waitingSum is the digest of what is staged or packed.
func (m *Machine) waitingSum() (d digest) {
	if m.inbound != nil {
		d.add(m.inbound.sum)
	}
	if m.packed != nil {
		d.add(m.packed.sum)
	}
	return d
}

// stage takes pieces of images. Those before one that is refused stay.
func (m *Machine) stage(e *Entry) (Reason, string) {
	if m.frozenBy != 0 {
		return conflict("this partition is the source of plan %d", e.Plan)
	}
	numBytes := 0
	for i := range e.Pieces {
		numBytes += len(e.Pieces[i].Data)
	}
	if numBytes > MaxStageBytes {
		return conflict("%d bytes in one entry: send at most %d", numBytes, MaxStageBytes)
	}
	m.begin(e.Plan)
	for i := range e.Pieces {
		if r, detail := m.piece(&e.Pieces[i]); r != ReasonUnspecified {
			return r, fmt.Sprintf("slot %d: %s", e.Pieces[i].Slot, detail)
		}
	}
	return ReasonUnspecified, ""
}

// piece takes one piece. What is here already, or what does not follow what is here, is passed over: whoever
// sends compares what is staged.
func (m *Machine) piece(p *Piece) (Reason, string) {
	in := m.inbound
	if r, detail := in.fits(p); r != ReasonUnspecified {
		return r, detail
	}
	img, at := in.images[p.Slot], in.parts[p.Slot]
	switch {
	case img != nil && p.Size > 0 && img.Digest == p.Digest, img == nil && at == nil && p.Size == 0:
		return ReasonUnspecified, ""
	case in.phase == PlanSealed:
		return conflict("the import is sealed")
	}
	if at == nil || at.Digest != p.Digest || at.size != p.Size {
		if p.Offset > 0 {
			return ReasonUnspecified, ""
		}
		m.unstage(p.Slot)
		if p.Size == 0 {
			return ReasonUnspecified, ""
		}
		at = &part{SlotDigest: SlotDigest{p.Slot, p.Digest}, size: p.Size}
		m.keepPart(at)
	}
	if have := uint64(len(at.data)); p.Offset > have || p.Offset+uint64(len(p.Data)) <= have {
		return ReasonUnspecified, ""
	}
	return m.extend(at, p.Data[uint64(len(at.data))-p.Offset:])
}

// fits checks what can be told from a piece and the plan alone.
func (in *inbound) fits(p *Piece) (Reason, string) {
	switch end := p.Offset + uint64(len(p.Data)); {
	case p.Slot > HistorySlot:
		return conflict("there is no such slot")
	case in.phase >= PlanOpen && p.Slot != HistorySlot && !contains(in.ranges, p.Slot):
		return conflict("it is not of plan %d", in.plan)
	case p.Size == 0 && (p.Slot == HistorySlot || p.Digest != [16]byte{}):
		return conflict("an image without a size")
	case end < p.Offset || end > p.Size:
		return conflict("a piece up to byte %d of an image of %d", end, p.Size)
	case p.Size > maxImageBytes:
		return ReasonCapacity, fmt.Sprintf("an image of %d bytes: at most %d can be moved", p.Size, maxImageBytes)
	}
	return ReasonUnspecified, ""
}

// extend appends data to the beginning of an image, and takes the image when it is complete.
func (m *Machine) extend(at *part, data []byte) (Reason, string) {
	in := m.inbound
	if in.numBytes+len(data) > maxStagedBytes {
		return ReasonCapacity, fmt.Sprintf("more than %d bytes are staged: move fewer slots at once", maxStagedBytes)
	}
	in.sum.sub(m.hashPart(at))
	b := binary.LittleEndian.AppendUint64(append(m.scratch[:0], hashPartData), at.chain.lo)
	b = binary.LittleEndian.AppendUint64(b, at.chain.hi)
	at.chain = m.element(append(b, data...))
	at.data = append(at.data, data...)
	in.numBytes += len(data)
	in.sum.add(m.hashPart(at))
	if uint64(len(at.data)) < at.size {
		return ReasonUnspecified, ""
	}
	m.unstage(at.Slot)
	img, err := m.complete(at.SlotDigest, at.data)
	if err != nil {
		return conflict("an image that does not hold: %v", err)
	}
	if r, detail := m.roomFor(img.counts); r != ReasonUnspecified {
		return r, detail
	}
	m.keepImage(img)
	return ReasonUnspecified, ""
}

// complete checks an image.
func (m *Machine) complete(of SlotDigest, data []byte) (*image, error) {
	img := &image{SlotDigest: of, data: bytes.Clone(data)}
	var got [16]byte
	if of.Slot == HistorySlot {
		if _, err := readHistory(data); err != nil {
			return nil, err
		}
		got = m.hashHistory(data)
	} else {
		classes := map[string]*class{}
		h, span, err := m.readImage(of.Slot, data, func(n string) *class {
			if classes[n] == nil {
				classes[n] = &class{name: n}
			}
			return classes[n]
		})
		if err != nil {
			return nil, err
		}
		img.counts, img.classes, img.span = h.counts(), h.classNames(), span
		got = m.sum(h).bytes()
	}
	if got != of.Digest {
		return nil, fmt.Errorf("its digest is %x, not %x", got, of.Digest)
	}
	return img, nil
}

// roomFor refuses an image that would pass a bound together with all that is here.
func (m *Machine) roomFor(c counts) (Reason, string) {
	total := counts{m.keys, m.allows, m.denials}
	total.add(m.waiting())
	total.add(c)
	switch {
	case total.keys > m.bounds.MaxKeys:
		return ReasonCapacity, fmt.Sprintf("the partition would hold %d keys, it may hold %d", total.keys, m.bounds.MaxKeys)
	case max(total.allows, total.denials) > m.bounds.MaxReplayRecords:
		return ReasonCapacity, fmt.Sprintf("the partition would hold %d replay records, it may hold %d",
			max(total.allows, total.denials), m.bounds.MaxReplayRecords)
	}
	return ReasonUnspecified, ""
}

func (m *Machine) keepPart(at *part) {
	in := m.inbound
	in.parts[at.Slot] = at
	in.numBytes += len(at.data)
	in.sum.add(m.hashPart(at))
}

func (m *Machine) keepImage(img *image) {
	in := m.inbound
	in.images[img.Slot] = img
	in.counts.add(img.counts)
	in.numBytes += len(img.data)
	in.sum.add(m.hashImage(img))
}

// unstage drops what is staged of a slot.
func (m *Machine) unstage(s Slot) {
	in := m.inbound
	if img := in.images[s]; img != nil {
		in.counts.sub(img.counts)
		in.numBytes -= len(img.data)
		in.sum.sub(m.hashImage(img))
	}
	in.images[s] = nil
	m.unstagePart(s)
}

func (m *Machine) unstagePart(s Slot) {
	in := m.inbound
	if at := in.parts[s]; at != nil {
		in.numBytes -= len(at.data)
		in.sum.sub(m.hashPart(at))
	}
	in.parts[s] = nil
}

// imagesAndParts are the images that are staged, those that are packed, and the parts as they stand.
func (m *Machine) imagesAndParts() (staged, packed []*image, parts []part) {
	if m.inbound != nil {
		staged = present(m.inbound.images)
		for _, at := range present(m.inbound.parts) {
			parts = append(parts, *at)
		}
	}
	if m.packed != nil {
		packed = present(m.packed.images)
	}
	return staged, packed, parts
}

// present leaves out what is nil.
func present[T any](all []*T) (out []*T) {
	for _, one := range all {
		if one != nil {
			out = append(out, one)
		}
	}
	return out
}

// append encodes all but what is staged.
func (in *inbound) append(b []byte) []byte {
	if in == nil {
		return append(b, byte(PlanNone))
	}
	b = append(b, byte(in.phase))
	b = binary.AppendUvarint(b, uint64(in.plan))
	b = appendRanges(b, in.ranges)
	b = appendManifest(b, &in.manifest)
	b = binary.AppendVarint(b, int64(in.base))
	b = binary.AppendUvarint(b, uint64(len(in.carried)))
	for _, r := range in.carried {
		b = binary.AppendUvarint(b, uint64(r.number()))
	}
	return b
}

// inbound reads what append wrote, but the revisions only by their numbers.
func (d *decoder) inbound() (*inbound, []Revision) {
	phase := PlanEnd(d.byte())
	if phase == PlanNone {
		return nil, nil
	}
	if phase < PlanStaging || phase > PlanSealed {
		d.fail(fmt.Errorf("an import in phase %d", phase))
	}
	in := newInbound(PlanID(d.uvarint()))
	in.phase, in.ranges, in.manifest, in.base = phase, d.ranges(), d.manifest(), d.time()
	var carried []Revision
	for range d.count() {
		carried = append(carried, Revision(d.uvarint()))
	}
	return in, carried
}

func appendSlotDigest(b []byte, of SlotDigest) []byte {
	return append(binary.AppendUvarint(b, uint64(of.Slot)), of.Digest[:]...)
}

func (d *decoder) slotDigest() (of SlotDigest) {
	of.Slot = d.slot(HistorySlot)
	d.array(of.Digest[:])
	return of
}

func appendPart(b []byte, at *part) []byte {
	b = appendSlotDigest(b, at.SlotDigest)
	b = binary.AppendUvarint(b, at.size)
	b = binary.LittleEndian.AppendUint64(b, at.chain.lo)
	b = binary.LittleEndian.AppendUint64(b, at.chain.hi)
	return append(b, at.data...)
}

// part reads a part that takes the rest of a frame.
func (d *decoder) part() *part {
	at := &part{SlotDigest: d.slotDigest(), size: d.uvarint()}
	var chain [16]byte
	d.array(chain[:])
	at.chain = digest{binary.LittleEndian.Uint64(chain[:8]), binary.LittleEndian.Uint64(chain[8:])}
	at.data = bytes.Clone(d.bytes(uint64(len(d.b))))
	return at
}

// Staged are the digests of the complete images that are staged for plan, in order of the slots.
func (m *Machine) Staged(plan PlanID) []SlotDigest {
	if m.inbound == nil || m.inbound.plan != plan {
		return nil
	}
	return m.inbound.staged()
}

func (in *inbound) staged() []SlotDigest {
	var out []SlotDigest
	for _, img := range present(in.images) {
		out = append(out, img.SlotDigest)
	}
	return out
}

func (m *Machine) hashImage(img *image) digest {
	b := binary.LittleEndian.AppendUint16(append(m.scratch[:0], hashImage), uint16(img.Slot))
	b = append(b, img.Digest[:]...)
	return m.element(binary.AppendUvarint(b, uint64(len(img.data))))
}

func (m *Machine) hashPart(at *part) digest {
	b := binary.LittleEndian.AppendUint16(append(m.scratch[:0], hashPart), uint16(at.Slot))
	b = append(b, at.Digest[:]...)
	b = binary.AppendUvarint(b, at.size)
	b = binary.AppendUvarint(b, uint64(len(at.data)))
	b = binary.LittleEndian.AppendUint64(b, at.chain.lo)
	return m.element(binary.LittleEndian.AppendUint64(b, at.chain.hi))
}
