package policy

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
)

// ErrEncoding is wrapped by every error of Decode that is about the bytes rather than the policy
// in them.
var ErrEncoding = errors.New("policy: not a canonical encoding")

// Decode reads what AppendBinary wrote, and nothing else: an encoding that is cut, followed by more
// bytes or not canonical is refused with an error that wraps ErrEncoding, a policy beyond a bound
// with Problems. It keeps no reference to b, and needs memory in proportion to b at most.
func Decode(b []byte) (*Policy, error) {
	d := &decoder{rest: b, size: len(b), interned: make(map[string]string)}
	p := d.policy()
	if d.err != nil {
		return nil, d.err
	}
	p, err := p.build()
	if err != nil {
		return nil, err
	}
	if p.digest != sha256.Sum256(b) {
		return nil, fmt.Errorf("%w: the policy is encoded in another way", ErrEncoding)
	}
	return p, nil
}

// decoder reads from rest. After the first fault it returns zeros only, and err is set.
type decoder struct {
	rest       []byte
	size       int
	err        error
	interned   map[string]string // names of limits, of which there are few
	classNames []string
	rulesLeft  int
}

func (d *decoder) fail(format string, args ...any) {
	if d.err == nil {
		d.err = fmt.Errorf("%w: byte %d: %s",
			ErrEncoding, d.size-len(d.rest), fmt.Sprintf(format, args...))
		d.rest = nil
	}
}

func (d *decoder) uint() uint64 {
	n, length := binary.Uvarint(d.rest)
	switch {
	case d.err != nil:
		return 0
	case length == 0:
		d.fail("cut short")
		return 0
	case length < 0 || length > 1 && d.rest[length-1] == 0:
		d.fail("a number is not in its shortest form or too large")
		return 0
	}
	d.rest = d.rest[length:]
	return n
}

// amount is a number that fits an int64. Its bounds are checked with the whole policy.
func (d *decoder) amount() int64 {
	n := d.uint()
	if n > 1<<63-1 {
		d.fail("the number %d is too large", n)
		return 0
	}
	return int64(n)
}

// count is a number of things of at least minBytes each, which therefore cannot be more than what
// is left holds.
func (d *decoder) count(what string, most, minBytes int) int {
	n := d.uint()
	if n > uint64(most) {
		d.fail("%d %s; at most %d are allowed", n, what, most)
		return 0
	}
	if n > uint64(len(d.rest)/minBytes) {
		d.fail("cut short: %d %s announced", n, what)
		return 0
	}
	return int(n)
}

// bytes is the next string, still in the input.
func (d *decoder) bytes(most int) []byte {
	n := d.uint()
	if n > uint64(most) {
		d.fail("a name of %d bytes; at most %d are allowed here", n, most)
		return nil
	}
	if n > uint64(len(d.rest)) {
		d.fail("cut short: a name of %d bytes announced", n)
		return nil
	}
	s := d.rest[:n]
	d.rest = d.rest[n:]
	return s
}

// next is a name that must come after the previous one, unless it is the first.
func (d *decoder) next(what string, i int, previous string, most int) string {
	name := string(d.bytes(most))
	if i > 0 && name <= previous {
		d.fail("%s %s follows %s", what, quoted(name), quoted(previous))
	}
	return name
}

func (d *decoder) policy() *Policy {
	p := &Policy{}
	switch {
	case len(d.rest) == 0:
		d.fail("empty")
		return p
	case d.rest[0] != encodingVersion && d.rest[0] != encodingVersionEnvoy:
		d.fail("format %d is unknown; this program reads formats %d to %d", d.rest[0], encodingVersion,
			encodingVersionEnvoy)
		return p
	}
	version := d.rest[0]
	d.rest = d.rest[1:]
	p.Version = string(d.bytes(MaxNameBytes))
	p.Default = d.class()

	n := d.count("classes", MaxClasses, 8)
	p.Classes = make(map[string]*Class, n)
	d.classNames = append(make([]string, 0, n+1), DefaultClass)
	name := ""
	for i := 0; i < n && d.err == nil; i++ {
		name = d.next("the class", i, name, MaxClassBytes)
		d.classNames = append(d.classNames, name)
		class := d.class()
		p.Classes[name] = &class
	}
	d.groups(p)
	d.rulesLeft = MaxOverrides
	p.Tiers = d.rules("tiers", MaxTierBytes)
	p.Principals = d.rules("principals", MaxPrincipalBytes)
	p.Envoy = make(map[string]*EnvoyDomain)
	if version == encodingVersionEnvoy {
		d.envoy(p)
	}
	if d.err == nil && len(d.rest) > 0 {
		d.fail("%d bytes follow the policy", len(d.rest))
	}
	return p
}

