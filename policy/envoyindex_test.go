package policy

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// linear is what the index has to agree with: the first rule that matches, found by trying one after another.
func linear(rules []EnvoyRule, keys, values []string) int {
	return slices.IndexFunc(rules, func(r EnvoyRule) bool {
		if len(r.Match) != len(keys) {
			return false
		}
		for i := range r.Match {
			if !r.Match[i].Matches(keys[i], values[i]) {
				return false
			}
		}
		return true
	})
}

// genText has few values that begin with each other in every way, the empty one and one that sorts within them.
var genText = rapid.OneOf(rapid.StringMatching(`[ab]{0,4}`), rapid.SampledFrom([]string{"a\x00", "ab\xff", "é", "aé"}))

// genRules are rules of few keys and values, so that many match one descriptor, and more than a short list of them.
var genRules = rapid.Custom(func(t *rapid.T) []EnvoyRule {
	most := rapid.SampledFrom([]int{3, 12, 40}).Draw(t, "most")
	return rapid.SliceOfN(rapid.Custom(func(t *rapid.T) EnvoyRule {
		return EnvoyRule{Match: rapid.SliceOfN(rapid.Custom(func(t *rapid.T) EnvoyEntry {
			e := EnvoyEntry{Key: rapid.SampledFrom([]string{"", "k", "l"}).Draw(t, "key")}
			if e.How = EnvoyMatch(rapid.IntRange(0, 2).Draw(t, "how")); e.How != MatchAny {
				e.Value = genText.Filter(func(v string) bool { return v != "" }).Draw(t, "value") // others are refused
			}
			return e
		}), 1, 3).Draw(t, "match")}
	}), 1, most).Draw(t, "rules")
})

// TestEnvoyIndexAgrees shows that the index finds the rule that trying all of them in order finds, whatever the rules
// and the descriptor are; and that a rule is told to be unused exactly if one before it covers it, and then no
// descriptor has it.
func TestEnvoyIndexAgrees(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := &EnvoyDomain{Rules: genRules.Draw(t, "rules")}
		d.index = newEnvoyIndex(d.Rules, skipNone)
		unused := map[int]bool{}
		d.shadows(skipNone, func(rule, by int) {
			unused[rule] = true
			if by >= rule || !d.Rules[by].Covers(&d.Rules[rule]) {
				t.Fatalf("%d is said to be unused because of %d", rule, by)
			}
		})
		for i := range d.Rules {
			covered := slices.ContainsFunc(d.Rules[:i], func(r EnvoyRule) bool { return r.Covers(&d.Rules[i]) })
			if covered != unused[i] {
				t.Fatalf("%d is unused: %t, covered: %t", i, unused[i], covered)
			}
		}
		for range 20 {
			keys := rapid.SliceOfN(rapid.SampledFrom([]string{"", "k", "l"}), 0, 4).Draw(t, "keys")
			values := rapid.SliceOfN(genText, len(keys), len(keys)).Draw(t, "values")
			want := linear(d.Rules, keys, values)
			var rule *EnvoyRule
			if want >= 0 {
				rule = &d.Rules[want]
			}
			if got := d.Match(keys, values); got != rule {
				t.Fatalf("%q %q: %v, want %v", keys, values, got, rule)
			}
			if unused[want] {
				t.Fatalf("%q %q has the rule %d, which is said to be unused", keys, values, want)
			}
		}
	})
}

// TestEnvoyRulesAreReached shows that what is not told to be unused is used: each such rule has a descriptor, that of
// values which are like none of the others.
func TestEnvoyRulesAreReached(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := &EnvoyDomain{Rules: genRules.Draw(t, "rules")}
		unused := map[int]bool{}
		d.shadows(skipNone, func(rule, _ int) { unused[rule] = true })
		for i, r := range d.Rules {
			var keys, values []string
			for _, e := range r.Match {
				value := e.Value
				if e.How != MatchValue {
					value += "~"
				}
				keys, values = append(keys, e.Key), append(values, value)
			}
			if got := linear(d.Rules, keys, values); (got == i) == unused[i] {
				t.Fatalf("%d is unused: %t, and %q %q has the rule %d", i, unused[i], keys, values, got)
			}
		}
	})
}

// Kinds of domains of n rules, with a descriptor that has the last one, or none.
var manyRules = map[string]func(n int) (rules []EnvoyRule, keys, values []string){
	"values": func(n int) (rules []EnvoyRule, keys, values []string) {
		for i := range n {
			rules = append(rules, EnvoyRule{Match: []EnvoyEntry{
				{Key: "path", How: MatchValue, Value: fmt.Sprint("/v1/", i)}, {Key: "user"}}})
		}
		return rules, []string{"path", "user"}, []string{fmt.Sprint("/v1/", n-1), "u"}
	},
	"keys": func(n int) (rules []EnvoyRule, keys, values []string) {
		for i := range n {
			rules = append(rules, EnvoyRule{Match: []EnvoyEntry{{Key: fmt.Sprint("k", i)}}})
		}
		return rules, []string{fmt.Sprint("k", n-1)}, []string{"v"}
	},
	"prefixes": func(n int) (rules []EnvoyRule, keys, values []string) {
		for i := range n {
			rules = append(rules, EnvoyRule{Match: []EnvoyEntry{
				{Key: "path", How: MatchPrefix, Value: fmt.Sprintf("/v1/%06d/", i)}}})
		}
		return rules, []string{"path"}, []string{fmt.Sprintf("/v1/%06d/x", n-1)}
	},
	"no rule": func(n int) (rules []EnvoyRule, keys, values []string) {
		for i := range n {
			rules = append(rules, EnvoyRule{Match: []EnvoyEntry{{Key: "path", How: MatchValue, Value: fmt.Sprint(i)}}})
		}
		return rules, []string{"path"}, []string{"x"}
	},
}

