package fsm

import (
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/dchest/siphash"
)

// NumSlots is the number of slots that principals are hashed to.
const NumSlots = 1 << 14

// incarnationShift puts the cluster's incarnation above 40 bits of counter.
const incarnationShift = 40

// NewEpoch makes the epoch of an incarnation and a counter in it.
func NewEpoch(incarnation uint32, counter uint64) Epoch {
	return Epoch(uint64(incarnation)<<incarnationShift | counter&(1<<incarnationShift-1))
}

// Incarnation is the cluster incarnation of e; Counter is its place in it.
func (e Epoch) Incarnation() uint32 { return uint32(e >> incarnationShift) }

// Counter is the place of e in its incarnation.
func (e Epoch) Counter() uint64 { return uint64(e) & (1<<incarnationShift - 1) }

// SlotOf is the slot of a principal in the cluster with this seed: the top 14 bits of SipHash-2-4
// (Aumasson and Bernstein, 2012) of the principal's bytes. The seed keeps callers from choosing
// principals that meet in one slot.
func SlotOf(seed [16]byte, principal string) Slot {
	h := siphash.Hash(binary.LittleEndian.Uint64(seed[:8]), binary.LittleEndian.Uint64(seed[8:]), []byte(principal))
	return Slot(h >> 50)
}

// ownership is the sorted, disjoint ranges of slots that a partition owns.
type ownership []OwnedRange

func (o ownership) find(s Slot) (OwnedRange, bool) {
	i, _ := slices.BinarySearchFunc(o, s, func(r OwnedRange, s Slot) int { return int(r.Last) - int(s) })
	if i == len(o) || o[i].First > s {
		return OwnedRange{}, false
	}
	return o[i], true
}

func validOwned(owned []OwnedRange) error {
	for i, r := range owned {
		switch {
		case r.First > r.Last || r.Last >= NumSlots:
			return fmt.Errorf("slots %d to %d are no range of the %d slots", r.First, r.Last, NumSlots)
		case r.Epoch == 0:
			return fmt.Errorf("slots %d to %d have no epoch", r.First, r.Last)
		case i > 0 && r.First <= owned[i-1].Last:
			return fmt.Errorf("slots %d to %d overlap the range before", r.First, r.Last)
		}
	}
	return nil
}

// freeze marks the owned part of want as frozen by plan; ranges that another plan froze stay with it.
func (o ownership) freeze(want []SlotRange, plan PlanID) ownership {
	out := slices.Clone(o)
	for _, w := range want {
		var next ownership
		for _, r := range out {
			first, last := max(r.First, w.First), min(r.Last, w.Last)
			if first > last || r.FrozenBy != 0 {
				next = append(next, r)
				continue
			}
			if r.First < first {
				next = append(next, OwnedRange{SlotRange{r.First, first - 1}, r.Epoch, 0})
			}
			next = append(next, OwnedRange{SlotRange{first, last}, r.Epoch, plan})
			if last < r.Last {
				next = append(next, OwnedRange{SlotRange{last + 1, r.Last}, r.Epoch, 0})
			}
		}
		out = next
	}
	return out
}

// thaw undoes what plan froze and joins neighbours of one epoch again.
func (o ownership) thaw(plan PlanID) ownership {
	var out ownership
	for _, r := range o {
		if r.FrozenBy == plan {
			r.FrozenBy = 0
		}
		if n := len(out); n > 0 && r.FrozenBy == out[n-1].FrozenBy && r.Epoch == out[n-1].Epoch &&
			out[n-1].Last+1 == r.First {
			out[n-1].Last = r.Last
			continue
		}
		out = append(out, r)
	}
	return out
}
