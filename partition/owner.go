package partition

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quorate/quorate/clock"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/internal/guard"
	"github.com/quorate/quorate/partition/group"
	"github.com/quorate/quorate/quotaerr"
)

const (
	// maxInFlight bounds the entries on their way through the log. Two keep the disks busy while one
	// entry's answers are handed out; more only add to the wait.
	maxInFlight = 2
	// tickInterval is how long a partition with live state goes without an entry.
	tickInterval = 2 * time.Second
	// clearInterval is how long one goes without an entry that has not cleared up yet after a plan: each entry clears
	// some of it.
	clearInterval = 50 * time.Millisecond
	// stalledAfter is how long an entry may be on its way before those who give up waiting behind it
	// are told that there is no quorum.
	stalledAfter = 500 * time.Millisecond
	// handOverEvery bounds how often leadership is handed over because the disk is low.
	handOverEvery = 5 * time.Second
)

// owner decides on behalf of the partition while this node leads it: it commits whatever queued while
// the entries before were on their way, and answers when they have been applied. Only its own
// goroutine stamps and proposes, so an entry's stamp is drawn after the entry is closed, and entries
// reach the log in the order of their stamps.
type owner struct {
	group    group.Group
	replica  *Replica
	timeline *clock.Timeline
	source   clock.Source
	queue    *queue
	orders   chan *order
	birth    func() (*fsm.Birth, error)
	logger   *slog.Logger
	metrics  *metrics
	interval time.Duration // tickInterval

	slots    chan struct{} // one per entry in flight
	foreseer *foreseer
	inFlight *InFlight // of all partitions that the node leads; nil: no bound
	waiters  sync.WaitGroup
	started  time.Time
	progress atomic.Int64  // nanoseconds from started to when an entry last left or came through
	decided  atomic.Int64  // checks that were answered
	proposed time.Time     // of the last entry
	early    int64         // a stamp that was drawn too early; 0 with guard.StampAfterClose
	term     atomic.Uint64 // that the timeline leads; 0 none; set by run's goroutine only
	roles    *roles
	buffer   []byte
	ended    chan struct{} // closed when run has ended

	lease       func() PolicyLease
	held        atomic.Pointer[PolicyLease] // the last one that the partition's revision was new enough for
	unpermitted atomic.Bool                 // permitted was an error when it was asked last, for want of a lease
	disowned    atomic.Bool                 // it was one since the partition owns nothing
	notYet      atomic.Bool                 // there was nothing to be born with yet

	halted     func() error // why no answers are given; nil while they are
	diskLow    func() bool
	handedOver time.Time // when it last did so because the disk is low
	level      fsm.Level // the highest that this program knows
	peerLevels func() (lowest fsm.Level, all bool)
	withRoom   func() (node string, ok bool)
}

// run serves until ctx ends, and then answers everything that still waits.
func (o *owner) run(ctx context.Context) {
	defer close(o.ended)
	defer o.waiters.Wait()
	defer o.queue.close(errStopping())
	tick := time.NewTicker(o.interval / 4)
	defer tick.Stop()
	for {
		ready := o.lead()
		filled, orders := o.queue.filled, o.orders
		if !ready && o.group.Leadership().Term != 0 {
			filled, orders = nil, nil // what waits is for when this node may stamp
		}
		select {
		case <-ctx.Done():
			return
		case <-o.group.Changed():
			o.roles.announce()
		case <-tick.C:
			every := o.interval / 4
			if ready {
				o.raise(ctx)
				o.makeWay()
				_ = o.permitted() // notes the lease, also while there is nothing to stamp
				wants, clearing := o.wantsTick()
				if wants {
					o.tick()
				}
				if clearing {
					every = min(every, clearInterval)
				}
			}
			tick.Reset(every)
		case <-filled:
			if ready {
				o.commit(ctx)
			} // else it came just after the leadership ended, and lead answers it
		case r := <-orders:
			o.carryOut(ctx, r, ready)
		}
	}
}

