package fsm

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
	base  uint64 // sum before pairs[head]
	head  uint32
}

func (r *rolling) len() int { return len(r.pairs) - int(r.head) }

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
	if i == int(r.head) {
		return r.base
	}
	return r.pairs[i-1].sum
}

// after is the index in r.pairs of the first admission later than t.
func (r *rolling) after(t Time) int {
	first, end := int(r.head), len(r.pairs)
	if first < end && r.pairs[first].at > t {
		return first // as in a log that was trimmed for its only window
	}
	for first < end {
		if middle := int(uint(first+end) / 2); r.pairs[middle].at > t {
			end = middle
		} else {
			first = middle + 1
		}
	}
	return first
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

// timeLeaving is the earliest time, t or later, after which at most room was admitted.
func (r *rolling) timeLeaving(room uint64, t Time) Time {
	if r.weightAfter(t) <= room {
		return t
	}
	first, end := r.after(t), len(r.pairs)-1
	for first < end {
		if middle := int(uint(first+end) / 2); r.pairs[len(r.pairs)-1].sum-r.pairs[middle].sum <= room {
			end = middle
		} else {
			first = middle + 1
		}
	}
	return r.pairs[first].at
}

// drop forgets the n oldest pairs.
func (r *rolling) drop(n int) {
	if n == 0 {
		return
	}
	end := int(r.head) + n
	r.base = r.pairs[end-1].sum
	r.head = uint32(end)
	switch {
	case end < len(r.pairs):
		if end >= 32 && end > len(r.pairs)/2 {
			r.resize(r.len())
		}
	case cap(r.pairs) > smallLog:
		*r = rolling{}
	default:
		r.pairs, r.base, r.head = r.pairs[:0], 0, 0
	}
}

// smallLog is for how many pairs the room is kept of a log that has become empty: it is soon needed again.
const smallLog = 4

// append adds weight at t, which is not earlier than the newest admission.
func (r *rolling) append(t Time, weight uint64) {
	n := len(r.pairs)
	if r.len() > 0 && r.pairs[n-1].at == t {
		r.pairs[n-1].sum += weight
		return
	}
	sum := r.base + r.total() + weight
	if n == cap(r.pairs) {
		r.makeRoom()
	}
	r.pairs = append(r.pairs, pair{at: t, sum: sum})
}

// makeRoom makes room for one more pair: by moving the live ones down where that frees enough, so that each pair is
// moved a few times in all, else by a quarter of what there is. Most logs are short, and there are many.
func (r *rolling) makeRoom() {
	live := r.len()
	if int(r.head) <= live/4 {
		r.resize(live + 1 + live/4)
		return
	}
	r.pairs = r.pairs[:copy(r.pairs, r.pairs[r.head:])]
	r.head = 0
}

// resize moves the live pairs to where there is room for n.
func (r *rolling) resize(n int) {
	pairs := make([]pair, r.len(), n)
	copy(pairs, r.pairs[r.head:])
	r.pairs, r.head = pairs, 0
}

// superfluous is how many of the oldest pairs no limit can ever tell from absent ones.
func (r *rolling) superfluous() int {
	n, rest := 0, r.total()
	if rest <= uint64(MaxCost) {
		return 0
	}
	for i := int(r.head); i < len(r.pairs)-1; i++ {
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
