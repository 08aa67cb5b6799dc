package bound_test

import (
	"testing"

	"github.com/quorate/quorate/sdk/internal/bound"
)

// Shows that a name is proper within its bounds, in bytes, as UTF-8 and without NUL, and not otherwise.
func TestProper(t *testing.T) {
	for s, want := range map[string]bool{
		"": false, "a": true, "äö": true, "äöü": false, "abcde": false, "a\x00": false, "\xff": false, "\xc3": false,
	} {
		if got := bound.Proper(s, 1, 4); got != want {
			t.Errorf("%q: %t", s, got)
		}
	}
	if !bound.Proper("", 0, 4) {
		t.Error("an empty name is refused where it may be")
	}
}
