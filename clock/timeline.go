package clock

import (
	"errors"
	"fmt"
	"math"
	"math/bits"
	"sync"

	"github.com/quorate/quorate/internal/guard"
)

// The bound of the drift of a machine's clocks, in parts per million.
const (
	DefaultMaxDriftPPM = 500
	MaxMaxDriftPPM     = 100_000
)

// minWallErrorNanos is the least error that a wall clock is given, whatever the kernel says.
const minWallErrorNanos = 5_000_000_000

// TrustWall says whether wall clocks may tell how long all replicas of a partition were down.
type TrustWall string

// With TrustNever a start finds that no time has passed. With TrustBounded it finds what the wall
// clocks prove: from the bound that the last entry carries to the wall clock at the start of the
// process, which the kernel must call synchronised by then. A virtual machine that was paused while it
// led, so that its wall clock was behind although its kernel called it synchronised, can void that
// proof: its bounds are too early. What a wall clock does after the start moves nothing.
const (
	TrustNever   TrustWall = "never"
	TrustBounded TrustWall = "bounded"
)

// ErrNotLeading says that the leadership that asks for a stamp is not the present one.
var ErrNotLeading = errors.New("clock: another leadership draws the stamps, or none")

// Timeline is the partition time of one replica. A replica tells it of each stamped entry that it has
// applied; the owner, while it leads, draws stamps from it. It is safe for concurrent use.
//
// Partition time is the anchor's time plus what has passed since by the slower of two of the machine's
// clocks, slowed further by the drift bound. A clock that was slewed slow and then catches up does not
// give back what it took, since partition time would run fast meanwhile.
//
// There is one anchor, replaced at each entry that the present leadership did not stamp, and never the
// best of several: an older anchor may belong to a faster timeline. The entries that the present
// leadership stamps do not replace it, or the time that each takes to commit would be lost.
type Timeline struct {
	source Source
	ppm    int64

	mu     sync.Mutex // guards the fields below
	anchor anchor
	// mine is the term of the last applied entry if it was stamped by a leadership of this node that
	// did not re-anchor at it; else 0.
	mine  uint64
	last  int64  // partition time of the last applied entry
	bound int64  // its wall bound
	term  uint64 // of the present leadership; 0 none
	drawn int64  // the last stamp of the present leadership
	// started is the reading of the start, and earliest the earliest wall time that it can have been
	// then; 0 when wall clocks are not to tell how long the partition was down, or not any more.
	started  Reading
	earliest int64
}

// anchor is an instant on both clocks: the partition time, and the reading taken after the entry that
// carries it had been applied.
type anchor struct {
	at   int64
	read Reading
	// behind is the most by which Mono was seen to have passed less than Raw since read.
	behind int64
}

// NewTimeline makes the timeline of a replica that has applied nothing yet, at the start of the process.
// maxDriftPPM is the most by which a clock of the machine runs fast.
func NewTimeline(source Source, maxDriftPPM int64, trust TrustWall) (*Timeline, error) {
	if maxDriftPPM < 1 || maxDriftPPM > MaxMaxDriftPPM {
		return nil, fmt.Errorf("clock: a drift bound of %d ppm: set it between 1 and %d", maxDriftPPM, MaxMaxDriftPPM)
	}
	if trust != TrustNever && trust != TrustBounded {
		return nil, fmt.Errorf("clock: trust_wall %q: write never or bounded", trust)
	}
	t := &Timeline{source: source, ppm: maxDriftPPM}
	// The wall clock first: what it proves has passed by the reading.
	if w := source.Wall(); trust == TrustBounded && w.Bounded {
		t.earliest = max(0, w.Nanos-wallError(w))
	}
	t.started = source.Read()
	t.anchor.read = t.started
	return t, nil
}

// Applied notes that an entry has been applied: at is the partition time after it, term that of the
// leadership that stamped it, wallBound what it carries.
func (t *Timeline) Applied(at int64, term uint64, wallBound int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.note(at, wallBound)
	if t.term != 0 && term == t.term {
		t.mine = term
		return
	}
	t.mine = 0
	t.drop(at)
}

// drop drops the anchor at a partition time that the log has now.
func (t *Timeline) drop(at int64) {
	if guard.On(guard.Anchor) || t.anchor.at == 0 {
		t.anchor = anchor{at: at, read: t.source.Read()}
	}
	if !guard.On(guard.OwnReadings) {
		t.anchor.read = keptReading(at, t.anchor.read)
	}
}

