package state

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/quorate/quorate/fsm"
)

// wordedRanges bounds the ranges that are written out.
const wordedRanges = 32

// InWords writes ranges for people, the first of many.
func InWords(ranges []fsm.SlotRange) string {
	var words []string
	for _, r := range ranges[:min(len(ranges), wordedRanges)] {
		words = append(words, fmt.Sprintf("%d-%d", r.First, r.Last))
	}
	if more := len(ranges) - len(words); more > 0 {
		words = append(words, fmt.Sprintf("and %d ranges more", more))
	}
	return strings.Join(words, ", ")
}

// Slots are the slots that the partition owns, under whatever epochs.
func (p *Partition) Slots() []fsm.SlotRange { return Join(bare(p.Ranges)) }

// UpperHalf is the upper half of the slots that the partition owns, by their number; none of a single one.
func (p *Partition) UpperHalf() []fsm.SlotRange {
	owned := 0
	for _, r := range p.Ranges {
		owned += int(r.Last-r.First) + 1
	}
	return p.last(owned / 2)
}

// last is the last n slots that the partition owns.
func (p *Partition) last(n int) (out []fsm.SlotRange) {
	for i := len(p.Ranges) - 1; i >= 0 && n > 0; i-- {
		r := p.Ranges[i].SlotRange
		if have := int(r.Last-r.First) + 1; have > n {
			r.First += fsm.Slot(have - n)
		}
		n -= int(r.Last-r.First) + 1
		out = append(out, r)
	}
	return Join(out)
}

// carve takes the wanted slots out of what is owned: what was taken, and what is left. ok is false when
// some of them are not owned. Both lists must be sorted.
func carve(owned []Range, wanted []fsm.SlotRange) (taken, left []Range, ok bool) {
	missing := 0
	for _, w := range wanted {
		missing += int(w.Last) - int(w.First) + 1
	}
	for _, o := range owned {
		first := int(o.First)
		for _, w := range wanted {
			from, to := max(first, int(w.First)), min(int(o.Last), int(w.Last))
			if from > to {
				continue
			}
			if first < from {
				left = append(left, slots(first, from-1, o.Epoch))
			}
			taken = append(taken, slots(from, to, o.Epoch))
			missing -= to - from + 1
			first = to + 1
		}
		if first <= int(o.Last) {
			left = append(left, slots(first, int(o.Last), o.Epoch))
		}
	}
	return taken, left, missing == 0
}

func slots(first, last int, epoch fsm.Epoch) Range {
	return Range{fsm.SlotRange{First: fsm.Slot(first), Last: fsm.Slot(last)}, epoch}
}

// Join sorts ranges that have no slot in common, and joins neighbours.
func Join(ranges []fsm.SlotRange) []fsm.SlotRange { return bare(join(under(0, ranges))) }

// under are ranges that are owned under one epoch.
func under(epoch fsm.Epoch, ranges []fsm.SlotRange) []Range {
	out := make([]Range, len(ranges))
	for i, r := range ranges {
		out[i] = Range{r, epoch}
	}
	return out
}

// bare are ranges without their epochs.
func bare(ranges []Range) []fsm.SlotRange {
	out := make([]fsm.SlotRange, len(ranges))
	for i, r := range ranges {
		out[i] = r.SlotRange
	}
	return out
}

// join sorts ranges and joins neighbours of one epoch.
func join(ranges []Range) []Range {
	slices.SortFunc(ranges, func(a, b Range) int { return cmp.Compare(a.First, b.First) })
	var out []Range
	for _, r := range ranges {
		if n := len(out); n > 0 && out[n-1].Epoch == r.Epoch && out[n-1].Last+1 == r.First {
			out[n-1].Last = r.Last
			continue
		}
		out = append(out, r)
	}
	return out
}

// overlap reports whether two sorted lists of ranges have a slot in common.
func overlap(a, b []fsm.SlotRange) bool {
	for i, j := 0, 0; i < len(a) && j < len(b); {
		switch {
		case a[i].Last < b[j].First:
			i++
		case b[j].Last < a[i].First:
			j++
		default:
			return true
		}
	}
	return false
}
