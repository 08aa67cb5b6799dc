package run

import (
	"slices"
)

// voters is which nodes vote in a group.
type voters struct {
	group string
	nodes []string
}

// spare are nodes that can all die for good while every group keeps a majority of its voters: as many as can be, of
// those that are up. Ties go to the order of up.
func spare(groups []voters, up []string) (die []string) {
	for set := range 1 << min(len(up), 16) {
		var some []string
		for i, id := range up {
			if set>>i&1 != 0 {
				some = append(some, id)
			}
		}
		if len(some) > len(die) && survives(groups, up, some) {
			die = some
		}
	}
	return die
}

// survives reports whether every group has a majority of its voters that are up and do not die.
func survives(groups []voters, up, die []string) bool {
	for _, g := range groups {
		left := 0
		for _, id := range g.nodes {
			if slices.Contains(up, id) && !slices.Contains(die, id) {
				left++
			}
		}
		if left <= len(g.nodes)/2 {
			return false
		}
	}
	return true
}
