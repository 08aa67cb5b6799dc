package check

import (
	"fmt"
	"slices"
	"time"

	"github.com/quorate/quorate/jepsen/history"
)

// item is a step of a proof.
func (e *entry) item(format string, args ...any) Item {
	text := fmt.Sprintf("partition %s, index %d, term %d: %s, stamp %s, partition time %s, first told of by %s, drawn "+
		"between %s and %s", e.group.id, e.index, e.term, e.kind, once(time.Duration(e.stamp)), once(time.Duration(e.time)),
		e.node, once(e.lo), once(e.hi))
	if format != "" {
		text += ": " + fmt.Sprintf(format, args...)
	}
	return Item{Text: text, Node: e.node, Group: e.group.id, Index: e.index, Term: e.term, From: e.lo, To: e.hi}
}

// judgeAgreement checks that all replicas applied the same entries, answered the same and came to the same states, at
// each index, across restarts and snapshots.
func judgeAgreement(r *run, o *outcome) error {
	for _, g := range r.log.sorted {
		for _, e := range g.entries {
			if e.applied > 1 {
				o.Counts["compared"]++
			}
		}
	}
	o.Found += r.log.differing - int64(len(r.log.differ))
	for _, d := range r.log.differ {
		o.violated([]Item{
			d.entry.item("entry %s, answers %s, state %s", d.entry.hash, d.entry.answers, d.entry.state),
			{
				Text: fmt.Sprintf("%s: index %d, term %d: %s, partition time %s: entry %s, answers %s, state %s", d.line.Node,
					d.line.Index, d.line.Term, d.line.Kind, once(time.Duration(d.line.Time)), d.line.Entry, d.line.Answers,
					d.line.State),
				Node: d.line.Node, Group: d.line.Group, Index: d.line.Index, Term: d.line.Term,
			},
		}, "partition %s, index %d: %s and %s do not have the same %s", d.line.Group, d.line.Index, d.entry.node, d.line.Node,
			d.what)
	}
	for _, s := range r.log.restored {
		e := r.log.groups[s.group].byIndex[s.index]
		switch {
		case e == nil || e.state == "" || s.state == "":
			o.Counts["snapshots_not_compared"]++
		case e.state != s.state:
			o.violated([]Item{e.item("state %s", e.state)}, "partition %s, index %d: the snapshot that %s took at %s holds "+
				"another state, %s", s.group, s.index, s.node, once(s.at), s.state)
		default:
			o.Counts["snapshots_compared"]++
		}
	}
	return nil
}

// judgeTerms checks that each term has one leader, and that terms only grow along a log.
func judgeTerms(r *run, o *outcome) error {
	type name struct {
		group string
		term  uint64
	}
	leaders := map[name]string{}
	for i := range r.Events {
		e := &r.Events[i]
		if e.Kind != "leader" || e.Value == 0 || len(e.Nodes) != 1 {
			continue
		}
		k := name{e.Group, e.Value}
		switch was, ok := leaders[k]; {
		case !ok:
			leaders[k] = e.Nodes[0]
			o.Counts["leaders"]++
		case was != e.Nodes[0]:
			o.violated(nil, "term %d of %s is led by %s and by %s", e.Value, e.Group, was, e.Nodes[0])
		}
	}
	if r.log == nil {
		if len(leaders) == 0 {
			o.Skipped = "no leader was noted, and the program left no trace of what it applied"
		}
		return nil
	}
	for _, g := range r.log.sorted {
		for i, e := range g.entries {
			if i == 0 || e.term > g.entries[i-1].term {
				o.Counts["terms"]++
			}
			if i > 0 && e.term < g.entries[i-1].term {
				o.violated([]Item{g.entries[i-1].item(""), e.item("")}, "partition %s: term %d follows term %d at index %d",
					g.id, e.term, g.entries[i-1].term, e.index)
			}
		}
	}
	return nil
}

// judgePolicy checks that revisions are those that there were, and only grow: for a principal, along a log, and once it
// was said that nobody decides under an older one.
func judgePolicy(r *run, o *outcome) error {
	o.took(r.report, brokenStale, brokenBackwards, brokenRevision)
	o.Counts["revisions"] = int64(len(r.History.Revisions))
	if r.log == nil {
		return nil
	}
	for _, g := range r.log.sorted {
		var before *entry
		for _, e := range g.entries {
			if before != nil && e.revision < before.revision {
				o.violated([]Item{before.item(""), e.item("")}, "partition %s goes back from revision %d to %d at index %d",
					g.id, before.revision, e.revision, e.index)
			}
			for i := range e.decisions {
				if d := &e.decisions[i]; d.decided() {
					r.judgeRevision(o, d)
				}
			}
			before = e
		}
	}
	return nil
}

// judgeRevision looks at the revision of one decision.
func (r *run) judgeRevision(o *outcome, d *decision) {
	o.Counts["decisions"]++
	under := r.known.under(d.Revision)
	switch {
	case under == nil:
		o.violated([]Item{d.item("")}, "%s was decided under revision %d, which there was not", d.ID, d.Revision)
		return
	case d.Revision != d.entry.revision:
		o.violated([]Item{d.item("")}, "%s was decided under revision %d, and revision %d was in force in partition %s",
			d.ID, d.Revision, d.entry.revision, d.entry.group.id)
	case under.Began > d.entry.hi:
		o.violated([]Item{d.item("")}, "%s was decided under revision %d before it was made, at %s", d.ID, d.Revision,
			once(under.Began))
	}
	i, _ := slices.BinarySearchFunc(r.History.Revisions, d.Revision+1, func(v history.Revision, n uint64) int {
		if v.Number < n {
			return -1
		}
		return 1
	})
	from := max(d.asked, d.entry.lo)
	for _, newer := range r.History.Revisions[i:] {
		if newer.Active < from {
			o.violated([]Item{d.item("")}, "%s was decided under revision %d at %s or later, after %d was said to be active "+
				"everywhere at %s", d.ID, d.Revision, once(from), newer.Number, once(newer.Active))
			return
		}
	}
}
