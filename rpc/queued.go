package rpc

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/quorate/quorate/fsm"
	quoratev1 "github.com/quorate/quorate/proto/quorate/v1"
	"github.com/quorate/quorate/quotaerr"
)

// queuedFrame are the checks of one frame that owners of this node were asked for together. None has a goroutine, a
// context or a timer of its own, until its owner fails to settle it: then it goes on its journey from there.
type queuedFrame struct {
	stream  *checkStream
	ctx     context.Context // the stream's
	arrived time.Time
	due     time.Time                    // the first of the checks' deadlines
	giveUp  func(index int, cause error) // set before the frame is among the stream's

	// These have an entry for each check.
	checks  []framedCheck
	asked   []Asked
	leads   []Leadership  // when the owner was asked
	settled []atomic.Bool // its outcome was taken

	open int // how many are not settled; guarded by the stream's mu
}

// enqueue has checks that were granted decided by owners of this node, and returns the others, which are to go on their
// journey: those that are led elsewhere, or that nobody is to be asked for. What it gets is its own from now on.
func (c *checkStream) enqueue(
	ctx context.Context, checks []framedCheck, asked []Asked, arrived time.Time,
) (others []framedCheck) {
	if c.desk.queuer == nil {
		return checks
	}
	f := &queuedFrame{stream: c, ctx: ctx, arrived: arrived, checks: checks, asked: asked}
	others = f.choose()
	if len(f.checks) > 0 {
		f.ask() //nolint:contextcheck // it has the stream's
	}
	return others
}

// choose keeps the checks that owners of this node are to be asked for, and returns the others. If that fails it keeps
// none: each meets the failure again on its journey, and is told.
func (f *queuedFrame) choose() (others []framedCheck) {
	others = f.keep(nil, f.isSound)
	defer func() {
		if recover() != nil {
			others, f.checks = append(others, f.checks...), nil
		}
	}()
	d := f.stream.desk
	f.leads = d.queuer.Leaders(f.asked)
	f.findHorizons()
	others = f.keep(others, f.isLedHere)
	room := d.enterSeveral(len(f.checks))
	others = f.keep(others, func(i int) bool { return i < room })
	for i := range f.asked {
		a := &f.asked[i]
		if a.Check.RouteEpoch == 0 {
			a.Check.RouteEpoch = f.leads[i].Epoch
		}
		if i == 0 || a.Deadline.Before(f.due) {
			f.due = a.Deadline
		}
	}
	return others
}

// keep leaves the checks for which which is true, and adds the others to others.
func (f *queuedFrame) keep(others []framedCheck, which func(i int) bool) []framedCheck {
	kept := 0
	for i := range f.checks {
		if !which(i) {
			others = append(others, f.checks[i])
			continue
		}
		if kept < i {
			f.checks[kept], f.asked[kept] = f.checks[i], f.asked[i]
			if f.leads != nil {
				f.leads[kept] = f.leads[i]
			}
		}
		kept++
	}
	f.checks, f.asked = f.checks[:kept], f.asked[:kept]
	return others
}

// isSound completes a check, and reports whether it is well-formed and the caller may ask it.
func (f *queuedFrame) isSound(i int) bool {
	timeout, err := f.checks[i].timeout()
	if err != nil || f.checks[i].missing {
		return false
	}
	a, id := &f.asked[i], &f.stream.id
	a.Check.Gateway, a.Deadline, a.First = id.Name, f.arrived.Add(timeout), f.checks[i].attempt <= 1
	return fsm.ValidateCheck(&a.Check) == nil && id.mayAskAll(&a.Check) == nil
}

// isLedHere reports whether this node leads the partition of a check, under its epoch.
func (f *queuedFrame) isLedHere(i int) bool {
	lead := &f.leads[i]
	return lead.Local && lead.Epoch != 0 && f.asked[i].Check.RouteEpoch <= lead.Epoch
}

// findHorizons finds the replay horizons of the checks, once for those that charge one class only.
func (f *queuedFrame) findHorizons() {
	of := map[string]time.Duration{}
	last := -1 // the last that charges one class only: mostly the next one charges the same
	for i := range f.checks {
		c, horizon := &f.asked[i].Check, &f.checks[i].horizon
		if len(c.Also) > 0 {
			*horizon = f.stream.desk.horizonOf(c)
			continue
		}
		if last >= 0 && c.Class == f.asked[last].Check.Class {
			*horizon = f.checks[last].horizon
			continue
		}
		found, known := of[c.Class]
		if !known {
			found = f.stream.desk.horizonOf(c)
			of[c.Class] = found
		}
		*horizon, last = found, i
	}
}

// ask asks the owners.
func (f *queuedFrame) ask() {
	c := f.stream
	f.settled, f.open = make([]atomic.Bool, len(f.checks)), len(f.checks)
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
	f.giveUp = c.desk.queuer.Enqueue(f.ctx, f.asked, f.come)
	c.mu.Lock()
	if f.open > 0 {
		c.queued[f] = struct{}{}
		c.alert(f.due)
	}
	c.mu.Unlock()
	if err := f.ctx.Err(); err != nil {
		c.abandon(err)
	}
}