// lead follows the group's leadership: it begins a new one, or answers what waits when it is lost. It
// reports whether this node may stamp.
func (o *owner) lead() bool {
	l := o.group.Leadership()
	if term := o.term.Load(); l.Term != term || l.Term == 0 {
		if term != 0 {
			o.timeline.Resign()
			o.term.Store(0)
			o.logger.Info("leadership ended")
		}
		if l.Term == 0 {
			o.queue.fail(o.notLeader())
			return false
		}
	}
	if !l.Ready {
		return false
	}
	if o.term.Load() == 0 {
		o.timeline.Lead(l.Term)
		o.term.Store(l.Term)
		o.queue.signal() // for what waited since before it was ready
		o.logger.Info("leadership began", "term", l.Term)
	}
	return o.bear()
}

// bear makes the partition, once, by its first leader.
func (o *owner) bear() bool {
	if o.born() {
		o.notYet.Store(false)
		return true
	}
	birth, err := o.birth()
	o.notYet.Store(errors.Is(err, ErrNotYet))
	switch {
	case o.notYet.Load():
		o.queue.fail(errNotYet())
		return false
	case err != nil:
		o.logger.Error("the partition cannot be made", "error", err)
		return false
	}
	p, err := o.send(&fsm.Entry{Kind: fsm.KindBirth, Birth: birth})
	if err != nil {
		return false
	}
	<-p.Done()
	if _, err := p.Result(); err != nil {
		o.logger.Warn("the partition was not made yet", "error", err)
	}
	if !o.born() {
		return false
	}
	o.logger.Info("the partition was made")
	return true
}

func (o *owner) born() (born bool) {
	o.replica.view(func(m *fsm.Machine, _ uint64) { born = m.Born() })
	return born
}

// wantsTick reports whether time should be written into the log: there is something that time ends, or that entries
// clear up, and none has carried it for a while. clearing says that it is the latter.
func (o *owner) wantsTick() (wants, clearing bool) {
	idle, after := true, o.interval
	o.replica.view(func(m *fsm.Machine, _ uint64) { idle, clearing = m.Idle(), m.Clearing() })
	if clearing {
		after = min(after, clearInterval)
	}
	wants = !idle && time.Since(o.proposed) >= after && o.queue.len() == 0 && len(o.slots) == 0
	return wants, clearing
}

// raise puts the feature level up by one when every replica's program knows the next.
func (o *owner) raise(ctx context.Context) {
	var now fsm.Level
	o.replica.view(func(m *fsm.Machine, _ uint64) { now = m.Level() })
	if now >= o.level {
		return
	}
	if lowest, all := o.peerLevels(); !all || lowest <= now {
		return
	}
	select {
	case o.slots <- struct{}{}:
	case <-ctx.Done():
		return
	}
	p, err := o.send(&fsm.Entry{Kind: fsm.KindRaise, Level: now + 1})
	if err != nil {
		<-o.slots
		return
	}
	o.waiters.Go(func() {
		<-p.Done()
		<-o.slots
		if _, err := p.Result(); err != nil {
			o.logger.Warn("the feature level was not raised yet", "level", now+1, "error", err)
			return
		}
		o.logger.Info("the feature level was raised", "level", now+1)
	})
}

// makeWay hands leadership over while the disk is low and another node's is not.
func (o *owner) makeWay() {
	if !o.diskLow() || !o.handedOver.IsZero() && time.Since(o.handedOver) < handOverEvery {
		return
	}
	node, ok := o.withRoom()
	if !ok {
		return
	}
	o.handedOver = time.Now()
	o.logger.Warn("the disk has too little room left: handing leadership over", "to", node)
	o.waiters.Go(func() {
		if err := o.group.Transfer(node); err != nil && !errors.Is(err, group.ErrNotLeader) {
			o.logger.Warn("leadership was not handed over", "error", err)
		}
	})
}

// commit waits for a place in flight, closes a batch and sends it on its way.
func (o *owner) commit(ctx context.Context) {
	if !guard.On(guard.StampAfterClose) {
		o.early, _ = o.timeline.Stamp(o.term.Load())
	}
	select {
	case o.slots <- struct{}{}:
	case <-ctx.Done():
		return
	}
	place, ok := o.inFlight.take(ctx)
	if !ok {
		<-o.slots
		return
	}
	if !o.lead() {
		o.leave(place)
		o.queue.signal() // what still waits is for the next leadership
		return
	}
	if batch := o.queue.pop(); len(batch) > 0 {
		o.propose(batch, place)
	} else {
		o.leave(place)
	}
}

