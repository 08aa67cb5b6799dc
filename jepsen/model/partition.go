package model

import (
	"bytes"
	"fmt"
	"reflect"

	"github.com/quorate/quorate/clock"
	"github.com/quorate/quorate/fsm"
)

// request is a check, with the true instant at which it came.
type request struct {
	fsm.Check
	arrived int64
}

// entry is an entry of a partition's log.
type entry struct {
	term    uint64     // that the log has it in
	command *fsm.Entry // nil for an entry of Raft's own
	drawn   int64      // true instant of its stamp
	checks  []request

	// What the first replica that applied it made of it; nil before.
	answers *fsm.Answers
	digest  [16]byte
}

// part is a partition: the log that its replicas agree on, and the replicas.
type part struct {
	w         *world
	id        int
	term      uint64
	log       []*entry // what is committed, and what only the leader has
	committed int
	leader    *replica // elected last
	replicas  []*replica
}

// replica is one replica of a partition.
type replica struct {
	part     *part
	on       *machine
	m        *fsm.Machine
	timeline *clock.Timeline
	applied  int // so many of the committed entries
	cut      bool

	leading uint64 // the term that it believes to lead; 0 none
	opening int    // index of its own entry of that term
	led     uint64 // the term that its timeline leads; 0 none
	queue   []request
	orders  []*fsm.Entry
	batch   *entry // closed and stamped, and on its way into the log

	kept      []byte // its last snapshot
	keptAt    int    // of so many entries
	writing   *fsm.Snapshot
	written   []byte
	writingAt int
}

func newPart(w *world, id int, birth *fsm.Birth) *part {
	p := &part{w: w, id: id, term: 1}
	first := &fsm.Entry{Kind: fsm.KindBirth, Term: 1, Birth: birth}
	p.log = []*entry{{term: 1, command: first}}
	p.committed = 1
	for _, on := range w.machines {
		r := &replica{part: p, on: on, m: fsm.New(), timeline: w.newTimeline(on)}
		p.replicas = append(p.replicas, r)
		r.applyNext()
	}
	p.elect()
	return p
}

// elect makes a replica the leader that has all that is committed, and some of what the leader before had. That one
// does not know.
func (p *part) elect() {
	n := p.replicas[p.w.rng.IntN(len(p.replicas))]
	if p.w.rng.IntN(3) == 0 {
		for _, holder := range p.replicas {
			if holder.batch != nil {
				n = holder // with a stamp in hand
			}
		}
	}
	if n.on.asleep > 0 {
		return
	}
	p.lead(n)
}

func (p *part) lead(n *replica) {
	p.log = p.log[:p.committed+p.w.rng.IntN(len(p.log)-p.committed+1)]
	p.term++
	p.log = append(p.log, &entry{term: p.term})
	n.leading, n.opening, n.cut = p.term, len(p.log)-1, false
	p.leader = n
	p.w.counts.Leaders++
}

// believer is a replica that takes itself for the leader, most often the one that is; nil for none.
func (p *part) believer() *replica {
	n := p.leader
	if n.leading == 0 || n.on.asleep > 0 || p.w.rng.IntN(6) == 0 {
		n = p.replicas[p.w.rng.IntN(len(p.replicas))]
	}
	if n.leading == 0 || n.on.asleep > 0 {
		return nil
	}
	return n
}

// commit commits some of the leader's log, no less than its own first entry.
func (p *part) commit(all bool) {
	n := p.leader
	first := max(n.opening+1, p.committed+1)
	if n.leading != p.term || n.on.asleep > 0 || first > len(p.log) {
		return
	}
	to := len(p.log)
	if !all {
		to = first + p.w.rng.IntN(len(p.log)-first+1)
	}
	p.committed = to
}

// apply has a replica apply some of what is committed, most often after the leader has.
func (p *part) apply(n *replica) {
	if n != p.leader && p.w.rng.IntN(8) > 0 {
		p.leader.catchUp()
	}
	if n.on.asleep > 0 || n.cut {
		return
	}
	more := p.committed - n.applied
	if more > 0 && p.w.rng.IntN(3) == 0 {
		more = p.w.rng.IntN(more + 1)
	}
	for range more {
		n.applyNext()
	}
}

func (r *replica) catchUp() {
	for r.on.asleep <= 0 && r.applied < r.part.committed {
		r.applyNext()
	}
}

// applyNext applies the next of the committed entries. The first to do so tells the judge what it came to, the others
// are compared with it.
func (r *replica) applyNext() {
	w, p := r.part.w, r.part
	index := r.applied
	e := p.log[index]
	r.applied++
	if e.command == nil {
		return
	}
	for _, needed := range r.m.Needs(e.term, e.command) {
		needed.Policy = w.installs[needed.Revision].Policy
	}
	a := r.m.Step(e.term, e.command)
	digest := r.m.Digest()
	if e.answers == nil {
		e.answers, e.digest = a, digest
		w.judge.applied(p, index, e)
	} else if e.digest != digest {
		w.judge.breaks(EqualStates, "partition %d, entry %d (%v): a replica has another digest than the first",
			p.id, index, e.command.Kind)
	} else if !reflect.DeepEqual(e.answers, a) {
		w.judge.breaks(EqualStates, "partition %d, entry %d (%v): a replica answers otherwise than the first",
			p.id, index, e.command.Kind)
	}
	if a.Refused != fsm.ReasonStaleTerm && a.Refused != fsm.ReasonUnborn {
		r.timeline.Applied(int64(a.Time), e.command.Term, e.command.WallBound)
	}
	r.write(w.rng.IntN(500))
}

