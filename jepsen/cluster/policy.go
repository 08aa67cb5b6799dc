package cluster

import (
	"encoding/json"
	"slices"
	"time"
)

// defaultClass is the class of all names that a policy does not list.
const defaultClass = "default"

// Window is the length of a limit's window. In a policy's text it is as Go writes it.
type Window time.Duration

// MarshalJSON writes it as Go does.
func (w Window) MarshalJSON() ([]byte, error) { return json.Marshal(time.Duration(w).String()) }

// Limit is what any rolling window admits.
type Limit struct {
	Name   string `json:"name"`
	Max    int64  `json:"limit"`
	Window Window `json:"window"`
}

// Class is one class of a policy.
type Class struct {
	Limits    []Limit `json:"limits"`
	Retention Window  `json:"retention,omitempty"`
	Disabled  bool    `json:"disabled,omitempty"`
	// How a gateway treats it, which Examine does not look at.
	OnUnavailable string      `json:"on_unavailable,omitempty"`
	LocalLimit    *LocalLimit `json:"local_limit,omitempty"`
	Timeout       Window      `json:"timeout,omitempty"`
	// ReplayHorizon is how long decisions are recorded; 0: for replayHorizon. Examine looks no further than that.
	ReplayHorizon Window `json:"replay_horizon,omitempty"`
}

// LocalLimit is what each gateway admits by itself, with on_unavailable local.
type LocalLimit struct {
	Max    int64  `json:"limit"`
	Window Window `json:"window"`
}

// Group has limits over several classes.
type Group struct {
	Classes []string `json:"classes"`
	Limits  []Limit  `json:"limits"`
}

// Policy is a policy as the tests write it and as Examine reads it, by code of its own. Its JSON is a policy file.
type Policy struct {
	Version string           `json:"version"`
	Default Class            `json:"default"`
	Classes map[string]Class `json:"classes"`
	Groups  map[string]Group `json:"groups,omitempty"`
}

// clone copies a policy, to change it.
func (p Policy) clone() Policy {
	out := p
	out.Classes, out.Groups = map[string]Class{}, map[string]Group{}
	for name, c := range p.Classes {
		c.Limits = slices.Clone(c.Limits)
		out.Classes[name] = c
	}
	for name, g := range p.Groups {
		out.Groups[name] = Group{slices.Clone(g.Classes), slices.Clone(g.Limits)}
	}
	out.Default.Limits = slices.Clone(p.Default.Limits)
	return out
}

// resolve is the class in which a name is counted.
func (p *Policy) resolve(name string) string {
	if _, listed := p.Classes[name]; listed {
		return name
	}
	return defaultClass
}

func (p *Policy) class(resolved string) Class {
	if c, listed := p.Classes[resolved]; listed {
		return c
	}
	return p.Default
}

// group is the group that a class is in.
func (p *Policy) group(resolved string) (Group, bool) {
	for _, g := range p.Groups {
		if slices.Contains(g.Classes, resolved) {
			return g, true
		}
	}
	return Group{}, false
}

// scoped is a limit with the classes whose admissions it counts.
type scoped struct {
	Limit
	over []string
}

// rule is what a check for a name has to meet.
func (p *Policy) rule(name string) (limits []scoped) {
	resolved := p.resolve(name)
	for _, l := range p.class(resolved).Limits {
		limits = append(limits, scoped{l, []string{resolved}})
	}
	if g, ok := p.group(resolved); ok {
		for _, l := range g.Limits {
			limits = append(limits, scoped{l, g.Classes})
		}
	}
	return limits
}

// longest is for how long the admissions of a class are kept at least. It is 0 for a class that is not listed.
func (p *Policy) longest(class string) time.Duration {
	if class != p.resolve(class) {
		return 0
	}
	longest := p.class(class).Retention
	for _, l := range p.rule(class) {
		longest = max(longest, l.Window)
	}
	return time.Duration(longest)
}
