package rpc

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/quorate/quorate/fsm"
	quoratev1 "github.com/quorate/quorate/proto/quorate/v1"
)

// queuedFrame are the checks of one frame that owners of this node were asked for together. None has a goroutine, a
// context or a timer of its own, until its owner fails to settle it: then it goes on its journey from there.
type queuedFrame struct {
	stream  *checkStream
	ctx     context.Context // the stream's
	arrived time.Time
	checks  []queuedCheck
	giveUp  func(index int, cause error) // set before the checks are open
}

// queuedCheck is one of them.
type queuedCheck struct {
	frame    *queuedFrame
	index    int
	asked    *quoratev1.StreamedCheck
	check    *fsm.Check
	horizon  time.Duration // of replay
	lead     Leadership    // when the owner was asked
	deadline time.Time
	settled  atomic.Bool // its outcome was taken
}

// enqueue has checks that were granted decided by owners of this node, and returns the others, which are to go on their
// journey: those that are led elsewhere, or that nobody is to be asked for.
func (c *checkStream) enqueue(
	ctx context.Context, checks []*quoratev1.StreamedCheck, arrived time.Time,
) (others []*quoratev1.StreamedCheck) {
	if c.desk.queuer == nil {
		return checks
	}
	f := &queuedFrame{stream: c, ctx: ctx, arrived: arrived}
	asked, others, ok := f.choose(checks)
	if !ok {
		return checks
	}
	if len(asked) > 0 {
		f.ask(asked) //nolint:contextcheck // it has the stream's
	}
	return others
}

// choose takes those of checks that owners of this node are to be asked for. ok is false when none is taken, since that
// failed.
func (f *queuedFrame) choose(
	checks []*quoratev1.StreamedCheck,
) (asked []Asked, others []*quoratev1.StreamedCheck, ok bool) {
	d := f.stream.desk
	defer func() {
		if recover() != nil { // each check meets it again on its journey, and is told
			for range f.checks {
				d.leave()
			}
			asked, others, ok = nil, nil, false
		}
	}()
	asked, principals := make([]Asked, 0, len(checks)), make([]string, 0, len(checks))
	sound := make([]*quoratev1.StreamedCheck, 0, len(checks))
	for _, s := range checks {
		timeout, err := timeoutOf(s)
		check, faulty := askedBy(f.stream.id, s.GetCheck())
		if err != nil || faulty != nil {
			others = append(others, s)
			continue
		}
		asked = append(asked, Asked{Check: check, Deadline: f.arrived.Add(timeout)})
		principals, sound = append(principals, check.Principal), append(sound, s)
	}
	horizons := map[string]time.Duration{} // of checks that charge one class
	leads := d.queuer.Leaders(principals)
	f.checks = make([]queuedCheck, 0, len(asked))
	for i, s := range sound {
		at, lead := len(f.checks), leads[i]
		asked[at] = asked[i]
		a := &asked[at]
		horizon, known := horizons[a.Check.Class]
		if !known || len(a.Check.Also) > 0 {
			if horizon = d.horizonOf(&a.Check); len(a.Check.Also) == 0 {
				horizons[a.Check.Class] = horizon
			}
		}
		if !lead.Local || lead.Epoch == 0 || a.Check.RouteEpoch > lead.Epoch || d.enter() != nil {
			others = append(others, s)
			continue
		}
		if a.Check.RouteEpoch == 0 {
			a.Check.RouteEpoch = lead.Epoch
		}
		f.checks = append(f.checks, queuedCheck{frame: f, index: at, asked: s, check: &a.Check, horizon: horizon,
			lead: lead, deadline: a.Deadline})
	}
	return asked[:len(f.checks)], others, true
}

// ask asks the owners.
func (f *queuedFrame) ask(asked []Asked) {
	c := f.stream
	defer func() {
		if p := recover(); p != nil {
			err := caught(f.ctx, c.desk.metrics, c.log, p)
			outcomes := make([]Outcome, len(f.checks))
			for i := range outcomes {
				outcomes[i] = Outcome{Index: i, Err: err}
			}
			f.come(outcomes) // for those that have none
		}
	}()
	f.giveUp = c.desk.queuer.Enqueue(f.ctx, asked, f.come)
	c.mu.Lock()
	for i := range f.checks {
		q := &f.checks[i]
		if _, open := c.open[q.asked.GetSequence()]; open && !q.settled.Load() {
			c.open[q.asked.GetSequence()] = q
			c.alert(q.deadline)
		}
	}
	c.mu.Unlock()
	if err := f.ctx.Err(); err != nil {
		c.abandon(err)
	}
}

