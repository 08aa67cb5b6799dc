package storage

import (
	"testing"

	"github.com/hashicorp/raft"
	"pgregory.net/rapid"
)

// The ledger agrees with a list of sizes that is summed anew for each question, through any sequence
// of appends, truncations at both ends and fresh beginnings.
func TestLedger(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var g ledger
		var sizes []uint64 // of the entries first, first+1, …
		first := uint64(1)
		t.Repeat(map[string]func(*rapid.T){
			"append": func(t *rapid.T) {
				data := rapid.IntRange(0, 300).Draw(t, "bytes")
				l := &raft.Log{Index: first + uint64(len(sizes)), Data: make([]byte, data)}
				g.add([]*raft.Log{l})
				sizes = append(sizes, entryBytes(l))
			},
			"drop prefix": func(t *rapid.T) {
				n := rapid.IntRange(0, len(sizes)).Draw(t, "n")
				g.remove(first, first+uint64(n)-1)
				first, sizes = first+uint64(n), sizes[n:]
			},
			"drop suffix": func(t *rapid.T) {
				n := rapid.IntRange(0, len(sizes)).Draw(t, "n")
				g.remove(first+uint64(len(sizes)-n), first+uint64(len(sizes))-1)
				sizes = sizes[:len(sizes)-n]
			},
			"begin anew": func(t *rapid.T) {
				first += uint64(len(sizes)) + 10
				sizes = []uint64{entryOverheadBytes}
				g.add([]*raft.Log{{Index: first}})
			},
			"": func(t *rapid.T) { compare(t, &g, first, sizes) },
		})
	})
}

func compare(t *rapid.T, g *ledger, first uint64, sizes []uint64) {
	after := uint64(0)
	for i := len(sizes); i >= 0; i-- {
		if index := first + uint64(i) - 1; g.after(index) != after {
			t.Fatalf("after(%d) = %d, want %d of %v", index, g.after(index), after, sizes)
		}
		if i > 0 {
			after += sizes[i-1]
		}
	}
	bytes := rapid.Uint64Range(0, 2000).Draw(t, "within")
	want, sum := uint64(0), uint64(0)
	for i := len(sizes) - 1; i >= 0 && sum+sizes[i] <= bytes; i-- {
		want, sum = want+1, sum+sizes[i]
	}
	if got := g.trailing(bytes); got != want {
		t.Fatalf("trailing(%d) = %d, want %d of %v", bytes, got, want, sizes)
	}
}