func (d *decoder) groups(p *Policy) {
	n := d.count("groups", MaxClasses, 7)
	p.Groups = make(map[string]*Group, n)
	name := ""
	for i := 0; i < n && d.err == nil; i++ {
		name = d.next("the group", i, name, MaxNameBytes)
		g := &Group{Name: name, Classes: make([]string, d.count("classes", MaxClasses, 1))}
		last := 0
		for j := 0; j < len(g.Classes) && d.err == nil; j++ {
			index := d.index(last)
			if g.Classes[j] = d.classNames[index]; index == 0 {
				d.fail("default is in a group")
			}
			last = index + 1
		}
		g.Limits = d.limits()
		p.Groups[name] = g
	}
}

// index is the position of a class, at least the given one; 0 is default.
func (d *decoder) index(least int) int {
	n := d.uint()
	if n < uint64(least) || n >= uint64(len(d.classNames)) {
		d.fail("the class number %d is unknown or out of order", n)
		return 0
	}
	return int(n)
}

func (d *decoder) class() (c Class) {
	c.Limits = d.limits()
	flags := d.uint()
	if flags >= 1<<flagBits || FailureMode(flags>>modeShift) > FailLocal {
		d.fail("the flags %#x of a class are unknown", flags)
		return c
	}
	c.Disabled = flags&flagDisabled != 0
	c.OnUnavailable = FailureMode(flags >> modeShift)
	c.ReplayHorizonNanos = d.amount()
	c.TimeoutNanos = d.amount()
	c.RetentionNanos = d.amount()
	if c.OnUnavailable == FailLocal {
		c.LocalLimit = Limit{Max: d.amount(), WindowNanos: d.amount()}
	}
	return c
}

func (d *decoder) limits() []Limit {
	limits := make([]Limit, d.count("limits", MaxLimitsPerRule, 4))
	for i := range limits {
		name := d.bytes(MaxNameBytes)
		interned, ok := d.interned[string(name)]
		if !ok {
			interned = string(name)
			d.interned[interned] = interned
		}
		limits[i] = Limit{Name: interned, Max: d.amount(), WindowNanos: d.amount()}
	}
	return limits
}

func (d *decoder) rules(what string, most int) map[string]map[string][]Limit {
	n := d.count(what, MaxOverrides, 8)
	rules := make(map[string]map[string][]Limit, n)
	name := ""
	for i := 0; i < n && d.err == nil; i++ {
		name = d.next("an entry of "+what+",", i, name, most)
		count := d.count("rules", min(d.rulesLeft, MaxClasses+1), 6)
		if count == 0 {
			d.fail("an entry of %s has no rule", what)
		}
		d.rulesLeft -= count
		byClass := make(map[string][]Limit, count)
		least := 0
		for j := 0; j < count && d.err == nil; j++ {
			index := d.index(least)
			byClass[d.classNames[index]] = d.limits()
			least = index + 1
		}
		rules[name] = byClass
	}
	return rules
}

func (d *decoder) envoy(p *Policy) {
	n := d.count("domains", MaxEnvoyDomains, 12)
	if n == 0 {
		d.fail("no domain follows")
	}
	name := ""
	for i := 0; i < n && d.err == nil; i++ {
		name = d.next("the domain", i, name, MaxNameBytes)
		domain := &EnvoyDomain{RequestID: string(d.bytes(MaxNameBytes)), PassUnmatched: d.bool()}
		domain.Rules = make([]EnvoyRule, d.count("rules", MaxEnvoyRules, 6))
		for j := range domain.Rules {
			if d.err == nil {
				domain.Rules[j] = d.envoyRule()
			}
		}
		p.Envoy[name] = domain
	}
}

func (d *decoder) envoyRule() (r EnvoyRule) {
	r.Match = make([]EnvoyEntry, d.count("entries", MaxEnvoyEntries, 3))
	for i := range r.Match {
		e := &r.Match[i]
		e.Key = string(d.bytes(MaxNameBytes))
		how := d.uint()
		if how > uint64(MatchPrefix) {
			d.fail("the match %d of an entry is unknown", how)
			return r
		}
		if e.How = EnvoyMatch(how); e.How != MatchAny {
			e.Value = string(d.bytes(MaxEnvoyValueBytes))
		}
	}
	r.Name = string(d.bytes(MaxNameBytes))
	r.Replaces = d.strings(MaxEnvoyReplaces)
	if r.Unlimited = d.bool(); !r.Unlimited {
		r.Class = d.classNames[d.index(0)]
		if r.Principal = d.strings(MaxEnvoyEntries); len(r.Principal) == 0 {
			r.Shared = string(d.bytes(MaxPrincipalBytes))
		}
		r.Tier = string(d.bytes(MaxNameBytes))
	}
	return r
}

func (d *decoder) bool() bool {
	n := d.uint()
	if n > 1 {
		d.fail("%d is neither 0 nor 1", n)
	}
	return n == 1
}

// strings is a list of names; nil when it is empty.
func (d *decoder) strings(most int) (out []string) {
	for n := d.count("names", most, 2); n > 0 && d.err == nil; n-- {
		out = append(out, string(d.bytes(MaxNameBytes)))
	}
	return out
}
