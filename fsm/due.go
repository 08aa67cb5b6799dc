package fsm

import (
	"bytes"
	"cmp"
	"slices"
	"strings"
)

// dueKind is what leaves the state when its time has come.
type dueKind uint8

const (
	dueKey dueKind = iota
	dueRecord
	dueDenials
)

// due is one thing of a shard to look at again at an instant. It is not a promise that the thing has ended by
// then: a key that was used meanwhile is put off.
type due struct {
	at   Time
	what ref
	kind dueKind
}

// compare orders things that are due by instant, and by what they are within one, so that the order is
// a function of the state alone and a restored replica forgets in the same order.
func (s *shard) compare(d, o due) int {
	if c := cmp.Or(cmp.Compare(d.at, o.at), cmp.Compare(d.kind, o.kind)); c != 0 {
		return c
	}
	switch d.kind {
	case dueRecord:
		return bytes.Compare(s.records.at(d.what).id[:], s.records.at(o.what).id[:])
	case dueDenials:
		return bytes.Compare(s.denials.at(d.what).of[:], s.denials.at(o.what).of[:])
	default:
		k, l := s.keys.at(d.what), s.keys.at(o.what)
		return cmp.Or(strings.Compare(s.principals.at(k.owner).name, s.principals.at(l.owner).name),
			strings.Compare(k.class.name, l.class.name))
	}
}

// push puts d on the agenda, which is a binary heap, the earliest first.
func (s *shard) push(d due) {
	s.agenda = append(s.agenda, d)
	h := s.agenda
	i := len(h) - 1
	for i > 0 {
		up := (i - 1) / 2
		if h[up].at < d.at || s.compare(d, h[up]) >= 0 {
			break
		}
		h[i] = h[up]
		i = up
	}
	h[i] = d
}

func (s *shard) pop() due {
	h := s.agenda
	first, last := h[0], len(h)-1
	h[0] = h[last]
	s.agenda = h[:last]
	if last < cap(h)/2 && cap(h) > chunkLen {
		s.agenda = append(make([]due, 0, last+last/4), s.agenda...) // much has ended
	}
	s.sink(0)
	return first
}

// strike takes all that leaves off the agenda. It is linear in the agenda.
func (s *shard) strike(leaves func(due) bool) {
	s.agenda = slices.DeleteFunc(s.agenda, leaves)
	for i := len(s.agenda)/2 - 1; i >= 0; i-- {
		s.sink(i)
	}
}

// sink puts the thing at i below those that are due earlier.
func (s *shard) sink(i int) {
	h := s.agenda
	for {
		least := i
		for child := 2*i + 1; child <= 2*i+2 && child < len(h); child++ {
			if h[child].at < h[least].at || h[child].at == h[least].at && s.compare(h[child], h[least]) < 0 {
				least = child
			}
		}
		if least == i {
			return
		}
		h[i], h[least] = h[least], h[i]
		i = least
	}
}

// never is later than any instant at which something can be due.
const never = Time(1<<63 - 1)

// calendar is a binary heap of the shards by what is due first in each, so that the earliest of all is
// found without a walk over the shards. Shards with nothing due come last; within one instant the shards' numbers
// make the order total.
type calendar struct {
	order []appointment
	place [numShards]uint16 // of each shard in order
}

type appointment struct {
	at    Time // of what is due first; never when nothing is
	shard uint16
}

func (a appointment) before(o appointment) bool {
	return a.at < o.at || a.at == o.at && a.shard < o.shard
}

func newCalendar(shards []*shard) calendar {
	c := calendar{order: make([]appointment, len(shards))}
	for i, s := range shards {
		c.order[i] = appointment{s.firstDue(), uint16(i)}
		c.place[i] = uint16(i)
	}
	for i := len(c.order)/2 - 1; i >= 0; i-- {
		c.down(i)
	}
	return c
}

// firstDue is when something is due first in s; never when nothing is.
func (s *shard) firstDue() Time {
	if len(s.agenda) == 0 {
		return never
	}
	return s.agenda[0].at
}

func (c *calendar) first() appointment { return c.order[0] }

// moved puts s in its place again after what is due first in it has changed.
func (c *calendar) moved(s *shard) {
	i := int(c.place[s.index])
	at := s.firstDue()
	if at == c.order[i].at {
		return
	}
	c.order[i].at = at
	c.up(i)
	c.down(int(c.place[s.index]))
}

func (c *calendar) up(i int) {
	for i > 0 {
		parent := (i - 1) / 2
		if !c.order[i].before(c.order[parent]) {
			return
		}
		c.swap(i, parent)
		i = parent
	}
}

func (c *calendar) down(i int) {
	for {
		least := i
		for child := 2*i + 1; child <= 2*i+2 && child < len(c.order); child++ {
			if c.order[child].before(c.order[least]) {
				least = child
			}
		}
		if least == i {
			return
		}
		c.swap(i, least)
		i = least
	}
}

func (c *calendar) swap(i, j int) {
	c.order[i], c.order[j] = c.order[j], c.order[i]
	c.place[c.order[i].shard], c.place[c.order[j].shard] = uint16(i), uint16(j)
}
