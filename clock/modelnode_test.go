package clock_test

import (
	"math/rand/v2"

	"github.com/quorate/quorate/clock"
	"github.com/quorate/quorate/fsm"
)

// wrong is what a model's nodes do wrong. Its zero value is a correct caller of this package.
type wrong struct {
	relabels        bool // T1: an entry is said to be of the term that the log holds it in
	leadsEarly      bool // T2: Lead before an entry of the own term was applied
	survives        bool // T2: what the first leadership had goes on to serve the later ones
	ignoresForeign  bool // T3: entries of others are not told to the timeline
	ignoresSnapshot bool // T3: installed snapshots are not told to the timeline
	best            bool // T3: the best of the last anchors
	persists        bool // T3: the anchor is kept over a restart
	joinsLate       bool // T4: the stamp is drawn when a batch is opened, and checks join it later
	larger          bool // T5: the larger of the clocks
	slewed          bool // T5: CLOCK_MONOTONIC alone
	givesBack       bool // T5: a slewed clock that catches up counts in full
	unslowed        bool // T5: no slow-down by the drift bound
	boundEarly      bool // an entry's wall bound leaves out the error
	wallLies        bool // wall clocks are off by more than their kernels say
}

// machine is the Source of a node. Its clocks are exchanged by a reboot.
type machine struct {
	*clock.Fake
	wrong wrong
}

func (m *machine) Read() clock.Reading {
	r := m.Fake.Read()
	switch {
	case m.wrong.larger:
		r.Mono = max(r.Mono, r.Raw)
		r.Raw = r.Mono
	case m.wrong.slewed:
		r.Raw = r.Mono
	case m.wrong.givesBack:
		r.Raw = min(r.Mono, r.Raw)
		r.Mono = r.Raw
	}
	return r
}

// request is one check, with the true instant at which it arrived.
type request struct {
	fsm.Check
	arrived int64
}

// entry is an entry of the model's log.
type entry struct {
	logTerm uint64
	command *fsm.Entry // nil for an entry of Raft's own
	by      *node      // that drew the stamp
	drawn   int64      // true instant of the stamp
	checks  []request

	// Known once it is committed.
	at      int64 // partition time after it
	refused bool
}

// node is one replica.
type node struct {
	rng      *rand.Rand
	wrong    wrong
	trust    clock.TrustWall
	ppm      int64 // the drift bound
	now      int64 // true nanoseconds
	machine  machine
	timeline *clock.Timeline
	older    []*clock.Timeline // with wrong.best: earlier anchors
	asleep   int64             // true nanoseconds until it wakes
	frozen   int64             // true nanoseconds until its clocks go on
	cut      bool              // it gets no entries

	log     []*entry
	applied int // so many of the committed entries
	told    int // with wrong.persists: what was applied before restarts

	earliest int64 // what a right timeline takes for the earliest wall time of its start; 0 none
	bound    int64 // the wall bound that its timeline was told of last
	bridges  int   // leaderships that began with time that wall clocks proved

	leading uint64 // the term that it believes to lead; 0 none
	opening int    // index of its own entry of that term
	led     uint64 // the term that its timeline leads; 0 none
	queue   []request
	batch   *entry // closed, and on its way into the log
}

func newNode(rng *rand.Rand, w wrong, trust clock.TrustWall, ppm int64) *node {
	n := &node{rng: rng, wrong: w, trust: trust, ppm: ppm, machine: machine{new(clock.Fake), w}}
	n.boot()
	n.timeline = n.newTimeline()
	return n
}

// boot starts the machine's clocks anew, at a number that means nothing.
func (n *node) boot() {
	n.machine.Fake = new(clock.Fake)
	n.machine.Advance(n.rng.Int64N(1000 * second))
	n.setRates()
	if n.trust == clock.TrustBounded {
		n.setWall()
	}
}

// setWall sets the wall clock anew, off by no more than its kernel says or five seconds.
func (n *node) setWall() {
	stated := 1 + n.rng.Int64N(8*second)
	most := max(stated, 5*second)
	off := n.rng.Int64N(2*most+1) - most
	switch n.rng.IntN(4) {
	case 0:
		off = most
	case 1:
		off = -most
	}
	if n.wrong.wallLies {
		off *= 4
	}
	n.machine.StepWall(modelWallNanos + n.now + off - n.machine.Wall().Nanos)
	n.machine.Synchronise(stated, n.rng.IntN(5) != 0)
}

func (n *node) setRates() {
	raw := n.rng.Int64N(2*n.ppm+1) - n.ppm
	if n.rng.IntN(3) == 0 {
		raw = n.ppm
	}
	slew := int64(0)
	if n.rng.IntN(2) == 0 {
		slew = n.rng.Int64N(160_001) - 80_000
	}
	n.machine.Rates(raw+slew, raw)
}

