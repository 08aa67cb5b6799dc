package fsm

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/quorate/quorate/policy"
)

// An image is the state of one slot: the principals, the records and the lists of denials, each in order, as a
// snapshot encodes them, with the times of the partition that wrote it.

// imageVersion is the version of the encoding of images, that of the history included.
const imageVersion = 1

// held is what one slot holds.
type held struct {
	principals []heldPrincipal
	records    []heldRecord
	denials    []denialList
}

// heldPrincipal is a principal with its keys, in order of their classes' names.
type heldPrincipal struct {
	name string
	keys []*key
}

type heldRecord struct {
	record
	text string // of record.name, whose number means nothing outside of a machine
}

// holdings are the slots of one shard that something is in, each in order. All of its state is looked at once.
func (m *Machine) holdings(s *shard, wanted func(Slot) bool) map[Slot]*held {
	out := map[Slot]*held{}
	of := func(slot Slot) *held {
		if out[slot] == nil {
			out[slot] = &held{}
		}
		return out[slot]
	}
	for r := range s.byName.each {
		if p := s.principals.at(r); wanted(p.slot) {
			h := of(p.slot)
			h.principals = append(h.principals, heldPrincipal{p.name, s.keysOf(nil, p)})
		}
	}
	for r := range s.byID.each {
		if rec := s.records.at(r); wanted(rec.slot) {
			h := of(rec.slot)
			h.records = append(h.records, heldRecord{*rec, m.textOf(rec)})
		}
	}
	for r := range s.byCaller.each {
		if list := s.denials.at(r); wanted(list.slot) {
			h := of(list.slot)
			h.denials = append(h.denials, *list)
		}
	}
	for _, h := range out {
		slices.SortFunc(h.principals, func(a, b heldPrincipal) int { return strings.Compare(a.name, b.name) })
		slices.SortFunc(h.records, func(a, b heldRecord) int { return bytes.Compare(a.id[:], b.id[:]) })
		slices.SortFunc(h.denials, func(a, b denialList) int { return bytes.Compare(a.of[:], b.of[:]) })
	}
	return out
}

func appendImage(b []byte, h *held) []byte {
	if h == nil {
		return b
	}
	b = append(b, imageVersion)
	b = binary.AppendUvarint(b, uint64(len(h.principals)))
	for _, p := range h.principals {
		b = appendPrincipal(b, p.name, p.keys)
	}
	b = binary.AppendUvarint(b, uint64(len(h.records)))
	for i := range h.records {
		b = appendRecord(b, &h.records[i].record, h.records[i].text)
	}
	b = binary.AppendUvarint(b, uint64(len(h.denials)))
	for i := range h.denials {
		b = appendDenials(b, &h.denials[i])
	}
	return b
}

// imageReader reads an image of a slot. It refuses whatever no machine writes.
type imageReader struct {
	decoder
	m    *Machine
	slot Slot
	// classOf finds the class of a key.
	classOf func(string) *class
	span    span
}

// span is what the times of an image lie within.
type span struct {
	first, last Time
	newest      Time // admission
}

// possible reports that the times are those of a state at frozenAt, and can be moved by so much.
func (s span) possible(frozenAt, by Time) bool {
	return s.newest <= frozenAt && s.first >= -MaxTime-min(by, 0) && s.last <= MaxTime-max(by, 0)
}

func (s *span) take(t Time) Time {
	s.first, s.last = min(s.first, t), max(s.last, t)
	return t
}

var errOrder = errors.New("it is not in order")

// readImage reads the image of a slot.
func (m *Machine) readImage(slot Slot, b []byte, classOf func(string) *class) (*held, span, error) {
	r := &imageReader{
		decoder: decoder{b: b}, m: m, slot: slot, classOf: classOf,
		span: span{first: MaxTime, last: -MaxTime, newest: -MaxTime},
	}
	if v := r.byte(); r.err == nil && v != imageVersion {
		r.fail(fmt.Errorf("it has version %d, this program knows version %d", v, imageVersion))
	}
	h := &held{}
	for range r.count() {
		if r.principal(h); r.err != nil {
			break
		}
	}
	for range r.count() {
		if r.record(h); r.err != nil {
			break
		}
	}
	for range r.count() {
		if r.denials(h); r.err != nil {
			break
		}
	}
	if r.span.first < -MaxTime || r.span.last > MaxTime {
		r.fail(errors.New("it has a time out of range"))
	}
	if r.err == nil && len(h.principals)+len(h.records)+len(h.denials) == 0 {
		r.fail(errors.New("it is empty"))
	}
	return h, r.span, r.end()
}

