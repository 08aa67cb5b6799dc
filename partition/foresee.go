package partition

import (
	"hash/maphash"
	"sync/atomic"

	"github.com/quorate/quorate/fsm"
)

// A denial changes nothing but its record, so an owner that foresees it (see [fsm.Machine.Foresee]) need not put
// it into an entry. It is answered when the entry that is proposed next has committed, in the leadership that
// foresaw it: so whoever is denied was denied by one that was in power after he had asked. Only first attempts
// are foreseen, whose ids are neither recorded nor in flight: with any other one an earlier attempt may be
// admitted yet.
type foreseer struct {
	seed maphash.Seed
	// denied are hashes of the principals and classes that were denied lately, each in the place that it falls on. Only
	// their checks are looked at: others would be judged twice.
	denied [1 << 16]atomic.Uint64
	// flights are the ids of the entries that are in flight. Their bits are the owner's.
	flights [maxInFlight]flight
}

// flight is a set of ids in bits, of which a few too many are in it.
type flight struct {
	bits [1 << 10]uint64
	busy atomic.Bool
}

type callerClass struct{ principal, class string }

type checkID struct{ principal, gateway, id string }

func newForeseer() *foreseer { return &foreseer{seed: maphash.MakeSeed()} }

// place is where a principal and a class would be among the denied, and what would be there.
func (f *foreseer) place(c *fsm.Check) (*atomic.Uint64, uint64) {
	h := maphash.Comparable(f.seed, callerClass{c.Principal, c.Class}) | 1 // never 0
	return &f.denied[h>>32%uint64(len(f.denied))], h
}

// learn notes who was denied.
func (f *foreseer) learn(c *fsm.Check, d *fsm.Decision) {
	if d.Reason.Denied() {
		at, h := f.place(c)
		at.Store(h)
	}
}

func (f *foreseer) bit(c *fsm.Check) (word int, mask uint64) {
	h := maphash.Comparable(f.seed, checkID{c.Principal, c.Gateway, c.DecisionID})
	return int(h >> 6 % uint64(len(f.flights[0].bits))), 1 << (h & 63)
}

// flying reports whether an id may be in flight.
func (f *foreseer) flying(c *fsm.Check) bool {
	word, mask := f.bit(c)
	for i := range f.flights {
		if w := &f.flights[i]; w.busy.Load() && w.bits[word]&mask != 0 {
			return true
		}
	}
	return false
}

// depart notes the ids of an entry. landed is called when nothing is in flight any more of it. There is a flight for
// it, as the caller has taken a place in flight.
func (f *foreseer) depart(checks []fsm.Check) (landed func()) {
	for i := range f.flights {
		w := &f.flights[i]
		if w.busy.Load() {
			continue
		}
		clear(w.bits[:])
		for j := range checks {
			word, mask := f.bit(&checks[j])
			w.bits[word] |= mask
		}
		w.busy.Store(true)
		return func() { w.busy.Store(false) }
	}
	panic("partition: more entries in flight than may be")
}

// foresee takes those checks out of an entry of batch that are denied as the state stands, and gives their requests
// what they came to.
func (o *owner) foresee(batch []*request, e *fsm.Entry) {
	var suspects []*request
	for _, r := range batch {
		if r.check == nil || !r.first {
			continue
		}
		if at, h := o.foreseer.place(r.check); at.Load() == h && !o.foreseer.flying(r.check) {
			suspects = append(suspects, r)
		}
	}
	if len(suspects) == 0 {
		return
	}
	foreseen := 0
	o.replica.view(func(m *fsm.Machine, _ uint64) {
		for _, r := range suspects {
			if d, ok := m.Foresee(r.check, e.Stamp); ok {
				r.foreseen = &d
				foreseen++
			} else {
				at, _ := o.foreseer.place(r.check)
				at.Store(0)
			}
		}
	})
	if foreseen == 0 {
		return
	}
	o.metrics.foreseen.Add(float64(foreseen))
	e.Checks = e.Checks[:0]
	for _, r := range batch {
		if r.check != nil && r.foreseen == nil {
			e.Checks = append(e.Checks, *r.check)
		}
	}
}
