package fsm

import "sort"

// maxPairs bounds a rolling log. Past it, old admissions are rounded up in time (round).
const maxPairs = 4096

// freedByRounding is how many pairs round frees before it stops, so that its cost spreads over as many
// admissions and the recent part of the log stays as it is.
const freedByRounding = maxPairs / 8

// pair is all that was admitted at one instant. sum runs over the whole log, so that the weight of any
// stretch is one subtraction.
type pair struct {
	at  Time
	sum uint64
}

// rolling is the exact log of one key's admissions, oldest first. It never holds more weight than can
// matter: what comes before the newest MaxCost of weight is dropped, since any window that reaches it
// is full already, whatever the limit. So the weight of any stretch is far below 2^64, and a difference of
// two running sums is right although the sums themselves wrap.
type rolling struct {
	pairs []pair // pairs[head:] are live
	head  int
	base  uint64 // sum before pairs[head]
}

func (r *rolling) len() int { return len(r.pairs) - r.head }

// newest is the time of the last admission. The log must not be empty.
func (r *rolling) newest() Time { return r.pairs[len(r.pairs)-1].at }

// total is the weight of the whole log.
func (r *rolling) total() uint64 {
	if r.len() == 0 {
		return 0
	}
	return r.pairs[len(r.pairs)-1].sum - r.base
}

// weight is that of the i-th pair of r.pairs.
func (r *rolling) weight(i int) uint64 { return r.pairs[i].sum - r.sumBefore(i) }

func (r *rolling) sumBefore(i int) uint64 {
	if i == r.head {
		return r.base
	}
	return r.pairs[i-1].sum
}

// after is the index in r.pairs of the first admission later than t.
func (r *rolling) after(t Time) int {
	return r.head + sort.Search(r.len(), func(i int) bool { return r.pairs[r.head+i].at > t })
}

// weightAfter is the weight admitted later than t.
func (r *rolling) weightAfter(t Time) uint64 {
	i := r.after(t)
	if i == len(r.pairs) {
		return 0
	}
	return r.pairs[len(r.pairs)-1].sum - r.sumBefore(i)
}

// oldestAfter is the time of the first admission later than t.
func (r *rolling) oldestAfter(t Time) (Time, bool) {
	i := r.after(t)
	if i == len(r.pairs) {
		return 0, false
	}
	return r.pairs[i].at, true
}

// drop forgets the n oldest pairs.
func (r *rolling) drop(n int) {
	if n == 0 {
		return
	}
	r.base = r.pairs[r.head+n-1].sum
	r.head += n
	if r.head == len(r.pairs) {
		*r = rolling{}
		return
	}
	if r.head >= 32 && r.head > len(r.pairs)/2 {
		r.pairs = append(r.pairs[:0:0], r.pairs[r.head:]...)
		r.head = 0
	}
}

// append adds weight at t, which is not earlier than the newest admission.
func (r *rolling) append(t Time, weight uint64) {
	n := len(r.pairs)
	if r.len() > 0 && r.pairs[n-1].at == t {
		r.pairs[n-1].sum += weight
	} else {
		r.pairs = append(r.pairs, pair{at: t, sum: r.base + r.total() + weight})
	}
}

// superfluous is how many of the oldest pairs no limit can ever tell from absent ones.
func (r *rolling) superfluous() int {
	n, rest := 0, r.total()
	for i := r.head; i < len(r.pairs)-1; i++ {
		rest -= r.weight(i)
		if rest < uint64(MaxCost) {
			break
		}
		n++
	}
	return n
}

// round frees pairs of a full log: an admission of age A moves up to a grid of the largest power of
// two that is at most A/64, so it is held longer by less than A/64, and pairs that meet become one.
// Grids nest, so rounding again later adds up to no more than the coarsest grid. At most 64 pairs
// per doubling of the age are left, about 3,200 for 366 days. It starts at the oldest pair and stops
// when it has freed enough, so that what recent, short limits count stays exact.
func (r *rolling) round(now Time) {
	old := r.pairs[r.head:]
	out := make([]pair, 0, maxPairs)
	freed := 0
	for i, p := range old {
		if freed < freedByRounding {
			p.at = roundUp(p.at, now)
		}
		if n := len(out); n > 0 && p.at <= out[n-1].at {
			// The neighbour was rounded past this one: the same grid takes both.
			out[n-1].sum = p.sum
			freed++
			continue
		}
		if freed >= freedByRounding {
			out = append(out, old[i:]...)
			break
		}
		out = append(out, p)
	}
	r.pairs, r.head = out, 0
}

func roundUp(t, now Time) Time {
	limit := (now - t) / 64
	if limit < 2 {
		return t
	}
	grid := Time(1)
	for grid<<1 <= limit {
		grid <<= 1
	}
	return (t + grid - 1) &^ (grid - 1)
}
