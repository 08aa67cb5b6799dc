package policy

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"unicode/utf16"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"go.yaml.in/yaml/v3"
	"pgregory.net/rapid"
)

// The generators make valid parts only, with names that are hard to write in YAML and JSON.
var (
	genName = rapid.OneOf(
		rapid.SampledFrom([]string{"a", "b", "a.b", "1", "yes", "null", "<<", "~", "é", "e\u0301",
			"😀", "\u2028", "a: b", " x", "- y", "\"", "\\", "#", "\n", "\x01", "010"}),
		rapid.StringMatching(`[a-e]{1,3}`),
	)
	genLimit = rapid.Custom(func(t *rapid.T) Limit {
		return Limit{
			Name:        genName.Draw(t, "limit"),
			Max:         rapid.Int64Range(0, MaxLimit).Draw(t, "max"),
			WindowNanos: rapid.Int64Range(MinWindowNanos, MaxWindowNanos).Draw(t, "window"),
		}
	})
	genClass = rapid.Custom(func(t *rapid.T) *Class {
		c := &Class{
			Limits:        genLimits("").Draw(t, "limits"),
			OnUnavailable: FailureMode(rapid.IntRange(0, 2).Draw(t, "mode")),
			Disabled:      rapid.Bool().Draw(t, "disabled"),
		}
		horizon := rapid.Int64Range(MinReplayHorizonNanos, MaxReplayHorizonNanos)
		c.ReplayHorizonNanos = horizon.Draw(t, "horizon")
		c.TimeoutNanos = rapid.Int64Range(1, c.ReplayHorizonNanos/10).Draw(t, "timeout")
		c.RetentionNanos = rapid.Int64Range(0, MaxWindowNanos).Draw(t, "retention")
		if c.OnUnavailable == FailLocal {
			c.LocalLimit = genLimit.Draw(t, "local")
			c.LocalLimit.Name = ""
		}
		return c
	})
	genPolicy = rapid.Custom(drawParts)
)

func genLimits(prefix string) *rapid.Generator[[]Limit] {
	return rapid.Custom(func(t *rapid.T) []Limit {
		limits := rapid.SliceOfNDistinct(genLimit, 1, 4, func(l Limit) string { return l.Name }).
			Draw(t, "limits")
		for i := range limits {
			limits[i].Name = prefix + limits[i].Name
		}
		return limits
	})
}

func drawParts(t *rapid.T) Policy {
	p := Policy{
		Version: genName.Draw(t, "version"),
		Default: *genClass.Draw(t, "default"),
		Classes: rapid.MapOfN(genName, genClass, 0, 4).Draw(t, "classes"),
		Groups:  map[string]*Group{},
	}
	classes := append(sortedKeys(p.Classes), DefaultClass)
	genRules := rapid.MapOfN(
		genName, rapid.MapOfN(rapid.SampledFrom(classes), genLimits(""), 0, 3), 0, 4)
	p.Tiers = genRules.Draw(t, "tiers")
	p.Principals = genRules.Draw(t, "principals")
	free := rapid.Permutation(sortedKeys(p.Classes)).Draw(t, "order")
	for i := 0; len(free) > 0 && i < 2 && rapid.Bool().Draw(t, "group"); i++ {
		n := rapid.IntRange(1, len(free)).Draw(t, "members")
		name := fmt.Sprint(genName.Draw(t, "name"), i)
		p.Groups[name] = &Group{Name: name, Classes: free[:n], Limits: genLimits("g ").Draw(t, "limits")}
		free = free[n:]
	}
	p.Envoy = rapid.MapOfN(genName, rapid.Custom(drawDomain(classes)), 0, 2).Draw(t, "envoy")
	return p
}

// drawDomain draws a domain whose rules make checks of some classes.
func drawDomain(classes []string) func(t *rapid.T) *EnvoyDomain {
	return func(t *rapid.T) *EnvoyDomain {
		d := &EnvoyDomain{PassUnmatched: rapid.Bool().Draw(t, "pass")}
		if rapid.Bool().Draw(t, "trusted") {
			d.RequestID = "request id"
		}
		for i := range rapid.IntRange(1, 3).Draw(t, "rules") {
			keys := rapid.SliceOfNDistinct(genName, 1, 3, rapid.ID[string]).Draw(t, "keys")
			r := EnvoyRule{Unlimited: rapid.Bool().Draw(t, "unlimited")}
			for _, key := range keys {
				e := EnvoyEntry{Key: key, How: EnvoyMatch(rapid.IntRange(0, 2).Draw(t, "how"))}
				if e.How != MatchAny {
					e.Value = genName.Draw(t, "value")
				}
				r.Match = append(r.Match, e)
			}
			if !r.Unlimited {
				r.Class = rapid.SampledFrom(classes).Draw(t, "class")
				r.Principal = rapid.Permutation(keys).Draw(t, "principal")[:rapid.IntRange(1, len(keys)).Draw(t, "n")]
				if rapid.Bool().Draw(t, "shared") {
					r.Principal, r.Shared = nil, genName.Draw(t, "all")
				}
				r.Tier = rapid.SampledFrom(append(keys, "")).Draw(t, "tier")
			}
			if rapid.Bool().Draw(t, "named") {
				r.Name = fmt.Sprint("rule", i)
			}
			if len(d.Rules) > 0 && d.Rules[0].Name != "" && rapid.Bool().Draw(t, "replaces") {
				r.Replaces = []string{d.Rules[0].Name}
			}
			if slices.ContainsFunc(d.Rules, func(earlier EnvoyRule) bool { return earlier.Covers(&r) }) {
				continue // it would be refused
			}
			d.Rules = append(d.Rules, r)
		}
		return d
	}
}

