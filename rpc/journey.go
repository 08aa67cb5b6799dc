package rpc

import (
	"context"
	"errors"
	"time"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/internal/errtable"
	quoratev1 "github.com/quorate/quorate/proto/quorate/v1"
	"github.com/quorate/quorate/quotaerr"
)

// behindPatience bounds the wait for a map in which a slot has the epoch that a caller names.
const behindPatience = time.Second

// maxMovePause bounds the pause before a slot's new owner is asked again.
const maxMovePause = 40 * time.Millisecond

// target is where one attempt goes.
type target struct {
	local  bool
	node   string // where it is not local
	client quoratev1.PeerClient
	epoch  fsm.Epoch
}

// journey is one check or peek on its way to an answer: attempts until one settles it.
type journey struct {
	desk      *desk
	principal string
	fillEpoch bool      // the caller left the routing to this node
	epoch     fsm.Epoch // that the caller has routed by, if it has
	harmless  bool      // nothing can be consumed, so an unknown fate is no matter
	started   time.Time
	// retryWithin is how long after the first attempt with an unknown fate may another one start.
	retryWithin time.Duration

	unknown *quotaerr.Error // of the first attempt whose fate is unknown
	moving  *quotaerr.Error // of the last attempt that met a move of the slot, if none has met anything else since
	hint    string          // the node that an attempt said leads
	pause   pause
}

// run makes attempts until one is settled, or waiting is no use any more.
func (j *journey) run(ctx context.Context, attempt func(context.Context, target) error) error {
	if err := j.desk.enter(); err != nil {
		return err
	}
	defer j.desk.leave()
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, DefaultTimeout)
		defer cancel()
	}
	patience, stop := patienceOf(ctx)
	defer stop()
	return j.travel(ctx, patience, attempt, nil, Leadership{})
}

// resume is run for a call that has entered the desk, and whose first attempt was made already: at this node, as lead
// had it, and failed. ctx has a deadline.
func (j *journey) resume(
	ctx context.Context, attempt func(context.Context, target) error, failed error, lead Leadership,
) error {
	patience, stop := patienceSince(ctx, j.started)
	defer stop()
	last := quotaerr.As(failed)
	j.doubt(last)
	return j.travel(ctx, patience, attempt, last, lead)
}

// travel makes attempts until one is settled, or waiting is no use any more. last is the failure of one that was made
// before, as lead had it, nil without.
func (j *journey) travel(
	ctx, patience context.Context, attempt func(context.Context, target) error, last *quotaerr.Error, lead Leadership,
) error {
	for {
		if last == nil {
			// Asked before the attempt, so that a change during it is not missed.
			lead = j.desk.backend.Leader(j.principal)
			last = j.once(ctx, lead, attempt)
		}
		if last == nil {
			return nil
		}
		j.note(last, patience.Err() != nil)
		if j.settled(last, lead) || !j.rest(patience, last, lead) {
			return j.final(last)
		}
		last = nil
	}
}

// doubt keeps the first failure that leaves open what became of an attempt.
func (j *journey) doubt(e *quotaerr.Error) {
	if e != nil && e.Reason == quotaerr.OutcomeUnknown && j.unknown == nil && !j.harmless {
		j.unknown = e
	}
}

// ofMove reports that an attempt met a move of the slot, which is over in a moment.
func ofMove(e *quotaerr.Error) bool {
	return e.Reason == quotaerr.Frozen || e.Reason == quotaerr.WrongEpoch
}

// note keeps that a move is what the call waits for, until an attempt meets something else. late: the caller's time
// was over when the attempt ended, so that a no_quorum says no more than that.
func (j *journey) note(last *quotaerr.Error, late bool) {
	switch {
	case ofMove(last):
		j.moving = last
	case last.Reason == quotaerr.NotLeader, late && last.Reason == quotaerr.NoQuorum:
	default:
		j.moving = nil
	}
}

// rest pauses before the next attempt; where the slot is being moved, no longer than until another owns it.
func (j *journey) rest(patience context.Context, last *quotaerr.Error, lead Leadership) bool {
	if !ofMove(last) {
		return j.pause.wait(patience, j.hint != "", lead.Changed, nil)
	}
	_, moved := j.desk.backend.Config()
	switch {
	case j.desk.backend.Leader(j.principal).Epoch != lead.Epoch:
		j.pause = 0 // it has been moved meanwhile
	case last.Reason == quotaerr.WrongEpoch:
		j.pause = min(j.pause, pause(maxMovePause/2)) // the new owner is about to begin, and nothing tells of it
	}
	return j.pause.wait(patience, false, lead.Changed, moved)
}