// come takes outcomes: decisions are lined up to be sent, and what was not settled goes on its journey.
func (f *queuedFrame) come(outcomes []Outcome) {
	c := f.stream
	t := tally{took: time.Since(f.arrived), wall: c.desk.wall()}
	c.mu.Lock()
	for len(outcomes) > 0 {
		outcomes = f.line(outcomes, &t)
	}
	if f.open == 0 {
		delete(c.queued, f)
	}
	c.desk.leaveSeveral(t.decided)
	t.count(c.desk.metrics)
	c.mu.Unlock()
	if t.decided > 0 {
		signal(c.wake)
		c.deciding.Add(-t.decided)
	}
	for _, u := range t.unsettled {
		go c.resume(f, u.index, u.err)
	}
}

// tally is what outcomes that come together amount to.
type tally struct {
	took      time.Duration // since the checks' arrival
	wall      time.Time
	decided   int
	reasons   [fsm.ReasonEndpointDisabled + 1]int // how often each decision came
	unsettled []unsettled
}

// unsettled is a check that its owner has not settled, since err.
type unsettled struct {
	index int
	err   error
}

// line takes outcomes and lines up the decisions among them. It returns those that it has not come to, because of a
// panic. It needs mu.
func (f *queuedFrame) line(outcomes []Outcome, t *tally) (rest []Outcome) {
	c, at := f.stream, 0
	defer func() {
		if p := recover(); p != nil {
			t.unsettled = append(t.unsettled, unsettled{outcomes[at].Index, caught(f.ctx, c.desk.metrics, c.log, p)})
			rest = outcomes[at+1:]
		}
	}()
	for ; at < len(outcomes); at++ {
		o := &outcomes[at]
		if !f.settled[o.Index].CompareAndSwap(false, true) {
			continue
		}
		f.open--
		if err := o.failure(); err != nil {
			t.unsettled = append(t.unsettled, unsettled{o.Index, err})
			continue
		}
		sequence, id := f.checks[o.Index].sequence, f.asked[o.Index].Check.DecisionID
		c.line(sequence, true, len(outcomes)-at, func(to []byte) []byte {
			return appendDecided(to, sequence, o.Answer, id, t.wall)
		})
		t.decided++
		t.reasons[o.Answer.Reason]++
	}
	return nil
}

// failure is why an outcome is no decision; nil where it is one.
func (o *Outcome) failure() error {
	switch {
	case o.Err != nil:
		return o.Err
	case o.Answer == nil:
		return quotaerr.New(quotaerr.Internal, "the owner has neither answered nor failed")
	case o.Answer.Reason == fsm.ReasonAllowed || o.Answer.Reason.Denied():
		return nil
	default:
		return refusal(o.Answer.Reason, o.Answer.Detail, o.Answer.Epoch)
	}
}

// count counts the decisions, and how long after their arrival they came.
func (t *tally) count(m *metrics) {
	if t.decided == 0 {
		return
	}
	seconds := m.seconds.WithLabelValues(protocolStream)
	for range t.decided {
		seconds.Observe(t.took.Seconds())
	}
	for reason, n := range t.reasons {
		if n > 0 {
			m.decisions.WithLabelValues(outcomeOf(fsm.Reason(reason)), string(publicReason(fsm.Reason(reason)))).Add(float64(n))
		}
	}
}

// resume has a check that its owner did not settle go on its journey, and lines its answer up.
func (c *checkStream) resume(f *queuedFrame, index int, failed error) {
	defer c.deciding.Done()
	c.put(c.resumed(f, index, failed), true)
}

func (c *checkStream) resumed(f *queuedFrame, index int, failed error) (out *quoratev1.StreamedAnswer) {
	s, asked := &f.checks[index], &f.asked[index]
	defer func() {
		if p := recover(); p != nil {
			out = refusalTo(s.sequence, caught(f.ctx, c.desk.metrics, c.log, p), "")
		}
	}()
	ctx, cancel := context.WithDeadline(f.ctx, asked.Deadline)
	defer cancel()
	req, err := s.request()
	if err != nil {
		c.desk.leave()
		return c.refuse(ctx, s.sequence, f.arrived, err)
	}
	j := c.desk.journeyOf(req, &asked.Check, s.horizon, f.arrived)
	d, leader, err := c.desk.resumed(ctx, j, failed, f.leads[index])
	return c.answerTo(ctx, s.sequence, f.arrived, d, leader, err)
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

// late is a queued check that is waited for no longer.
type late struct {
	frame *queuedFrame
	index int
}

// expire ends the wait for the queued checks whose deadlines have passed, and sets the alarm for the others.
func (c *checkStream) expire() {
	now := time.Now()
	c.mu.Lock()
	c.due = time.Time{}
	over := c.unsettled(func(deadline time.Time) bool {
		if now.Before(deadline) {
			c.alert(deadline)
			return false
		}
		return true
	})
	c.mu.Unlock()
	giveUp(over, context.DeadlineExceeded)
}

// abandon ends the wait for all queued checks, since the stream has ended.
func (c *checkStream) abandon(cause error) {
	c.mu.Lock()
	if c.alarm != nil {
		c.alarm.Stop()
	}
	all := c.unsettled(func(time.Time) bool { return true })
	c.mu.Unlock()
	giveUp(all, cause)
}

// unsettled are those of the queued checks without an outcome for whose deadline which is true. It needs mu.
func (c *checkStream) unsettled(which func(deadline time.Time) bool) (out []late) {
	for f := range c.queued {
		for i := range f.settled {
			if !f.settled[i].Load() && which(f.asked[i].Deadline) {
				out = append(out, late{f, i})
			}
		}
	}
	return out
}

// giveUp ends the wait for queued checks: they get their outcomes now.
func giveUp(checks []late, cause error) {
	for _, l := range checks {
		l.frame.giveUp(l.index, cause)
	}
}
