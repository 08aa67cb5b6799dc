package cluster

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
)

// numSlots is the number of slots that the partitions share among them.
const numSlots = 1 << 14

// Range is a range of slots, both ends included, that a partition owns.
type Range struct {
	First     uint32 `json:"first_slot"`
	Last      uint32 `json:"last_slot"`
	Epoch     uint64 `json:"epoch"`
	Partition string `json:"-"`
}

// has reports whether a slot is in the range.
func (r Range) has(slot uint32) bool { return r.First <= slot && slot <= r.Last }

func (r Range) String() string {
	return fmt.Sprintf("%d-%d of %s under epoch %d", r.First, r.Last, r.Partition, r.Epoch)
}

// Slots are all slots with their owners: ranges in order, without gaps.
type Slots []Range

// NewSlots puts all partitions' ranges together. It fails unless each slot has exactly one owner.
func NewSlots(ranges []Range) (Slots, error) {
	s := slices.Clone(ranges)
	slices.SortFunc(s, func(a, b Range) int { return cmp.Compare(a.First, b.First) })
	var errs []error
	next, last := uint32(0), Range{Partition: "nobody"}
	for _, r := range s {
		switch {
		case r.First > r.Last || r.Last >= numSlots:
			errs = append(errs, fmt.Errorf("there is no range %v", r))
		case r.First > next:
			errs = append(errs, fmt.Errorf("nobody owns the slots %d-%d", next, r.First-1))
		case r.First < next:
			errs = append(errs, fmt.Errorf("two own slot %d: %v, and %v", r.First, last, r))
		}
		if r.Last >= next {
			next, last = r.Last+1, r
		}
	}
	if next < numSlots {
		errs = append(errs, fmt.Errorf("nobody owns the slots %d-%d", next, numSlots-1))
	}
	return s, errors.Join(errs...)
}

// of is the range with a slot.
func (s Slots) of(slot uint32) Range {
	i, _ := slices.BinarySearchFunc(s, slot, func(r Range, slot uint32) int { return cmp.Compare(r.Last, slot) })
	return s[i]
}

// Partition are the ranges that a partition owns.
func (s Slots) Partition(id string) (ranges []Range) {
	for _, r := range s {
		if r.Partition == id {
			ranges = append(ranges, r)
		}
	}
	return ranges
}

// Follow reports what is wrong with owners that come after s, where a plan moved some slots to a partition and
// nothing else changed: the slots that moved have it for their owner under a higher epoch, all others have the
// owner and the epoch that they had. With no slots, nothing moved.
func (s Slots) Follow(next Slots, moved []Range, to string) error {
	var errs []error
	for slot := uint32(0); slot < numSlots; slot++ {
		before, after := s.of(slot), next.of(slot)
		in := slices.ContainsFunc(moved, func(r Range) bool { return r.has(slot) })
		switch {
		case in && after.Partition != to:
			errs = append(errs, fmt.Errorf("slot %d moved to %s, and is in %v", slot, to, after))
		case in && after.Epoch <= before.Epoch:
			errs = append(errs, fmt.Errorf("slot %d moved, and its epoch did not rise: %v, then %v", slot, before, after))
		case !in && (after.Partition != before.Partition || after.Epoch != before.Epoch):
			errs = append(errs, fmt.Errorf("slot %d did not move, and went from %v to %v", slot, before, after))
		default:
			continue
		}
		if slot = min(before.Last, after.Last); len(errs) > 5 {
			break
		}
	}
	return errors.Join(errs...)
}
