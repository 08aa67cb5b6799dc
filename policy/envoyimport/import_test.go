package envoyimport

import (
	"fmt"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"

	"github.com/quorate/quorate/policy"
)

// Shows what becomes of configurations of the shapes that are in use: rules, classes and notes; and what is refused.
func TestImport(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			var sources []Source
			for i, text := range strings.Split(d.Input, "\n====\n") {
				sources = append(sources, Source{fmt.Sprintf("f%d.yaml", i+1), []byte(text)})
			}
			p, notes, err := Import("imported", sources...)
			if err != nil {
				return err.Error() + "\n"
			}
			var b strings.Builder
			for _, c := range policy.Compare(mustBe(t, "none"), p) {
				fmt.Fprintln(&b, c)
			}
			for _, n := range notes[2:] { // the first two are the same of all
				fmt.Fprintln(&b, "note:", n)
			}
			return b.String()
		})
	})
}

// mustBe is a policy with nothing but a default that blocks.
func mustBe(t *testing.T, version string) *policy.Policy {
	t.Helper()
	p, err := policy.New(policy.Policy{Version: version, Default: policy.Class{
		Limits: []policy.Limit{{Name: "nothing", WindowNanos: 1_000_000_000}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// FuzzImport shows that no text makes it panic, and that what is imported is a policy that can be encoded and read.
func FuzzImport(f *testing.F) {
	f.Add("domain: d\ndescriptors:\n- key: k\n  rate_limit: {unit: second, requests_per_unit: 1}\n")
	f.Add("domain: d\ndescriptors:\n- {key: k, value: 'v*', descriptors: [{key: l, rate_limit: {unlimited: true}}]}\n")
	f.Fuzz(func(t *testing.T, text string) {
		p, _, err := Import("v", Source{"f", []byte(text)})
		if err != nil {
			return
		}
		if _, err := policy.Decode(p.AppendBinary(nil)); err != nil {
			t.Fatal(err)
		}
	})
}
