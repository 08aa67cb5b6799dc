package policy

import (
	"slices"
	"strings"
	"testing"
)

// Shows that With makes what New makes of the same parts, under the label and with the classes switched,
// default among them; that it tells its origin; and that the policy it was made of stays as it was.
func TestWith(t *testing.T) {
	body, err := New(parts())
	if err != nil {
		t.Fatal(err)
	}
	want := parts()
	want.Version = "p2"
	want.Default.Disabled, want.Classes["b"].Disabled = true, true
	made, err := New(want)
	if err != nil {
		t.Fatal(err)
	}
	got, err := body.With("p2", []Switch{{"default", true}, {"b", true}, {"a", false}})
	if err != nil {
		t.Fatal(err)
	}
	again, err := Decode(got.AppendBinary(nil))
	if err != nil {
		t.Fatal(err)
	}
	if got.Digest() != made.Digest() || again.Digest() != made.Digest() || got.Version != "p2" {
		t.Errorf("another policy than New makes: %+v", got)
	}
	if got.GroupOf("a") != body.GroupOf("a") || got.Windows("b") != body.Windows("b") {
		t.Error("it resolves otherwise")
	}
	origin, switches := got.Origin()
	sorted := []Switch{{"a", false}, {"b", true}, {"default", true}}
	if origin != body.Digest() || !slices.Equal(switches, sorted) {
		t.Errorf("its origin is %x %v", origin, switches)
	}
	if origin, switches := body.Origin(); origin != body.Digest() || switches != nil {
		t.Errorf("the body's origin is %x %v", origin, switches)
	}
	if fresh, err := New(parts()); err != nil || body.Default.Disabled || body.Classes["b"].Disabled ||
		fresh.Digest() != body.Digest() {
		t.Error("the body was changed")
	}
	back, err := got.With("p1", []Switch{{"default", false}, {"b", false}})
	if err != nil || back.Digest() != body.Digest() {
		t.Errorf("switched back it is another policy: %v", err)
	}
}

// Shows that a class which is not listed or is switched twice, and a label that New refuses, are errors that
// name it.
func TestWithRefuses(t *testing.T) {
	body, err := New(parts())
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		version  string
		switches []Switch
		want     string
	}{
		{"p2", []Switch{{"gone", true}}, `"gone" is switched, and is not listed`},
		{"p2", []Switch{{"a", true}, {"b", true}, {"a", false}}, `"a" is switched twice`},
		{"", nil, "must not be empty"},
		{strings.Repeat("x", MaxNameBytes+1), nil, "at most 128"},
	} {
		if _, err := body.With(c.version, c.switches); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%.10q %v: %v, want an error that says %s", c.version, c.switches, err, c.want)
		}
	}
}
