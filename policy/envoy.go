package policy

import (
	"fmt"
	"slices"
	"strings"
)

// Bounds of the mapping of Envoy's descriptors.
const (
	// MaxEnvoyDomains bounds the domains, MaxEnvoyRules the rules of all of them together.
	MaxEnvoyDomains = 256
	MaxEnvoyRules   = 4096
	// MaxEnvoyEntries bounds the entries that a rule matches, and with it a descriptor's.
	MaxEnvoyEntries = 16
	// MaxEnvoyValueBytes bounds the value of an entry that a rule matches. A key is bounded by MaxNameBytes.
	MaxEnvoyValueBytes = MaxPrincipalBytes
	// MaxEnvoyReplaces bounds the rules that one rule replaces.
	MaxEnvoyReplaces = 64
)

// EnvoyDomain says how the descriptors of one domain of Envoy's global rate limit protocol become checks.
type EnvoyDomain struct {
	// RequestID is the key of the descriptor entry whose value is the request id that Envoy has made: it names the
	// decision, so that a retry is not counted again, and is not matched by rules. Empty: no entry is trusted for it.
	RequestID string
	// PassUnmatched lets a descriptor through that no rule matches; else it is over its limit.
	PassUnmatched bool
	// Rules are tried in order: the first that matches a descriptor is its rule.
	Rules []EnvoyRule

	index *envoyIndex // of Rules; nil until the policy is built
}

// EnvoyRule says what a check a descriptor is.
type EnvoyRule struct {
	// Name is for Replaces of other rules; empty for none.
	Name string
	// Replaces names rules of the domain whose descriptors are left out where this rule has one in the same request.
	Replaces []string
	// Match has to match all entries of the descriptor, in order.
	Match []EnvoyEntry
	// Unlimited lets the descriptor through unasked. The fields that follow are empty then.
	Unlimited bool
	// Class is the class of the check, a listed one or DefaultClass.
	Class string
	// Principal are the keys of the entries whose values name the principal, in order; see Identify. Without any
	// the principal is Shared.
	Principal []string
	// Shared is the one principal of all descriptors of the rule, whatever their values are.
	Shared string
	// Tier is the key of the entry whose value is the tier; empty for none.
	Tier string
}

// EnvoyMatch says which values an entry of a rule matches.
type EnvoyMatch uint8

// The matches.
const (
	MatchAny    EnvoyMatch = iota // every value
	MatchValue                    // this one
	MatchPrefix                   // those that begin so
)

// EnvoyEntry matches one entry of a descriptor.
type EnvoyEntry struct {
	Key   string
	How   EnvoyMatch
	Value string // empty with MatchAny
}

// Matches reports whether an entry of a descriptor is one of e.
func (e *EnvoyEntry) Matches(key, value string) bool {
	switch {
	case e.Key != key:
		return false
	case e.How == MatchValue:
		return e.Value == value
	case e.How == MatchPrefix:
		return strings.HasPrefix(value, e.Value)
	}
	return true
}

// Match is the rule of a descriptor with these keys and values, as many of the one as of the other; nil when it has
// none. In a domain of a policy that was parsed, decoded or made by New it does not try one rule after another.
func (d *EnvoyDomain) Match(keys, values []string) *EnvoyRule {
	index := d.index
	if index == nil { // a domain by itself
		index = newEnvoyIndex(d.Rules, skipNone)
	}
	if i := index.first(keys, values); i < noRule {
		return &d.Rules[i]
	}
	return nil
}

// Identify tells whose check a descriptor with these values is, and its tier, by a rule that matches it and is not
// unlimited. A single value that names the principal is the principal as it is, so that it shares its usage with the
// same principal elsewhere; of several each is preceded by its length, so that no two lists make the same.
func (r *EnvoyRule) Identify(values []string) (principal, tier string) {
	value := func(key string) string {
		return values[slices.IndexFunc(r.Match, func(e EnvoyEntry) bool { return e.Key == key })]
	}
	if r.Tier != "" {
		tier = value(r.Tier)
	}
	switch len(r.Principal) {
	case 0:
		return r.Shared, tier
	case 1:
		return value(r.Principal[0]), tier
	}
	var b strings.Builder
	for _, key := range r.Principal {
		v := value(key)
		fmt.Fprintf(&b, "%d:%s", len(v), v)
	}
	return b.String(), tier
}

