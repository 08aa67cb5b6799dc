package policy

import (
	"maps"
	"slices"
)

// New makes a policy of parts: it copies them, fills in what may be left out, checks all of it and
// builds the indexes. The error is a Problems without positions.
//
// Left out may be a class's ReplayHorizonNanos and TimeoutNanos (0 becomes the default) and a
// group's Name (its key is taken). Classes of a group are sorted, and tiers and principals without
// a rule are dropped, since neither changes a decision.
func New(parts Policy) (*Policy, error) {
	p := &Policy{
		Version:    parts.Version,
		Default:    cloneClass(&parts.Default),
		Classes:    make(map[string]*Class, len(parts.Classes)),
		Tiers:      cloneRules(parts.Tiers),
		Principals: cloneRules(parts.Principals),
		Groups:     make(map[string]*Group, len(parts.Groups)),
		Envoy:      cloneEnvoy(parts.Envoy),
	}
	for name, class := range parts.Classes {
		if class == nil {
			class = &Class{} // refused for its missing limits
		}
		clone := cloneClass(class)
		p.Classes[name] = &clone
	}
	for key, group := range parts.Groups {
		if group == nil {
			group = &Group{} // refused for its missing classes
		}
		clone := Group{
			Name:    group.Name,
			Classes: slices.Clone(group.Classes),
			Limits:  slices.Clone(group.Limits),
		}
		if clone.Name == "" {
			clone.Name = key
		}
		p.Groups[key] = &clone
	}
	if _, err := p.build(); err != nil {
		return nil, err
	}
	if err := p.unused(); err != nil {
		return nil, err
	}
	return p, nil
}

func cloneClass(c *Class) Class {
	clone := *c
	clone.Limits = slices.Clone(c.Limits)
	if clone.ReplayHorizonNanos == 0 {
		clone.ReplayHorizonNanos = DefaultReplayHorizonNanos
	}
	if clone.TimeoutNanos == 0 {
		clone.TimeoutNanos = DefaultTimeoutNanos
	}
	return clone
}

func cloneRules(rules map[string]map[string][]Limit) map[string]map[string][]Limit {
	clone := make(map[string]map[string][]Limit, len(rules))
	for who, byClass := range rules {
		if len(byClass) == 0 {
			continue
		}
		copied := make(map[string][]Limit, len(byClass))
		for class, limits := range byClass {
			copied[class] = slices.Clone(limits)
		}
		clone[who] = copied
	}
	return clone
}

// build checks and indexes a policy that nobody else holds.
func (p *Policy) build() (*Policy, error) {
	p.classNames = sortedKeys(p.Classes)
	p.groupNames = sortedKeys(p.Groups)
	p.envoyNames = sortedKeys(p.Envoy)
	p.tierNames = sortedKeys(p.Tiers)
	p.principalNames = sortedKeys(p.Principals)
	p.groupOf = make(map[string]*Group)
	for _, name := range p.groupNames {
		slices.Sort(p.Groups[name].Classes)
		for _, class := range p.Groups[name].Classes {
			if p.groupOf[class] == nil {
				p.groupOf[class] = p.Groups[name]
			}
		}
	}
	if err := p.validate(); err != nil {
		return nil, err
	}
	p.indexWindows()
	for _, d := range p.Envoy {
		d.index = newEnvoyIndex(d.Rules, skipNone)
	}
	p.digest = p.computeDigest()
	p.body = p.digest
	return p, nil
}

func sortedKeys[V any](m map[string]V) []string {
	keys := slices.AppendSeq(make([]string, 0, len(m)), maps.Keys(m))
	slices.Sort(keys)
	return keys
}

func (p *Policy) indexWindows() {
	p.windows = make(map[string]Windows, len(p.Classes)+1)
	start := func(name string, c *Class) {
		w := Windows{Rule: longest(c.Limits), Retention: c.RetentionNanos}
		if g := p.groupOf[name]; g != nil {
			w.Group = longest(g.Limits)
		}
		p.windows[name] = w
	}
	start(DefaultClass, &p.Default)
	for name, c := range p.Classes {
		start(name, c)
	}
	for _, rules := range []map[string]map[string][]Limit{p.Tiers, p.Principals} {
		for _, byClass := range rules {
			for class, limits := range byClass {
				if w := p.windows[class]; longest(limits) > w.Rule {
					w.Rule = longest(limits)
					p.windows[class] = w
				}
			}
		}
	}
}

func longest(limits []Limit) (windowNanos int64) {
	for i := range limits {
		windowNanos = max(windowNanos, limits[i].WindowNanos)
	}
	return windowNanos
}