// look follows the leadership that the replica believes to have, and reports whether it may stamp.
func (r *replica) look() bool {
	if r.led != r.leading {
		r.timeline.Resign()
		r.led = 0
	}
	if r.leading == 0 || r.applied <= r.opening {
		return false
	}
	if r.led == 0 {
		r.led = r.leading
		r.timeline.Lead(r.led)
	}
	return true
}

// work takes the next step: close a batch and stamp it, then propose it. In between the process may pause, and the
// leadership change.
func (r *replica) work() {
	if r.batch == nil {
		if !r.look() || len(r.queue)+len(r.orders) == 0 && r.part.w.rng.IntN(4) != 0 {
			return
		}
		r.close()
		if r.part.w.rng.IntN(6) == 0 {
			return
		}
	}
	if r.batch != nil {
		r.propose()
	}
}

// close closes a batch, or takes one of the orders, and draws its stamp.
func (r *replica) close() {
	command := &fsm.Entry{Kind: fsm.KindBatch}
	b := &entry{}
	if len(r.orders) > 0 {
		command, r.orders = r.orders[0], r.orders[1:]
	} else {
		b.checks, r.queue = r.queue, nil
		for i := range b.checks {
			command.Checks = append(command.Checks, b.checks[i].Check)
		}
		if r.part.w.rng.IntN(4) == 0 {
			command.Peeks = []fsm.Peek{r.part.w.peek()}
		}
	}
	at, err := r.timeline.Stamp(r.led)
	if err != nil {
		return
	}
	command.Term, command.Stamp, command.WallBound = r.led, fsm.Time(at), r.timeline.WallBound()
	b.drawn, b.command = r.part.w.now, command
	r.batch = b
}

// propose appends the batch with the term that the replica leads now, whatever the batch says. What a leader of old
// appends never commits.
func (r *replica) propose() {
	b := r.batch
	r.batch = nil
	if r.leading == 0 || r.leading != r.part.term {
		return
	}
	decoded, err := fsm.DecodeEntry(fsm.AppendEntry(nil, b.command))
	if err != nil {
		r.part.w.judge.breaks(NoPanic, "partition %d: an entry does not decode: %v", r.part.id, err)
		return
	}
	b.term, b.command = r.leading, decoded
	if b.command.Term != b.term {
		r.part.w.counts.Held++
	}
	r.part.log = append(r.part.log, b)
}

// notice tells a leader of old that it is one. Its owner looks at once or later.
func (r *replica) notice() {
	if r.leading == 0 || r == r.part.leader && r.leading == r.part.term {
		return
	}
	r.leading = 0
	if r.part.w.rng.IntN(2) == 0 {
		r.look()
	}
}

// write writes some pieces of a snapshot, if one is under way.
func (r *replica) write(pieces int) {
	for ; r.writing != nil && pieces > 0; pieces-- {
		var more bool
		if r.written, more = r.writing.Next(r.written); !more {
			r.kept, r.keptAt = r.written, r.writingAt
			r.forgetWriting()
		}
	}
}

func (r *replica) forgetWriting() {
	if r.writing != nil {
		r.writing.Release()
	}
	r.writing, r.written = nil, nil
}

// snapshot begins a snapshot.
func (r *replica) snapshot() {
	if r.writing == nil && r.on.asleep <= 0 {
		r.writing, r.writingAt = r.m.BeginSnapshot(), r.applied
		r.part.w.counts.Snapshots++
	}
}

// restart begins the process again, from the last snapshot if there is one, perhaps on another boot.
func (r *replica) restart() {
	w := r.part.w
	r.leading, r.led, r.batch, r.queue, r.orders = 0, 0, nil, nil, nil
	r.forgetWriting()
	r.timeline = w.newTimeline(r.on)
	r.m, r.applied = fsm.New(), 0
	if r.kept != nil {
		r.restore(r.kept, r.keptAt)
	} else {
		r.applyNext() // the birth
	}
	w.counts.Restarts++
}

// restore puts a snapshot of so many entries in the place of the state.
func (r *replica) restore(snapshot []byte, entries int) {
	m, err := fsm.Restore(bytes.NewReader(snapshot))
	if err != nil {
		r.part.w.judge.breaks(NoPanic, "partition %d: a snapshot is not read back: %v", r.part.id, err)
		return
	}
	r.m, r.applied = m, entries
	r.timeline.Restored(int64(m.Now()), m.WallBound())
}

// install sends a replica that is behind the snapshot of another.
func (r *replica) install() {
	from := r.part.replicas[r.part.w.rng.IntN(len(r.part.replicas))]
	if r == r.part.leader || r.leading != 0 || r.on.asleep > 0 || from.applied <= r.applied || from.writing != nil {
		return
	}
	from.snapshot()
	if from.writing == nil {
		return
	}
	from.write(1 << 30)
	r.forgetWriting()
	r.restore(from.kept, from.keptAt)
	r.kept, r.keptAt, r.cut = from.kept, from.keptAt, false
	r.part.w.counts.Installs++
}

// name is for reports.
func (p *part) String() string { return fmt.Sprintf("partition %d", p.id) }
