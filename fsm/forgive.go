package fsm

import (
	"cmp"
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
	s := m.shardOf(slot)
	m.keepPrincipal(s, f.Principal)
	for _, k := range m.forgivable(s.principals[f.Principal], f.Class) {
		m.trim(k) // what no limit can count any more is not forgiven
		if amount := k.log.total(); amount > 0 {
			out.Amounts = append(out.Amounts, ClassAmount{k.class.name, int64(amount)})
		}
		m.dropPairs(k, k.log.len())
		m.dropKey(s, k)
		s.agenda.strike(k)
	}
	m.calendar.moved(s)
	return out
}

// forgivable are the keys of p that the limits of a check of apiClass count for its class, in order: all
// when apiClass is empty.
func (m *Machine) forgivable(p *principal, apiClass string) (out []*key) {
	if p == nil {
		return nil
	}
	if apiClass == "" {
		return slices.Clone(p.keys)
	}
	var carried []*revision
	if nm := m.nameOf(apiClass); nm.settled > m.now {
		carried = nm.exact
	}
	for _, c := range m.countedBy(apiClass, carried) {
		if k := p.key(c.name); k != nil {
			out = append(out, k)
		}
	}
	slices.SortFunc(out, func(a, b *key) int { return cmp.Compare(a.class.name, b.class.name) })
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
