package cluster

import (
	"strings"
	"testing"
)

// owned is all slots in three ranges of two partitions.
func owned() []Range {
	return []Range{
		{0, 4095, 1, "p0"}, {4096, 8191, 2, "p1"}, {8192, numSlots - 1, 1, "p0"},
	}
}

// TestCheckerSlots shows that owners with a gap, with an overlap or out of all bounds are refused, each for what is wrong
// with it, and whole ones in any order are not.
func TestCheckerSlots(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(r []Range) []Range
		wrong  string
	}{
		{"whole", func(r []Range) []Range { return []Range{r[2], r[0], r[1]} }, ""},
		{"a gap", func(r []Range) []Range { r[1].First++; return r }, "nobody owns the slots 4096-4096"},
		{"a gap at the end", func(r []Range) []Range { return r[:2] }, "nobody owns the slots 8192-16383"},
		{"none", func([]Range) []Range { return nil }, "nobody owns the slots 0-16383"},
		{"an overlap", func(r []Range) []Range { r[0].Last++; return r }, "two own slot 4096"},
		{"the same twice", func(r []Range) []Range { return append(r, r[1]) }, "two own slot 4096"},
		{"one within another", func(r []Range) []Range { return append(r, Range{9000, 9001, 3, "p2"}) }, "two own slot 9000"},
		{"one slot too many", func(r []Range) []Range { r[2].Last++; return r }, "there is no range"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := NewSlots(c.change(owned()))
			if c.wrong == "" && err != nil || c.wrong != "" && (err == nil || !strings.Contains(err.Error(), c.wrong)) {
				t.Errorf("got %v, want %q", err, c.wrong)
			}
		})
	}
}

// TestCheckerFollow shows that what a plan must not do to the owners is noticed: an epoch that stays or falls, a slot
// that went elsewhere, one that moved and should not have, and one that did not and should have.
func TestCheckerFollow(t *testing.T) {
	moved := []Range{{First: 4096, Last: 5000}}
	for _, c := range []struct {
		name  string
		next  []Range
		moved []Range
		wrong string
		to    string // p2 when empty
	}{
		{"nothing moved", owned(), nil, "", ""},
		{"moved", []Range{
			{0, 4095, 1, "p0"}, {4096, 5000, 3, "p2"}, {5001, 8191, 2, "p1"}, {8192, numSlots - 1, 1, "p0"},
		}, moved, "", ""},
		{"all of a partition moved", []Range{
			{0, 4095, 1, "p0"}, {4096, 8191, 3, "p0"}, {8192, numSlots - 1, 1, "p0"},
		}, []Range{{First: 4096, Last: 8191}}, "", "p0"},
		{"an epoch that stays", []Range{
			{0, 4095, 1, "p0"}, {4096, 5000, 2, "p2"}, {5001, 8191, 2, "p1"}, {8192, numSlots - 1, 1, "p0"},
		}, moved, "its epoch did not rise", ""},
		{"an epoch that falls beside it", []Range{
			{0, 4095, 1, "p0"}, {4096, 5000, 3, "p2"}, {5001, 8191, 1, "p1"}, {8192, numSlots - 1, 1, "p0"},
		}, moved, "slot 5001 did not move", ""},
		{"one slot too many", []Range{
			{0, 4095, 1, "p0"}, {4096, 5001, 3, "p2"}, {5002, 8191, 2, "p1"}, {8192, numSlots - 1, 1, "p0"},
		}, moved, "slot 5001 did not move", ""},
		{"one slot too few", []Range{
			{0, 4095, 1, "p0"}, {4096, 4999, 3, "p2"}, {5000, 8191, 2, "p1"}, {8192, numSlots - 1, 1, "p0"},
		}, moved, "slot 5000 moved to p2", ""},
		{"elsewhere", []Range{
			{0, 4095, 1, "p0"}, {4096, 5000, 3, "p0"}, {5001, 8191, 2, "p1"}, {8192, numSlots - 1, 1, "p0"},
		}, moved, "slot 4096 moved to p2", ""},
		{"an undone plan that moved", []Range{
			{0, 4095, 1, "p0"}, {4096, 8191, 3, "p0"}, {8192, numSlots - 1, 1, "p0"},
		}, nil, "slot 4096 did not move", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			to := "p2"
			if c.to != "" {
				to = c.to
			}
			err := mustSlots(t, owned()).Follow(mustSlots(t, c.next), c.moved, to)
			if c.wrong == "" && err != nil || c.wrong != "" && (err == nil || !strings.Contains(err.Error(), c.wrong)) {
				t.Errorf("got %v, want %q", err, c.wrong)
			}
		})
	}
}

func mustSlots(t *testing.T, ranges []Range) Slots {
	t.Helper()
	s, err := NewSlots(ranges)
	if err != nil {
		t.Fatal(err)
	}
	return s
}
