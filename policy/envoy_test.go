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

// TestEnvoyPrincipal shows that no two lists of values of one length make the same principal, whatever is in them.
func TestEnvoyPrincipal(t *testing.T) {
	value := rapid.StringMatching(`[1-3:a]{0,4}`)
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 3).Draw(t, "n")
		a := rapid.SliceOfN(value, n, n).Draw(t, "a")
		b := rapid.SliceOfN(value, n, n).Draw(t, "b")
		if (EnvoyPrincipal(a...) == EnvoyPrincipal(b...)) != slices.Equal(a, b) {
			t.Fatalf("%q and %q make %q and %q", a, b, EnvoyPrincipal(a...), EnvoyPrincipal(b...))
		}
	})
	if EnvoyPrincipal("u42") != "u42" {
		t.Error("a single value is not the principal itself")
	}
}
