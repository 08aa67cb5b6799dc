package reference

import (
	"fmt"
	"maps"
	"slices"

	"pgregory.net/rapid"

	"github.com/quorate/quorate/policy"
)

// The names that generated policies and checks use. Few, so that they meet.
var (
	genClasses    = []string{"a", "b", "c", "d"}
	genUnlisted   = []string{"x", "y", policy.DefaultClass}
	genTiers      = []string{"free", "pro"}
	genPrincipals = []string{"p", "q", "r"}
)

const (
	milli  = int64(1_000_000)
	second = 1000 * milli
)

// oneIn is true once in n draws, and shrinks to false.
func oneIn(t *rapid.T, n int, label string) bool {
	return rapid.IntRange(0, n-1).Draw(t, label) == n-1
}

func genWindow(t *rapid.T) int64 {
	common := rapid.SampledFrom([]int64{
		milli, 2 * milli, 3 * milli, 5 * milli, 10 * milli, 50 * milli, second, 3 * second,
	})
	if oneIn(t, 5, "odd window") {
		return rapid.Int64Range(policy.MinWindowNanos, 5*second).Draw(t, "window")
	}
	return common.Draw(t, "window")
}

func genMax(t *rapid.T) int64 {
	switch rapid.IntRange(0, 19).Draw(t, "limit kind") {
	case 19:
		return policy.MaxLimit
	case 18:
		return 0
	case 17:
		return rapid.Int64Range(0, 100).Draw(t, "limit")
	}
	return rapid.Int64Range(1, 8).Draw(t, "limit")
}

func genLimits(t *rapid.T, prefix string) []policy.Limit {
	limits := make([]policy.Limit, rapid.IntRange(1, 3).Draw(t, "limits"))
	for i := range limits {
		limits[i] = policy.Limit{
			Name: fmt.Sprintf("%s%d", prefix, i), Max: genMax(t), WindowNanos: genWindow(t),
		}
	}
	return limits
}

func genHorizon(t *rapid.T) int64 {
	return rapid.SampledFrom([]int64{second, 2 * second, 30 * second}).Draw(t, "horizon")
}

func genRetention(t *rapid.T) int64 {
	if oneIn(t, 4, "has retention") {
		return genWindow(t)
	}
	return 0
}

func genClass(t *rapid.T) *policy.Class {
	return &policy.Class{
		Limits:             genLimits(t, "m"),
		ReplayHorizonNanos: genHorizon(t),
		TimeoutNanos:       100 * milli,
		RetentionNanos:     genRetention(t),
		Disabled:           oneIn(t, 20, "disabled"),
	}
}

// GenPolicy draws a policy of a few classes, tiers, overrides and groups.
func GenPolicy(t *rapid.T, version string) *policy.Policy {
	parts := policy.Policy{
		Version:    version,
		Default:    *genClass(t),
		Classes:    map[string]*policy.Class{},
		Tiers:      map[string]map[string][]policy.Limit{},
		Principals: map[string]map[string][]policy.Limit{},
		Groups:     map[string]*policy.Group{},
	}
	for _, class := range genClasses {
		if !oneIn(t, 3, "unlisted") {
			parts.Classes[class] = genClass(t)
		}
	}
	for range rapid.IntRange(0, 3).Draw(t, "overrides") {
		genOverride(t, &parts)
	}
	genGroups(t, &parts)
	return mustPolicy(parts)
}

// genOverride gives a tier or a principal a rule of its own for one class, or takes it away.
func genOverride(t *rapid.T, parts *policy.Policy) {
	rules, who := parts.Tiers, rapid.SampledFrom(genTiers).Draw(t, "tier")
	if rapid.Bool().Draw(t, "principal override") {
		rules, who = parts.Principals, rapid.SampledFrom(genPrincipals[:2]).Draw(t, "principal")
	}
	class := rapid.SampledFrom(rulesOf(parts)).Draw(t, "class")
	if _, ok := rules[who][class]; ok && rapid.Bool().Draw(t, "drop") {
		delete(rules[who], class)
		return
	}
	if rules[who] == nil {
		rules[who] = map[string][]policy.Limit{}
	}
	rules[who][class] = genLimits(t, "o")
}

// rulesOf names what has a rule in the policy: the listed classes and default.
func rulesOf(p *policy.Policy) []string {
	return append(slices.Sorted(maps.Keys(p.Classes)), policy.DefaultClass)
}