// come takes outcomes: decisions are lined up to be sent, and what was not settled goes on its journey.
func (f *queuedFrame) come(outcomes []Outcome) {
	c := f.stream
	answers := make([]lined, 0, len(outcomes))
	var buffer []byte
	for i := range outcomes {
		o := &outcomes[i]
		q := &f.checks[o.Index]
		if !q.settled.CompareAndSwap(false, true) {
			continue
		}
		d, err := f.decisionOf(q, o)
		if err != nil {
			go c.resume(f, q, err)
			continue
		}
		c.desk.leave()
		c.desk.metrics.observe(protocolStream, f.arrived, d, nil)
		from := len(buffer)
		buffer = appendAnswer(buffer, &quoratev1.StreamedAnswer{
			Sequence: q.asked.GetSequence(), Answer: &quoratev1.StreamedAnswer_Decision{Decision: d},
		})
		answers = append(answers, lined{q.asked.GetSequence(), buffer[from:]})
	}
	if len(answers) > 0 {
		c.line(answers, true)
		c.deciding.Add(-len(answers))
	}
}

// decisionOf is the decision that an outcome is, if it is one.
func (f *queuedFrame) decisionOf(q *queuedCheck, o *Outcome) (d *quoratev1.Decision, err error) {
	defer func() {
		if p := recover(); p != nil {
			d, err = nil, caught(f.ctx, f.stream.desk.metrics, f.stream.log, p)
		}
	}()
	if o.Err != nil {
		return nil, o.Err
	}
	return decisionOf(&o.Answer, q.asked.GetCheck().GetDecisionId(), f.stream.desk.wall())
}

// resume has a check that its owner did not settle go on its journey, and lines its answer up.
func (c *checkStream) resume(f *queuedFrame, q *queuedCheck, failed error) {
	defer c.deciding.Done()
	c.put(c.resumed(f, q, failed), true)
}

func (c *checkStream) resumed(f *queuedFrame, q *queuedCheck, failed error) (out *quoratev1.StreamedAnswer) {
	defer func() {
		if p := recover(); p != nil {
			out = refusalTo(q.asked, caught(f.ctx, c.desk.metrics, c.log, p), "")
		}
	}()
	ctx, cancel := context.WithDeadline(f.ctx, q.deadline)
	defer cancel()
	j := c.desk.journeyOf(q.asked.GetCheck(), q.check, q.horizon, f.arrived)
	d, leader, err := c.desk.resumed(ctx, j, failed, q.lead)
	return c.answerTo(ctx, q.asked, f.arrived, d, leader, err)
}

// resumed is routed of a check that has entered the desk, and that this node's owner, as lead had it, did not settle.
func (d *desk) resumed(
	ctx context.Context, j *checkJourney, failed error, lead Leadership,
) (out *quoratev1.Decision, leader string, err error) {
	defer func() { d.metrics.observe(protocolStream, j.started, out, err) }()
	defer d.leave()
	j.number++
	return j.ended(j.resume(ctx, j.attempt, failed, lead))
}

// alert has the alarm go off at a deadline at the latest. It needs mu.
func (c *checkStream) alert(deadline time.Time) {
	if !c.due.IsZero() && !deadline.Before(c.due) {
		return
	}
	c.due = deadline
	if c.alarm == nil {
		c.alarm = time.AfterFunc(time.Until(deadline), c.expire)
	} else {
		c.alarm.Reset(time.Until(deadline))
	}
}

// expire ends the wait for the queued checks whose deadlines have passed, and sets the alarm for the others.
func (c *checkStream) expire() {
	now := time.Now()
	c.mu.Lock()
	c.due = time.Time{}
	late := c.queued(func(q *queuedCheck) bool {
		if now.Before(q.deadline) {
			c.alert(q.deadline)
			return false
		}
		return true
	})
	c.mu.Unlock()
	giveUp(late, context.DeadlineExceeded)
}

// abandon ends the wait for all queued checks, since the stream has ended.
func (c *checkStream) abandon(cause error) {
	c.mu.Lock()
	if c.alarm != nil {
		c.alarm.Stop()
	}
	all := c.queued(func(*queuedCheck) bool { return true })
	c.mu.Unlock()
	giveUp(all, cause)
}

// queued are those of the checks that owners of this node were asked for, and have not settled, for which which is
// true. It needs mu.
func (c *checkStream) queued(which func(*queuedCheck) bool) (out []*queuedCheck) {
	for _, q := range c.open {
		if q != nil && !q.settled.Load() && which(q) {
			out = append(out, q)
		}
	}
	return out
}

// giveUp ends the wait for queued checks: they get their outcomes now.
func giveUp(checks []*queuedCheck, cause error) {
	for _, q := range checks {
		q.frame.giveUp(q.index, cause)
	}
}
