package ceiling

import (
	"hash/maphash"
	"math"
	"sync"
)

const (
	rows = 4
	// columns are 1<<columnBits; the four rows take the 64 bits of one hash.
	columnBits = 16
	columns    = 1 << columnBits
	second     = int64(1_000_000_000)
	low        = 1<<32 - 1
)

// Ceiling counts checks per principal and second, in a count-min sketch (Cormode and Muthukrishnan, 2005) that is
// updated conservatively (Estan and Varghese, 2002). It is for concurrent use.
type Ceiling struct {
	perSecond uint64

	mu sync.Mutex // guards cells; held for four of them
	// cells hold the second, in the upper half, and the count in it. A principal has one cell in each row, and the
	// smallest of their counts is his, or more.
	cells [rows][columns]uint64
}

// New makes a ceiling; nil, which lets all through, for 0.
func New(perSecond int) *Ceiling {
	if perSecond <= 0 {
		return nil
	}
	return &Ceiling{perSecond: uint64(min(perSecond, math.MaxInt32))}
}

// seed is drawn once for the process, so that nobody outside can make principals that fall together.
var seed = maphash.MakeSeed()

// Hash is the hash by which a principal is counted, here and in a Flight.
func Hash(principal string) uint64 { return maphash.String(seed, principal) }

// Take counts a check of a principal, by its Hash, at nowNanos, and reports whether it is below the ceiling. If not,
// waitNanos is how long the present second still is.
func (c *Ceiling) Take(nowNanos int64, h uint64) (ok bool, waitNanos int64) {
	if c == nil {
		return true, 0
	}
	now := uint64(nowNanos/second+1) & low
	c.mu.Lock()
	defer c.mu.Unlock()
	var own [rows]*uint64
	least := uint64(math.MaxUint64)
	for i := range own {
		own[i] = &c.cells[i][h>>(i*columnBits)%columns]
		least = min(least, in(*own[i], now))
	}
	if least >= c.perSecond {
		return false, second - nowNanos%second
	}
	for _, cell := range own { // those with more belong to others as well, and count enough already
		if in(*cell, now) == least {
			*cell = now<<32 | (least + 1)
		}
	}
	return true, 0
}

// in is a cell's count in this second.
func in(cell, now uint64) uint64 {
	if cell>>32 != now {
		return 0
	}
	return cell & low
}