func (n *node) newTimeline() *clock.Timeline {
	ppm := n.ppm
	if n.wrong.unslowed {
		ppm = 1
	}
	t, err := clock.NewTimeline(&n.machine, ppm, n.trust)
	if err != nil {
		panic(err)
	}
	n.earliest = 0
	if w := n.machine.Wall(); w.Bounded && n.trust == clock.TrustBounded {
		n.earliest = w.Nanos - max(w.ErrorNanos, 5*second)
	}
	return t
}

func (n *node) pass(nanos int64) {
	n.now += nanos
	if n.asleep > 0 {
		n.asleep -= nanos
		n.machine.Suspend(nanos)
		return
	}
	n.machine.Freeze(n.frozen > 0)
	n.frozen -= nanos
	n.machine.Advance(nanos)
}

// apply applies the next of the committed entries.
func (n *node) apply(e *entry) {
	n.applied++
	if e.command == nil || e.refused || n.applied <= n.told {
		return
	}
	term := e.command.Term
	if n.wrong.relabels {
		term = e.logTerm
	}
	foreign := term != n.led
	if n.wrong.ignoresForeign && foreign {
		return
	}
	if n.wrong.best && foreign {
		n.older = append(n.older, n.timeline)
		n.older = n.older[max(0, len(n.older)-4):]
		n.timeline = n.newTimeline()
		if n.led != 0 {
			n.timeline.Lead(n.led)
		}
	}
	n.timeline.Applied(e.at, term, e.command.WallBound)
	n.bound = e.command.WallBound
}

// install puts a snapshot of so many entries, of which last gave it its time, in place of the state.
func (n *node) install(entries []*entry, last *entry) {
	n.applied = len(entries)
	n.log = append([]*entry(nil), entries...)
	if !n.wrong.ignoresSnapshot {
		n.timeline.Restored(last.at, last.command.WallBound)
		n.bound = last.command.WallBound
	}
}

// restart begins the process again from a snapshot of so many entries, of which last gave it its time,
// and on another boot of the machine if reboots. The log is kept.
func (n *node) restart(snapshot int, last *entry, reboots bool) {
	n.leading, n.led, n.batch, n.queue = 0, 0, nil, nil
	if reboots {
		n.boot()
	}
	if n.wrong.persists {
		n.timeline.Resign()
		n.told, n.applied = max(n.told, n.applied), snapshot
		return
	}
	n.timeline, n.older, n.applied = n.newTimeline(), nil, snapshot
	if snapshot > 0 {
		n.timeline.Restored(last.at, last.command.WallBound)
		n.bound = last.command.WallBound
	}
}

// look follows the leadership that the node believes to have, and reports whether it may stamp.
func (n *node) look() bool {
	if n.wrong.survives && n.led != 0 {
		return n.leading != 0
	}
	if n.led != n.leading {
		n.timeline.Resign()
		n.led = 0
	}
	if n.leading == 0 || n.applied <= n.opening && !n.wrong.leadsEarly {
		return false
	}
	if n.led == 0 {
		n.led = n.leading
		n.timeline.Lead(n.led)
		if n.bound > 0 && n.bound < n.earliest {
			n.bridges++
		}
		n.earliest = 0
		for _, t := range n.older {
			t.Lead(n.led)
		}
	}
	return true
}

// work takes the next step of the node's batch: close it, stamp it, propose it. Between any two of
// them the process may pause, and the leadership change.
func (n *node) work(now int64) {
	if n.batch == nil {
		if !n.look() || len(n.queue) == 0 && n.rng.IntN(4) != 0 {
			return
		}
		n.batch = &entry{by: n, checks: n.queue}
		n.queue = nil
		if n.wrong.joinsLate {
			n.stamp(now)
		}
		if n.rng.IntN(3) == 0 {
			return
		}
	}
	switch {
	case n.batch.command == nil:
		n.stamp(now)
	case n.wrong.joinsLate:
		n.batch.checks, n.queue = append(n.batch.checks, n.queue...), nil
	}
	if n.batch != nil && n.rng.IntN(4) != 0 {
		n.propose()
	}
}

// stamp draws the batch's stamp; without a leadership the batch is given up.
func (n *node) stamp(now int64) {
	at, err := n.timeline.Stamp(n.led)
	if err != nil {
		n.batch = nil
		return
	}
	for _, t := range n.older {
		if more, err := t.Stamp(n.led); err == nil {
			at = max(at, more)
		}
	}
	n.batch.drawn = now
	n.batch.command = &fsm.Entry{Kind: fsm.KindBatch, Term: n.led, Stamp: fsm.Time(at)}
	n.batch.command.WallBound = n.timeline.WallBound()
	if bound := &n.batch.command.WallBound; n.wrong.boundEarly && *bound != 0 {
		*bound = max(1, *bound-10*second)
	}
	if n.wrong.survives {
		n.batch.command.Term = n.leading
	}
}

// propose appends the batch with the term that the node leads now, whatever the batch says.
func (n *node) propose() {
	b := n.batch
	n.batch = nil
	if n.leading == 0 {
		return
	}
	b.logTerm = n.leading
	for i := range b.checks {
		b.command.Checks = append(b.command.Checks, b.checks[i].Check)
	}
	n.log = append(n.log, b)
}