// once makes one attempt and returns nil when it got an answer.
func (j *journey) once(
	ctx context.Context, lead Leadership, attempt func(context.Context, target) error,
) *quotaerr.Error {
	if ctx.Err() != nil {
		return quotaerr.New(quotaerr.NoQuorum, "the deadline passed before a leader was found")
	}
	if j.unknown != nil {
		if time.Since(j.started) >= j.retryWithin {
			return j.unknown // it became too late while waiting
		}
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadline(ctx, j.started.Add(j.retryWithin))
		defer cancel()
	}
	if e := j.ahead(lead); e != nil {
		return e
	}
	to, err := j.aim(lead)
	if err != nil {
		return quotaerr.As(err)
	}
	if to.local {
		err = attempt(ctx, to)
	} else {
		leader := func() string { return j.desk.backend.Leader(j.principal).Node }
		following, stop := whileLeading(ctx, lead.Node, to.node, leader)
		err = j.forward(following, to, attempt)
		stop()
	}
	e := quotaerr.As(err)
	j.doubt(e)
	return e
}

// ahead is what a caller is told whose epoch this node's map does not have yet: no owner is asked, since none would
// decide.
func (j *journey) ahead(lead Leadership) *quotaerr.Error {
	if j.fillEpoch || lead.Epoch == 0 || j.epoch <= lead.Epoch {
		return nil
	}
	e := quotaerr.New(quotaerr.WrongEpoch, "the principal's slot is owned under epoch %d, as far as node %s knows: "+
		"ask another node, or refresh, with the same decision id", lead.Epoch, j.desk.node)
	e.Epoch = uint64(lead.Epoch)
	return e
}

// aim chooses where the next attempt goes: to the node that the last one named, else to the leader.
func (j *journey) aim(lead Leadership) (target, error) {
	to := target{epoch: lead.Epoch}
	node := lead.Node
	local := lead.Local
	if j.hint != "" {
		node, local = j.hint, j.hint == j.desk.node
		j.hint = ""
	}
	if node == "" && !local {
		if waits := j.desk.backend.Waiting(); waits != "" {
			return to, quotaerr.New(quotaerr.NoQuorum, "this node has no part in the cluster yet: %s", waits)
		}
	}
	if j.fillEpoch && lead.Epoch == 0 {
		return to, quotaerr.New(quotaerr.NoQuorum, "no partition is known to own this principal's slot")
	}
	if local {
		to.local = true
		return to, nil
	}
	if node == "" {
		return to, quotaerr.New(quotaerr.NoQuorum,
			"the principal's partition has no leader at present: retry with the same decision id")
	}
	to.node = node
	var err error
	to.client, err = j.desk.peer(node)
	return to, err
}

// forward makes an attempt at another node and tells what its failure means.
func (j *journey) forward(
	ctx context.Context, to target, attempt func(context.Context, target) error,
) error {
	ctx, sent := watchSent(ctx)
	err := attempt(ctx, to)
	if err == nil {
		j.desk.metrics.forwards.WithLabelValues("answered").Inc()
		return nil
	}
	e := errtable.FromStatus(err)
	if e.Reason == quotaerr.OutcomeUnknown && !sent() {
		e = quotaerr.Wrap(quotaerr.NoQuorum, err, "the partition's leader cannot be reached")
	}
	j.desk.metrics.forwards.WithLabelValues(string(e.Reason)).Inc()
	switch e.Reason {
	case quotaerr.NotLeader:
		j.hint = e.Leader
		j.desk.backend.Learn(j.principal, to.node, e)
	case quotaerr.WrongEpoch:
		j.desk.backend.Learn(j.principal, to.node, e)
	default:
	}
	return e
}

// settled reports whether another attempt is of no use; lead is whom the last one was for.
func (j *journey) settled(e *quotaerr.Error, lead Leadership) bool {
	switch e.Reason {
	case quotaerr.NotLeader, quotaerr.NoQuorum, quotaerr.OutcomeUnknown, quotaerr.Frozen:
	case quotaerr.WrongEpoch:
		// A caller that has routed itself has an older map, and has to get the newer one; unless it is the owner that
		// is behind the map, which a moved slot's is for a moment, or this node, for about as long.
		if !j.fillEpoch && (j.epoch < lead.Epoch || uint64(j.epoch) < e.Epoch) ||
			j.ahead(lead) != nil && time.Since(j.started) >= behindPatience {
			return true
		}
	default:
		return true
	}
	return j.unknown != nil && time.Since(j.started) >= j.retryWithin
}

// final is what the caller is told after the last attempt: once an attempt's fate is unknown, a later
// refusal does not say that nothing was consumed.
func (j *journey) final(last *quotaerr.Error) error {
	if last.Reason == quotaerr.NoQuorum && j.moving != nil {
		last = j.moving // a planned move is nothing that a failure mode is for
	}
	if j.unknown == nil || last.Reason == quotaerr.DecisionIDConflict {
		return last
	}
	return quotaerr.Wrap(quotaerr.OutcomeUnknown, errors.Join(j.unknown, last),
		"an attempt may have been counted: retry with the same decision id")
}
