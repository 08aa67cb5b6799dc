package ceiling

import (
	"hash/maphash"
	"math"
	"sync/atomic"
)

const (
	rows    = 2
	columns = 1 << 14
	second  = int64(1_000_000_000)
	low     = 1<<32 - 1
)

// Ceiling counts checks per principal and second. It is for concurrent use.
type Ceiling struct {
	perSecond uint64
	seed      maphash.Seed
	// cells hold the second, in the upper half, and the count in it. A principal counts in one cell of each row, and
	// the smaller count is his, or more.
	cells [rows][columns]atomic.Uint64
}

// New makes a ceiling; nil, which lets all through, for 0.
func New(perSecond int) *Ceiling {
	if perSecond <= 0 {
		return nil
	}
	return &Ceiling{perSecond: uint64(min(perSecond, math.MaxInt32)), seed: maphash.MakeSeed()}
}

// Take counts a check of principal at nowNanos and reports whether it is below the ceiling. If not, waitNanos is how
// long the present second still is.
func (c *Ceiling) Take(nowNanos int64, principal string) (ok bool, waitNanos int64) {
	if c == nil {
		return true, 0
	}
	h := maphash.String(c.seed, principal)
	now := uint64(nowNanos/second+1) & low
	first, second32 := &c.cells[0][h%columns], &c.cells[1][h>>32%columns]
	if least(first, second32, now) >= c.perSecond {
		return false, second - nowNanos%second
	}
	count(first, now)
	count(second32, now)
	return true, 0
}

// least is the smaller of the counts of two cells in this second.
func least(a, b *atomic.Uint64, now uint64) uint64 { return min(in(a.Load(), now), in(b.Load(), now)) }

func in(cell, now uint64) uint64 {
	if cell>>32 != now {
		return 0
	}
	return cell & low
}

func count(cell *atomic.Uint64, now uint64) {
	for {
		old := cell.Load()
		if cell.CompareAndSwap(old, now<<32|(in(old, now)+1)) {
			return
		}
	}
}
