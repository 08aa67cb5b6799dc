package policy

import (
	"fmt"
	"slices"
	"unicode/utf8"
)

// Covers reports whether r matches every descriptor that other matches, so that other is never used after r.
func (r *EnvoyRule) Covers(other *EnvoyRule) bool {
	return slices.EqualFunc(r.Match, other.Match, func(a, b EnvoyEntry) bool {
		switch {
		case a.Key != b.Key:
			return false
		case a.How == MatchAny:
			return true
		case b.How == MatchAny || a.How == MatchValue && b.How == MatchPrefix:
			return false
		}
		return a.Matches(b.Key, b.Value)
	})
}

// shadows calls report for each rule of a domain that is never used, with the first one that matches all that it
// matches. Those that skip tells are left out on both sides.
func (d *EnvoyDomain) shadows(skip func(i int) bool, report func(rule, by int)) {
	index := newEnvoyIndex(d.Rules, skip)
	for i := range d.Rules[:min(len(d.Rules), MaxEnvoyRules)] {
		if skip(i) {
			continue
		}
		if by := int(index.firstCovering(d.Rules[i].Match)); by < i {
			report(i, by)
		}
	}
}

// shadowFault says that a rule is never used because of another one, and where that is.
func (d *EnvoyDomain) shadowFault(rule, by int, where string) string {
	a, b := &d.Rules[rule], &d.Rules[by]
	if slices.Equal(a.Match, b.Match) {
		return fmt.Sprintf("the rule %s is never used: the rule %s %s matches the same, and comes first; remove one of them",
			a.label(), b.label(), where)
	}
	return fmt.Sprintf("the rule %s is never used: the rule %s %s comes first and matches all that it matches; put this "+
		"one before that, or remove it", a.label(), b.label(), where)
}

// maxLabelBytes bounds what a message shows of a rule.
const maxLabelBytes = 96

// label is a rule's name, if it has one, and what it matches.
func (r *EnvoyRule) label() string {
	text := r.matchText()
	if len(text) > maxLabelBytes {
		cut := maxLabelBytes
		for cut > 0 && !utf8.RuneStart(text[cut]) {
			cut--
		}
		text = text[:cut] + "..."
	}
	if r.Name == "" {
		return "{" + text + "}"
	}
	return quoted(r.Name) + " {" + text + "}"
}

// unused is a Problems with the rules that are never used; nil when there are none. It is asked of policies that are
// being made, not of those that are read back: a log may hold one from before rules were looked at so.
func (p *Policy) unused() error {
	v := &validator{p: p}
	for _, name := range p.envoyNames {
		d := p.Envoy[name]
		path := joinPath("envoy", name)
		d.shadows(skipNone, func(rule, by int) {
			at := fmt.Sprintf("at %s.rules.%d", path, by)
			v.fault(fmt.Sprintf("%s.rules.%d", path, rule), "%s", d.shadowFault(rule, by, at))
		})
	}
	return v.err()
}
