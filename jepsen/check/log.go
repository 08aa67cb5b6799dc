package check

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/quorate/quorate/jepsen/history"
)

// maxDecisions bounds what is held of the logs.
const maxDecisions = 8_000_000

// log is what all replicas applied, merged: each entry of each partition once.
type log struct {
	groups   map[string]*group
	sorted   []*group // by name
	restored []restored
	differ   []difference
	by       map[idName][]*decision // decided or refused, in the order of entries of each group

	lines, entries, decisions, differing int64
}

// group is the log of one partition.
type group struct {
	id      string
	byIndex map[uint64]*entry
	entries []*entry // by index
	holes   []hole
}

// hole is a part of a log of which no line may have outlived its writers.
type hole struct {
	after, until uint64        // the indexes between which there may be more than is told
	from, to     time.Duration // when they were applied
}

// entry is one entry, as the first replica that told of it applied it.
type entry struct {
	group                *group
	index, term          uint64
	kind                 string
	stamp, time          int64
	revision             uint64
	refused              string
	hash, answers, state string
	node                 string
	lo, hi               time.Duration // between which its stamp was drawn
	decisions            []decision
	digest               uint64 // of decisions
	applied              int    // times
}

// decision is one of an entry. Its check is nil when nobody is known to have asked for it.
type decision struct {
	*history.AppliedOutcome
	entry *entry
	check *history.Check
	asked time.Duration // when it was first asked for; always, when that is not known
	again bool          // there is another of its id with the same outcome, so that an answer does not tell which it was
}

// restored is a replica that took a snapshot.
type restored struct {
	node, group, state string
	index              uint64
	at                 time.Duration
}

// difference is two lines on one entry that do not say the same.
type difference struct {
	entry *entry
	line  history.Applied
	what  string
}

// readLog reads and merges what the replicas applied; nil when there is no such file.
func (r *run) readLog() (*log, error) {
	paths, err := history.AppliedPaths(r.Dir)
	if err != nil || len(paths) == 0 {
		return nil, err
	}
	l := &log{groups: map[string]*group{}, by: map[idName][]*decision{}}
	same := history.Texts{}
	for _, path := range paths {
		torn, err := history.Read(path, func(a *history.Applied) error {
			at := time.Duration(a.Monotonic - r.Config.BeganMonotonic)
			return l.add(a, at, same)
		})
		if err != nil {
			return nil, err
		}
		if torn {
			r.Torn++
		}
	}
	l.arrange()
	r.ask(l)
	l.bound()
	l.findHoles()
	return l, nil
}

// add merges a line.
func (l *log) add(a *history.Applied, at time.Duration, same history.Texts) error {
	l.lines++
	if a.Group == "" || a.Index == 0 || a.Node == "" {
		return fmt.Errorf("a line without node, group or index: %+v", a)
	}
	g := l.groups[a.Group]
	if g == nil {
		g = &group{id: a.Group, byIndex: map[uint64]*entry{}}
		l.groups[a.Group] = g
	}
	if a.Restored {
		l.restored = append(l.restored, restored{same.Of(a.Node), g.id, a.State, a.Index, at})
		return nil
	}
	e := g.byIndex[a.Index]
	if e != nil {
		e.hi = min(e.hi, at)
		e.applied++
		if e.state == "" {
			e.state = a.State
		}
		if what := e.unlike(a); what != "" {
			if l.differing++; len(l.differ) < maxTold {
				l.differ = append(l.differ, difference{e, *a, what})
			}
		}
		return nil
	}
	if l.decisions += int64(len(a.Decisions)); l.decisions > maxDecisions {
		return fmt.Errorf("more than %d decisions, which no judge holds: judge a shorter run", maxDecisions)
	}
	l.entries++
	e = &entry{
		group: g, index: a.Index, term: a.Term, kind: same.Of(a.Kind), stamp: a.Stamp, time: a.Time, revision: a.Revision,
		refused: same.Of(a.Refused), hash: a.Entry, answers: a.Answers, state: a.State, node: same.Of(a.Node),
		lo: always, hi: at, digest: digestOf(a.Decisions), applied: 1,
	}
	e.decisions = make([]decision, 0, len(a.Decisions))
	for i := range a.Decisions {
		d := &a.Decisions[i]
		d.Principal, d.Class, d.Reason = same.Of(d.Principal), same.Of(d.Class), same.Of(d.Reason)
		e.decisions = append(e.decisions, decision{AppliedOutcome: d, entry: e})
	}
	g.byIndex[a.Index] = e
	return nil
}

