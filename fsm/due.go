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

// due is one thing to look at again at an instant. It is not a promise that the thing has ended by
// then: a key that was used meanwhile is put off.
type due struct {
	at   Time
	kind dueKind
	key  *key     // dueKey
	id   recordID // dueRecord, dueDenials
}

// compare orders things that are due by instant, and by what they are within one, so that the order is
// a function of the state alone and a restored replica forgets in the same order.
func (d *due) compare(o *due) int {
	if c := cmp.Or(cmp.Compare(d.at, o.at), cmp.Compare(d.kind, o.kind)); c != 0 {
		return c
	}
	if d.kind != dueKey {
		return bytes.Compare(d.id[:], o.id[:])
	}
	return cmp.Or(strings.Compare(d.key.owner.name, o.key.owner.name),
		strings.Compare(d.key.class.name, o.key.class.name))
}

// agenda is a binary heap of what is due in one shard, the earliest first.
type agenda []due

func (a *agenda) push(d due) {
	*a = append(*a, d)
	h := *a
	for i := len(h) - 1; i > 0; {
		up := (i - 1) / 2
		if h[i].compare(&h[up]) >= 0 {
			break
		}
		h[i], h[up] = h[up], h[i]
		i = up
	}
}

func (a *agenda) pop() due {
	h := *a
	first, last := h[0], len(h)-1
	h[0] = h[last]
	h[last] = due{}
	*a = h[:last]
	a.sink(0)
	return first
}

// strike takes out what is due for a key. It is linear in the agenda.
func (a *agenda) strike(k *key) {
	a.strikeAll(func(d due) bool { return d.kind == dueKey && d.key == k })
}

// strikeAll takes out all that leaves. It is linear in the agenda.
func (a *agenda) strikeAll(leaves func(due) bool) {
	*a = slices.DeleteFunc(*a, leaves)
	for i := len(*a)/2 - 1; i >= 0; i-- {
		a.sink(i)
	}
}

// sink puts the thing at i below those that are due earlier.
func (a *agenda) sink(i int) {
	h := *a
	for {
		least := i
		for child := 2*i + 1; child <= 2*i+2 && child < len(h); child++ {
			if h[child].compare(&h[least]) < 0 {
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

// calendar is a binary heap of the shards by what is due first in each, so that the earliest of all is
// found without a walk over the shards. Shards with nothing due come last.
type calendar struct {
	order []*shard // heap
}

func newCalendar(shards []*shard) calendar {
	c := calendar{order: make([]*shard, len(shards))}
	copy(c.order, shards)
	for i, s := range c.order {
		s.place = i
	}
	for i := len(c.order)/2 - 1; i >= 0; i-- {
		c.down(i)
	}
	return c
}

func (c *calendar) first() *shard { return c.order[0] }

// moved puts s in its place again after what is due first in it has changed.
func (c *calendar) moved(s *shard) {
	c.up(s.place)
	c.down(s.place)
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
	c.order[i].place, c.order[j].place = i, j
}
