package partition

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/quorate/quorate/clock"
)

// crowded runs f with a partition that leads, on a node with one place for entries, which another partition has.
func crowded(t *testing.T, f func(t *testing.T, p *Partition, s *script, others *place)) {
	scripted(t, func(t *testing.T, p *Partition, s *script, _ *clock.Fake) {
		lead(t, p, s)
		synctest.Wait() // the owner waits, and looks at inFlight again only when it is woken
		p.owner.inFlight = newInFlight(1)
		others, ok := p.owner.inFlight.take(t.Context())
		if !ok {
			t.Fatal("no place")
		}
		f(t, p, s, others)
	})
}

// Shows that checks which queue while other partitions have the node's places go into one entry as soon as one of
// them is given back, and that this entry's place is there for the next when it has been applied.
func TestInFlight(t *testing.T) {
	crowded(t, func(t *testing.T, p *Partition, s *script, others *place) {
		for i := range 10 {
			start(t.Context(), p, convert(fmt.Sprint("p", i), fmt.Sprint("d", i)))
		}
		if n := s.inFlight(); n != 0 {
			t.Fatalf("%d entries in flight without a place", n)
		}
		others.giveBack()
		others.giveBack() // a second time is nothing
		synctest.Wait()
		if n := s.inFlight(); n != 1 {
			t.Fatalf("%d entries in flight, want 1", n)
		}
		start(t.Context(), p, convert("p0", "next"))
		if n := s.inFlight(); n != 1 {
			t.Fatalf("%d entries in flight with one place", n)
		}
		if n := len(s.commit(5).entry.Checks); n != 10 {
			t.Errorf("the entry holds %d checks, want 10", n)
		}
		synctest.Wait()
		if n := len(s.commit(5).entry.Checks); n != 1 {
			t.Errorf("the entry after it holds %d checks, want 1", n)
		}
	})
}

// Shows that an entry which is stuck keeps its place for longestPlace only, and then neither blocks nor gives back a
// place twice.
func TestInFlightStuck(t *testing.T) {
	crowded(t, func(t *testing.T, p *Partition, s *script, others *place) {
		start(t.Context(), p, convert("acme", "1"))
		time.Sleep(longestPlace - time.Nanosecond)
		synctest.Wait()
		if n := s.inFlight(); n != 0 {
			t.Fatalf("%d entries in flight before the time", n)
		}
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		if n := s.inFlight(); n != 1 {
			t.Fatalf("%d entries in flight after it, want 1", n)
		}
		others.giveBack() // its entry came through after all
		start(t.Context(), p, convert("acme", "2"))
		if n := s.inFlight(); n != 1 {
			t.Fatalf("%d entries in flight, want 1: the place was given back twice", n)
		}
		s.commit(5)
		synctest.Wait()
		s.commit(5)
	})
}

// Shows that a check which waits for a place gets an answer when the partition closes.
func TestInFlightClose(t *testing.T) {
	crowded(t, func(t *testing.T, p *Partition, _ *script, others *place) {
		defer others.giveBack()
		out := start(t.Context(), p, convert("acme", "1"))
		must(t, p.Close())
		if a := <-out; a.err == nil {
			t.Errorf("the answer is %+v", a.answer)
		}
	})
}

// BenchmarkInFlight is what a place costs an entry.
func BenchmarkInFlight(b *testing.B) {
	f := NewInFlight()
	b.ReportAllocs()
	for b.Loop() {
		p, _ := f.take(context.Background())
		p.giveBack()
	}
}