func mustNew(t interface{ Fatalf(string, ...any) }, parts Policy) *Policy {
	p, err := New(parts)
	if err != nil {
		t.Fatalf("new:\n%v", err)
	}
	return p
}

// fileOf is a policy as the maps and lists that a file holds.
func fileOf(p *Policy) map[string]any {
	limits := func(ls []Limit) (list []any) {
		for _, l := range ls {
			list = append(list, map[string]any{
				"name": l.Name, "limit": l.Max, "window": FormatDuration(l.WindowNanos)})
		}
		return list
	}
	class := func(c *Class) map[string]any {
		m := map[string]any{
			"limits": limits(c.Limits), "disabled": c.Disabled,
			"replay_horizon": FormatDuration(c.ReplayHorizonNanos),
			"timeout":        FormatDuration(c.TimeoutNanos),
			"on_unavailable": c.OnUnavailable.String(),
		}
		if c.RetentionNanos > 0 {
			m["retention"] = FormatDuration(c.RetentionNanos)
		}
		if c.OnUnavailable == FailLocal {
			m["local_limit"] = map[string]any{
				"limit": c.LocalLimit.Max, "window": FormatDuration(c.LocalLimit.WindowNanos)}
		}
		return m
	}
	rules := func(of map[string]map[string][]Limit) map[string]any {
		m := map[string]any{}
		for who, byClass := range of {
			inner := map[string]any{}
			for name, ls := range byClass {
				inner[name] = map[string]any{"limits": limits(ls)}
			}
			m[who] = inner
		}
		return m
	}
	classes, groups := map[string]any{}, map[string]any{}
	for name, c := range p.Classes {
		classes[name] = class(c)
	}
	for name, g := range p.Groups {
		groups[name] = map[string]any{"classes": g.Classes, "limits": limits(g.Limits)}
	}
	return map[string]any{
		"version": p.Version, "default": class(&p.Default), "classes": classes, "groups": groups,
		"tiers": rules(p.Tiers), "principals": rules(p.Principals), "envoy": domainsOf(p),
	}
}

func domainsOf(p *Policy) map[string]any {
	out := map[string]any{}
	for name, d := range p.Envoy {
		var rules []any
		for _, r := range d.Rules {
			var match []any
			for _, e := range r.Match {
				entry := map[string]any{"key": e.Key}
				switch e.How {
				case MatchValue:
					entry["value"] = e.Value
				case MatchPrefix:
					entry["prefix"] = e.Value
				case MatchAny:
				}
				match = append(match, entry)
			}
			rule := map[string]any{"match": match, "unlimited": r.Unlimited}
			if !r.Unlimited {
				rule["class"], rule["principal"] = r.Class, append([]string{}, r.Principal...)
			}
			for key, value := range map[string]string{"tier": r.Tier, "name": r.Name, "shared": r.Shared} {
				if value != "" {
					rule[key] = value
				}
			}
			if len(r.Replaces) > 0 {
				rule["replaces"] = r.Replaces
			}
			rules = append(rules, rule)
		}
		domain := map[string]any{"rules": rules, "unmatched": "deny"}
		if d.PassUnmatched {
			domain["unmatched"] = "allow"
		}
		if d.RequestID != "" {
			domain["request_id"] = d.RequestID
		}
		out[name] = domain
	}
	return out
}

func mustJSON(t interface{ Fatalf(string, ...any) }, p *Policy) []byte {
	b, err := json.Marshal(fileOf(p))
	if err != nil {
		t.Fatalf("json: %v", err)
	}
	return b
}

// escapeAll writes every character beyond ASCII as JSON escapes, surrogate pairs where needed.
func escapeAll(text []byte) []byte {
	var b strings.Builder
	for _, r := range string(text) {
		if r < 0x80 {
			b.WriteRune(r)
			continue
		}
		for _, unit := range utf16.Encode([]rune{r}) {
			fmt.Fprintf(&b, `\u%04x`, unit)
		}
	}
	return []byte(b.String())
}

