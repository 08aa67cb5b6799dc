package fsm

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math"
)

// entryVersion is the version of the encoding of entries. A replica that meets a higher one must stop
// and not skip it: its state would no longer be that of the others.
const entryVersion = 4

// AppendEntry appends the durable encoding of e to b. It ends with a CRC-32C of the rest, since the log
// beneath does not notice a flipped bit.
func AppendEntry(b []byte, e *Entry) []byte {
	begin := len(b)
	b = append(b, entryVersion, byte(e.Kind))
	b = binary.AppendUvarint(b, e.Term)
	b = binary.AppendVarint(b, int64(e.Stamp))
	b = binary.AppendVarint(b, e.WallBound)
	b = binary.AppendUvarint(b, e.Basis.Index)
	b = append(b, e.Basis.Digest[:]...)
	switch e.Kind {
	case KindBirth:
		b = appendBirth(b, e.Birth)
	case KindBatch:
		b = binary.AppendUvarint(b, uint64(len(e.Checks)))
		for i := range e.Checks {
			b = AppendCheck(b, &e.Checks[i])
		}
		b = binary.AppendUvarint(b, uint64(len(e.Peeks)))
		for i := range e.Peeks {
			b = appendPeek(b, &e.Peeks[i])
		}
	case KindInstall:
		b = appendPolicyRef(b, &e.Install.PolicyRef)
	case KindRaise:
		b = binary.AppendUvarint(b, uint64(e.Level))
	case KindForgive:
		b = appendForgive(b, e.Forgive)
	default:
		b = appendPlanStep(b, e)
	}
	return binary.LittleEndian.AppendUint32(b, crc32.Checksum(b[begin:], castagnoli))
}

func appendBirth(b []byte, birth *Birth) []byte {
	b = appendString(b, birth.Cluster)
	b = appendString(b, birth.Partition)
	b = append(b, birth.Seed[:]...)
	b = appendOwned(b, birth.Owned)
	b = binary.AppendVarint(b, birth.Bounds.MaxKeys)
	b = binary.AppendVarint(b, birth.Bounds.MaxReplayRecords)
	return appendPolicyRef(b, &birth.PolicyRef)
}

func appendOwned(b []byte, owned []OwnedRange) []byte {
	b = binary.AppendUvarint(b, uint64(len(owned)))
	for _, r := range owned {
		b = binary.AppendUvarint(b, uint64(r.First))
		b = binary.AppendUvarint(b, uint64(r.Last))
		b = binary.AppendUvarint(b, uint64(r.Epoch))
		b = binary.AppendUvarint(b, uint64(r.FrozenBy))
	}
	return b
}

// AppendCheck appends the encoding of one check. Its length counts against MaxEntryBytes.
func AppendCheck(b []byte, c *Check) []byte {
	b = appendString(b, c.Principal)
	b = appendString(b, c.Gateway)
	b = appendString(b, c.DecisionID)
	b = appendCharge(b, &c.Charge)
	b = binary.AppendUvarint(b, uint64(len(c.Also)))
	for i := range c.Also {
		b = appendCharge(b, &c.Also[i])
	}
	b = binary.AppendUvarint(b, uint64(c.PolicyRevision))
	return binary.AppendUvarint(b, uint64(c.RouteEpoch))
}

func appendPeek(b []byte, p *Peek) []byte {
	b = appendString(b, p.Principal)
	b = appendString(b, p.Class)
	b = appendString(b, p.Tier)
	return binary.AppendUvarint(b, uint64(p.RouteEpoch))
}

