package fsm

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/quorate/quorate/policy"
)

// lineage is a policy history on its way to another partition: what decides which limits are exact there, and
// which rules are carried until they are.
type lineage struct {
	// asOf is when it was so, in the time of whoever reads it.
	asOf        Time
	birth, lost Time
	// present is the policy in force; policies are those that are carried, by revision, without it.
	present  PolicyRef
	policies []PolicyRef
	labels   []label
	classes  map[string]pastClass
	names    map[string]pastName
	unlisted pastName
}

type pastClass struct {
	knownSince Time
	removed    []hold
	// heldSince is since when all admissions are held.
	heldSince Time
}

type pastName struct {
	since Time
	exact []Revision // that are carried, in order
}

// lineage is the policy history as of an instant: a rule that is carried no more by then is left out.
func (m *Machine) lineage(asOf Time) *lineage {
	l := &lineage{
		asOf: asOf, birth: m.birth, lost: m.lost, present: m.rev.ref, labels: m.labels,
		classes: map[string]pastClass{}, names: map[string]pastName{},
	}
	carried := map[Revision]PolicyRef{}
	past := func(nm *name) pastName {
		p := pastName{since: nm.since}
		if nm.settled > asOf {
			for _, r := range nm.exact {
				p.exact = append(p.exact, r.number())
				if r != m.rev {
					carried[r.number()] = r.ref
				}
			}
		}
		return p
	}
	l.unlisted = past(&m.unlisted)
	for n, nm := range m.names {
		l.names[n] = past(nm)
	}
	for _, n := range slices.Sorted(maps.Keys(carried)) {
		l.policies = append(l.policies, carried[n])
	}
	for n, c := range m.classes {
		l.classes[n] = pastClass{knownSince: c.knownSince, removed: c.removed}
	}
	return l
}

// held works out since when the admissions of each class are held, by the windows of the policy in force.
func (l *lineage) held(windows func(class string) int64) {
	for n, c := range l.classes {
		c.heldSince = l.asOf - Time(max(windows(n), longestHold(c.removed, l.asOf)))
		l.classes[n] = c
	}
}

// shift moves all times by so much.
func (l *lineage) shift(by Time) {
	l.asOf, l.birth, l.lost = shifted(l.asOf, by), shifted(l.birth, by), shifted(l.lost, by)
	l.labels = slices.Clone(l.labels)
	for i := range l.labels {
		l.labels[i].ended = shifted(l.labels[i].ended, by)
	}
	for n, c := range l.classes {
		c.knownSince, c.heldSince = shifted(c.knownSince, by), shifted(c.heldSince, by)
		c.removed = slices.Clone(c.removed)
		for i := range c.removed {
			c.removed[i].until = shifted(c.removed[i].until, by)
		}
		l.classes[n] = c
	}
	for n, p := range l.names {
		p.since = shifted(p.since, by)
		l.names[n] = p
	}
	l.unlisted.since = shifted(l.unlisted.since, by)
}

// shifted leaves always as it is, and keeps within the bounds of times.
func shifted(t, by Time) Time {
	switch {
	case t == always:
		return t
	case by >= 0:
		return min(t, MaxTime-by) + by
	default:
		return max(t, -MaxTime-by) + by
	}
}

// met is the history of a partition in which two meet, as conservative as either: what one of them does not know,
// or does not hold any more, is not known. Both have the same revision in force. It is carried as well: its limits
// may have counted what is not known any more.
func met(a, b *lineage, now Time, windows func(class string) int64) *lineage {
	present := a.present.Revision
	out := &lineage{
		asOf: now, birth: min(a.birth, b.birth), lost: max(a.lost, b.lost), present: a.present,
		labels: metLabels(a.labels, b.labels), policies: metPolicies(a.policies, b.policies),
		classes: map[string]pastClass{}, names: map[string]pastName{},
		unlisted: metNames(a.unlisted, b.unlisted, present),
	}
	for _, of := range []*lineage{a, b} {
		for n := range of.names {
			out.names[n] = metNames(a.name(n), b.name(n), present)
		}
		for n := range of.classes {
			if _, done := out.classes[n]; !done {
				out.classes[n] = metClass(a, b, n, now, windows(n))
			}
		}
	}
	return out
}