// TestRoundTrips shows that an encoding is read back to the same policy and the same bytes, that
// the digest is that of the bytes, and that a policy printed as JSON, as JSON in ASCII only and as
// YAML is parsed to the same policy.
func TestRoundTrips(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := mustNew(t, genPolicy.Draw(t, "policy"))
		b := p.AppendBinary([]byte("before"))[len("before"):]
		decoded, err := Decode(b)
		if err != nil {
			t.Fatalf("decode: %v", err)
		}
		if diff := cmp.Diff(p, decoded, cmp.AllowUnexported(Policy{}), cmpopts.IgnoreUnexported(EnvoyDomain{})); diff != "" {
			t.Fatalf("decoded policy differs (-made +decoded):\n%s", diff)
		}
		if !slices.Equal(decoded.AppendBinary(nil), b) {
			t.Fatalf("the decoded policy is encoded in other bytes")
		}
		if p.Digest() != sha256.Sum256(b) {
			t.Fatalf("the digest is not that of the encoding")
		}
		asJSON := mustJSON(t, p)
		asYAML, err := yaml.Marshal(fileOf(p))
		if err != nil {
			t.Fatalf("yaml: %v", err)
		}
		for _, text := range [][]byte{asJSON, escapeAll(asJSON), asYAML} {
			parsed, err := Parse("p", text)
			if err != nil {
				t.Fatalf("parse:\n%v\nof:\n%s", err, text)
			}
			if diff := cmp.Diff(p, parsed, cmp.AllowUnexported(Policy{}), cmpopts.IgnoreUnexported(EnvoyDomain{})); diff != "" {
				t.Fatalf("parsed policy differs (-made +parsed):\n%s\nof:\n%s", diff, text)
			}
		}
	})
}

// TestResolutionAgainstModel compares rule, group and windows of every name with a plain reading
// of the specification over the policy's parts.
func TestResolutionAgainstModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		parts := genPolicy.Draw(t, "policy")
		p := mustNew(t, parts)
		who, tier := genName.Draw(t, "principal"), genName.Draw(t, "tier")
		for _, asked := range append(sortedKeys(parts.Classes), "unlisted", DefaultClass, "") {
			class, name := parts.Classes[asked], asked
			if class == nil {
				class, name = &parts.Default, DefaultClass
			}
			resolved, got := p.ClassOf(asked)
			if resolved != name || !cmp.Equal(got, class) {
				t.Fatalf("class of %q is %q %v, want %q %v", asked, resolved, got, name, class)
			}
			want := class.Limits
			if limits, ok := parts.Principals[who][name]; ok {
				want = limits
			} else if limits, ok := parts.Tiers[tier][name]; ok {
				want = limits
			}
			if diff := cmp.Diff(want, p.RuleFor(who, resolved, tier)); diff != "" {
				t.Fatalf("rule of %q for %q in %q (-want +got):\n%s", name, who, tier, diff)
			}
			checkWindows(t, &parts, p, name, class)
		}
	})
}

func checkWindows(t *rapid.T, parts *Policy, p *Policy, name string, class *Class) {
	want := Windows{Retention: class.RetentionNanos}
	lists := [][]Limit{class.Limits}
	for _, rules := range []map[string]map[string][]Limit{parts.Tiers, parts.Principals} {
		for _, byClass := range rules {
			lists = append(lists, byClass[name])
		}
	}
	for _, l := range slices.Concat(lists...) {
		want.Rule = max(want.Rule, l.WindowNanos)
	}
	var group *Group
	for _, g := range parts.Groups {
		if slices.Contains(g.Classes, name) {
			group = g
			for _, l := range g.Limits {
				want.Group = max(want.Group, l.WindowNanos)
			}
		}
	}
	if got := p.GroupOf(name); (got == nil) != (group == nil) || got != nil && got.Name != group.Name {
		t.Fatalf("group of %q is %v, want %v", name, got, group)
	}
	if got := p.Windows(name); got != want {
		t.Fatalf("windows of %q are %v, want %v", name, got, want)
	}
}

// TestCompareBothWays shows that equal policies have no changes, different ones have some, and that
// the way back undoes each change of the way there.
func TestCompareBothWays(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a := mustNew(t, genPolicy.Draw(t, "a"))
		b := mustNew(t, genPolicy.Draw(t, "b"))
		there, back := Compare(a, b), Compare(b, a)
		if (len(there) == 0) != (a.Digest() == b.Digest()) {
			t.Fatalf("%d changes between digests %x and %x", len(there), a.Digest(), b.Digest())
		}
		for i, c := range back {
			c.Old, c.New = c.New, c.Old
			switch c.Kind {
			case Added:
				c.Kind = Removed
			case Removed:
				c.Kind = Added
			}
			back[i] = c
		}
		byText := func(a, b Change) int { return strings.Compare(a.String(), b.String()) }
		slices.SortFunc(there, byText)
		slices.SortFunc(back, byText)
		if diff := cmp.Diff(there, back); diff != "" {
			t.Fatalf("the way back differs (-there +back):\n%s", diff)
		}
		if again := Compare(a, mustNew(t, *a)); len(again) != 0 {
			t.Fatalf("a copy differs: %v", again)
		}
	})
}

// TestDurationsRoundTrip shows that every duration that is printed is read back exactly.
func TestDurationsRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		nanos := rapid.Int64().Draw(t, "nanos")
		text := FormatDuration(nanos)
		if got, err := ParseDuration(text); err != nil || got != nanos {
			t.Fatalf("%d is printed as %s and read as %d, %v", nanos, text, got, err)
		}
	})
}
