package policy

// Policy is one revision of the rules. It is immutable: its maps and slices are read-only.
type Policy struct {
	// Version is the administrator's label.
	Version string
	// Default is the rule of everything that Classes does not list.
	Default Class
	// Classes are the listed classes by name.
	Classes map[string]*Class
	// Tiers are rules by tier, then by class (a listed one or DefaultClass).
	Tiers map[string]map[string][]Limit
	// Principals are the overrides, by principal, then by class.
	Principals map[string]map[string][]Limit
	// Groups are the limits over several classes, by name. Classes of a group are sorted.
	Groups map[string]*Group
	// Envoy says, by domain, how Envoy's descriptors become checks. It decides nothing by itself.
	Envoy map[string]*EnvoyDomain

	groupOf map[string]*Group  // by class
	windows map[string]Windows // by class, DefaultClass included
	digest  [32]byte

	// What With made the policy of; see Origin.
	body     [32]byte
	switches []Switch

	// The keys of the maps above, sorted.
	classNames, tierNames, principalNames, groupNames, envoyNames []string
}

// ClassOf resolves a class name as a client sends it: the listed class of that name, else
// DefaultClass. The resolved name is what usage is counted under.
func (p *Policy) ClassOf(name string) (resolved string, c *Class) {
	if c, ok := p.Classes[name]; ok {
		return name, c
	}
	return DefaultClass, &p.Default
}

// RuleFor returns the limits that hold for a principal's checks of a class, which is resolved by
// ClassOf: the principal's override, else the tier's rule, else the class's. An empty or unknown
// tier is no tier. The limits of the class's group come on top and are not included.
func (p *Policy) RuleFor(principal, resolved, tier string) []Limit {
	if rule, ok := p.Principals[principal][resolved]; ok {
		return rule
	}
	if rule, ok := p.Tiers[tier][resolved]; ok {
		return rule
	}
	_, c := p.ClassOf(resolved)
	return c.Limits
}

// GroupOf returns the group of a resolved class, nil when it is in none.
func (p *Policy) GroupOf(resolved string) *Group { return p.groupOf[resolved] }

// Windows returns the longest windows of a resolved class; zeros for a name that ClassOf does not
// return.
func (p *Policy) Windows(resolved string) Windows { return p.windows[resolved] }

// ClassNames returns the names of the listed classes, sorted. The slice is shared: read-only.
func (p *Policy) ClassNames() []string { return p.classNames[:len(p.classNames):len(p.classNames)] }

// Digest is the SHA-256 of the canonical encoding. Policies are equal exactly when it is.
func (p *Policy) Digest() [32]byte { return p.digest }
