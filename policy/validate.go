package policy

import (
	"fmt"
	"slices"
)

// The texts of faults that both the file and the model can have.
const (
	defaultIsNoClass = `"default" is not a class name; its rule is the policy's own default`
	windowBounds     = "a window must be from 1ms to 366d"
	retentionBounds  = "a retention must be longer than 0 and up to 366d; leave it out for none"
	horizonBounds    = "a replay horizon must be from 1s to 15m"
	limitBounds      = "a limit must be from 0 to 9007199254740992 (2^53)"
	timeoutBounds    = "a timeout must be longer than 0"
)

// horizonFault says that a replay horizon is too short for the timeout; empty when it is not.
func horizonFault(horizonNanos, timeoutNanos int64) string {
	if timeoutNanos <= 0 || timeoutNanos <= horizonNanos/MinHorizonTimeouts {
		return ""
	}
	return fmt.Sprintf("the replay horizon %s must be at least ten times the timeout %s; "+
		"write a longer replay_horizon or a shorter timeout",
		FormatDuration(horizonNanos), FormatDuration(timeoutNanos))
}

// validator gathers the faults of a model.
type validator struct {
	collector
	p *Policy
}

// validate checks the model, with sorted indexes and groupOf made. Its order is deterministic.
func (p *Policy) validate() error {
	v := &validator{p: p}
	v.name("version", "the version", p.Version, MaxNameBytes)
	if len(p.Classes) > MaxClasses {
		v.fault("classes", "%d classes are listed; at most %d are allowed",
			len(p.Classes), MaxClasses)
	}
	if len(p.Groups) > MaxClasses {
		v.fault("groups", "there are %d groups; at most %d are allowed",
			len(p.Groups), MaxClasses)
	}
	if n := countRules(p.Tiers) + countRules(p.Principals); n > MaxOverrides {
		v.fault("principals", "tiers and principals have %d rules; at most %d are allowed",
			n, MaxOverrides)
	}
	v.class(DefaultClass, &p.Default)
	for _, name := range p.classNames {
		if name == DefaultClass {
			v.fault("classes.default", "%s", defaultIsNoClass)
		}
		v.name("classes", "a class name", name, MaxClassBytes)
		v.class(name, p.Classes[name])
	}
	for _, name := range p.groupNames {
		v.group(name, p.Groups[name])
	}
	v.rules("tiers", "a tier's name", MaxTierBytes, p.tierNames, p.Tiers)
	v.rules("principals", "a principal", MaxPrincipalBytes, p.principalNames, p.Principals)
	v.envoy()
	return v.err()
}

func countRules(rules map[string]map[string][]Limit) (n int) {
	for _, byClass := range rules {
		n += len(byClass)
	}
	return n
}

func (v *validator) fault(path, format string, args ...any) {
	v.add(0, 0, "%s: %s", path, fmt.Sprintf(format, args...))
}

func (v *validator) name(path, what, name string, max int) {
	if fault := nameFault(name, max); fault != "" {
		v.fault(path, "%s %s, found %s", what, fault, quoted(name))
	}
}

func (v *validator) class(name string, c *Class) {
	path := joinPath("classes", name)
	if name == DefaultClass {
		path = DefaultClass
	}
	v.limits(path, c.Limits)
	v.clashes(path, name, c.Limits)
	if c.ReplayHorizonNanos < MinReplayHorizonNanos || c.ReplayHorizonNanos > MaxReplayHorizonNanos {
		v.fault(path, "%s", horizonBounds)
	}
	if c.TimeoutNanos <= 0 {
		v.fault(path, "%s", timeoutBounds)
	}
	if fault := horizonFault(c.ReplayHorizonNanos, c.TimeoutNanos); fault != "" {
		v.fault(path, "%s", fault)
	}
	if c.RetentionNanos < 0 || c.RetentionNanos > MaxWindowNanos {
		v.fault(path, "%s", retentionBounds)
	}
	switch {
	case c.OnUnavailable > FailLocal:
		v.fault(path, "the failure mode %d is unknown", c.OnUnavailable)
	case c.OnUnavailable != FailLocal && c.LocalLimit != Limit{}:
		v.fault(path, "a local limit belongs to on_unavailable: local only")
	case c.OnUnavailable == FailLocal:
		if c.LocalLimit.Name != "" {
			v.fault(path, "a local limit has no name")
		}
		v.bounds(joinPath(path, "local_limit"), c.LocalLimit)
	}
}

