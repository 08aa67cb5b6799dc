package check

import (
	"cmp"
	"slices"
	"time"
)

// ownership is what one partition decided of a slot under one epoch.
type ownership struct {
	slot        uint32
	epoch       uint64
	group       *group
	first, last *decision // which it surely began and ended with
	began       time.Duration
	ended       time.Duration
}

// ownerships are all there were, by slot and epoch.
func (l *log) ownerships() (out []*ownership) {
	type name struct {
		slot  uint32
		epoch uint64
		group *group
	}
	by := map[name]*ownership{}
	for _, g := range l.sorted {
		for _, e := range g.entries {
			for i := range e.decisions {
				d := &e.decisions[i]
				if !d.decided() && !(d.Replayed && e.refused == "") {
					continue
				}
				k := name{d.Slot, d.Epoch, g}
				s := by[k]
				if s == nil {
					s = &ownership{slot: d.Slot, epoch: d.Epoch, group: g, first: d, last: d, began: e.hi, ended: always}
					by[k] = s
					out = append(out, s)
				}
				if e.hi < s.began {
					s.began, s.first = e.hi, d
				}
				if from := max(d.asked, e.lo); from > s.ended {
					s.ended, s.last = from, d
				}
			}
		}
	}
	slices.SortStableFunc(out, func(a, b *ownership) int {
		return cmp.Or(cmp.Compare(a.slot, b.slot), cmp.Compare(a.epoch, b.epoch))
	})
	return out
}

// judgeEpochs checks that the epoch of a slot never goes back: in the order of a log, and from one log to another.
func judgeEpochs(r *run, o *outcome) error {
	for _, g := range r.log.sorted {
		newest := map[uint32]*decision{}
		for _, e := range g.entries {
			for i := range e.decisions {
				d := &e.decisions[i]
				if !d.decided() {
					continue
				}
				was := newest[d.Slot]
				if was != nil && d.Epoch < was.Epoch {
					o.violated([]Item{was.item(""), d.item("")}, "slot %d is decided under epoch %d after epoch %d, by partition %s",
						d.Slot, d.Epoch, was.Epoch, g.id)
				}
				if was == nil || d.Epoch > was.Epoch {
					newest[d.Slot] = d
					o.Counts["epochs"]++
				}
			}
		}
	}
	r.log.eachAfter(func(s, later *ownership) {
		if s.epoch < later.epoch && s.group == later.group && later.began < s.ended {
			o.violated([]Item{later.first.item(""), s.last.item("")}, "slot %d is decided under epoch %d after it was under "+
				"epoch %d", s.slot, s.epoch, later.epoch)
		}
	})
	return nil
}

// eachAfter goes through all pairs of an ownership of a slot and that one before, of each partition, which ended last.
func (l *log) eachAfter(f func(s, later *ownership)) {
	var last map[*group]*ownership
	slot := uint32(0)
	for _, later := range l.ownerships() {
		if last == nil || later.slot != slot {
			last, slot = map[*group]*ownership{}, later.slot
		}
		for _, g := range l.sorted {
			if s := last[g]; s != nil {
				f(s, later)
			}
		}
		if s := last[later.group]; s == nil || later.ended >= s.ended {
			last[later.group] = later
		}
	}
}

// judgeOwner checks that a slot has one owner at a time: one partition for each epoch, and none that goes on deciding
// when another has begun to.
func judgeOwner(r *run, o *outcome) error {
	proof := func(s, later *ownership) []Item {
		return []Item{later.first.item("the first of the one"), s.last.item("the last of the other")}
	}
	all := r.log.ownerships()
	o.Counts["ownerships"] = int64(len(all))
	for i := 1; i < len(all); i++ {
		if s, other := all[i-1], all[i]; s.slot == other.slot && s.epoch == other.epoch {
			o.violated(proof(s, other), "slot %d is decided under epoch %d by partition %s and by partition %s",
				s.slot, s.epoch, s.group.id, other.group.id)
		}
	}
	r.log.eachAfter(func(s, later *ownership) {
		if s.epoch < later.epoch && s.group != later.group && later.began < s.ended {
			o.violated(proof(s, later), "slot %d is decided by partition %s under epoch %d after partition %s had begun to, "+
				"under epoch %d", s.slot, s.group.id, s.epoch, later.group.id, later.epoch)
		}
	})
	return nil
}
