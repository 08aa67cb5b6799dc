package rolling

import (
	"fmt"
	"math"
	"testing"

	"pgregory.net/rapid"
)

// admitted is what the reference remembers: everything.
type admitted struct {
	principal, class string
	at, cost         int64
}

// used is what counts of a principal and class at now.
func used(all []admitted, principal, class string, now, window int64) (sum int64) {
	for _, a := range all {
		if a.principal == principal && a.class == class && a.at > now-window {
			sum += a.cost
		}
	}
	return sum
}

// Shows, against a log that remembers everything, that any course of admissions is decided exactly: all or nothing, over
// (t−W, t], never beyond the bound; and that who waits as told is admitted, and not a nanosecond before.
func TestAgainstReference(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const capacity = 12
		l, now := New(capacity), int64(0)
		var all []admitted
		rules := map[string]Charge{"a": {Class: "a", Max: 4, WindowNanos: 10}, "b": {Class: "b", Max: 3, WindowNanos: 25}}
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			now += rapid.Int64Range(0, 6).Draw(t, "pause")
			principal := rapid.SampledFrom([]string{"x", "y", "z"}).Draw(t, "principal")
			var charges []Charge
			for _, class := range rapid.SliceOfN(rapid.SampledFrom([]string{"a", "b"}), 1, 3).Draw(t, "classes") {
				c := rules[class]
				c.Cost = rapid.Int64Range(1, 3).Draw(t, "cost")
				charges = append(charges, c)
			}
			room, held := fits(all, principal, charges, now), 0
			for _, a := range all {
				if a.at > now-rules[a.class].WindowNanos {
					held++
				}
			}
			ok, wait := l.Admit(now, principal, charges...)
			free, byClass := true, map[string]int{}
			for _, a := range all {
				if a.at > now-rules[a.class].WindowNanos {
					byClass[a.class]++
				}
			}
			for _, c := range charges {
				free = free && byClass[c.Class] < capacity-held
				byClass[c.Class]++
				held++
			}
			if want := room && free; ok != want {
				t.Fatalf("at %d %s %v: admitted %t, want %t", now, principal, charges, ok, want)
			}
			if ok {
				for _, c := range charges {
					all = append(all, admitted{principal, c.Class, now, c.Cost})
				}
			} else if !room && wait != 0 {
				if fits(all, principal, charges, now+wait-1) || !fits(all, principal, charges, now+wait) {
					t.Fatalf("at %d %s %v: the wait of %d is wrong", now, principal, charges, wait)
				}
			} else if !room && fits(all, principal, charges, now+1000) {
				t.Fatalf("at %d %s %v: there is a time to wait", now, principal, charges)
			}
		}
	})
}

func fits(all []admitted, principal string, charges []Charge, now int64) bool {
	taken := map[string]int64{}
	for _, c := range charges {
		taken[c.Class] += c.Cost
		if used(all, principal, c.Class, now, c.WindowNanos)+taken[c.Class] > c.Max {
			return false
		}
	}
	return true
}

// Shows that what can never fit is refused with no time to wait, that sums do not overflow, and that time does not go
// back.
func TestCorners(t *testing.T) {
	l := New(10)
	one := Charge{Class: "a", Cost: 1, Max: 2, WindowNanos: 10}
	for _, c := range []Charge{
		{Class: "a", Cost: 3, Max: 2, WindowNanos: 10}, {Class: "a", Cost: 0, Max: 2, WindowNanos: 10},
		{Class: "a", Cost: -1, Max: 2, WindowNanos: 10}, {Class: "a", Cost: 1, Max: 0, WindowNanos: 10},
	} {
		if ok, wait := l.Admit(1, "x", c); ok || wait != 0 {
			t.Errorf("%v: %t, %d", c, ok, wait)
		}
	}
	large := Charge{Class: "big", Cost: math.MaxInt64 - 2, Max: math.MaxInt64 - 1, WindowNanos: math.MaxInt64}
	if ok, _ := l.Admit(1, "x", large); !ok {
		t.Error("a large cost does not fit")
	}
	if ok, wait := l.Admit(5, "x", large, large); ok || wait != 0 {
		t.Errorf("two large costs: %t, %d", ok, wait)
	}
	if ok, _ := l.Admit(100, "x", one, one); !ok {
		t.Error("two do not fit")
	}
	if ok, wait := l.Admit(90, "x", one); ok || wait != 10 {
		t.Errorf("after time went back: %t, %d", ok, wait)
	}
}

// Shows that a flood of invented principals is refused at its class's share, half of the bound, that another class and
// one more still find room, that it evicts nothing that counts, and is forgotten when it has left the window.
func TestBound(t *testing.T) {
	l := New(100)
	c := Charge{Class: "a", Cost: 1, Max: 1, WindowNanos: 10}
	for i := range 1000 {
		if ok, _ := l.Admit(1, fmt.Sprint(i), c); ok != (i < 50) {
			t.Fatalf("%d: %t", i, ok)
		}
	}
	if ok, _ := l.Admit(10, "0", c); ok || l.Held() != 50 {
		t.Errorf("what counts was evicted, %d are held", l.Held())
	}
	for i, most := range []int{25, 13, 6} {
		c := Charge{Class: fmt.Sprint("flood ", i), Cost: 1, Max: 1, WindowNanos: 10}
		admitted := 0
		for j := range 1000 {
			if ok, _ := l.Admit(10, fmt.Sprint(j), c); ok {
				admitted++
			}
		}
		if admitted != most {
			t.Errorf("a flood of class %d is admitted %d times, want %d", i, admitted, most)
		}
	}
	other := Charge{Class: "b", Cost: 1, Max: 1, WindowNanos: 10}
	l.now = 20
	l.sweep()
	if ok, _ := l.Admit(21, "new", other); !ok || l.Held() != 1 || len(l.classes) != 1 {
		t.Errorf("admitted %t, %d are held of %d classes", ok, l.Held(), len(l.classes))
	}
}