func (v *validator) bounds(path string, l Limit) {
	if l.Max < 0 || l.Max > MaxLimit {
		v.fault(path, "%s", limitBounds)
	}
	if l.WindowNanos < MinWindowNanos || l.WindowNanos > MaxWindowNanos {
		v.fault(path, "%s", windowBounds)
	}
}

// limits checks one rule, or the limits of one group, by itself. It allocates only for a fault.
func (v *validator) limits(path string, limits []Limit) {
	if len(limits) == 0 {
		v.fault(path, "needs at least one limit")
	}
	if len(limits) > MaxLimitsPerRule {
		v.fault(path, "has %d limits; at most %d are allowed", len(limits), MaxLimitsPerRule)
		limits = limits[:MaxLimitsPerRule]
	}
	for i, l := range limits {
		v.name(path, "the name of a limit", l.Name, MaxNameBytes)
		if l.Max < 0 || l.Max > MaxLimit ||
			l.WindowNanos < MinWindowNanos || l.WindowNanos > MaxWindowNanos {
			v.bounds(joinPath(path, l.Name), l)
		}
		if named(limits[:i], l.Name) {
			v.fault(path, "two limits are named %s", quoted(l.Name))
		}
	}
}

// clashes checks that a rule of a class shares no name with the limits of the class's group.
func (v *validator) clashes(path, class string, limits []Limit) {
	group := v.p.groupOf[class]
	if group == nil {
		return
	}
	for i := range limits[:min(len(limits), MaxLimitsPerRule)] {
		if named(group.Limits, limits[i].Name) {
			v.fault(path, "the limit %s has the name of a limit of the class's group %s",
				quoted(limits[i].Name), quoted(group.Name))
		}
	}
}

func named(limits []Limit, name string) bool {
	return slices.ContainsFunc(limits, func(l Limit) bool { return l.Name == name })
}

func (v *validator) group(key string, g *Group) {
	path := joinPath("groups", key)
	v.name("groups", "a group's name", key, MaxNameBytes)
	if g.Name != key {
		v.fault(path, "the group is named %s but kept as %s", quoted(g.Name), quoted(key))
	}
	v.limits(path, g.Limits)
	if len(g.Classes) == 0 {
		v.fault(path, "needs at least one class")
	}
	for i, class := range g.Classes {
		switch {
		case i > 0 && class == g.Classes[i-1]:
			v.fault(path, "names the class %s twice", quoted(class))
		case v.p.Classes[class] == nil:
			v.fault(path, "names %s, which is not a listed class", quoted(class))
		case v.p.groupOf[class] != g:
			v.fault(path, "the class %s is in the group %s already; a class is in at most one",
				quoted(class), quoted(v.p.groupOf[class].Name))
		}
	}
}

// rules checks all rules of tiers or of principals. Paths are made only for faults, since there can
// be a million rules.
func (v *validator) rules(
	section, what string, max int, names []string, rules map[string]map[string][]Limit,
) {
	for _, name := range names {
		v.name(section, what, name, max)
		byClass := rules[name]
		before := v.total
		if len(byClass) == 1 {
			for class, limits := range byClass {
				v.rule(section, class, limits)
			}
		} else {
			for _, class := range sortedKeys(byClass) {
				v.rule(section, class, byClass[class])
			}
		}
		if v.total > before && !v.plenty() {
			v.locate(before, section, joinPath(section, name))
		}
	}
}

func (v *validator) rule(section, class string, limits []Limit) {
	if class != DefaultClass && v.p.Classes[class] == nil {
		v.fault(section, "%s is not a listed class", quoted(class))
	}
	v.limits(section, limits)
	v.clashes(section, class, limits)
}

// locate puts the full path into the faults that were found for one tier or principal.
func (v *validator) locate(from int, section, path string) {
	for i := from; i < len(v.kept); i++ {
		v.kept[i].Message = path + v.kept[i].Message[len(section):]
	}
}