// unlike says what a line on an entry tells otherwise; empty when nothing.
func (e *entry) unlike(a *history.Applied) string {
	switch {
	case e.term != a.Term:
		return "term"
	case e.hash != a.Entry:
		return "entry"
	case e.refused != a.Refused:
		return "refusal"
	case e.time != a.Time || e.stamp != a.Stamp:
		return "time"
	case e.revision != a.Revision:
		return "revision"
	case e.answers != a.Answers || e.digest != digestOf(a.Decisions):
		return "answers"
	case e.state != "" && a.State != "" && e.state != a.State:
		return "state"
	}
	return ""
}

// arrange puts all in order.
func (l *log) arrange() {
	for _, g := range l.groups {
		l.sorted = append(l.sorted, g)
		for _, e := range g.byIndex {
			g.entries = append(g.entries, e)
		}
		slices.SortFunc(g.entries, func(a, b *entry) int { return cmp.Compare(a.index, b.index) })
	}
	slices.SortFunc(l.sorted, func(a, b *group) int { return cmp.Compare(a.id, b.id) })
}

// ask finds who asked for each decision.
func (r *run) ask(l *log) {
	named := slices.ContainsFunc(r.History.Checks, func(c *history.Check) bool { return c.Gateway != "" })
	for _, g := range l.sorted {
		for _, e := range g.entries {
			for i := range e.decisions {
				d := &e.decisions[i]
				name := idName{d.Principal, d.Gateway, d.ID}
				if !named {
					name.gateway = ""
				}
				d.asked = always
				for _, c := range r.by[name] {
					if d.check == nil || c.Class == d.Class && c.Cost == d.Cost {
						d.check, d.asked = c, c.First()
					}
				}
				l.by[name] = append(l.by[name], d)
			}
		}
	}
	for _, of := range l.by { // in any order
		first := map[string]*decision{}
		for _, d := range of {
			if before := first[d.Reason]; before != nil {
				before.again, d.again = true, true
			} else {
				first[d.Reason] = d
			}
		}
	}
}

// bound says between which instants each stamp was drawn: after everything in the entry, and in those before it, was
// asked for, and before it, and those after it, were applied anywhere.
func (l *log) bound() {
	for _, g := range l.sorted {
		lo := always
		for _, e := range g.entries {
			if e.refused == "" {
				for i := range e.decisions {
					lo = max(lo, e.decisions[i].asked)
				}
			}
			e.lo = lo
		}
		hi := time.Duration(math.MaxInt64)
		for _, e := range slices.Backward(g.entries) {
			hi = min(hi, e.hi)
			e.hi = hi
		}
	}
}

// findHoles looks for snapshots that went further than anybody had told of by then: the lines were lost with their
// writers, of which a kill of all replicas at once may leave none.
func (l *log) findHoles() {
	for _, s := range l.restored {
		g := l.groups[s.group]
		// entries[:i] are those up to the snapshot's own.
		i, _ := slices.BinarySearchFunc(g.entries, s.index+1, func(e *entry, n uint64) int { return cmp.Compare(e.index, n) })
		for i > 0 && g.entries[i-1].hi > s.at {
			i--
		}
		after, from := uint64(0), always
		if i > 0 {
			after, from = g.entries[i-1].index, g.entries[i-1].hi
		}
		if after < s.index {
			g.holes = append(g.holes, hole{after, s.index, from, s.at})
		}
	}
}

// digestOf is a digest of decisions, to compare replicas by.
func digestOf(decisions []history.AppliedOutcome) uint64 {
	h := uint64(14695981039346656037)
	mix := func(s string) {
		for i := range len(s) {
			h = (h ^ uint64(s[i])) * 1099511628211
		}
		h = (h ^ 0xff) * 1099511628211
	}
	number := func(n uint64) { h = (h ^ n) * 1099511628211 }
	for i := range decisions {
		d := &decisions[i]
		mix(d.ID)
		mix(d.Principal)
		mix(d.Class)
		mix(d.Reason)
		for _, n := range []uint64{uint64(d.Cost), d.Revision, uint64(d.Slot), d.Epoch} {
			number(n)
		}
		if d.Replayed {
			number(1)
		}
		if d.Recorded {
			number(2)
		}
	}
	return h
}
