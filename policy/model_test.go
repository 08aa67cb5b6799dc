package policy

import (
	"errors"
	"fmt"
	goparser "go/parser"
	"go/token"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// parts is a valid policy with one of everything, anew at each call.
func parts() Policy {
	m := func(name string) []Limit { return []Limit{{name, 3, 60_000_000_000}} }
	return Policy{
		Version: "p1",
		Default: Class{Limits: m("d")},
		Classes: map[string]*Class{
			"a": {Limits: m("m")},
			"b": {Limits: m("m"), OnUnavailable: FailLocal,
				LocalLimit: Limit{Max: 1, WindowNanos: 1_000_000_000}},
		},
		Tiers:      map[string]map[string][]Limit{"t": {"a": m("m"), DefaultClass: m("m")}},
		Principals: map[string]map[string][]Limit{"p": {"a": m("m")}, "q": {"b": m("m")}},
		Groups:     map[string]*Group{"g": {Classes: []string{"b", "a"}, Limits: m("g")}},
		Envoy: map[string]*EnvoyDomain{"e": {RequestID: "r", PassUnmatched: true, Rules: []EnvoyRule{
			{Name: "x", Match: []EnvoyEntry{{Key: "k"}, {Key: "l", How: MatchPrefix, Value: "v"}},
				Class: "a", Principal: []string{"l", "k"}, Tier: "k"},
			{Match: []EnvoyEntry{{Key: "k", How: MatchValue, Value: "v"}}, Unlimited: true, Replaces: []string{"x"}},
		}}},
	}
}

// TestNewRefuses breaks one part of a valid policy at a time and expects the problem to be told,
// alone, with where it is.
func TestNewRefuses(t *testing.T) {
	long := strings.Repeat("x", 600)
	rule := parts().Default.Limits
	for _, c := range []struct {
		want  string
		spoil func(p *Policy)
	}{
		{"version: the version must not be empty", func(p *Policy) { p.Version = "" }},
		{"version: the version is 600 bytes long", func(p *Policy) { p.Version = long }},
		{"classes: a class name must not contain NUL", func(p *Policy) {
			p.Classes["a\x00"] = p.Classes["a"]
		}},
		{"classes: a class name is not valid UTF-8", func(p *Policy) {
			p.Classes["\xff"] = p.Classes["a"]
		}},
		{"classes.default: \"default\" is not a class name", func(p *Policy) {
			p.Classes[DefaultClass] = p.Classes["a"]
		}},
		{"envoy: a domain is 600 bytes long", func(p *Policy) { p.Envoy[long] = p.Envoy["e"] }},
		{"envoy.n: a domain needs at least one rule", func(p *Policy) { p.Envoy["n"] = nil }},
		{"envoy.e: the key of the request id must not contain NUL", func(p *Policy) { p.Envoy["e"].RequestID = "\x00" }},
		{"envoy.e.rules.0: the match 3 of an entry is unknown", func(p *Policy) { p.Envoy["e"].Rules[0].Match[0].How = 3 }},
		{"envoy.e.rules.0: an entry that matches every value has one", func(p *Policy) {
			p.Envoy["e"].Rules[0].Match[0].Value = "v"
		}},
		{"envoy.e.rules.0: the key of an entry must not be empty", func(p *Policy) { p.Envoy["e"].Rules[0].Match[0].Key = "" }},
		{"envoy: there are 1 domains with 4097 rules", func(p *Policy) {
			d := p.Envoy["e"]
			for len(d.Rules) <= MaxEnvoyRules {
				d.Rules = append(d.Rules, d.Rules[1])
			}
		}},
		{"tiers: a tier's name is 65 bytes long", func(p *Policy) {
			p.Tiers[long[:65]] = p.Tiers["t"]
		}},
		{"principals: a principal is 513 bytes long", func(p *Policy) {
			p.Principals[long[:513]] = p.Principals["p"]
		}},
		{`principals.p: "c" is not a listed class`, func(p *Policy) {
			p.Principals["p"]["c"] = rule
		}},
		{"tiers.t: needs at least one limit", func(p *Policy) { p.Tiers["t"]["a"] = nil }},
		{"tiers.t: has 17 limits", func(p *Policy) {
			p.Tiers["t"]["a"] = nil
			for i := range 17 {
				l := Limit{fmt.Sprint(i), 1, MinWindowNanos}
				p.Tiers["t"]["a"] = append(p.Tiers["t"]["a"], l)
			}
		}},
		{`principals.p.m: a limit must be`, func(p *Policy) {
			p.Principals["p"]["a"][0].Max = MaxLimit + 1
		}},
		{`default.d: a limit must be`, func(p *Policy) { p.Default.Limits[0].Max = -1 }},
		{`default.d: a window must be`, func(p *Policy) {
			p.Default.Limits[0].WindowNanos = MinWindowNanos - 1
		}},
		{`default.d: a window must be`, func(p *Policy) {
			p.Default.Limits[0].WindowNanos = MaxWindowNanos + 1
		}},
		{`classes.a: two limits are named "m"`, func(p *Policy) {
			p.Classes["a"].Limits = append(p.Classes["a"].Limits, p.Classes["a"].Limits[0])
		}},
		{`classes.a: the limit "g" has the name`, func(p *Policy) {
			p.Classes["a"].Limits[0].Name = "g"
		}},
		{`principals.q: the limit "g" has the name`, func(p *Policy) {
			p.Principals["q"]["b"][0].Name = "g"
		}},
		{"classes.a: a replay horizon must be", func(p *Policy) {
			p.Classes["a"].ReplayHorizonNanos = MaxReplayHorizonNanos + 1
		}},
		{"classes.a: the replay horizon 30s must be at least ten times", func(p *Policy) {
			p.Classes["a"].TimeoutNanos = 3_000_000_001
		}},
		{"default: a timeout must be", func(p *Policy) { p.Default.TimeoutNanos = -1 }},
		{"default: a retention must be", func(p *Policy) { p.Default.RetentionNanos = -1 }},
		{"default: the failure mode 3", func(p *Policy) { p.Default.OnUnavailable = 3 }},
		{"default: a local limit belongs", func(p *Policy) { p.Default.LocalLimit.Max = 1 }},
		{"classes.b: a local limit has no name", func(p *Policy) {
			p.Classes["b"].LocalLimit.Name = "x"
		}},
		{"classes.b.local_limit: a window must be", func(p *Policy) {
			p.Classes["b"].LocalLimit.WindowNanos = 0
		}},
		{"classes.c: needs at least one limit", func(p *Policy) { p.Classes["c"] = nil }},
		{"groups.h: needs at least one class", func(p *Policy) {
			p.Groups["h"] = &Group{Limits: rule}
		}},
		{`groups.g: names the class "a" twice`, func(p *Policy) {
			p.Groups["g"].Classes = []string{"a", "a"}
		}},
		{`groups.g: names "default", which is not a listed class`, func(p *Policy) {
			p.Groups["g"].Classes = []string{DefaultClass}
		}},
		{`groups.h: the class "a" is in the group "g" already`, func(p *Policy) {
			p.Groups["h"] = &Group{Classes: []string{"a"}, Limits: p.Groups["g"].Limits}
		}},
		{`groups.g: the group is named "h"`, func(p *Policy) { p.Groups["g"].Name = "h" }},
		{"groups.g: needs at least one limit", func(p *Policy) { p.Groups["g"].Limits = nil }},
		{"classes: 4097 classes", func(p *Policy) {
			for i := range MaxClasses - 1 {
				p.Classes[fmt.Sprint("x", i)] = p.Classes["a"]
			}
		}},
		{"groups: there are 4097 groups", func(p *Policy) {
			p.Classes, p.Groups = map[string]*Class{}, map[string]*Group{}
			p.Tiers, p.Principals = nil, nil
			p.Classes["a"] = &Class{Limits: rule}
			for i := range MaxClasses + 1 {
				p.Groups[fmt.Sprint(i)] = &Group{Classes: []string{"a"}, Limits: []Limit{{"g", 1, 1e6}}}
			}
		}},
	} {
		broken := parts()
		c.spoil(&broken)
		_, err := New(broken)
		problems := Problems(nil)
		if !errors.As(err, &problems) || !strings.HasPrefix(problems[0].Message, c.want) {
			t.Errorf("want %q, got: %v", c.want, err)
		} else if len(problems) > 1 && !strings.HasPrefix(c.want, "groups: there are") {
			t.Errorf("%q: more than one problem: %v", c.want, err)
		}
	}
}

// TestNewCopies shows that a policy shares nothing with the parts it was made of, fills in what was
// left out, sorts the classes of groups and drops a principal without a rule.
func TestNewCopies(t *testing.T) {
	from := parts()
	from.Principals["empty"] = nil
	p := mustNew(t, from)
	before := p.AppendBinary(nil)
	from.Default.Limits[0].Max = 99
	from.Classes["a"].Limits[0].Max = 99
	from.Groups["g"].Limits[0].Max = 99
	from.Principals["p"]["a"][0].Max = 99
	delete(from.Tiers["t"], "a")
	if !slices.Equal(before, p.AppendBinary(nil)) {
		t.Error("changing the parts changed the policy")
	}
	if c := p.Classes["a"]; c.ReplayHorizonNanos != DefaultReplayHorizonNanos ||
		c.TimeoutNanos != DefaultTimeoutNanos {
		t.Errorf("class a has horizon %d and timeout %d", c.ReplayHorizonNanos, c.TimeoutNanos)
	}
	if g := p.Groups["g"]; g.Name != "g" || !slices.Equal(g.Classes, []string{"a", "b"}) {
		t.Errorf("group is %v", g)
	}
	if _, ok := p.Principals["empty"]; ok {
		t.Error("a principal without rules is kept")
	}
	if got := p.ClassNames(); !slices.Equal(got, []string{"a", "b"}) {
		t.Errorf("class names are %q", got)
	}
}

// TestResolutionAllocatesNothing runs what every check runs and counts allocations.
func TestResolutionAllocatesNothing(t *testing.T) {
	p := mustNew(t, parts())
	var sum int64
	allocs := testing.AllocsPerRun(100, func() {
		for _, name := range p.ClassNames() {
			resolved, c := p.ClassOf(name)
			sum += c.TimeoutNanos + p.Windows(resolved).Group
			sum += p.RuleFor("p", resolved, "t")[0].Max + p.GroupOf(resolved).Limits[0].Max
		}
		digest := p.Digest()
		sum += int64(digest[0])
	})
	if allocs != 0 || sum == 0 {
		t.Errorf("%v allocations, sum %d", allocs, sum)
	}
}

// TestImports shows that the package's own files import nothing that reads a clock, draws numbers
// or does input or output: the state machine runs this code on every replica.
func TestImports(t *testing.T) {
	banned := map[string]string{
		"os": "files", "net": "network", "time": "clocks", "math/rand": "randomness",
		"math/rand/v2": "randomness", "crypto/rand": "randomness", "log": "output",
		"log/slog": "output", "sync": "no goroutines here", "context": "no goroutines here",
	}
	entries, err := os.ReadDir(".")
	if err != nil {
		t.Fatal(err)
	}
	read := 0
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), ".go") || strings.HasSuffix(e.Name(), "_test.go") {
			continue
		}
		read++
		file, err := goparser.ParseFile(token.NewFileSet(), e.Name(), nil, goparser.ImportsOnly)
		if err != nil {
			t.Fatal(err)
		}
		for _, i := range file.Imports {
			path, _ := strconv.Unquote(i.Path.Value)
			if why, ok := banned[path]; ok {
				t.Errorf("%s imports %s: %s", e.Name(), path, why)
			}
		}
	}
	if read == 0 {
		t.Error("no files were read")
	}
}
