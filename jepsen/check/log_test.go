package check

import (
	"testing"
	"time"
)

// Shows that a snapshot leaves a hole only when it went further than anybody had told of by then: not when its own entry
// was told of before, and from the last entry that was told of when none was.
func TestHoles(t *testing.T) {
	for _, c := range []struct {
		name  string
		index uint64
		at    time.Duration
		holes []hole
	}{
		{"its entry was told of", 2, 10, nil},
		{"the newest entry was told of", 3, 10, nil},
		{"a later one was told of, by nobody so far", 3, 2, []hole{{after: 2, until: 3, from: 2, to: 2}}},
		{"nobody tells of it", 5, 10, []hole{{after: 3, until: 5, from: 3, to: 10}}},
	} {
		g := &group{id: "p0"}
		for i := range 3 {
			g.entries = append(g.entries, &entry{group: g, index: uint64(i + 1), hi: time.Duration(i + 1)})
		}
		l := &log{groups: map[string]*group{"p0": g}, restored: []restored{{group: "p0", index: c.index, at: c.at}}}
		l.findHoles()
		if len(g.holes) != len(c.holes) || len(g.holes) > 0 && g.holes[0] != c.holes[0] {
			t.Errorf("%s: %+v, want %+v", c.name, g.holes, c.holes)
		}
	}
}