// names are the names of the domain's rules.
func (d *EnvoyDomain) names() map[string]bool {
	names := make(map[string]bool, len(d.Rules))
	for i := range d.Rules {
		if name := d.Rules[i].Name; name != "" {
			names[name] = true
		}
	}
	return names
}

// fault says what is wrong with a rule of a domain, whose rules have names; empty when nothing is. listed tells whether
// a class is.
func (r *EnvoyRule) fault(d *EnvoyDomain, names map[string]bool, listed func(class string) bool) string {
	if len(r.Match) == 0 || len(r.Match) > MaxEnvoyEntries {
		return fmt.Sprintf("a rule matches 1 to %d entries", MaxEnvoyEntries)
	}
	for i := range r.Match {
		if fault := r.Match[i].fault(); fault != "" {
			return fault
		}
		if r.Match[i].Key == d.RequestID {
			return fmt.Sprintf("the key %s is the request id's, which rules do not match", quoted(d.RequestID))
		}
	}
	if fault := nameFault(r.Name, MaxNameBytes); r.Name != "" && fault != "" {
		return "the name of a rule " + fault
	}
	if len(r.Replaces) > MaxEnvoyReplaces {
		return fmt.Sprintf("a rule replaces at most %d others", MaxEnvoyReplaces)
	}
	for i, name := range r.Replaces {
		switch {
		case slices.Contains(r.Replaces[:i], name) || name == r.Name:
			return fmt.Sprintf("a rule replaces %s twice, or itself", quoted(name))
		case !names[name]:
			return fmt.Sprintf("a rule replaces %s, and no rule of the domain has this name", quoted(name))
		}
	}
	if r.Unlimited {
		if r.Class != "" || len(r.Principal) > 0 || r.Shared != "" || r.Tier != "" {
			return "a rule that is unlimited has no class, principal and tier"
		}
		return ""
	}
	return r.checkFault(listed)
}

// checkFault says what is wrong with the check that a rule makes.
func (r *EnvoyRule) checkFault(listed func(class string) bool) string {
	switch {
	case r.Class == "":
		return "a rule needs the class of the check, or unlimited: true; write class: login"
	case !listed(r.Class):
		return fmt.Sprintf("the class %s is not listed under classes", quoted(r.Class))
	case len(r.Principal) == 0 && r.Shared == "":
		return "a rule needs the keys of the entries that name the principal; write principal: [remote_address], or " +
			"shared: all for one principal"
	case len(r.Principal) > 0 && r.Shared != "":
		return "a rule has a principal or a shared one, not both"
	case r.Shared != "" && nameFault(r.Shared, MaxPrincipalBytes) != "":
		return "the shared principal " + nameFault(r.Shared, MaxPrincipalBytes)
	}
	for i, key := range r.Principal {
		if fault := r.keyFault(key); fault != "" {
			return fault
		}
		if slices.Contains(r.Principal[:i], key) {
			return fmt.Sprintf("the key %s names the principal twice", quoted(key))
		}
	}
	if r.Tier != "" {
		return r.keyFault(r.Tier)
	}
	return ""
}

// keyFault says that a key is not that of exactly one entry.
func (r *EnvoyRule) keyFault(key string) string {
	n := 0
	for i := range r.Match {
		if r.Match[i].Key == key {
			n++
		}
	}
	if n != 1 {
		return fmt.Sprintf("the key %s is that of %d of the entries that the rule matches; it must be one's", quoted(key), n)
	}
	return ""
}