// DecodeEntry reads what AppendEntry wrote. It refuses anything else, whatever the bytes. The policy that a
// birth or an install names is for the caller to find.
func DecodeEntry(b []byte) (*Entry, error) {
	if len(b) < 4 {
		return nil, fmt.Errorf("entry: %w", errCut)
	}
	body, sum := b[:len(b)-4], binary.LittleEndian.Uint32(b[len(b)-4:])
	d := &decoder{b: body}
	if v := d.byte(); d.err == nil && v != entryVersion {
		return nil, fmt.Errorf("entry of version %d: this program knows version %d, use the one that wrote it",
			v, entryVersion)
	}
	if crc32.Checksum(body, castagnoli) != sum {
		return nil, errors.New("entry: its checksum is wrong: it is damaged, replace this replica")
	}
	e := &Entry{Kind: Kind(d.byte()), Term: d.uvarint(), Stamp: d.time(), WallBound: d.varint()}
	e.Basis.Index = d.uvarint()
	d.array(e.Basis.Digest[:])
	switch e.Kind {
	case KindBirth:
		e.Birth = d.birth()
	case KindBatch:
		d.text = string(d.b)
		d.batch(e)
	case KindInstall:
		e.Install = &Install{PolicyRef: d.policyRef()}
	case KindFreeze, KindStage, KindOpen, KindSeal, KindActivate, KindRelease, KindAbort:
		d.planStep(e)
	case KindRaise:
		e.Level = d.level()
	case KindForgive:
		e.Forgive = d.forgive()
	default:
		d.fail(fmt.Errorf("kind %d is unknown", e.Kind))
	}
	if e.Stamp < 0 || e.Stamp > MaxTime {
		d.fail(fmt.Errorf("stamp %d is out of range", e.Stamp))
	}
	if err := d.end(); err != nil {
		return nil, fmt.Errorf("entry: %w", err)
	}
	return e, nil
}

func (d *decoder) batch(e *Entry) {
	n := d.count()
	if n > MaxChecksPerEntry {
		d.fail(fmt.Errorf("%d checks in one entry", n))
		return
	}
	if n > 0 {
		e.Checks = make([]Check, 0, n)
	}
	for range n {
		c := Check{Principal: d.string(), Gateway: d.string(), DecisionID: d.string(), Charge: d.charge()}
		also := d.count()
		if also > MaxAlso {
			d.fail(fmt.Errorf("%d further charges in one check", also))
			return
		}
		for range also {
			c.Also = append(c.Also, d.charge())
		}
		c.PolicyRevision, c.RouteEpoch = Revision(d.uvarint()), Epoch(d.uvarint())
		e.Checks = append(e.Checks, c)
	}
	n = d.count()
	if n > MaxChecksPerEntry {
		d.fail(fmt.Errorf("%d peeks in one entry", n))
		return
	}
	for range n {
		e.Peeks = append(e.Peeks, Peek{
			Principal: d.string(), Class: d.string(), Tier: d.string(), RouteEpoch: Epoch(d.uvarint()),
		})
	}
}

func (d *decoder) birth() *Birth {
	b := &Birth{Cluster: d.string(), Partition: d.string()}
	d.array(b.Seed[:])
	b.Owned = d.owned()
	b.Bounds = Bounds{MaxKeys: d.varint(), MaxReplayRecords: d.varint()}
	b.PolicyRef = d.policyRef()
	if d.err == nil {
		if err := b.Bounds.Validate(); err != nil {
			d.fail(err)
		}
	}
	return b
}

func (d *decoder) level() Level {
	n := d.uvarint()
	if n > math.MaxUint32 {
		d.fail(fmt.Errorf("feature level %d is out of range", n))
	}
	return Level(n)
}

func (d *decoder) slotRange() SlotRange {
	first, last := d.uvarint(), d.uvarint()
	if first > last || last >= NumSlots {
		d.fail(fmt.Errorf("slots %d to %d are no range", first, last))
	}
	return SlotRange{Slot(first), Slot(last)}
}

func (d *decoder) owned() []OwnedRange {
	var owned []OwnedRange
	for range d.count() {
		owned = append(owned, OwnedRange{d.slotRange(), Epoch(d.uvarint()), PlanID(d.uvarint())})
	}
	if d.err == nil {
		if err := validOwned(owned); err != nil {
			d.fail(err)
		}
	}
	return owned
}
