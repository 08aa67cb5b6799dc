package main

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/quorate/quorate/policy"
)

// genNames are names that are hard to write, and easy ones.
var genNames = rapid.OneOf(
	rapid.SampledFrom([]string{
		"a", "a.b", "1", "0x1f", "1e3", "1:30", "2026-01-02", "yes", "NO", "y", "null", "True", "<<", "~", ".", "-", "?",
		"é", "e\u0301", "😀", "\u2028", "\u0085", "\ufeff", "\u200b", "\U000e0001", "a: b", "a #b", " x", "x ", "- y",
		"\"", "'", "\\", "#", "\n", "\r\n", "\t", "\x01", "\x7f", "%x", "@x", "`", "{a}", "[a]", "*a", "&a", "!a", "|", ">",
	}),
	rapid.StringMatching(`[a-z]{1,3}([-_./][a-z0-9]{1,3})?`),
	rapid.Map(rapid.StringN(1, 8, 60), func(s string) string { return strings.ReplaceAll(s, "\x00", "0") }),
)

func genLimitsOf(prefix string) *rapid.Generator[[]policy.Limit] {
	one := rapid.Custom(func(t *rapid.T) policy.Limit {
		return policy.Limit{
			Name:        prefix + genNames.Draw(t, "limit"),
			Max:         rapid.Int64Range(0, policy.MaxLimit).Draw(t, "max"),
			WindowNanos: rapid.Int64Range(policy.MinWindowNanos, policy.MaxWindowNanos).Draw(t, "window"),
		}
	})
	return rapid.SliceOfNDistinct(one, 1, 3, func(l policy.Limit) string { return l.Name })
}

// drawClass leaves settings at their defaults often, since those are not written.
func drawClass(t *rapid.T) *policy.Class {
	c := &policy.Class{
		Limits:        genLimitsOf("").Draw(t, "limits"),
		OnUnavailable: policy.FailureMode(rapid.IntRange(0, 2).Draw(t, "mode")),
		Disabled:      rapid.Bool().Draw(t, "disabled"),
	}
	if c.OnUnavailable == policy.FailLocal {
		c.LocalLimit = genLimitsOf("").Draw(t, "local")[0]
		c.LocalLimit.Name = ""
	}
	if rapid.Bool().Draw(t, "settings") {
		c.ReplayHorizonNanos = rapid.Int64Range(policy.MinReplayHorizonNanos, policy.MaxReplayHorizonNanos).
			Draw(t, "horizon")
		c.TimeoutNanos = rapid.Int64Range(1, c.ReplayHorizonNanos/policy.MinHorizonTimeouts).Draw(t, "timeout")
		c.RetentionNanos = rapid.Int64Range(0, policy.MaxWindowNanos).Draw(t, "retention")
	}
	return c
}