func (e *EnvoyEntry) fault() string {
	if fault := nameFault(e.Key, MaxNameBytes); fault != "" {
		return "the key of an entry " + fault
	}
	switch {
	case e.How > MatchPrefix:
		return fmt.Sprintf("the match %d of an entry is unknown", e.How)
	case e.How == MatchAny && e.Value != "":
		return "an entry that matches every value has one"
	case e.How != MatchAny:
		if fault := nameFault(e.Value, MaxEnvoyValueBytes); fault != "" {
			return "the value of an entry " + fault
		}
	}
	return ""
}

func cloneEnvoy(domains map[string]*EnvoyDomain) map[string]*EnvoyDomain {
	clone := make(map[string]*EnvoyDomain, len(domains))
	for name, d := range domains {
		if d == nil {
			d = &EnvoyDomain{} // refused for its missing rules
		}
		copied := *d
		copied.Rules, copied.index = slices.Clone(d.Rules), nil
		for i := range copied.Rules {
			r := &copied.Rules[i]
			r.Replaces, r.Match = slices.Clone(r.Replaces), slices.Clone(r.Match)
			r.Principal = slices.Clone(r.Principal)
		}
		clone[name] = &copied
	}
	return clone
}

func (v *validator) envoy() {
	rules := 0
	for _, name := range v.p.envoyNames {
		d, path := v.p.Envoy[name], joinPath("envoy", name)
		v.name("envoy", "a domain", name, MaxNameBytes)
		if fault := nameFault(d.RequestID, MaxNameBytes); d.RequestID != "" && fault != "" {
			v.fault(path, "the key of the request id %s", fault)
		}
		if len(d.Rules) == 0 {
			v.fault(path, "%s", envoyNeedsRules)
		}
		rules += len(d.Rules)
		names := d.names()
		for i := range d.Rules {
			if fault := d.Rules[i].fault(d, names, v.p.isListed); fault != "" {
				v.fault(fmt.Sprintf("%s.rules.%d", path, i), "%s", fault)
			}
		}
	}
	if n := len(v.p.Envoy); n > MaxEnvoyDomains || rules > MaxEnvoyRules {
		v.fault("envoy", "there are %d domains with %d rules; at most %d and %d are allowed", n, rules, MaxEnvoyDomains,
			MaxEnvoyRules)
	}
}

const envoyNeedsRules = "a domain needs at least one rule"

// isListed reports whether a class is listed, or DefaultClass.
func (p *Policy) isListed(class string) bool { return class == DefaultClass || p.Classes[class] != nil }

func (d *EnvoyDomain) text() string {
	unmatched := "deny"
	if d.PassUnmatched {
		unmatched = "allow"
	}
	rules := make([]string, len(d.Rules))
	for i := range d.Rules {
		rules[i] = d.Rules[i].text()
	}
	out := "unmatched " + unmatched
	if d.RequestID != "" {
		out = "request_id " + nameText(d.RequestID) + "; " + out
	}
	return out + "; " + strings.Join(rules, "; ")
}

// matchText is what a rule matches.
func (r *EnvoyRule) matchText() string {
	entries := make([]string, len(r.Match))
	for i, e := range r.Match {
		entries[i] = nameText(e.Key)
		switch e.How {
		case MatchValue:
			entries[i] += "=" + nameText(e.Value)
		case MatchPrefix:
			entries[i] += "^=" + nameText(e.Value)
		case MatchAny:
		}
	}
	return strings.Join(entries, ", ")
}

func (r *EnvoyRule) text() string {
	out := r.matchText() + ": "
	if r.Unlimited {
		out += "unlimited"
	} else {
		out += nameText(r.Class) + " of "
		if r.Shared != "" {
			out += "all, as " + nameText(r.Shared)
		} else {
			out += namesText(r.Principal)
		}
	}
	if r.Tier != "" {
		out += ", tier " + nameText(r.Tier)
	}
	if r.Name != "" {
		out += ", named " + nameText(r.Name)
	}
	if len(r.Replaces) > 0 {
		out += ", replaces " + namesText(r.Replaces)
	}
	return out
}
