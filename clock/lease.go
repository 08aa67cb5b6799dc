package clock

import "fmt"

// Lease is a permission that ends by itself. It runs on the larger of CLOCK_BOOTTIME and
// CLOCK_MONOTONIC_RAW with suspended time added, made faster by the drift bound, so that it ends early
// rather than late: suspended time counts, and a slow clock does not lengthen it.
type Lease struct {
	from    Reading
	lasts   int64 // in nanoseconds of this machine's clocks
	granted bool
}

// GrantLease makes a lease of nanos of real time from a reading, which is to be that of the request and
// not that of its answer. maxDriftPPM is the most by which a clock of the machine runs slow.
func GrantLease(from Reading, nanos, maxDriftPPM int64) (Lease, error) {
	if nanos <= 0 || maxDriftPPM < 1 || maxDriftPPM > MaxMaxDriftPPM {
		return Lease{}, fmt.Errorf("clock: a lease of %d ns with a drift bound of %d ppm", nanos, maxDriftPPM)
	}
	return Lease{from: from, lasts: mulDiv(nanos, million-maxDriftPPM, million, false), granted: true}, nil
}

// Valid reports whether the lease still runs at a reading. The zero lease never runs.
func (l Lease) Valid(now Reading) bool { return l.Remaining(now) > 0 }

// Remaining is how long the lease still runs at a reading, in nanoseconds; 0 when it has ended.
func (l Lease) Remaining(now Reading) int64 {
	if !l.granted {
		return 0
	}
	return max(0, l.lasts-now.longestSince(l.from))
}
