package control

import (
	"math/bits"
	"slices"
	"sync"
	"time"

	"github.com/quorate/quorate/clock"
	"github.com/quorate/quorate/control/state"
	"github.com/quorate/quorate/fsm"
)

// PolicyLease is for how long a policy lease allows decisions: real time, from the sending of its request.
const PolicyLease = 10 * time.Second

// maxArrivals bounds the revisions whose arrival on this node is remembered one by one.
const maxArrivals = 1024

// Activity is how far a revision has come, as one node can tell.
type Activity struct {
	// Everywhere: no owner can decide under an older revision any more.
	Everywhere bool
	// InNanos is when that is so at the latest, in nanoseconds from now, if this node goes on; 0 when it is.
	InNanos int64
}

// arrival is when this process had applied the publish of a revision.
type arrival struct {
	revision fsm.Revision
	at       clock.Reading
}

// arrivals remember when this process applied which revision, which is never before the revision was committed.
// An owner that decides under an older one holds a lease from before the commit. So when a whole lease has
// passed since the arrival, none does, whichever node counts.
type arrivals struct {
	source    clock.Source
	waitNanos int64 // of this machine's clocks, in which a whole lease has passed for certain

	mu   sync.Mutex // guards list
	list []arrival  // by revision; never empty once there is a revision
}

func newArrivals(source clock.Source, maxDriftPPM int64) *arrivals {
	return &arrivals{source: source, waitNanos: certainly(int64(PolicyLease), maxDriftPPM)}
}

// certainly is how long a clock that runs fast by at most the drift bound has to count until nanos have passed.
func certainly(nanos, maxDriftPPM int64) int64 {
	const million = 1_000_000
	hi, lo := bits.Mul64(uint64(nanos), million)
	q, rest := bits.Div64(hi, lo, uint64(million-maxDriftPPM))
	if rest > 0 {
		q++
	}
	return int64(q)
}

// note takes a state that has just been applied.
func (a *arrivals) note(s *state.State) {
	now := s.InForce()
	if now == nil {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if n := len(a.list); n > 0 && a.list[n-1].revision >= now.Number {
		return
	}
	if len(a.list) >= maxArrivals {
		a.list = slices.Delete(a.list, 0, len(a.list)/2)
	}
	a.list = append(a.list, arrival{now.Number, a.source.Read()})
}

// of is when a revision had arrived, or a later one that came with it: late, where it is not known exactly.
func (a *arrivals) of(r fsm.Revision) (at clock.Reading, known bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	i, _ := slices.BinarySearchFunc(a.list, r, func(e arrival, r fsm.Revision) int { return int(e.revision) - int(r) })
	if i == len(a.list) {
		return clock.Reading{}, false
	}
	return a.list[i].at, true
}

// left is how long it takes until a whole lease has passed since a reading: by the slower clock, and without
// suspended time.
func (a *arrivals) left(since clock.Reading) int64 {
	now := a.source.Read()
	return max(0, a.waitNanos-min(now.Mono-since.Mono, now.Raw-since.Raw))
}

// AppliedAt is a reading of the clocks after this process had applied the publish of a revision; not known
// while it has not.
func (c *Control) AppliedAt(r fsm.Revision) (at clock.Reading, known bool) { return c.arrivals.of(r) }

// Active tells whether a revision is active everywhere: each partition that owns slots, or is about to, is known
// to have installed it, or a whole policy lease has passed since this process applied its publish. What it says
// is so, whichever node is asked and however far behind it is; a node that has just started, or is behind, may
// say it later than another.
func (c *Control) Active(r fsm.Revision) Activity {
	s := c.State()
	if now := s.InForce(); r > 0 && (now == nil || now.Number < r) {
		return Activity{InNanos: c.arrivals.waitNanos}
	}
	if !slices.ContainsFunc(s.Partitions, func(p *state.Partition) bool {
		return (len(p.Ranges) > 0 || p.Plan != 0) && p.Installed < r
	}) {
		return Activity{Everywhere: true}
	}
	at, known := c.arrivals.of(r)
	if !known {
		return Activity{InNanos: c.arrivals.waitNanos}
	}
	left := c.arrivals.left(at)
	return Activity{Everywhere: left == 0, InNanos: left}
}