// TestEnvoyMatchSteps shows what a search costs: one step for each entry where rules differ in keys, values or prefixes,
// however many there are; and where all prefixes are of one value, or rules are made to be as bad as they can be, no
// more steps than the rules have entries.
func TestEnvoyMatchSteps(t *testing.T) {
	steps := func(rules []EnvoyRule, keys, values []string) int {
		s := search{keys: keys, values: values, best: noRule}
		want := linear(rules, keys, values)
		if got := s.in(newEnvoyIndex(rules, skipNone)); got != int32(want) && (want >= 0 || got != noRule) {
			t.Errorf("rule %d, want %d", got, want)
		}
		return s.steps
	}
	for name, make := range manyRules {
		rules, keys, values := make(MaxEnvoyRules)
		if n := steps(rules, keys, values); n > len(keys)+1 {
			t.Errorf("%s: %d steps", name, n)
		}
	}
	var nested []EnvoyRule // each prefix of one value, the longest first, and then an entry that differs
	long := strings.Repeat("a", MaxEnvoyValueBytes)
	for i := range MaxEnvoyRules {
		nested = append(nested, EnvoyRule{Match: []EnvoyEntry{
			{Key: "k", How: MatchPrefix, Value: long[:MaxEnvoyValueBytes-i%MaxEnvoyValueBytes]},
			{Key: "l", How: MatchValue, Value: fmt.Sprint(i)},
		}})
	}
	if n := steps(nested, []string{"k", "l"}, []string{long, "x"}); n > MaxEnvoyValueBytes+1 {
		t.Errorf("nested: %d steps", n)
	}
	var wide []EnvoyRule // every way through 12 entries, each a value or any
	const depth = 12
	for i := range 1 << depth {
		r := EnvoyRule{}
		for bit := range depth {
			e := EnvoyEntry{Key: "k"}
			if i>>bit&1 == 0 {
				e.How, e.Value = MatchValue, "v"
			}
			r.Match = append(r.Match, e)
		}
		r.Match = append(r.Match, EnvoyEntry{Key: "last", How: MatchValue, Value: "never"})
		wide = append(wide, r)
	}
	keys := append(slices.Repeat([]string{"k"}, depth), "last")
	values := append(slices.Repeat([]string{"v"}, depth), "other")
	if n := steps(wide, keys, values); n > 1<<(depth+1) {
		t.Errorf("wide: %d steps, above the number of all nodes", n)
	}
}

// BenchmarkEnvoyMatch compares a search with trying one rule after another, in domains with as many rules as there may
// be.
func BenchmarkEnvoyMatch(b *testing.B) {
	for name, make := range manyRules {
		rules, keys, values := make(MaxEnvoyRules)
		d := &EnvoyDomain{Rules: rules, index: newEnvoyIndex(rules, skipNone)}
		b.Run(name+"/index", func(b *testing.B) {
			for b.Loop() {
				d.Match(keys, values)
			}
		})
		b.Run(name+"/linear", func(b *testing.B) {
			for b.Loop() {
				linear(rules, keys, values)
			}
		})
	}
}

// BenchmarkEnvoyIndex is what a policy with as many rules as there may be costs to read.
func BenchmarkEnvoyIndex(b *testing.B) {
	rules, _, _ := manyRules["values"](MaxEnvoyRules)
	for b.Loop() {
		newEnvoyIndex(rules, skipNone)
	}
}

// TestEnvoyUnusedIsReadBack shows that a policy with a rule that is never used is refused where one is made, naming both
// rules, and read where one was made before: what a log holds stays readable, and its rules go on as they did.
func TestEnvoyUnusedIsReadBack(t *testing.T) {
	from := parts()
	from.Envoy["e"].Rules = append(from.Envoy["e"].Rules,
		EnvoyRule{Name: "late", Match: []EnvoyEntry{{Key: "k", How: MatchValue, Value: "v"}}, Unlimited: true})
	_, err := New(from)
	problems := Problems(nil)
	want := `envoy.e.rules.2: the rule "late" {k=v} is never used: the rule {k=v} at envoy.e.rules.1 matches the same, ` +
		`and comes first; remove one of them`
	if !errors.As(err, &problems) || len(problems) != 1 || problems[0].Message != want {
		t.Fatalf("%v, want %s", err, want)
	}
	sound := mustNew(t, parts())
	sound.Envoy["e"].Rules = from.Envoy["e"].Rules
	sound.digest = sound.computeDigest()
	old, err := Decode(sound.AppendBinary(nil))
	if err != nil {
		t.Fatal(err)
	}
	if r := old.Envoy["e"].Match([]string{"k"}, []string{"v"}); r != &old.Envoy["e"].Rules[1] {
		t.Errorf("the rule is %+v", r)
	}
}
