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
// A policy has the first version that can express it.
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
//
// Version 2 is for a policy with domains of Envoy's. After what version 1 has:
//
//	number of domains (at least 1), then each in the order of names: name,
//	    key of the request id, 1 to let through what is unmatched or 0, number of rules, each
//	rule:  number of entries, each: key, 0 for any value, 1 for one, 2 for a prefix, then the value, unless any
//	       name, number of rules that it replaces, the name of each
//	       1 if unlimited, else 0 and index, number of keys of the principal, each, without any
//	       the shared principal, key of the tier
const (
	encodingVersion      = 1
	encodingVersionEnvoy = 2
)

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
	version := byte(encodingVersion)
	if len(p.envoyNames) > 0 {
		version = encodingVersionEnvoy
	}
	e.b = append(e.b, version)
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
	if version == encodingVersionEnvoy {
		e.envoy(index, p)
	}
}

func (e *encoder) envoy(index map[string]uint64, p *Policy) {
	e.uint(uint64(len(p.envoyNames)))
	for _, name := range p.envoyNames {
		d := p.Envoy[name]
		e.string(name)
		e.string(d.RequestID)
		e.bool(d.PassUnmatched)
		e.uint(uint64(len(d.Rules)))
		for i := range d.Rules {
			e.flush()
			e.envoyRule(index, &d.Rules[i])
		}
	}
}

func (e *encoder) envoyRule(index map[string]uint64, r *EnvoyRule) {
	e.uint(uint64(len(r.Match)))
	for i := range r.Match {
		e.string(r.Match[i].Key)
		e.uint(uint64(r.Match[i].How))
		if r.Match[i].How != MatchAny {
			e.string(r.Match[i].Value)
		}
	}
	e.string(r.Name)
	e.strings(r.Replaces)
	e.bool(r.Unlimited)
	if !r.Unlimited {
		e.uint(index[r.Class])
		e.strings(r.Principal)
		if len(r.Principal) == 0 {
			e.string(r.Shared)
		}
		e.string(r.Tier)
	}
}

func (e *encoder) bool(v bool) {
	if v {
		e.uint(1)
	} else {
		e.uint(0)
	}
}

func (e *encoder) strings(list []string) {
	e.uint(uint64(len(list)))
	for _, s := range list {
		e.string(s)
	}
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
