package handoff_test

import (
	"pgregory.net/rapid"

	"github.com/quorate/quorate/control/state"
)

// leaseNanos is how long a partition may go on serving after the map has given it no slots.
const leaseNanos = 10 * second

// decides reports that a partition decides for a block: its policy lease has not ended.
func (w *world) decides(r *replica, b int) bool {
	return r.born && !r.dead && r.serves[b] && !r.moving[b] && (!r.disowned || w.now < r.disownedAt+leaseNanos)
}

// check wants each block served by one partition at most: by one that the map says owns it, or owned it.
func (w *world) check() {
	for b := range blocks {
		serving := []state.PartitionID{}
		for _, r := range w.replicas {
			if w.decides(r, b) {
				serving = append(serving, r.id)
			}
		}
		if len(serving) > 1 {
			w.fatalf("block %d is served by %v", b, serving)
		}
	}
}

// live lets the partitions go on: admissions, installs, births, deaths; and what has died may come back.
func (w *world) live() {
	ids := make([]state.PartitionID, 0, len(w.replicas))
	for id := range w.m.State().NextPartition {
		if w.replicas[id] != nil {
			ids = append(ids, id)
		}
	}
	r := w.replicas[rapid.SampledFrom(ids).Draw(w.t, "who")]
	switch rapid.IntRange(0, 9).Draw(w.t, "what") {
	case 0, 1, 2, 3:
		b := rapid.IntRange(0, blocks-1).Draw(w.t, "block")
		if w.decides(r, b) {
			r.holds[b]++
		}
	case 4:
		if newest := w.newest(); newest < 99 && !r.locked() {
			r.revision = newest + 1
		}
	case 5, 6, 7:
		w.settle()
	case 8:
		r.born = true
	case 9:
		for _, id := range ids { // rather one in the middle of a plan
			if w.replicas[id].locked() && rapid.Bool().Draw(w.t, "who is locked") {
				r = w.replicas[id]
			}
		}
		if _, there := w.m.State().Partition(r.id); r.dead {
			r.dead = false
		} else if w.doomed > 0 && there {
			w.doomed--
			r.dead = true
		}
	}
}

// settle installs the newest policy wherever it can be.
func (w *world) settle() {
	newest := w.newest()
	for _, r := range w.replicas {
		if !r.locked() {
			r.revision = newest
		}
	}
}
