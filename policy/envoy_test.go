package policy

import (
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// TestEnvoyMatch shows which rule a descriptor has: the first whose entries are all of the descriptor's, in order.
func TestEnvoyMatch(t *testing.T) {
	p, err := Parse("p.yaml", []byte(`
version: p1
default: {limits: [{name: m, limit: 1, window: 1s}]}
envoy:
  e:
    rules:
      - {name: exact, match: [{key: a, value: x}], unlimited: true}
      - {name: prefix, match: [{key: a, prefix: x}], unlimited: true}
      - {name: any, match: [{key: a}], unlimited: true}
      - {name: two, match: [{key: a}, {key: b, value: "y=1"}], unlimited: true}
`))
	if err != nil {
		t.Fatal(err)
	}
	for descriptor, want := range map[string]string{
		"a:x": "exact", "a:xx": "prefix", "a:y": "any", "a:": "any", "b:x": "", "a:x b:y=1": "two", "b:y=1 a:x": "",
		"a:x b:y": "", "a:x b:y=1 c:z": "", "": "",
	} {
		var keys, values []string
		for _, entry := range strings.Fields(descriptor) {
			key, value, _ := strings.Cut(entry, ":")
			keys, values = append(keys, key), append(values, value)
		}
		got := ""
		if r := p.Envoy["e"].Match(keys, values); r != nil {
			got = r.Name
		}
		if got != want {
			t.Errorf("%q has the rule %q, want %q", descriptor, got, want)
		}
	}
}

// TestEnvoyIdentify shows that no two lists of values make the same principal by one rule, whatever is in them, and what
// rules of each kind make.
func TestEnvoyIdentify(t *testing.T) {
	value := rapid.StringMatching(`[1-3:a]{0,4}`)
	rapid.Check(t, func(t *rapid.T) {
		keys := []string{"a", "b", "c"}[:rapid.IntRange(1, 3).Draw(t, "n")]
		r := EnvoyRule{Principal: keys}
		for _, key := range keys {
			r.Match = append(r.Match, EnvoyEntry{Key: key})
		}
		a := rapid.SliceOfN(value, len(keys), len(keys)).Draw(t, "a")
		b := rapid.SliceOfN(value, len(keys), len(keys)).Draw(t, "b")
		one, _ := r.Identify(a)
		other, _ := r.Identify(b)
		if (one == other) != slices.Equal(a, b) {
			t.Fatalf("%q and %q make %q and %q", a, b, one, other)
		}
	})
	match := []EnvoyEntry{{Key: "plan"}, {Key: "user"}, {Key: "ip"}}
	for want, r := range map[string]EnvoyRule{
		"u42 ":          {Match: match, Principal: []string{"user"}},
		"4:1::13:u42 p": {Match: match, Principal: []string{"ip", "user"}, Tier: "plan"},
		"all p":         {Match: match, Shared: "all", Tier: "plan"},
	} {
		if principal, tier := r.Identify([]string{"p", "u42", "1::1"}); principal+" "+tier != want {
			t.Errorf("%+v makes %q of tier %q, want %q", r, principal, tier, want)
		}
	}
}