func (r *imageReader) principal(h *held) {
	p := heldPrincipal{name: r.string()}
	if r.err == nil {
		r.check(validName("principal", p.name, MaxPrincipalBytes))
	}
	if r.err == nil && r.m.SlotOf(p.name) != r.slot {
		r.fail(fmt.Errorf("principal %q is of slot %d", p.name, r.m.SlotOf(p.name)))
	}
	if n := len(h.principals); n > 0 && h.principals[n-1].name >= p.name {
		r.fail(errOrder)
	}
	n := r.count()
	if n == 0 {
		r.fail(fmt.Errorf("principal %q has no key", p.name))
	}
	for i := 0; i < n && r.err == nil; i++ {
		name := r.string()
		if i > 0 && p.keys[i-1].class.name >= name {
			r.fail(errOrder)
		}
		if r.check(validName("api_class", name, MaxClassBytes)); r.err != nil {
			return
		}
		k := &key{class: r.classOf(name), lookAt: r.span.take(r.time())}
		p.keys = append(p.keys, k)
		r.log(&k.log)
	}
	h.principals = append(h.principals, p)
}

func (r *imageReader) log(l *rolling) {
	n := r.count()
	if n < 1 || n > maxPairs {
		r.fail(fmt.Errorf("a key has %d pairs", n))
	}
	if r.err != nil {
		return
	}
	l.pairs = make([]pair, 0, n)
	var at Time
	var sum uint64
	for i := 0; i < n && r.err == nil; i++ {
		delta, weight := Time(r.uvarint()), r.uvarint()
		if i > 0 && (delta <= 0 || at > MaxTime-delta) || weight == 0 {
			r.fail(errOrder)
			return
		}
		at += delta
		sum += weight
		l.pairs = append(l.pairs, pair{at, sum})
	}
	if r.err == nil {
		r.span.take(l.pairs[0].at)
		r.span.newest = max(r.span.newest, r.span.take(at))
	}
}

func (r *imageReader) record(h *held) {
	rec := r.decoder.record()
	if r.err != nil {
		return
	}
	if n := len(h.records); n > 0 && bytes.Compare(h.records[n-1].id[:], rec.id[:]) >= 0 {
		r.fail(errOrder)
	}
	if rec.slot != r.slot {
		r.fail(fmt.Errorf("a record is of slot %d", rec.slot))
	}
	if rec.allowed {
		r.check(validName("gateway", rec.text, MaxGatewayBytes))
	} else {
		r.check(validName("limit", rec.text, policy.MaxNameBytes))
		r.span.take(rec.retryAt)
	}
	r.span.take(rec.ends)
	h.records = append(h.records, rec)
}

func (r *imageReader) denials(h *held) {
	list := r.decoder.denials()
	if r.err != nil {
		return
	}
	if n := len(h.denials); n > 0 && bytes.Compare(h.denials[n-1].of[:], list.of[:]) >= 0 {
		r.fail(errOrder)
	}
	if list.slot != r.slot {
		r.fail(fmt.Errorf("a list of denials is of slot %d", list.slot))
	}
	if n := len(list.ends); n < 1 || n > MaxDenialRecords {
		r.fail(fmt.Errorf("%d denials are recorded of one principal and gateway", n))
	}
	r.span.take(list.lookAt)
	for _, t := range list.ends {
		r.span.take(t)
	}
	h.denials = append(h.denials, list)
}

func (r *imageReader) check(err error) {
	if r.err == nil && err != nil {
		r.fail(err)
	}
}

// sum is the digest of what is held, as the machine that holds it has it.
func (m *Machine) sum(h *held) digest {
	var d digest
	for _, p := range h.principals {
		for _, k := range p.keys {
			d.add(m.hashKey(p.name, k))
			d.add(m.hashLog(p.name, k))
		}
	}
	for i := range h.records {
		d.add(m.hashRecord(&h.records[i].record, h.records[i].text))
	}
	for i := range h.denials {
		d.add(m.hashDenials(&h.denials[i]))
	}
	return d
}

// counts are what the bounds of a partition count.
type counts struct{ keys, allows, denials int64 }

func (c *counts) add(o counts) {
	c.keys += o.keys
	c.allows += o.allows
	c.denials += o.denials
}

func (c *counts) sub(o counts) {
	c.keys -= o.keys
	c.allows -= o.allows
	c.denials -= o.denials
}

func (h *held) counts() (c counts) {
	for _, p := range h.principals {
		c.keys += int64(len(p.keys))
	}
	for i := range h.records {
		if h.records[i].allowed {
			c.allows++
		} else {
			c.denials++
		}
	}
	return c
}

// classNames are the classes of the keys, sorted.
func (h *held) classNames() []string {
	names := map[string]bool{}
	for _, p := range h.principals {
		for _, k := range p.keys {
			names[k.class.name] = true
		}
	}
	return slices.Sorted(maps.Keys(names))
}

// shift moves all times by so much.
func (h *held) shift(by Time) {
	for _, p := range h.principals {
		for _, k := range p.keys {
			k.lookAt += by
			for i := range k.log.pairs {
				k.log.pairs[i].at += by
			}
		}
	}
	for i := range h.records {
		r := &h.records[i]
		r.ends += by
		if !r.allowed {
			r.retryAt += by
		}
	}
	for i := range h.denials {
		d := &h.denials[i]
		d.lookAt += by
		for j := range d.ends {
			d.ends[j] += by
		}
	}
}