// Restored notes that a snapshot with this partition time has taken the place of the state.
func (t *Timeline) Restored(at, wallBound int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.note(at, wallBound)
	t.mine = 0
	t.drop(at)
}

// note keeps what the last entry carries. One that may have been stamped after the start ends the bridge
// for good: the partition is not down.
func (t *Timeline) note(at, wallBound int64) {
	t.last, t.bound = at, wallBound
	if !guard.On(guard.OwnReadings) {
		keptReading(at, t.source.Read())
	}
	if wallBound >= t.earliest {
		t.earliest = 0
	}
}

// Lead begins a leadership. It must be called after an entry of its term has been applied. Nothing of an
// earlier leadership of this node is used.
func (t *Timeline) Lead(term uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.mine != 0 {
		// Nothing but this node's own earlier entries was applied since it last led.
		t.anchor, t.mine = anchor{at: t.last, read: t.source.Read()}, 0
	}
	if t.bound > 0 && t.bound < t.earliest {
		// The last entry was stamped before this process started, at the latest at its bound; by the
		// start at least this much had passed, and what came after it is for the clocks to tell.
		t.anchor = anchor{at: later(t.last, t.slowed(t.earliest-t.bound)), read: t.started}
	}
	t.term, t.earliest = term, 0
	if guard.On(guard.FreshLeadership) {
		t.drawn = 0
	}
	if !guard.On(guard.AnchoredStamp) {
		t.anchor = anchor{at: t.source.Wall().Nanos, read: t.source.Read()}
	}
}

// Resign ends the present leadership.
func (t *Timeline) Resign() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.term = 0
}

// Stamp draws the partition time of now for the leadership of term. It never goes back within one
// leadership. The error is ErrNotLeading.
func (t *Timeline) Stamp(term uint64) (int64, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if term == 0 || term != t.term {
		return 0, ErrNotLeading
	}
	if now := t.at(t.source.Read()); now > t.drawn || !guard.On(guard.MonotoneTime) {
		t.drawn = now
	}
	return t.drawn, nil
}

// WallBound is the latest wall time that it can be now, in nanoseconds since 1970; 0 when the kernel
// gives no bound. For an entry it is drawn after the stamp, so that the stamp is not later than it says.
func (t *Timeline) WallBound() int64 {
	w := t.source.Wall()
	if !w.Bounded {
		return 0
	}
	return w.Nanos + wallError(w)
}

func wallError(w Wall) int64 { return max(w.ErrorNanos, minWallErrorNanos) }

// at is the partition time of a reading. Between any two readings it gains no more than Raw does, and
// since the anchor no more than Mono does. The plain smaller of the two spans would not do: it gains as
// fast as Mono while Mono, slewed fast, makes up for what it lost before.
func (t *Timeline) at(now Reading) int64 {
	a := &t.anchor
	mono, raw := now.Mono-a.read.Mono, now.Raw-a.read.Raw
	if !guard.On(guard.SlowerClock) {
		return later(a.at, t.slowed(max(mono, raw)))
	}
	a.behind = max(a.behind, raw-mono)
	return later(a.at, t.slowed(raw-a.behind))
}

// slowed is a span of a clock that may be fast by the drift bound, as partition time: over the whole
// span and rounded down, since rounding many small steps would take the bound away.
func (t *Timeline) slowed(span int64) int64 {
	if span <= 0 {
		return 0
	}
	if !guard.On(guard.DriftSlowdown) {
		return span
	}
	return mulDiv(span, million-t.ppm, million, false)
}

// RealWait is the real time, in nanoseconds and rounded up, in which partition time advances by nanos
// on a clock that runs true, the slow-down by the drift bound included. A clock that is slow itself takes
// longer, and who asks then is told the rest; a longer wait for all would be wrong for most.
func (t *Timeline) RealWait(nanos int64) int64 {
	if nanos <= 0 {
		return 0
	}
	return mulDiv(nanos, million, million-t.ppm, true)
}

// later is at plus a span that is not negative; the largest number where it is more.
func later(at, span int64) int64 {
	if at > math.MaxInt64-span {
		return math.MaxInt64
	}
	return at + span
}

// mulDiv is a*b/c for positive numbers, with 128 bits between; the largest number where it is more.
func mulDiv(a, b, c int64, up bool) int64 {
	hi, lo := bits.Mul64(uint64(a), uint64(b))
	if up {
		var carry uint64
		lo, carry = bits.Add64(lo, uint64(c-1), 0)
		hi += carry
	}
	q, _ := bits.Div64(hi, lo, uint64(c))
	return int64(min(q, math.MaxInt64))
}
