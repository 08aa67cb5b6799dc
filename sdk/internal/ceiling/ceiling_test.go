package ceiling

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
)

// Shows that exactly the ceiling's number passes in a second, by one goroutine, that the wait is the rest of it, and that
// others are not touched.
func TestCeiling(t *testing.T) {
	c := New(3)
	for second := range int64(3) {
		at := second * 1_000_000_000
		for i := range 5 {
			ok, wait := c.Take(at+int64(i), Hash("x"))
			if ok != (i < 3) || !ok && wait != 1_000_000_000-int64(i) {
				t.Fatalf("second %d, %d: %t, %d", second, i, ok, wait)
			}
		}
		if ok, _ := c.Take(at, Hash("y")); !ok {
			t.Error("another is refused")
		}
	}
	if ok, _ := (*Ceiling)(nil).Take(1, Hash("x")); !ok || New(0) != nil {
		t.Error("without a ceiling one is refused")
	}
}

// Shows, with the race detector, that exactly the ceiling passes of what comes at once, that thousands of principals
// that hammer do not make a quiet one be refused, and that nothing is allocated.
func TestConcurrent(t *testing.T) {
	c := New(100)
	var passed atomic.Int64
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 1000 {
				if ok, _ := c.Take(1, Hash("x")); ok {
					passed.Add(1)
				}
			}
		})
	}
	all.Wait()
	if n := passed.Load(); n != 100 {
		t.Errorf("%d passed", n)
	}
	for i := range 100 {
		for range 100 {
			c.Take(1, Hash(fmt.Sprint(i)))
		}
	}
	refused := 0
	for i := range 1000 {
		if ok, _ := c.Take(1, Hash(fmt.Sprint("quiet", i))); !ok {
			refused++
		}
	}
	if refused > 3 {
		t.Errorf("%d of 1000 quiet principals were refused", refused)
	}
	if n := testing.AllocsPerRun(100, func() { c.Take(1, Hash("x")) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// Shows that a low ceiling refuses next to nobody of very many principals with one check each, nor of the quiet ones
// beside many that hammer, as far as the package's bound allows.
func TestManyPrincipals(t *testing.T) {
	for _, k := range []struct{ perSecond, principals, most int }{
		{5, 50_000, 2}, {5, 200_000, 3}, {10, 100_000, 2}, {10, 200_000, 2}, {1000, 200_000, 0},
	} {
		c, refused := New(k.perSecond), 0
		for i := range k.principals {
			if ok, _ := c.Take(1, Hash(fmt.Sprint("p", i))); !ok {
				refused++
			}
		}
		if refused > k.most {
			t.Errorf("ceiling %d: of %d principals with one check each %d were refused", k.perSecond, k.principals, refused)
		}
	}
	c, refused := New(5), 0
	for i := range 4000 {
		for range 5 {
			c.Take(1, Hash(fmt.Sprint("loud", i)))
		}
	}
	for i := range 20_000 {
		if ok, _ := c.Take(1, Hash(fmt.Sprint("quiet", i))); !ok {
			refused++
		}
	}
	if refused > 8 { // at most one in 4,000, for the last of them, by the bound
		t.Errorf("%d quiet principals were refused beside 4,000 loud ones", refused)
	}
}