func drawPolicy(t *rapid.T) *policy.Policy {
	parts := policy.Policy{
		Version: genNames.Draw(t, "version"), Default: *drawClass(t), Classes: map[string]*policy.Class{},
		Groups: map[string]*policy.Group{},
	}
	for _, name := range rapid.SliceOfNDistinct(genNames, 0, 4, rapid.ID).Draw(t, "classes") {
		if name != policy.DefaultClass {
			parts.Classes[name] = drawClass(t)
		}
	}
	free := rapid.Permutation(sortedNames(parts.Classes)).Draw(t, "order")
	for i := 0; len(free) > 0 && rapid.Bool().Draw(t, "group"); i++ {
		n := rapid.IntRange(1, len(free)).Draw(t, "members")
		name := fmt.Sprint(genNames.Draw(t, "name"), i)
		// A name that no class's limit has, since both are in one list.
		parts.Groups[name] = &policy.Group{Classes: free[:n], Limits: genLimitsOf("of the group: ").Draw(t, "limits")}
		free = free[n:]
	}
	classes := rapid.SampledFrom(append(sortedNames(parts.Classes), policy.DefaultClass))
	long := rapid.Map(rapid.IntRange(200, policy.MaxPrincipalBytes), func(n int) string {
		return strings.Repeat("\x02", n)
	})
	rules := rapid.MapOfN(classes, genLimitsOf(""), 0, 2)
	parts.Tiers = rapid.MapOfN(genNames, rules, 0, 3).Draw(t, "tiers")
	parts.Principals = rapid.MapOfN(rapid.OneOf(genNames, long), rules, 0, 3).Draw(t, "principals")
	if rapid.Bool().Draw(t, "envoy") {
		name := genNames.Draw(t, "name")
		parts.Envoy = map[string]*policy.EnvoyDomain{genNames.Draw(t, "domain"): {
			RequestID: "request id", PassUnmatched: rapid.Bool().Draw(t, "pass"),
			Rules: []policy.EnvoyRule{
				{Match: []policy.EnvoyEntry{{Key: name}, {Key: name + "2", How: policy.MatchPrefix, Value: name}},
					Name: name, Class: classes.Draw(t, "class"), Principal: []string{name + "2", name}, Tier: name},
				{Match: []policy.EnvoyEntry{{Key: name, How: policy.MatchValue, Value: name}}, Unlimited: true,
					Replaces: []string{name}},
				{Match: []policy.EnvoyEntry{{Key: name}}, Class: policy.DefaultClass, Shared: name},
			},
		}}
	}
	p, err := policy.New(parts)
	if err != nil {
		t.Fatalf("the generated policy: %v", err)
	}
	return p
}

// Shows that any policy, written as YAML or as JSON, validates again and is the same, whatever its names are; and
// that the YAML is the same again, in lines that no name can break.
func TestPolicyFilesValidateAgain(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := drawPolicy(t)
		var text bytes.Buffer
		if err := writePolicyYAML(&text, p); err != nil {
			t.Fatal(err)
		}
		js, err := marshalJSON(fileOf(p))
		if err != nil {
			t.Fatal(err)
		}
		for format, src := range map[string][]byte{"yaml": text.Bytes(), "json": js} {
			again, err := policy.Parse("again", src)
			if err != nil {
				t.Fatalf("%s: %v\n%s", format, err, src)
			}
			if again.Digest() != p.Digest() {
				t.Fatalf("%s: another policy: %v\n%s", format, policy.Compare(p, again), src)
			}
			var second bytes.Buffer
			if err := writePolicyYAML(&second, again); err != nil || second.String() != text.String() {
				t.Fatalf("%s: written otherwise: %v\n%s", format, err, cmp.Diff(text.String(), second.String()))
			}
		}
		if strings.ContainsAny(text.String(), "\r\x01\u2028\u0085") {
			t.Fatalf("a name breaks a line:\n%s", &text)
		}
	})
}

// Shows what a written policy looks like: in the order of the format, names sorted, without what is so by default.
func TestPolicyYAML(t *testing.T) {
	const file = `version: p7
default:
  limits: [{name: default, limit: 100, window: 1m}]
classes:
  convert:
    limits:
      - {name: per-minute, limit: 3, window: 1m}
      - {name: per-day, limit: 500, window: 1d}
    replay_horizon: 1m
    on_unavailable: local
    local_limit: {limit: 1, window: 1m}
    timeout: 50ms
    retention: 30d
    disabled: true
  export:
    limits: [{name: "per minute", limit: 0, window: 1m}]
tiers:
  pro:
    convert:
      limits: [{name: per-minute, limit: 30, window: 1m}]
principals:
  "1":
    default:
      limits: [{name: default, limit: 7, window: 1m}]
groups:
  account:
    classes: [convert, export]
    limits: [{name: account, limit: 1000, window: 1h}]
`
	p, err := policy.Parse("file", []byte(file))
	if err != nil {
		t.Fatal(err)
	}
	var text bytes.Buffer
	if err := writePolicyYAML(&text, p); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(file, text.String()); diff != "" {
		t.Error(diff)
	}
}
