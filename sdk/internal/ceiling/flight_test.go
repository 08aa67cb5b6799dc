package ceiling

import (
	"fmt"
	"sync"
	"testing"

	"pgregory.net/rapid"
)

// Shows that as many checks of a principal as the bound says are under way at once and no more, that others do not count,
// that who leaves makes room, and that nothing is kept of those that have left.
func TestFlight(t *testing.T) {
	f := NewFlight(3)
	for range 2 {
		var in []*Flying
		for i := range 5 {
			p, ok := f.Enter(Hash("x"), "x")
			if ok != (i < 3) {
				t.Errorf("check %d", i)
			}
			if ok {
				in = append(in, p)
			}
		}
		other, ok := f.Enter(Hash("x"), "y") // also one that falls together with it
		if !ok || other == in[0] {
			t.Error("another is refused")
		}
		f.Leave(in[0])
		if _, ok := f.Enter(Hash("x"), "x"); !ok {
			t.Error("one that left makes no room")
		}
		if _, ok := f.Enter(Hash("x"), "x"); ok {
			t.Error("one that left makes room for more than one")
		}
		for _, p := range append(in, other) {
			f.Leave(p)
		}
	}
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			for j := range 1000 {
				name := fmt.Sprint((i + j) % 5)
				if p, ok := f.Enter(Hash(name), name); ok {
					f.Leave(p)
				}
			}
		})
	}
	all.Wait()
	for i := range f.in {
		for _, p := range f.in[i].places {
			if p != nil {
				t.Errorf("%q is kept", p.principal)
			}
		}
		for p := f.in[i].free; p != nil; p = p.next {
			if p.principal != "" || p.checks != 0 {
				t.Errorf("%+v is free", p)
			}
		}
	}
	if none := NewFlight(0); none != nil {
		t.Error("there is a bound without one")
	} else if p, ok := none.Enter(1, "x"); !ok {
		t.Error("without a bound one is refused")
	} else {
		none.Leave(p)
	}
}

// Shows that as many enter and leave as were counted, each principal for itself, in whatever order and however their
// hashes fall together.
func TestFlightCounts(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f, in, of := NewFlight(2), map[string][]*Flying{}, map[string]uint64{}
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			name := rapid.SampledFrom([]string{"a", "b", "c", "d"}).Draw(t, "principal")
			if _, known := of[name]; !known {
				of[name] = rapid.Uint64Range(0, 2).Draw(t, "hash") * shards
			}
			if n := len(in[name]); n > 0 && rapid.Bool().Draw(t, "leaves") {
				f.Leave(in[name][n-1])
				in[name] = in[name][:n-1]
				continue
			}
			p, ok := f.Enter(of[name], name)
			if ok != (len(in[name]) < 2) {
				t.Fatalf("%s: %t with %d under way", name, ok, len(in[name]))
			}
			if ok {
				in[name] = append(in[name], p)
			}
		}
	})
}

// Shows that what leaves makes room for who comes without an allocation.
func TestFlightAllocates(t *testing.T) {
	f, hash := NewFlight(3), Hash("x")
	if n := testing.AllocsPerRun(100, func() {
		p, _ := f.Enter(hash, "x")
		f.Leave(p)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
