package fsm

import (
	"encoding/binary"
	"slices"
)

// Forgiven is the answer to a forgive: ReasonAllowed when it was done, else a refusal.
type Forgiven struct {
	Reason Reason
	// Detail explains a refusal to a person.
	Detail string
	// Epoch is the slot's epoch where it is owned, for ReasonWrongEpoch; 0 where it is not.
	Epoch Epoch
	// Amounts are what was dropped, sorted by class; classes without usage are left out.
	Amounts []ClassAmount
}

// ClassAmount is an amount of admitted cost in one class.
type ClassAmount struct {
	Class  string
	Amount int64
}

// ValidateForgive reports what makes f malformed, naming the field, or nil.
func ValidateForgive(f *Forgive) error {
	if err := validName("principal", f.Principal, MaxPrincipalBytes); err != nil {
		return err
	}
	if f.Class == "" {
		return nil
	}
	return validName("api_class", f.Class, MaxClassBytes)
}

// forgive drops the admissions of a principal. By the rules of a check: of a slot that is owned, under this
// epoch, and not frozen.
func (m *Machine) forgive(f *Forgive) *Forgiven {
	if err := ValidateForgive(f); err != nil {
		return &Forgiven{Reason: ReasonInvalidArgument, Detail: err.Error()}
	}
	slot := m.SlotOf(f.Principal)
	if r, epoch := m.serves(slot, f.RouteEpoch); r != ReasonUnspecified {
		return &Forgiven{Reason: r, Epoch: epoch}
	}
	out := &Forgiven{Reason: ReasonAllowed}
	m.unpack(slot)
	c := m.callerOf(f.Principal)
	s := c.shard
	m.keepPrincipal(s, c.name, c.ref)
	forgiven := m.forgivable(&c, f.Class)
	for _, r := range forgiven {
		k, p := s.keys.at(r), s.principals.at(c.ref)
		m.trim(p, k) // what no limit can count any more is not forgiven
		if amount := k.log.total(); amount > 0 {
			out.Amounts = append(out.Amounts, ClassAmount{k.class.name, int64(amount)})
		}
		m.dropPairs(p, k, k.log.len())
	}
	s.strike(func(d due) bool { return d.kind == dueKey && slices.Contains(forgiven, d.what) })
	for _, r := range forgiven {
		m.dropKey(s, r)
	}
	m.calendar.moved(s)
	return out
}

// forgivable are the keys of c that the limits of a check of apiClass count for its class, in order: all
// when apiClass is empty.
func (m *Machine) forgivable(c *caller, apiClass string) (out []ref) {
	if c.ref == 0 {
		return nil
	}
	var counted []*class
	if apiClass != "" {
		var carried []*revision
		if nm := m.nameOf(apiClass); nm.settled > m.now {
			carried = nm.exact
		}
		counted = m.countedBy(apiClass, carried)
	}
	for r := c.shard.principals.at(c.ref).first; r != 0; r = c.shard.keys.at(r).next {
		if apiClass == "" || slices.Contains(counted, c.shard.keys.at(r).class) {
			out = append(out, r)
		}
	}
	return out
}

func appendForgive(b []byte, f *Forgive) []byte {
	b = appendString(b, f.Principal)
	b = appendString(b, f.Class)
	return binary.AppendUvarint(b, uint64(f.RouteEpoch))
}

func (d *decoder) forgive() *Forgive {
	return &Forgive{Principal: d.string(), Class: d.string(), RouteEpoch: Epoch(d.uvarint())}
}
