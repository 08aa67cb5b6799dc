package check

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/quorate/quorate/jepsen/history"
)

// lineage is what was decided of one principal, by the logs: epoch by epoch of its slot, each in the order of its log.
type lineage struct {
	principal string
	decisions []*decision // neither repetitions nor refusals
}

// decided reports whether it is a decision of its own, and no repetition or refusal.
func (d *decision) decided() bool {
	return !d.Replayed && d.entry.refused == "" && (d.Reason == reasonAllowed || denied[d.Reason])
}

const (
	reasonAllowed   = "allowed"
	reasonExhausted = "quota_exhausted"
)

// denied are the reasons of denials.
var denied = map[string]bool{reasonExhausted: true, "blocked": true, "endpoint_disabled": true}

// allowed reports whether it is an admission.
func (d *decision) allowed() bool { return d.decided() && d.Reason == reasonAllowed }

// segment is where a decision was made: two of one segment have comparable partition times, and nothing was brought
// from elsewhere between them.
type segment struct {
	group *group
	epoch uint64
}

func (d *decision) segment() segment { return segment{d.entry.group, d.Epoch} }

// between are the instants between which it was decided, of which clients can tell more than the log.
func (d *decision) between() (from, to time.Duration) {
	from, to = d.asked, d.entry.hi
	if d.check == nil || !d.allowed() || d.again {
		return from, to
	}
	if of := admissionsOf(d.check); len(of) == 1 {
		from, to = max(from, of[0].from), min(to, of[0].to)
	}
	return from, to
}

// lineages sorts the decisions by principal.
func (l *log) lineages() []*lineage {
	by := map[string]*lineage{}
	for _, g := range l.sorted {
		for _, e := range g.entries {
			for i := range e.decisions {
				d := &e.decisions[i]
				if !d.decided() {
					continue
				}
				of := by[d.Principal]
				if of == nil {
					of = &lineage{principal: d.Principal}
					by[d.Principal] = of
				}
				of.decisions = append(of.decisions, d)
			}
		}
	}
	var out []*lineage
	for _, name := range slices.Sorted(maps.Keys(by)) {
		of := by[name]
		slices.SortStableFunc(of.decisions, func(a, b *decision) int {
			return cmp.Or(cmp.Compare(a.Epoch, b.Epoch), cmp.Compare(a.entry.group.id, b.entry.group.id),
				cmp.Compare(a.entry.index, b.entry.index))
		})
		out = append(out, of)
	}
	return out
}

// item is a step of a proof.
func (d *decision) item(format string, args ...any) Item {
	from, to := d.between()
	word := d.Reason
	if d.Replayed {
		word += " again"
	}
	text := fmt.Sprintf("%s of %s, class %s, cost %d: %s between %s and %s on %s, partition %s, index %d, epoch %d, "+
		"revision %d, partition time %s", d.ID, d.Principal, d.Class, d.Cost, word, once(from), once(to), d.entry.node,
		d.entry.group.id, d.entry.index, d.Epoch, d.Revision, once(time.Duration(d.entry.time)))
	if format != "" {
		text += ": " + fmt.Sprintf(format, args...)
	}
	return Item{
		Text: text, ID: d.ID, Principal: d.Principal, Class: d.Class, Cost: d.Cost, Node: d.entry.node,
		Group: d.entry.group.id, Index: d.entry.index, Term: d.entry.term, Epoch: d.Epoch, Revision: d.Revision,
		From: from, To: to,
	}
}

// scope names classes that are counted together.
func scope(over []string) string {
	sorted := slices.Clone(over)
	slices.Sort(sorted)
	return strings.Join(sorted, "\x00")
}

// scopes are all sets of classes that any limit counts together, and in which of them a class is.
type scopes struct {
	names []string
	of    map[string][]int // by class
	at    map[string]int   // by name
}

func scopesOf(revisions []history.Revision) *scopes {
	s := &scopes{of: map[string][]int{}, at: map[string]int{}}
	add := func(rule []history.Scoped) {
		for _, l := range rule {
			name := scope(l.Over)
			if _, ok := s.at[name]; ok {
				continue
			}
			s.at[name] = len(s.names)
			for _, class := range slices.Compact(slices.Sorted(slices.Values(l.Over))) {
				s.of[class] = append(s.of[class], len(s.names))
			}
			s.names = append(s.names, name)
		}
	}
	for i := range revisions {
		p := &revisions[i].Policy
		add(p.Rule(history.DefaultClass))
		for _, class := range slices.Sorted(maps.Keys(p.Classes)) {
			add(p.Rule(class))
		}
	}
	return s
}

// under is what is known in a revision; nil when there was none of that number.
func (k *knowledge) under(number uint64) *known {
	i, ok := slices.BinarySearchFunc(k.revisions, number, func(r *known, n uint64) int { return cmp.Compare(r.Number, n) })
	if !ok {
		return nil
	}
	return k.revisions[i]
}
