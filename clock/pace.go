package clock

const (
	// paceSlackNanos is how much partition time may outrun a follower's clock beyond the drift bound.
	paceSlackNanos = 1_000_000_000
	// paceSettleNanos is how long a first reference gives way to any entry that is ahead of it. It is
	// longer than a node takes to apply what its sockets held while it was paused.
	paceSettleNanos = 5_000_000_000
	// paceRenewNanos is how long a reference serves before a later one may replace it. What the drift
	// bound allows meanwhile, and hides, is less than the slack.
	paceRenewNanos = 600_000_000_000
)

// Pace is a follower's check of its leader: partition time must not outrun the follower's own clock.
//
// It compares each entry with a reference, an earlier entry, and alarms when more has passed between the
// two by partition time than by this machine's clock, the drift bound and a second. An entry that
// arrives late, after a cut of the network or a pause of this process, is behind the reference and raises
// no alarm; only partition time that really ran faster gets ahead. So all rests on a reference that was
// not late itself, or what comes in time after it would look fast:
//
//   - It is taken only while the replica is caught up: not from a replay or a backlog.
//   - For its first five seconds any entry that is ahead takes its place, without an alarm: the caller
//     may be mistaken about the first ones. They are counted from the first, so that a leader which is
//     fast all the time gains no more than these five seconds.
//   - After ten minutes the entry of these that was furthest ahead takes its place, since a reference
//     under a slow leader would leave later ones more and more room; unless that entry is ahead of the
//     reference by more than the drift bound, or a leader that gains a little more than it would never
//     be noticed.
//   - After an alarm it is taken anew, so one fault is one alarm.
//
// It is not safe for concurrent use.
type Pace struct {
	source Source
	ppm    int64
	set    bool
	taken  Reading // when the first reference was taken
	ref    mark
	next   mark    // the furthest ahead since began
	began  Reading // when next began to be looked for
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
			p.set, p.taken = true, m.read
			p.refer(m)
		}
		return Spans{}, false
	}
	s = m.since(p.ref)
	if m.read.longestSince(p.taken) < paceSettleNanos {
		if caughtUp && s.PartitionNanos > s.LocalNanos {
			p.refer(m)
		}
		return s, false
	}
	if p.excess(s) > paceSlackNanos {
		p.set = false
		return s, true
	}
	if caughtUp {
		p.renew(m)
	}
	return s, false
}

// refer takes m as the reference.
func (p *Pace) refer(m mark) { p.ref, p.next, p.began = m, m, m.read }

// renew notes m, and replaces the reference when it has served long enough.
func (p *Pace) renew(m mark) {
	if n := m.since(p.next); n.PartitionNanos > n.LocalNanos {
		p.next = m
	}
	if m.read.longestSince(p.began) < paceRenewNanos {
		return
	}
	if p.excess(p.next.since(p.ref)) <= 0 {
		p.ref = p.next
	}
	p.next, p.began = m, m.read
}

// excess is by how much partition time has outrun what the drift bound allows.
func (p *Pace) excess(s Spans) int64 {
	return s.PartitionNanos - s.LocalNanos - mulDiv(max(0, s.LocalNanos), p.ppm, million, true)
}
