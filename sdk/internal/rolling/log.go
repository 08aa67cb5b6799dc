package rolling

import (
	"math"
	"strings"
	"sync"
)

// Charge is what one admission takes of one class.
type Charge struct {
	Class string
	Cost  int64
	// Max is how much any window of WindowNanos admits.
	Max, WindowNanos int64
}

// Log holds the admissions. It is for concurrent use.
type Log struct {
	capacity int

	mu      sync.Mutex // guards the rest
	now     int64
	held    int
	classes map[string]*class
}

// class holds the admissions of one class in the order of time.
type class struct {
	windowNanos int64
	held        int
	first, last *entry
	principals  map[string]*account
}

// account holds the admissions of one principal in a class, in the order of time: its oldest is the next of all that
// expires of it.
type account struct {
	principal   string
	used        int64
	first, last *entry
}

type entry struct {
	at, cost int64
	of       *account
	next     *entry // in the class
	nextOwn  *entry // in the account
}

// New makes a log that holds at most capacity admissions, of which a class holds at most as many as it leaves free.
func New(capacity int) *Log { return &Log{capacity: capacity, classes: map[string]*class{}} }

// Held is how many admissions are held.
func (l *Log) Held() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.held
}

// Admit admits all charges of principal at nowNanos, or none. When it admits none, waitNanos is how long until they fit
// if nothing else is admitted; 0 when no time is known.
func (l *Log) Admit(nowNanos int64, principal string, charges ...Charge) (ok bool, waitNanos int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.now = max(l.now, nowNanos)
	for i := range charges {
		l.class(&charges[i]).expire(l)
	}
	full := false
	for i := range charges {
		wait, fits := l.fits(principal, &charges[i], takenBefore(charges, i))
		if !fits && wait == 0 {
			return false, 0
		}
		full, waitNanos = full || !fits, max(waitNanos, wait)
	}
	if full {
		return false, waitNanos
	}
	if !l.hasRoom(charges) {
		if l.sweep(); !l.hasRoom(charges) {
			return false, 0
		}
	}
	for i := range charges {
		l.append(principal, &charges[i])
	}
	return true, 0
}

// hasRoom reports whether as many admissions can be held beside the others. A class that holds more than is free gets
// none: so one alone takes half of the capacity, n together take n parts of n + 1, and who comes next always finds
// some.
func (l *Log) hasRoom(charges []Charge) bool {
	for i := range charges {
		own := 0
		if k := l.classes[charges[i].Class]; k != nil {
			own = k.held
		}
		for j := range charges[:i] {
			if charges[j].Class == charges[i].Class {
				own++
			}
		}
		if own >= l.capacity-l.held-i {
			return false
		}
	}
	return true
}

// takenBefore is what the charges before the i-th take of its class.
func takenBefore(charges []Charge, i int) (taken int64) {
	for j := range charges[:i] {
		if charges[j].Class == charges[i].Class {
			taken = add(taken, charges[j].Cost)
		}
	}
	return taken
}

// class is the class of a charge, with the window that holds now.
func (l *Log) class(c *Charge) *class {
	k := l.classes[c.Class]
	if k == nil {
		k = &class{principals: map[string]*account{}}
		l.classes[strings.Clone(c.Class)] = k
	}
	k.windowNanos = c.WindowNanos
	return k
}

// fits reports whether a charge has room beside what the same check takes already, and if not, how long it has none: 0
// when it never has any.
func (l *Log) fits(principal string, c *Charge, taken int64) (waitNanos int64, ok bool) {
	if c.Cost <= 0 || c.Max <= 0 || add(taken, c.Cost) > c.Max {
		return 0, false
	}
	k := l.classes[c.Class]
	a := k.principals[principal]
	if a == nil {
		return 0, true
	}
	used := add(add(a.used, taken), c.Cost)
	if used <= c.Max {
		return 0, true
	}
	for e := a.first; e != nil; e = e.nextOwn {
		if used -= e.cost; used <= c.Max {
			return add(e.at, k.windowNanos) - l.now, false
		}
	}
	return 0, false
}

func (l *Log) append(principal string, c *Charge) {
	k := l.class(c)
	a := k.principals[principal]
	if a == nil {
		a = &account{principal: strings.Clone(principal)}
		k.principals[a.principal] = a
	}
	e := &entry{at: l.now, cost: c.Cost, of: a}
	if k.last == nil {
		k.first, k.last = e, e
	} else {
		k.last.next, k.last = e, e
	}
	if a.last == nil {
		a.first, a.last = e, e
	} else {
		a.last.nextOwn, a.last = e, e
	}
	a.used = add(a.used, c.Cost)
	l.held, k.held = l.held+1, k.held+1
}

// expire drops what has left the window: the left edge is outside.
func (k *class) expire(l *Log) {
	for e := k.first; e != nil && add(e.at, k.windowNanos) <= l.now; e = k.first {
		k.first = e.next
		if k.first == nil {
			k.last = nil
		}
		a := e.of
		a.used -= e.cost
		a.first = e.nextOwn
		if a.first == nil {
			a.last = nil
			delete(k.principals, a.principal)
		}
		l.held, k.held = l.held-1, k.held-1
	}
}

// sweep expires every class, and forgets those that hold nothing.
func (l *Log) sweep() {
	for name, k := range l.classes {
		k.expire(l)
		if k.first == nil {
			delete(l.classes, name)
		}
	}
}

func add(a, b int64) int64 {
	if a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}