// name is what is known of an apiClass: names that were never listed share one.
func (l *lineage) name(apiClass string) pastName {
	if p, ok := l.names[apiClass]; ok {
		return p
	}
	return l.unlisted
}

// class is what is known of a class: of one that it knows nothing of it holds nothing.
func (l *lineage) class(n string) pastClass {
	if c, ok := l.classes[n]; ok {
		return c
	}
	return pastClass{knownSince: always, heldSince: l.asOf}
}

func metNames(a, b pastName, present Revision) pastName {
	exact := append(slices.Concat(a.exact, b.exact), present)
	slices.Sort(exact)
	return pastName{max(a.since, b.since), slices.Compact(exact)}
}

func metClass(a, b *lineage, n string, now Time, windowNanos int64) pastClass {
	x, y := a.class(n), b.class(n)
	out := pastClass{
		knownSince: max(x.knownSince, y.knownSince),
		removed:    remaining(slices.Concat(x.removed, y.removed), now),
	}
	kept := now - Time(max(windowNanos, longestHold(out.removed, now)))
	for _, side := range []struct{ held, birth Time }{{x.heldSince, a.birth}, {y.heldSince, b.birth}} {
		if side.held > kept && side.birth < side.held {
			out.knownSince = max(out.knownSince, side.held)
		}
	}
	return out
}

// remaining are the holds that another one does not outdo, in order.
func remaining(holds []hold, now Time) []hold {
	slices.SortFunc(holds, func(a, b hold) int {
		return cmp.Or(cmp.Compare(b.windowNanos, a.windowNanos), cmp.Compare(b.until, a.until))
	})
	var out []hold
	for _, h := range holds {
		if h.until > now && (len(out) == 0 || h.until > out[len(out)-1].until) {
			out = append(out, h)
		}
	}
	slices.Reverse(out)
	return out
}

func metLabels(a, b []label) []label {
	all := slices.Concat(a, b)
	slices.SortFunc(all, func(x, y label) int {
		return cmp.Or(cmp.Compare(x.revision, y.revision), cmp.Compare(y.ended, x.ended))
	})
	return slices.CompactFunc(all, func(x, y label) bool { return x.revision == y.revision })
}

func metPolicies(a, b []PolicyRef) []PolicyRef {
	all := slices.Concat(a, b)
	slices.SortStableFunc(all, func(x, y PolicyRef) int { return cmp.Compare(x.Revision, y.Revision) })
	return slices.CompactFunc(all, func(x, y PolicyRef) bool { return x.Revision == y.Revision })
}

// appendHistory appends the image of the policy history. While slots are frozen it is as of the freeze.
func (m *Machine) appendHistory(b []byte) []byte {
	asOf := m.now
	if m.frozenBy != 0 {
		asOf = m.frozenAt
	}
	l := m.lineage(asOf)
	b = append(b, imageVersion)
	b = binary.AppendVarint(b, int64(l.birth))
	b = binary.AppendVarint(b, int64(l.lost))
	b = appendPolicyRef(b, &l.present)
	b = binary.AppendUvarint(b, uint64(len(l.policies)))
	for i := range l.policies {
		b = appendPolicyRef(b, &l.policies[i])
	}
	b = appendLabels(b, l.labels)
	b = binary.AppendUvarint(b, uint64(len(l.classes)))
	for _, n := range slices.Sorted(maps.Keys(l.classes)) {
		c := l.classes[n]
		b = binary.AppendVarint(appendString(b, n), int64(c.knownSince))
		b = appendHolds(b, c.removed)
	}
	b = appendPast(b, l.unlisted)
	b = binary.AppendUvarint(b, uint64(len(l.names)))
	for _, n := range slices.Sorted(maps.Keys(l.names)) {
		b = appendPast(appendString(b, n), l.names[n])
	}
	return b
}

