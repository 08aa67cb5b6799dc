package node

import (
	"errors"
	"strings"
	"testing"

	"github.com/quorate/quorate/partition/group"
)

// Shows which directories are refused before they take part: a log that ends before what another node saw
// it have, whatever its length; one that the leader no longer counts on; and that one which was cut back
// and went on in a later term is not, nor one of a partition that was moved away.
func TestOlderCopy(t *testing.T) {
	n, _ := mustClaimed(t)
	at := func(term, index uint64) group.Position { return group.Position{Term: term, Index: index} }
	leads := func(members ...group.Member) *groupAnswer {
		a := &groupAnswer{Leads: true}
		for _, m := range members {
			a.Members = append(a.Members, memberAnswer{Node: m.ID, Instance: m.Instance})
		}
		return a
	}
	self := "n2@" + n.claim.Instance()
	for name, tt := range map[string]struct {
		id          string
		last, acked group.Position
		group       *groupAnswer
		want        string
	}{
		"whole":                {"p0", at(2, 9), at(2, 9), nil, ""},
		"further":              {"p0", at(2, 9), at(2, 5), nil, ""},
		"replaced suffix":      {"p0", at(3, 8), at(2, 20), nil, ""},
		"short":                {"p0", at(2, 8), at(2, 9), nil, "quorate node replace n2"},
		"long but older":       {controlID, at(2, 80), at(3, 9), nil, "older copy"},
		"emptied":              {"p0", at(0, 0), at(1, 1), nil, "older copy"},
		"member":               {"p0", at(2, 9), at(0, 0), leads(membersNamed(self)...), ""},
		"another is counted":   {"p0", at(2, 9), at(0, 0), leads(membersNamed("n2@x")...), "counts on another"},
		"taken out":            {controlID, at(2, 9), at(0, 0), leads(membersNamed("n0")...), "taken out"},
		"moved away":           {"p0", at(2, 9), at(0, 0), leads(membersNamed("n0")...), ""},
		"hearsay of a removal": {controlID, at(2, 9), at(0, 0), &groupAnswer{}, ""},
		"waits to be added":    {controlID, at(0, 0), at(0, 0), leads(membersNamed("n0")...), ""},
	} {
		g := tt.group
		if g == nil {
			g = &groupAnswer{}
		}
		g.Acknowledged = positionAnswer(tt.acked)
		r := &replica{id: tt.id, node: n}
		err := r.compare(tt.last, &answer{Self: nodeAnswer{ID: "n0"}, Groups: map[string]*groupAnswer{tt.id: g}})
		if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
			t.Errorf("%s: %v, want %q", name, err, tt.want)
		}
	}
}

// Shows that a directory which the cluster has given up is refused on the word of whoever says so, and one that does not
// count on that of the leader only; a blank one is for the way in to judge.
func TestGivenUpDirectory(t *testing.T) {
	n, _ := mustClaimed(t)
	whole := group.Position{Term: 2, Index: 9}
	for name, tt := range map[string]struct {
		last    group.Position
		says    *standingAnswer
		refused bool
	}{
		"given up":         {whole, &standingAnswer{Gone: true, Refused: "gone"}, true},
		"by the leader":    {whole, &standingAnswer{Leads: true, Refused: "another one counts"}, true},
		"by hearsay":       {whole, &standingAnswer{Refused: "another one counts"}, false},
		"it counts":        {whole, &standingAnswer{Leads: true, Admitted: true}, false},
		"blank":            {group.Position{}, &standingAnswer{Leads: true, Refused: "another one counts"}, false},
		"nothing is known": {whole, nil, false},
	} {
		r := &replica{id: controlID, node: n}
		err := r.compare(tt.last, &answer{Self: nodeAnswer{ID: "n0"}, Standing: tt.says})
		if (err != nil) != tt.refused || err != nil && !errors.Is(err, errLost) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
