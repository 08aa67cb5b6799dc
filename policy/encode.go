package policy

import (
	"crypto/sha256"
	"encoding/binary"
	"hash"
	"slices"
)

// encodingVersion is the first byte of an encoding. A change of format takes the next number; what
// a number means never changes, since logs and snapshots keep encodings.
//
// Version 1, with uvarints in their shortest form and strings as their length and bytes:
//
//	version
//	default class
//	number of classes, then each in the order of names: name, class
//	number of groups, then each in the order of names: name,
//	    number of classes, then the index of each, growing
//	    limits
//	number of tiers, then each in the order of names: name, rules
//	number of principals, then each in the order of names: name, rules
//
//	class:  limits, flags (bit 0 disabled, bits 1 and 2 the failure mode), replay horizon,
//	        timeout, retention, and with mode local the local limit's max and window
//	rules:  number (at least 1), then each in the order of the class's index: index, limits
//	limits: number (at least 1), then each in its own order: name, max, window
//	index:  0 for default, else 1 plus the position among the sorted class names
const encodingVersion = 1

// flagDisabled and modeShift lay out the flags of a class.
const (
	flagDisabled = 1
	modeShift    = 1
	flagBits     = 3
)

// AppendBinary appends the canonical encoding of the policy to b.
func (p *Policy) AppendBinary(b []byte) []byte {
	e := encoder{b: b}
	e.policy(p)
	return e.b
}

func (p *Policy) computeDigest() (digest [32]byte) {
	e := encoder{b: make([]byte, 0, 2*flushBytes), digest: sha256.New()}
	e.policy(p)
	e.digest.Write(e.b)
	e.digest.Sum(digest[:0])
	return digest
}

// flushBytes is how much an encoder holds back at most, roughly, when only the digest is wanted.
const flushBytes = 32 << 10

// encoder appends to b, and when it has a digest moves b there now and then.
type encoder struct {
	b      []byte
	digest hash.Hash
}

func (e *encoder) flush() {
	if e.digest != nil && len(e.b) > flushBytes {
		e.digest.Write(e.b)
		e.b = e.b[:0]
	}
}

func (e *encoder) uint(n uint64) { e.b = binary.AppendUvarint(e.b, n) }

func (e *encoder) string(s string) {
	e.uint(uint64(len(s)))
	e.b = append(e.b, s...)
}

func (e *encoder) policy(p *Policy) {
	e.b = append(e.b, encodingVersion)
	e.string(p.Version)
	e.class(&p.Default)
	e.uint(uint64(len(p.classNames)))
	index := make(map[string]uint64, len(p.classNames)+1)
	index[DefaultClass] = 0
	for i, name := range p.classNames {
		index[name] = uint64(i) + 1
		e.string(name)
		e.class(p.Classes[name])
	}
	e.uint(uint64(len(p.groupNames)))
	for _, name := range p.groupNames {
		g := p.Groups[name]
		e.string(name)
		e.uint(uint64(len(g.Classes)))
		for _, class := range g.Classes { // sorted, so the indexes grow
			e.uint(index[class])
		}
		e.limits(g.Limits)
	}
	e.rules(index, p.tierNames, p.Tiers)
	e.rules(index, p.principalNames, p.Principals)
}

func (e *encoder) class(c *Class) {
	e.flush()
	e.limits(c.Limits)
	flags := uint64(c.OnUnavailable) << modeShift
	if c.Disabled {
		flags |= flagDisabled
	}
	e.uint(flags)
	e.uint(uint64(c.ReplayHorizonNanos))
	e.uint(uint64(c.TimeoutNanos))
	e.uint(uint64(c.RetentionNanos))
	if c.OnUnavailable == FailLocal {
		e.uint(uint64(c.LocalLimit.Max))
		e.uint(uint64(c.LocalLimit.WindowNanos))
	}
}

func (e *encoder) limits(limits []Limit) {
	e.uint(uint64(len(limits)))
	for i := range limits {
		e.string(limits[i].Name)
		e.uint(uint64(limits[i].Max))
		e.uint(uint64(limits[i].WindowNanos))
	}
}

func (e *encoder) rules(
	index map[string]uint64, names []string, rules map[string]map[string][]Limit,
) {
	e.uint(uint64(len(names)))
	type rule struct {
		index  uint64
		limits []Limit
	}
	var sorted []rule
	for _, name := range names {
		e.flush()
		sorted = sorted[:0]
		for class, limits := range rules[name] {
			sorted = append(sorted, rule{index[class], limits})
		}
		slices.SortFunc(sorted, func(a, b rule) int { return int(a.index) - int(b.index) })
		e.string(name)
		e.uint(uint64(len(sorted)))
		for _, r := range sorted {
			e.uint(r.index)
			e.limits(r.limits)
		}
	}
}
