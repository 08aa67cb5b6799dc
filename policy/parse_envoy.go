package policy

import (
	"fmt"
	"strings"
)

var (
	domainKeys    = []string{"request_id", "unmatched", "rules"}
	envoyRuleKeys = []string{"match", "class", "principal", "tier", "unlimited", "name", "replaces", "shared"}
	entryKeys     = []string{"key", "value", "prefix"}
)

func (ps *parser) envoy(i int32) {
	rules := 0
	seen := func(name string) bool { return ps.p.Envoy[name] != nil }
	ps.entries(i, "envoy", "a domain", MaxNameBytes, seen, func(name string, at part) bool {
		d := &EnvoyDomain{}
		ps.p.Envoy[strings.Clone(name)] = d
		if len(ps.p.Envoy) > MaxEnvoyDomains {
			ps.problem(at.key, "more than %d domains; at most %d are allowed", MaxEnvoyDomains, MaxEnvoyDomains)
			return false
		}
		ps.domain(at, d)
		if rules += len(d.Rules); rules > MaxEnvoyRules {
			ps.problem(at.key, "more than %d rules in all domains; at most %d are allowed", MaxEnvoyRules, MaxEnvoyRules)
			return false
		}
		return true
	})
}

func (ps *parser) domain(at part, d *EnvoyDomain) {
	f, ok := ps.fields(at.value, "a domain", domainKeys, nil)
	if !ok {
		return
	}
	if f[0].key != 0 {
		d.RequestID, _ = ps.text(f[0].value, "the key of the request id", MaxNameBytes)
	}
	if f[1].key != 0 {
		d.PassUnmatched = ps.unmatched(f[1].value)
	}
	if f[2].key == 0 {
		ps.problem(at.key, "%s; write rules: [{match: [{key: remote_address}], class: login, principal: [remote_address]}]",
			envoyNeedsRules)
		return
	}
	if !ps.isKind(f[2].value, kindSequence, "the rules of a domain", "a list") {
		return
	}
	if ps.parts(f[2].value) == 0 {
		ps.problem(f[2].value, "%s", envoyNeedsRules)
	}
	var sound []int32 // where rules are of whose form no problem was told; 0 for the others
	for item := f[2].value + 1; item < ps.end(f[2].value) && len(sound) <= MaxEnvoyRules; item = ps.next(item) {
		before := ps.problems.total
		d.Rules = append(d.Rules, ps.envoyRule(item))
		at := item
		if ps.problems.total > before {
			at = 0
		}
		sound = append(sound, at)
	}
	names := d.names()
	for i, at := range sound { // once all names are known, which rules replace
		if fault := d.Rules[i].fault(d, names, ps.isListed); at != 0 && fault != "" {
			ps.problem(at, "%s", fault)
			sound[i] = 0
		}
	}
	d.shadows(func(i int) bool { return sound[i] == 0 }, func(rule, by int) {
		ps.problem(sound[rule], "%s", d.shadowFault(rule, by, fmt.Sprintf("in line %d", ps.at(sound[by]).line)))
	})
}

// isListed reports whether a class is listed, or DefaultClass.
func (ps *parser) isListed(class string) bool { return ps.classNames[class] != "" }

func (ps *parser) unmatched(i int32) (pass bool) {
	n := ps.at(i)
	if n.kind == kindScalar && n.tag == tagString && (n.text == "allow" || n.text == "deny") {
		return n.text == "allow"
	}
	if n.kind != kindRefused {
		ps.problem(i, "unmatched must be deny or allow, found %s", describe(n))
	}
	return false
}

func (ps *parser) envoyRule(i int32) (r EnvoyRule) {
	f, ok := ps.fields(i, "a rule", envoyRuleKeys, nil)
	if !ok {
		return r
	}
	if f[0].key == 0 {
		ps.problem(i, `a rule needs "match"; write match: [{key: remote_address}]`)
	} else if ps.isKind(f[0].value, kindSequence, "what a rule matches", "a list") {
		for item := f[0].value + 1; item < ps.end(f[0].value); item = ps.next(item) {
			if len(r.Match) <= MaxEnvoyEntries { // one too many is refused as a whole
				r.Match = append(r.Match, ps.envoyEntry(item))
			}
		}
	}
	if f[1].key != 0 {
		r.Class, _ = ps.text(f[1].value, "a class name", MaxClassBytes)
	}
	r.Principal = ps.texts(f[2], "the keys that name the principal", MaxEnvoyEntries)
	if f[3].key != 0 {
		r.Tier, _ = ps.text(f[3].value, "the key of the tier", MaxNameBytes)
	}
	if f[4].key != 0 {
		r.Unlimited = ps.boolean(f[4].value)
	}
	if f[5].key != 0 {
		r.Name, _ = ps.text(f[5].value, "the name of a rule", MaxNameBytes)
	}
	r.Replaces = ps.texts(f[6], "the rules that a rule replaces", MaxEnvoyReplaces)
	if f[7].key != 0 {
		r.Shared, _ = ps.text(f[7].value, "the shared principal", MaxPrincipalBytes)
	}
	return r
}

func (ps *parser) envoyEntry(i int32) (e EnvoyEntry) {
	f, ok := ps.fields(i, "an entry", entryKeys, nil)
	if !ok {
		return e
	}
	if f[0].key == 0 {
		ps.problem(i, `an entry needs "key"; write {key: remote_address}`)
	} else {
		e.Key, _ = ps.text(f[0].value, "the key of an entry", MaxNameBytes)
	}
	switch {
	case f[1].key != 0 && f[2].key != 0:
		ps.problem(f[2].key, "an entry has a value or a prefix, not both")
	case f[1].key != 0:
		e.How = MatchValue
		e.Value, _ = ps.text(f[1].value, "the value of an entry", MaxEnvoyValueBytes)
	case f[2].key != 0:
		e.How = MatchPrefix
		e.Value, _ = ps.text(f[2].value, "the prefix of an entry", MaxEnvoyValueBytes)
	}
	return e
}

// text is a name that does not hold the file's text in memory.
func (ps *parser) text(i int32, what string, most int) (string, bool) {
	s, ok := ps.name(i, what, most)
	return strings.Clone(s), ok
}

// texts is a list of names; nil when the key is not there.
func (ps *parser) texts(f part, what string, most int) (out []string) {
	if f.key == 0 || !ps.isKind(f.value, kindSequence, what, "a list") {
		return nil
	}
	for item := f.value + 1; item < ps.end(f.value); item = ps.next(item) {
		if len(out) == most {
			ps.problem(item, "%s are too many; at most %d are allowed", what, most)
			break
		}
		s, _ := ps.text(item, "one of "+what, MaxNameBytes)
		out = append(out, s)
	}
	return out
}
