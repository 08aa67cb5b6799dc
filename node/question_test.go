package node

import (
	"strings"
	"testing"
)

// Shows that a question of another version, in another's name, of another kind, or with something behind it, is
// answered with an error that says so, and a proper one by who the node is.
func TestQuestionsAreStrict(t *testing.T) {
	n, _ := mustClaimed(t)
	const self = `"self":{"id":"n0","instance":"x"}`
	for body, want := range map[string]string{
		`{"version":2,"kind":"who",` + self + `}`:                                                                   "",
		`{"version":1,"kind":"who",` + self + `}`:                                                                   "version 1",
		`{"version":2,"kind":"who",` + self + `,"more":1}`:                                                          "",
		`{"version":2,"kind":"who",` + self + `}{}`:                                                                 "after top-level value",
		`{"version":2,"kind":"why",` + self + `}`:                                                                   "not known",
		`{"version":2,"kind":"who","self":{"id":"n1","instance":"x"}}`:                                              "in the name of",
		`{"version":2,"kind":"digest",` + self + `,"to":"y","index":1,"digest":"zz"}`:                               "not a digest",
		`{"version":2,"kind":"digest",` + self + `,"to":"y","index":1,"digest":"` + strings.Repeat("ab", 16) + `"}`: "another data directory",
		``: "the question",
	} {
		var a answer
		if err := decodeVersion(n.answer("n0", []byte(body)), questionVersion, &a); err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(a.Error, want) || want == "" && (a.Error != "" || a.Self.ID != "n2" || a.Has) {
			t.Errorf("%s: %+v, want %q", body, a, want)
		}
	}
}
