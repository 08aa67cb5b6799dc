package link

import "math"

const (
	// A slot has the deadlines of about a millisecond.
	slotBits = 20
	numSlots = 1 << 10
	// neverNanos is after every deadline.
	neverNanos = math.MaxInt64
)

// deadlines keeps calls by when their time is over: a wheel of slots, in each of which the calls are in no order. One
// timer is so enough for all of them, and a call comes and goes at the cost of two links. Deadlines are exact all the
// same. The zero deadlines has none.
type deadlines struct {
	slots [numSlots]*Call // the first of each
	// fromNanos is up to when calls were taken out: none is in a slot before.
	fromNanos int64
}

// add adds a call, by its deadlineNanos.
func (d *deadlines) add(c *Call) {
	c.slot = max(c.deadlineNanos, d.fromNanos) >> slotBits
	first := &d.slots[c.slot%numSlots]
	c.earlier, c.later = nil, *first
	if *first != nil {
		(*first).earlier = c
	}
	*first = c
}

// remove takes out a call that was added.
func (d *deadlines) remove(c *Call) {
	if c.earlier != nil {
		c.earlier.later = c.later
	} else {
		d.slots[c.slot%numSlots] = c.later
	}
	if c.later != nil {
		c.later.earlier = c.earlier
	}
	c.earlier, c.later = nil, nil
}

// expire calls over with each call whose deadline has come, which is to take it out.
func (d *deadlines) expire(nowNanos int64, over func(*Call)) {
	last := nowNanos >> slotBits
	for slot := max(d.fromNanos>>slotBits, last-numSlots+1); slot <= last; slot++ {
		for c := d.slots[slot%numSlots]; c != nil; {
			next := c.later
			if c.deadlineNanos <= nowNanos {
				over(c)
			}
			c = next
		}
	}
	d.fromNanos = max(d.fromNanos, nowNanos)
}

// next is the earliest deadline, or an instant before it at which to ask again; neverNanos when there is no call.
func (d *deadlines) next() int64 {
	first, some := d.fromNanos>>slotBits, false
	for slot := first; slot < first+numSlots; slot++ {
		earliest := int64(neverNanos)
		for c := d.slots[slot%numSlots]; c != nil; c = c.later {
			some = true
			if c.slot <= slot { // not a turn of the wheel later, or several
				earliest = min(earliest, c.deadlineNanos)
			}
		}
		if earliest != neverNanos {
			return earliest
		}
	}
	if some {
		return (first + numSlots) << slotBits
	}
	return neverNanos
}
