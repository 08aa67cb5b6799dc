package link

import (
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// Shows that calls are over at their deadlines, none before and none after, however far apart and in which order these
// are, and that who looks when he is told to does so a few times for each turn of the wheel at most.
func TestDeadlines(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var d deadlines
		var now int64
		in, left := map[*Call]bool{}, 0
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			switch rapid.IntRange(0, 3).Draw(t, "step") {
			case 0, 1:
				c := &Call{deadlineNanos: now + rapid.OneOf(rapid.Int64Range(-5e6, 5e6),
					rapid.Int64Range(0, 10e9), rapid.SampledFrom([]int64{100e6, neverNanos / 2})).Draw(t, "deadline")}
				d.add(c)
				in[c] = true
			case 2:
				for c := range in {
					d.remove(c)
					delete(in, c)
					break
				}
			case 3:
				now += rapid.OneOf(rapid.Int64Range(0, 2e6), rapid.Int64Range(0, 5e9)).Draw(t, "later")
				d.expire(now, func(c *Call) {
					if !in[c] || c.deadlineNanos > now {
						t.Fatalf("over at %d: %d", now, c.deadlineNanos)
					}
					d.remove(c)
					delete(in, c)
				})
				left++
			}
			earliest := int64(neverNanos)
			for c := range in {
				earliest = min(earliest, c.deadlineNanos)
			}
			next := d.next()
			switch {
			case next > earliest || earliest == neverNanos && next != neverNanos:
				t.Fatalf("it is to be looked at %d, and the earliest is at %d", next, earliest)
			case next < earliest && next < d.fromNanos+int64(time.Second):
				t.Fatalf("it is to be looked at %d, from %d, although the earliest is at %d", next, d.fromNanos, earliest)
			}
		}
	})
}

// Shows that a queue keeps its order whoever leaves it.
func TestQueue(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var q queue
		var want []*Call
		for range rapid.IntRange(1, 50).Draw(t, "steps") {
			if len(want) > 0 && rapid.Bool().Draw(t, "leaves") {
				i := rapid.IntRange(0, len(want)-1).Draw(t, "who")
				q.remove(want[i])
				want = slices.Delete(want, i, i+1)
			} else {
				c := &Call{}
				q.push(c)
				want = append(want, c)
			}
			var got []*Call
			for c := q.first; c != nil; c = c.after {
				got = append(got, c)
			}
			if !slices.Equal(got, want) || q.count != len(want) {
				t.Fatalf("%d are queued, and not %d, or in another order", len(got), len(want))
			}
		}
	})
}

// Shows that each call that waits is found by its sequence and by no other, also beside one that waits for long, that
// sequences never come twice, and that the memory is of as many as wait at once.
func TestAwaited(t *testing.T) {
	var a awaited
	seen := map[uint64]bool{}
	var waiting []*Call
	oldest := &Call{}
	a.add(oldest)
	for i := range 10_000 {
		c := &Call{}
		if a.add(c); seen[c.sequence] || c.sequence == oldest.sequence {
			t.Fatalf("sequence %d comes twice", c.sequence)
		}
		seen[c.sequence] = true
		if waiting = append(waiting, c); len(waiting) > 100+i%50 {
			gone := waiting[i*7%len(waiting)]
			if a.of(gone.sequence) != gone {
				t.Fatal("it is not found")
			}
			a.remove(gone)
			if a.of(gone.sequence) != nil {
				t.Fatal("it is found although it is gone")
			}
			waiting = slices.DeleteFunc(waiting, func(c *Call) bool { return c == gone })
		}
	}
	if a.of(oldest.sequence) != oldest || len(a.slots) > 512 || a.count != len(waiting)+1 || len(a.all()) != a.count {
		t.Errorf("%d of %d wait, in %d slots", a.count, len(waiting)+1, len(a.slots))
	}
}