func appendPast(b []byte, p pastName) []byte {
	b = binary.AppendVarint(b, int64(p.since))
	b = binary.AppendUvarint(b, uint64(len(p.exact)))
	for _, r := range p.exact {
		b = binary.AppendUvarint(b, uint64(r))
	}
	return b
}

func (m *Machine) hashHistory(image []byte) [16]byte {
	return m.element(append(append(m.scratch[:0], hashHistory), image...)).bytes()
}

// historyReader reads an image of a history. It refuses whatever no machine writes.
type historyReader struct {
	decoder
	known map[Revision]bool // that a name may carry
}

// readHistory reads the image of a policy history. Its times are those of the partition that wrote it.
func readHistory(image []byte) (*lineage, error) {
	r := &historyReader{decoder{b: image}, map[Revision]bool{}}
	if v := r.byte(); r.err == nil && v != imageVersion {
		r.fail(fmt.Errorf("it has version %d, this program knows version %d", v, imageVersion))
	}
	l := &lineage{birth: r.bounded(), lost: r.bounded(), classes: map[string]pastClass{}, names: map[string]pastName{}}
	l.present = r.policyRef()
	r.known[l.present.Revision] = true
	for range r.count() {
		ref := r.policyRef()
		if n := len(l.policies); n > 0 && l.policies[n-1].Revision >= ref.Revision {
			r.fail(errOrder)
		}
		l.policies, r.known[ref.Revision] = append(l.policies, ref), true
	}
	for range r.count() {
		l.labels = append(l.labels, label{Revision(r.uvarint()), r.text(policy.MaxNameBytes), r.bounded()})
		if n := len(l.labels); n > 1 && l.labels[n-2].revision >= l.labels[n-1].revision {
			r.fail(errOrder)
		}
	}
	last := ""
	for range r.count() {
		last = r.after(last)
		l.classes[last] = pastClass{knownSince: r.bounded(), removed: r.removed()}
	}
	l.unlisted, last = r.past(), ""
	for range r.count() {
		last = r.after(last)
		l.names[last] = r.past()
	}
	return l, r.end()
}

// bounded reads a time.
func (r *historyReader) bounded() Time {
	t := r.time()
	if t != always && (t < -MaxTime || t > MaxTime) {
		r.fail(errors.New("it has a time out of range"))
	}
	return t
}

func (r *historyReader) text(maxBytes int) string {
	s := r.string()
	if r.err == nil {
		if err := validName("name", s, maxBytes); err != nil {
			r.fail(err)
		}
	}
	return s
}

// after reads the name of a class that follows another.
func (r *historyReader) after(last string) string {
	n := r.text(MaxClassBytes)
	if r.err == nil && n <= last {
		r.fail(errOrder)
	}
	return n
}

func (r *historyReader) removed() []hold {
	holds := r.holds()
	for _, h := range holds {
		if h.windowNanos < 1 || h.windowNanos > policy.MaxWindowNanos || h.until < -MaxTime || h.until > MaxTime {
			r.fail(errors.New("it keeps a window out of range"))
		}
	}
	return holds
}

func (r *historyReader) past() pastName {
	p := pastName{since: r.bounded()}
	n := r.count()
	if n > maxExact {
		r.fail(fmt.Errorf("it carries %d revisions for one name, at most %d can be", n, maxExact))
	}
	for i := 0; i < n && r.err == nil; i++ {
		number := Revision(r.uvarint())
		if !r.known[number] || i > 0 && p.exact[i-1] >= number {
			r.fail(fmt.Errorf("it carries revision %d, which it does not name in order", number))
		}
		p.exact = append(p.exact, number)
	}
	return p
}
