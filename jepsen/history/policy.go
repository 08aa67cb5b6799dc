package history

import (
	"encoding/json"
	"fmt"
	"slices"
	"time"
)

// DefaultClass is the class of all names that a policy does not list.
const DefaultClass = "default"

// Window is the length of a limit's window. In a policy's text it is as Go writes it.
type Window time.Duration

// MarshalJSON writes it as Go does.
func (w Window) MarshalJSON() ([]byte, error) { return json.Marshal(time.Duration(w).String()) }

// UnmarshalJSON reads what MarshalJSON writes.
func (w *Window) UnmarshalJSON(text []byte) error {
	var s string
	if err := json.Unmarshal(text, &s); err != nil {
		return fmt.Errorf("a window is a text such as \"10s\": %w", err)
	}
	d, err := time.ParseDuration(s)
	if err != nil {
		return fmt.Errorf("window: %w", err)
	}
	*w = Window(d)
	return nil
}

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

// Clone copies a policy, to change it.
func (p Policy) Clone() Policy {
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

// Resolve is the class in which a name is counted.
func (p *Policy) Resolve(name string) string {
	if _, listed := p.Classes[name]; listed {
		return name
	}
	return DefaultClass
}

// ClassOf is the class that counts what is resolved to it.
func (p *Policy) ClassOf(resolved string) Class {
	if c, listed := p.Classes[resolved]; listed {
		return c
	}
	return p.Default
}

// GroupOf is the group that a class is in.
func (p *Policy) GroupOf(resolved string) (Group, bool) {
	for _, g := range p.Groups {
		if slices.Contains(g.Classes, resolved) {
			return g, true
		}
	}
	return Group{}, false
}

// Scoped is a limit with the classes whose admissions it counts.
type Scoped struct {
	Limit
	Over []string
}

// Rule is what a check for a name has to meet.
func (p *Policy) Rule(name string) (limits []Scoped) {
	resolved := p.Resolve(name)
	for _, l := range p.ClassOf(resolved).Limits {
		limits = append(limits, Scoped{l, []string{resolved}})
	}
	if g, ok := p.GroupOf(resolved); ok {
		for _, l := range g.Limits {
			limits = append(limits, Scoped{l, g.Classes})
		}
	}
	return limits
}

// Longest is for how long the admissions of a class are kept at least. It is 0 for a class that is not listed.
func (p *Policy) Longest(class string) time.Duration {
	if class != p.Resolve(class) {
		return 0
	}
	longest := p.ClassOf(class).Retention
	for _, l := range p.Rule(class) {
		longest = max(longest, l.Window)
	}
	return time.Duration(longest)
}