// leave ends an entry's time in flight.
func (o *owner) leave(p *place) {
	<-o.slots
	p.giveBack()
}

// tick writes time into the log, unless an entry is on its way and does so.
func (o *owner) tick() {
	select {
	case o.slots <- struct{}{}:
		o.propose(nil, nil)
	default:
	}
}

// propose stamps a closed batch and hands it to the log. The caller has taken a place in flight, also among the
// entries of the node if it is one that waits for that.
func (o *owner) propose(batch []*request, place *place) {
	e := entryOf(batch)
	if len(o.slots) == 1 {
		o.progressed()
	}
	sent := time.Now()
	if err := o.stamp(e); err != nil {
		o.leave(place)
		answer(batch, outcome{err: o.notLeader()})
		return
	}
	if len(e.Checks) > 0 {
		if err := o.permitted(); err != nil {
			e.Checks, batch = nil, refuseChecks(batch, err)
			if len(batch) == 0 {
				o.leave(place)
				return
			}
		}
	}
	checks := int64(len(e.Checks))
	o.foresee(batch, e)
	landed := o.foreseer.depart(e.Checks)
	p := o.put(e)
	if !guard.On(guard.AnswerAfterCommit) {
		batch = o.answerEarly(batch, e)
	}
	o.waiters.Go(func() {
		<-p.Done()
		o.progressed()
		landed()
		o.leave(place)
		o.metrics.committed(len(batch), time.Since(sent))
		o.decided.Add(checks)
		o.distribute(batch, p)
	})
}

// entryOf is the entry of a batch, its stamp still to be drawn.
func entryOf(batch []*request) *fsm.Entry {
	e := &fsm.Entry{Kind: fsm.KindBatch, Checks: make([]fsm.Check, 0, len(batch))}
	for _, r := range batch {
		if r.check != nil {
			e.Checks = append(e.Checks, *r.check)
		} else {
			e.Peeks = append(e.Peeks, *r.peek)
		}
	}
	return e
}

func (o *owner) progressed() { o.progress.Store(int64(time.Since(o.started))) }

// stalled reports that entries are on their way, and none has come through for a while.
func (o *owner) stalled() bool {
	return len(o.slots) > 0 && time.Since(o.started)-time.Duration(o.progress.Load()) > stalledAfter
}

// send stamps an entry and hands it to the log. An error is a definite no.
func (o *owner) send(e *fsm.Entry) (group.Proposal, error) {
	if err := o.stamp(e); err != nil {
		return nil, err
	}
	return o.put(e), nil
}

// stamp draws the stamp of an entry that is to be put next. From here until it is put is one critical section,
// since only the owner's goroutine is ever here.
func (o *owner) stamp(e *fsm.Entry) error {
	term := o.term.Load()
	stamp, err := o.timeline.Stamp(term)
	if err != nil {
		return err
	}
	if !guard.On(guard.StampAfterClose) && o.early != 0 {
		stamp, o.early = o.early, 0
	}
	e.Term, e.Stamp, e.WallBound = term, fsm.Time(stamp), o.timeline.WallBound()
	return nil
}

// put encodes a stamped entry and proposes it.
func (o *owner) put(e *fsm.Entry) group.Proposal {
	e.Basis = o.replica.basis()
	o.buffer = fsm.AppendEntry(o.buffer[:0], e)
	o.proposed = time.Now()
	return o.group.Propose(append([]byte(nil), o.buffer...))
}

// distribute hands out what an entry came to.
func (o *owner) distribute(batch []*request, p group.Proposal) {
	answers, err := o.resultOf(p)
	if err != nil {
		o.answerNone(batch, err)
		return
	}
	o.answerEach(batch, answers)
}

