package fsm

import (
	"testing"

	"pgregory.net/rapid"
)

// Shows that a slab with its index finds what a map holds, and nothing else, through additions and removals of things
// whose hashes meet, in few and in many places, and that what is found stays where it was.
func TestTableIsAMap(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var things slab[int]
		var at index
		hashes := rapid.SampledFrom([]uint32{1, 3, 64, 1 << 31}).Draw(t, "hashes")
		hash := func(v int) uint32 { return uint32(v) * 2654435761 % hashes * (1<<32 - 1) / max(1, hashes-1) }
		find := func(v int) ref { return at.find(hash(v), func(r ref) bool { return *things.at(r) == v }) }
		want := map[int]ref{}
		for range rapid.IntRange(1, 400).Draw(t, "steps") {
			v := rapid.IntRange(1, 150).Draw(t, "value")
			r, there := want[v]
			if got := find(v); got != r {
				t.Fatalf("%d is at %d, want %d", v, got, r)
			}
			if there && rapid.Bool().Draw(t, "remove") {
				at.remove(hash(v), r)
				things.remove(r)
				delete(want, v)
			} else if !there {
				want[v] = things.add(v)
				at.add(hash(v), want[v])
			}
		}
		if at.n != len(want) {
			t.Fatalf("%d things, want %d", at.n, len(want))
		}
		for r := range at.each {
			if v := *things.at(r); want[v] != r {
				t.Fatalf("%d is at %d, want %d", v, r, want[v])
			}
			delete(want, *things.at(r))
		}
		if len(want) > 0 {
			t.Fatalf("not yielded: %v", want)
		}
	})
}

// Shows that what was removed altogether leaves no memory behind, but for a little that is soon needed again.
func TestTableLetsGo(t *testing.T) {
	var things slab[int]
	var at index
	for v := range 1000 {
		at.add(uint32(v)<<20, things.add(v))
	}
	for r := ref(1); r <= 1000; r++ {
		at.remove(uint32(*things.at(r))<<20, r)
		things.remove(r)
	}
	if len(things.chunks) > 1 || len(things.free) > chunkLen || len(at.places) > chunkLen {
		t.Errorf("%d chunks, %d free, %d places are left", len(things.chunks), len(things.free), len(at.places))
	}
}
