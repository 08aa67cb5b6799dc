package clock

const (
	// paceSlackNanos is how much partition time may outrun a follower's clock beyond the drift bound.
	paceSlackNanos = 1_000_000_000
	// paceRenewNanos is how long a reference serves. It is long enough to see a leader that gains 3 ms
	// a second, and short enough that what the drift bound allows meanwhile is less than the slack.
	paceRenewNanos = 600_000_000_000
)

// Pace is a follower's check of its leader: partition time must not outrun the follower's own clock.
//
// It compares each entry with a reference, an earlier entry. An entry that arrives late, after a cut of
// the network or a pause of this process, is behind it and raises no alarm; only partition time that
// really ran faster gets ahead. A reference must not itself be late, or everything after it would look
// fast: it is taken while the replica is caught up, and is replaced after ten minutes by the entry that
// was furthest ahead in them. It is not replaced sooner by one that is ahead, or a leader that gains a
// little with each entry would never be noticed. After an alarm the reference is taken anew, so one
// fault is one alarm.
//
// It is not safe for concurrent use.
type Pace struct {
	source Source
	ppm    int64
	set    bool
	ref    mark
	next   mark    // the furthest ahead since began
	began  Reading // when the reference was taken
}

// mark is an entry as it was applied: its partition time, and this machine's clocks.
type mark struct {
	at   int64
	read Reading
}

// NewPace makes a check with a drift bound in parts per million, which holds for both machines.
func NewPace(source Source, maxDriftPPM int64) *Pace { return &Pace{source: source, ppm: maxDriftPPM} }

// Reset forgets the reference: after a snapshot was installed, or when this node began to lead.
func (p *Pace) Reset() { p.set = false }

// Spans are what has passed between two entries: by partition time, and by this machine's clock.
type Spans struct {
	PartitionNanos int64
	LocalNanos     int64
}

// since takes the larger of the clocks, since a slewed one may be slow, and adds suspended time, in
// which the leader went on.
func (m mark) since(from mark) Spans {
	return Spans{m.at - from.at, m.read.longestSince(from.read)}
}

// Observe notes an entry with its partition time. caughtUp says that it was applied when it was committed
// and not replayed later. fast is true when partition time has outrun this machine's clock by more than
// the drift bound and a second.
func (p *Pace) Observe(at int64, caughtUp bool) (s Spans, fast bool) {
	m := mark{at, p.source.Read()}
	if !p.set {
		if caughtUp {
			p.set, p.ref, p.next, p.began = true, m, m, m.read
		}
		return Spans{}, false
	}
	s = m.since(p.ref)
	if s.PartitionNanos-s.LocalNanos > paceSlackNanos+mulDiv(max(0, s.LocalNanos), p.ppm, million, true) {
		p.set = false
		return s, true
	}
	if !caughtUp {
		return s, false
	}
	if n := m.since(p.next); n.PartitionNanos > n.LocalNanos {
		p.next = m
	}
	if m.read.longestSince(p.began) >= paceRenewNanos {
		p.ref, p.next, p.began = p.next, m, m.read
	}
	return s, false
}