// answerNone answers a batch whose entry has no outcome. What was foreseen has surely consumed nothing.
func (o *owner) answerNone(batch []*request, err error) {
	handOut(batch, func(r *request) outcome {
		if r.foreseen != nil {
			return outcome{err: o.notLeader()}
		}
		return outcome{err: err}
	})
}

func (o *owner) answerEach(batch []*request, answers *fsm.Answers) {
	checks, peeks := 0, 0
	handOut(batch, func(r *request) (out outcome) {
		switch {
		case r.foreseen != nil:
			out.decision = r.foreseen
		case r.check != nil:
			out.decision = &answers.Decisions[checks]
			o.foreseer.learn(r.check, out.decision)
			checks++
		default:
			out.usage = &answers.Usages[peeks]
			peeks++
		}
		return out
	})
}

func answer(batch []*request, to outcome) {
	handOut(batch, func(*request) outcome { return to })
}

// handOut gives each request its outcome, to those that were queued together in one go. of is asked in order.
func handOut(batch []*request, of func(r *request) outcome) {
	for len(batch) > 0 {
		first, n := batch[0], 1
		if first.several == nil {
			first.done <- of(first)
		} else {
			for n < len(batch) && batch[n].several == first.several {
				n++
			}
			first.several.take(batch[:n], of)
		}
		batch = batch[n:]
	}
}

// notLeader is the refusal of a node that does not lead, with the leader that it knows of.
func (o *owner) notLeader() error {
	leader, ok := o.group.Leader()
	if !ok {
		return quotaerr.New(quotaerr.NoQuorum, "the partition has no leader at present: retry with the same decision id")
	}
	e := quotaerr.New(quotaerr.NotLeader, "node %s leads the partition: ask it", leader.ID)
	e.Leader = leader.ID
	return e
}

// ask queues r and waits for its outcome, for as long as the caller does.
func (o *owner) ask(r *request) outcome {
	if err := r.ctx.Err(); err != nil {
		return outcome{err: o.gaveUp(err)}
	}
	if err := o.accepts(r.check != nil); err != nil {
		return outcome{err: err}
	}
	if err := o.queue.push(r); err != nil {
		return outcome{err: err}
	}
	select {
	case out := <-r.done:
		return out
	case <-r.ctx.Done():
	}
	if r.take() {
		return outcome{err: o.gaveUp(r.ctx.Err())}
	}
	select {
	case out := <-r.done: // it came at the same moment
		return out
	default:
		return outcome{err: lost(r.ctx.Err())}
	}
}

// accepts is why nothing can be queued now; nil when it can.
func (o *owner) accepts(check bool) error {
	if err := o.silent(); err != nil {
		return err
	}
	if check && o.diskLow() {
		return quotaerr.New(quotaerr.Capacity, "the leader's disk has too little room left: back off")
	}
	if check && (o.unpermitted.Load() || o.disowned.Load()) {
		return o.permitted()
	}
	return nil
}

// lost is the answer to a caller whose deadline passed after its check was proposed.
func lost(cause error) error {
	return quotaerr.Wrap(quotaerr.OutcomeUnknown, cause,
		"the deadline passed while the check was being committed: retry with the same decision id")
}

// silent is why this node gives no answers of the partition; nil when it does.
func (o *owner) silent() error {
	if err := o.halted(); err != nil {
		return quotaerr.New(quotaerr.NoQuorum, "this replica gives no answers: %v", err)
	}
	if o.group.Leadership().Term == 0 {
		return o.notLeader()
	}
	if o.notYet.Load() {
		return errNotYet()
	}
	return nil
}

func errNotYet() error {
	return quotaerr.New(quotaerr.PolicyLeaseExpired,
		"the partition has not been made, since the cluster has no policy yet: apply one")
}

// gaveUp is the answer to a caller whose deadline passed before its check was proposed: nothing was
// consumed, and nothing will be.
func (o *owner) gaveUp(cause error) error {
	if o.stalled() || !o.group.Leadership().Ready {
		return quotaerr.Wrap(quotaerr.NoQuorum, cause, "no majority of replicas answers: nothing was consumed")
	}
	return quotaerr.Wrap(quotaerr.Overloaded, cause,
		"the deadline passed before the check was proposed: nothing was consumed")
}
