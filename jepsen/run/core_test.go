package run

import (
	"slices"
	"testing"
)

// Shows that as many nodes die as can while each group keeps a majority, and none where a group has none to spare.
func TestSpare(t *testing.T) {
	all := []string{"n0", "n1", "n2", "n3", "n4"}
	control := voters{"control", all}
	for _, tt := range []struct {
		name   string
		groups []voters
		up     []string
		want   []string
	}{
		{"two of five", []voters{control}, all, []string{"n0", "n1"}},
		{"one each of three", []voters{control, {"p0", []string{"n0", "n1", "n2"}}}, all, []string{"n0", "n3"}},
		{"groups that share two", []voters{{"p0", []string{"n0", "n1", "n2"}}, {"p1", []string{"n0", "n1", "n3"}},
			{"p2", []string{"n0", "n2", "n3"}}}, all[:4], []string{"n0"}},
		{"one is down already", []voters{{"p0", []string{"n0", "n1", "n2"}}}, all[1:3], nil},
		{"nobody votes there", []voters{{"p0", []string{"n0", "n1", "n2"}}}, all, []string{"n0", "n3", "n4"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := spare(tt.groups, tt.up); !slices.Equal(got, tt.want) {
				t.Errorf("%v die, want %v", got, tt.want)
			}
		})
	}
}
