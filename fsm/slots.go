package fsm

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/dchest/siphash"
)

// NumSlots is the number of slots that principals are hashed to.
const NumSlots = 1 << 14

// HistorySlot stands for the policy history, which travels beside the slots.
const HistorySlot Slot = NumSlots

// incarnationShift puts the cluster's incarnation above 32 bits of counter.
const incarnationShift = 32

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
	return slotOfHash(h)
}

func slotOfHash(h uint64) Slot { return Slot(h >> 50) }

// hashName is the hash whose top bits are the slot of a principal.
func (m *Machine) hashName(principal string) uint64 {
	m.scratch = append(m.scratch[:0], principal...)
	return siphash.Hash(m.key0, m.key1, m.scratch)
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

// thaw undoes what plan froze.
func (o ownership) thaw(plan PlanID) ownership {
	out := slices.Clone(o)
	for i := range out {
		if out[i].FrozenBy == plan {
			out[i].FrozenBy = 0
		}
	}
	return out.joined()
}

// without leaves out what plan froze.
func (o ownership) without(plan PlanID) ownership {
	return slices.DeleteFunc(slices.Clone(o), func(r OwnedRange) bool { return r.FrozenBy == plan })
}

// with adds ranges, of which none is owned.
func (o ownership) with(ranges []SlotRange, epoch Epoch) ownership {
	out := slices.Clone(o)
	for _, r := range ranges {
		out = append(out, OwnedRange{SlotRange: r, Epoch: epoch})
	}
	slices.SortFunc(out, func(a, b OwnedRange) int { return int(a.First) - int(b.First) })
	return out.joined()
}

// joined joins neighbours of one epoch.
func (o ownership) joined() ownership {
	var out ownership
	for _, r := range o {
		if n := len(out); n > 0 && r.FrozenBy == out[n-1].FrozenBy && r.Epoch == out[n-1].Epoch &&
			out[n-1].Last+1 == r.First {
			out[n-1].Last = r.Last
			continue
		}
		out = append(out, r)
	}
	return out
}

// covers reports that all of ranges is owned; else the first slot that is not.
func (o ownership) covers(ranges []SlotRange) (Slot, bool) {
	for _, want := range ranges {
		for s := want.First; s <= want.Last; {
			r, ok := o.find(s)
			if !ok {
				return s, false
			}
			s = r.Last + 1
		}
	}
	return 0, true
}

// meets is the first owned slot of ranges.
func (o ownership) meets(ranges []SlotRange) (Slot, bool) {
	for _, r := range o {
		for _, want := range ranges {
			if first := max(r.First, want.First); first <= min(r.Last, want.Last) {
				return first, true
			}
		}
	}
	return 0, false
}

// frozen are the frozen slots, as few ranges as may be.
func (o ownership) frozen() []SlotRange {
	var out []SlotRange
	for _, r := range o {
		if r.FrozenBy != 0 {
			out = append(out, r.SlotRange)
		}
	}
	return joinedRanges(out)
}

// frozenWhole reports that all of ranges is frozen.
func (o ownership) frozenWhole(ranges []SlotRange) bool {
	frozen := slices.DeleteFunc(slices.Clone(o), func(r OwnedRange) bool { return r.FrozenBy == 0 })
	_, whole := frozen.covers(ranges)
	return whole
}

// joinedRanges joins neighbours among sorted ranges.
func joinedRanges(ranges []SlotRange) []SlotRange {
	var out []SlotRange
	for _, r := range ranges {
		if n := len(out); n > 0 && out[n-1].Last+1 == r.First {
			out[n-1].Last = r.Last
			continue
		}
		out = append(out, r)
	}
	return out
}

// validRanges reports that ranges are not sorted, disjoint ranges of slots, at least one.
func validRanges(ranges []SlotRange) error {
	if len(ranges) == 0 {
		return errors.New("no slots are named")
	}
	for i, r := range ranges {
		if r.First > r.Last || r.Last >= NumSlots {
			return fmt.Errorf("slots %d to %d are no range of the %d slots", r.First, r.Last, NumSlots)
		}
		if i > 0 && r.First <= ranges[i-1].Last {
			return fmt.Errorf("slots %d to %d do not follow the range before", r.First, r.Last)
		}
	}
	return nil
}

func contains(ranges []SlotRange, s Slot) bool {
	return slices.ContainsFunc(ranges, func(r SlotRange) bool { return r.First <= s && s <= r.Last })
}