// genGroups puts the listed classes into none, one or two groups.
func genGroups(t *rapid.T, parts *policy.Policy) {
	members := map[string][]string{}
	for _, class := range slices.Sorted(maps.Keys(parts.Classes)) {
		if g := rapid.SampledFrom([]string{"", "", "g", "h"}).Draw(t, "group"); g != "" {
			members[g] = append(members[g], class)
		}
	}
	clear(parts.Groups)
	for _, g := range slices.Sorted(maps.Keys(members)) {
		parts.Groups[g] = &policy.Group{Name: g, Classes: members[g], Limits: genLimits(t, g)}
	}
}

// GenChange draws the policy that follows the last of the given ones: a change of one or a few
// things, a rollback to one of them, the same once more, or another policy altogether.
func GenChange(t *rapid.T, history []*policy.Policy, version string) *policy.Policy {
	switch rapid.IntRange(0, 9).Draw(t, "change") {
	case 9:
		return GenPolicy(t, version)
	case 7, 8:
		parts := clone(rapid.SampledFrom(history).Draw(t, "rollback"))
		parts.Version = version
		return mustPolicy(parts)
	}
	parts := clone(history[len(history)-1])
	parts.Version = version
	for range rapid.IntRange(1, 3).Draw(t, "edits") {
		edit(t, &parts)
	}
	return mustPolicy(parts)
}

// edit changes one thing.
func edit(t *rapid.T, parts *policy.Policy) {
	class := &parts.Default
	name := rapid.SampledFrom(rulesOf(parts)).Draw(t, "edited")
	if name != policy.DefaultClass {
		class = parts.Classes[name]
	}
	switch rapid.IntRange(0, 9).Draw(t, "edit") {
	case 0, 1: // widen or narrow
		i := rapid.IntRange(0, len(class.Limits)-1).Draw(t, "i")
		class.Limits[i].WindowNanos = genWindow(t)
	case 2: // raise or lower
		i := rapid.IntRange(0, len(class.Limits)-1).Draw(t, "i")
		class.Limits[i].Max = genMax(t)
	case 3:
		class.Limits = genLimits(t, "m")
	case 4, 5: // list or unlist
		if name = rapid.SampledFrom(genClasses).Draw(t, "listed"); parts.Classes[name] == nil {
			parts.Classes[name] = genClass(t)
		} else {
			unlist(parts, name)
		}
	case 6:
		genGroups(t, parts)
	case 7:
		genOverride(t, parts)
	case 8:
		class.RetentionNanos = genRetention(t)
		class.ReplayHorizonNanos = genHorizon(t)
	case 9:
		class.Disabled = !class.Disabled && oneIn(t, 2, "disable")
	}
}

// unlist takes a class out of the policy, with all that names it.
func unlist(parts *policy.Policy, class string) {
	delete(parts.Classes, class)
	for _, rules := range []map[string]map[string][]policy.Limit{parts.Tiers, parts.Principals} {
		for _, byClass := range rules {
			delete(byClass, class)
		}
	}
	for name, g := range parts.Groups {
		g.Classes = slices.DeleteFunc(g.Classes, func(c string) bool { return c == class })
		if len(g.Classes) == 0 {
			delete(parts.Groups, name)
		}
	}
}

// clone returns the parts of p, to be changed.
func clone(p *policy.Policy) policy.Policy {
	class := func(c *policy.Class) *policy.Class {
		copied := *c
		copied.Limits = slices.Clone(c.Limits)
		return &copied
	}
	rules := func(of map[string]map[string][]policy.Limit) map[string]map[string][]policy.Limit {
		copied := map[string]map[string][]policy.Limit{}
		for who, byClass := range of {
			copied[who] = maps.Clone(byClass) // rules are replaced, never edited
		}
		return copied
	}
	parts := policy.Policy{
		Version:    p.Version,
		Default:    *class(&p.Default),
		Classes:    map[string]*policy.Class{},
		Tiers:      rules(p.Tiers),
		Principals: rules(p.Principals),
		Groups:     map[string]*policy.Group{},
	}
	for name, c := range p.Classes {
		parts.Classes[name] = class(c)
	}
	for name, g := range p.Groups {
		parts.Groups[name] = &policy.Group{
			Name: g.Name, Classes: slices.Clone(g.Classes), Limits: g.Limits,
		}
	}
	return parts
}

func mustPolicy(parts policy.Policy) *policy.Policy {
	p, err := policy.New(parts)
	if err != nil {
		panic(fmt.Sprintf("reference: the generator made a policy that is refused: %v", err))
	}
	return p
}
