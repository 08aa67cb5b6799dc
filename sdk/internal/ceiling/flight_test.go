package ceiling

import (
	"fmt"
	"sync"
	"testing"
)

// Shows that as many checks of a principal as the bound says are under way at once and no more, that others do not count,
// that who leaves makes room, and that nothing is kept of those that have left.
func TestFlight(t *testing.T) {
	f := NewFlight(3)
	for range 2 {
		for i := range 5 {
			if f.Enter("x") != (i < 3) {
				t.Errorf("check %d", i)
			}
		}
		if !f.Enter("y") {
			t.Error("another is refused")
		}
		f.Leave("x")
		if !f.Enter("x") || f.Enter("x") {
			t.Error("one that left makes room for one")
		}
		for range 3 {
			f.Leave("x")
		}
		f.Leave("y")
	}
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			for j := range 1000 {
				if name := fmt.Sprint((i + j) % 5); f.Enter(name) {
					f.Leave(name)
				}
			}
		})
	}
	all.Wait()
	for i := range f.in {
		if n := len(f.in[i].now); n != 0 {
			t.Errorf("%d principals are kept", n)
		}
	}
	if none := NewFlight(0); none != nil || !none.Enter("x") {
		t.Error("without a bound one is refused")
	} else {
		none.Leave("x")
	}
}
