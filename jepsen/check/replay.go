package check

import (
	"cmp"
	"maps"
	"slices"
	"time"
)

// judgeReplay checks that a decision id has one decision, and one admission, until its record may have ended.
func judgeReplay(r *run, o *outcome) error {
	o.Counts["replayed_answers"] = int64(r.report.Replayed)
	o.took(r.report, brokenID)
	if r.log == nil {
		return nil
	}
	principals := map[string]bool{}
	for _, c := range r.History.Checks {
		principals[c.Principal] = true
	}
	c := &checker{history: &r.History, horizons: map[string]time.Duration{}} // for its horizon
	for _, name := range slices.SortedFunc(maps.Keys(r.log.by), func(a, b idName) int {
		return cmp.Or(cmp.Compare(a.principal, b.principal), cmp.Compare(a.id, b.id), cmp.Compare(a.gateway, b.gateway))
	}) {
		of := r.log.by[name]
		if of[0].check == nil && principals[name.principal] {
			o.violated([]Item{of[0].item("")}, "%s of %s was decided, and nobody had asked for it", name.id, name.principal)
		}
		if len(of) > 1 || of[0].Replayed {
			r.repeated(o, of, c.horizon(of[0].Class))
		}
	}
	return nil
}

// repeated looks at the decisions of one id.
func (r *run) repeated(o *outcome, of []*decision, horizon time.Duration) {
	of = slices.Clone(of)
	slices.SortStableFunc(of, func(a, b *decision) int {
		return cmp.Or(cmp.Compare(a.Epoch, b.Epoch), cmp.Compare(a.entry.group.id, b.entry.group.id),
			cmp.Compare(a.entry.index, b.entry.index))
	})
	var record *decision
	for _, d := range of {
		if d.entry.refused != "" || d.Reason != reasonAllowed && !denied[d.Reason] {
			continue
		}
		if d.Replayed {
			o.Counts["replayed"]++
			switch {
			case record == nil && !r.log.holed(of):
				o.violated([]Item{d.item("")}, "%s of %s was answered from a record that no decision made", d.ID, d.Principal)
			case record != nil && within(record, d, horizon) && (record.Reason != d.Reason || record.Revision != d.Revision):
				o.violated([]Item{record.item(""), d.item("")}, "%s of %s was answered as %s under revision %d, and is recorded "+
					"as %s under revision %d", d.ID, d.Principal, d.Reason, d.Revision, record.Reason, record.Revision)
			}
			continue
		}
		if record != nil && within(record, d, horizon) {
			what := "decided"
			if d.allowed() && record.allowed() {
				what = "admitted"
			}
			o.violated([]Item{record.item(""), d.item("")}, "%s of %s was %s twice, and is recorded for %v at the least",
				d.ID, d.Principal, what, horizon)
		}
		if d.Recorded || d.allowed() {
			record = d
		}
	}
}

// within reports whether a decision was made before the record of another can have ended.
func within(record, d *decision, horizon time.Duration) bool {
	if record.segment() == d.segment() {
		return d.entry.time-record.entry.time < int64(horizon)
	}
	return d.entry.hi-max(record.asked, record.entry.lo) < horizon
}

// holed reports whether lines on some decisions' partitions may be lost, or on those that these came from.
func (l *log) holed(of []*decision) bool {
	for _, g := range l.sorted {
		if len(g.holes) > 0 {
			return true
		}
	}
	return len(of) == 0
}
