package reference

import (
	"maps"
	"slices"

	"github.com/quorate/quorate/fsm"
)

// inheritance says which revisions are carried for a name because of what was known where partitions met.
type inheritance struct {
	names map[string][]*revision
	other []*revision // of all other names
}

func (i inheritance) of(name string) []*revision {
	if r, ok := i.names[name]; ok {
		return r
	}
	return i.other
}

// Move hands everything to a partition that holds nothing and whose time is ahead by so much: ages stay.
func (m *Model) Move(by fsm.Time) {
	m.now += by
	m.birth += by
	m.lost = moved(m.lost, by)
	m.known.move(by)
	for _, r := range slices.Concat(m.revisions, m.others) {
		r.endedAt += by
		r.knownAtEnd.move(by)
	}
	for i := range m.admissions {
		m.admissions[i].at += by
	}
	for i := range m.records {
		m.records[i].end += by
		if !m.records[i].decision.Allowed() {
			m.records[i].decision.RetryAt += by
		}
	}
}

func moved(t, by fsm.Time) fsm.Time {
	if t == always {
		return t
	}
	return t + by
}

func (k knowledge) move(by fsm.Time) {
	for _, of := range []map[string]fsm.Time{k.classes, k.names} {
		for name := range of {
			of[name] += by
		}
	}
}

// Clone is a model that goes its own way.
func (m *Model) Clone() *Model {
	out := *m
	out.revisions, out.others = cloned(m.revisions), cloned(m.others)
	out.known = m.known.clone()
	out.admissions, out.records = slices.Clone(m.admissions), slices.Clone(m.records)
	return &out
}

func cloned(revisions []*revision) []*revision {
	out := make([]*revision, len(revisions))
	for i, r := range revisions {
		own := *r
		own.knownAtEnd = r.knownAtEnd.clone()
		out[i] = &own
	}
	return out
}

func (k knowledge) clone() knowledge { return knowledge{maps.Clone(k.classes), maps.Clone(k.names)} }

// Lose notes that admissions of before now may be missing.
func (m *Model) Lose() { m.lost = m.now }

// Merge takes over the other partition, which has the same policy in force and was moved into the time of this one
// before: what was base there is the present time of the other. The principals are others.
//
// It reports that the rules leave open what is counted from now on: a rule that is carried could count admissions
// that a side which did not carry it need not hold any more, and may.
func (m *Model) Merge(other *Model) (open bool) {
	before, names := *m, []string{}
	before.known = m.known.clone()
	for _, of := range []*Model{m, other} {
		names = append(names, of.everListed(of.current().policy)...)
	}
	inherited := inheritance{names: map[string][]*revision{}, other: metCarried(&before, other, "\x00")}
	for _, name := range names {
		inherited.names[name] = metCarried(&before, other, name)
	}
	for _, name := range names {
		open = open || before.mayHold(name, inherited.of(name)) || other.mayHold(name, inherited.of(name))
	}
	m.birth, m.lost = min(m.birth, other.birth), max(m.lost, other.lost)
	m.others = slices.Concat(m.others, other.others, other.revisions[:len(other.revisions)-1])
	for _, name := range names {
		if since := max(before.known.name(name), other.known.name(name)); since != always {
			m.known.names[name] = since
		}
		known := max(before.known.class(name), other.known.class(name))
		// Of which class one side has not held everything for as long as the two now say.
		for _, side := range []*Model{&before, other} {
			held := side.now - fsm.Time(side.longestKept(name))
			if held > m.now-fsm.Time(m.longestKept(name)) && held > side.birth {
				known = max(known, held)
			}
		}
		if known != always {
			m.known.classes[name] = known
		}
	}
	m.taken, m.inherited = len(m.revisions), inherited
	m.admissions = append(m.admissions, other.admissions...)
	m.records = append(m.records, other.records...)
	return open
}

// mayHold reports that there is an admission which limits of revisions that are to be carried for a name, and are
// not here, would count although it need not be held here.
func (m *Model) mayHold(name string, carried []*revision) bool {
	for _, r := range carried {
		if slices.ContainsFunc(m.carried(name), func(own *revision) bool { return own.number == r.number }) {
			continue
		}
		resolved, _ := resolve(r.policy, name)
		for _, chosen := range allRules(r.policy, resolved) {
			for _, l := range extend(r.policy, m.known, name, chosen) {
				for _, a := range m.admissions {
					held := max(m.now-fsm.Time(m.longestKept(a.class)), m.known.class(a.class))
					if slices.Contains(l.classes, a.class) && a.at > m.now-fsm.Time(l.WindowNanos) && a.at <= held {
						return true
					}
				}
			}
		}
	}
	return false
}

// carried are the revisions that are carried for a name now.
func (m *Model) carried(name string) []*revision {
	resolved, _ := resolve(m.current().policy, name)
	for _, chosen := range allRules(m.current().policy, resolved) {
		if latestExact(extend(m.current().policy, m.known, name, chosen)) > m.now {
			return m.lastExact(name)
		}
	}
	return nil
}

// metCarried are the revisions that either of two partitions carries for a name, and the one in force, by number.
func metCarried(a, b *Model, name string) []*revision {
	met := map[fsm.Revision]*revision{a.current().number: a.current()}
	for _, m := range []*Model{a, b} {
		for _, r := range m.carried(name) {
			met[r.number] = r
		}
	}
	var out []*revision
	for _, number := range slices.Sorted(maps.Keys(met)) {
		out = append(out, met[number])
	}
	return out
}
