package run

import (
	"testing"
)

// Of the kinds that may be drawn each comes once before any comes again, no two that take a node away come together, and
// a seed draws the same again.
func TestDrawsEachKind(t *testing.T) {
	deal := func() (drawn []string) {
		d := newDrawn(&run{Options: Options{Seed: 7, Faults: Kinds()}})
		for len(drawn) < 3*len(Kinds()) {
			kinds, away := d.draw(), 0
			for _, kind := range kinds {
				if takesAway[kind] {
					away++
				}
			}
			if len(kinds) == 0 || len(kinds) > maxTogether || away > 1 {
				t.Fatalf("drawn together: %v", kinds)
			}
			drawn = append(drawn, kinds...)
		}
		return drawn
	}
	drawn := deal()
	for n := range 3 {
		seen := map[string]bool{}
		for _, kind := range drawn[n*len(Kinds()) : (n+1)*len(Kinds())] {
			seen[kind] = true
		}
		if len(seen) != len(Kinds()) {
			t.Errorf("of %d kinds %d came in turn %d", len(Kinds()), len(seen), n)
		}
	}
	for i, kind := range deal() {
		if i < len(drawn) && kind != drawn[i] {
			t.Fatalf("draw %d is %s, and was %s by the same seed", i, kind, drawn[i])
		}
	}
}
