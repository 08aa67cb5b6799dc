package sdk

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/quorate/quorate/internal/errtable"
	quoratev1 "github.com/quorate/quorate/proto/quorate/v1"
	"github.com/quorate/quorate/quotaerr"
	"github.com/quorate/quorate/router"
	"github.com/quorate/quorate/sdk/internal/link"
)

// run is one decision that is asked for: its attempts, one after another, until there is an answer or no time.
//
// Runs are kept for other decisions when they are over: what a decision needs is allocated with them.
type run struct {
	c     *Client
	k     check
	call  *link.Call
	asked [router.MaxSends]string // room for attempts.Asked
	round uint64                  // of the hints
	era   uint64                  // of the policies

	start      time.Time
	startNanos int64

	deadlineNanos int64
	attempts      router.Attempts
	sent          int // how often it has left this process
	firstNanos    int64
	unreached     error // why an attempt could not be sent

	// sentNanos and receivedNanos are of the attempt that was answered.
	sentNanos, receivedNanos int64
}

// newRun begins a decision: the class's timeout runs from now.
func (c *Client) newRun(ctx context.Context, k *check, now time.Time) *run {
	r, _ := c.runs.Get().(*run)
	if r == nil {
		r = &run{call: link.NewCall()}
	}
	*r = run{c: c, k: *k, call: r.call, start: now, startNanos: c.at(now), round: c.hints.Round(), era: c.era.Load()}
	if !k.ownID {
		r.k.id = c.nextID()
	}
	timeout, horizon := c.timeouts(k)
	timeout = r.bounded(ctx, timeout, horizon)
	r.deadlineNanos, r.attempts.HorizonNanos = r.startNanos+int64(timeout), int64(horizon)
	r.attempts.Asked = r.asked[:0]
	return r
}

// end keeps the run for another decision. Nobody may use it any more.
func (r *run) end() {
	c := r.c
	r.call.Check = link.Check{}
	*r = run{call: r.call}
	c.runs.Put(r)
}

// timeouts are the shortest timeout and replay horizon of the check's classes.
func (c *Client) timeouts(k *check) (timeout, horizon time.Duration) {
	set := c.classes.Load()
	in := set.Of(k.class)
	timeout, horizon = in.Timeout, in.Horizon
	for _, a := range k.also {
		in = set.Of(a.Class)
		timeout, horizon = min(timeout, in.Timeout), min(horizon, in.Horizon)
	}
	return timeout, horizon
}

// decide sends the check, as often as it may, until there is a definite answer.
func (r *run) decide(ctx context.Context) (Decision, *failed) {
	route, f := r.firstRoute(ctx)
	if f != nil {
		return Decision{}, f
	}
	node, epoch := route.Node, epochOf(route)
	for {
		r.attempts.Route, r.attempts.Asked = route, append(r.attempts.Asked, node.ID)
		res := r.send(ctx, node, epoch)
		if res.Decided {
			d, err := r.understand(&res.Decision)
			if err == nil {
				r.learnLeader(route, node, res.Leader)
				r.sentNanos, r.receivedNanos = res.SentNanos, res.ReceivedNanos
				r.c.seenRevision(r.era, d.PolicyRevision)
				return d, nil
			}
			res = &link.Result{Err: err}
		}
		if err := r.c.canceled(ctx); err != nil && res.Err != nil {
			return Decision{}, over(err)
		}
		step, why := r.next(route, node, res)
		if step.Action == router.GiveUp || !r.affords(step.Node, route, res) || !r.pause(ctx, step.WaitNanos) {
			if err := r.c.canceled(ctx); err != nil {
				return Decision{}, over(err)
			}
			return Decision{}, &failed{err: r.failure(why), mode: step.FailureMode}
		}
		node = step.Node
		switch newer, _ := r.c.table.Lookup(r.k.principal); {
		case step.Action == router.Refresh:
			route, node, epoch = r.refresh(ctx, route)
		case res.Unsent && newer.MapVersion > route.MapVersion && newer.Node.ID != "":
			route, node, epoch = newer, newer.Node, epochOf(newer) // nodes may have been replaced meanwhile
		}
	}
}

// firstRoute is where the check goes first. It waits for the first map, unless no node could be reached so far.
func (r *run) firstRoute(ctx context.Context) (router.Route, *failed) {
	c := r.c
	if err := r.awaitConfig(ctx); err != nil {
		return router.Route{}, err
	}
	route, ok := c.table.Lookup(r.k.principal)
	if !ok {
		return route, unavailable("the cluster's configuration is not known: no node has given it yet", nil)
	}
	if route.Node.ID == "" {
		return route, unavailable("nobody owns the principal's slot by the newest map", nil)
	}
	if c.nodes.suspect(route.Node) { // another replica forwards, if the owner can be reached at all
		c.table.Learn(route, route.Node.ID, router.Failure{})
		route, _ = c.table.Lookup(r.k.principal)
	}
	return route, nil
}

// awaitConfig waits for the first configuration, and has the class's timeout hold from the start. It does not wait for
// nodes that could not be reached so far.
func (r *run) awaitConfig(ctx context.Context) *failed {
	c := r.c
	if c.watcher.Known() {
		return nil
	}
	timer := time.NewTimer(time.Duration(r.deadlineNanos - c.now()))
	defer timer.Stop()
	select {
	case <-c.watcher.Ready():
		timeout, horizon := c.timeouts(&r.k)
		r.deadlineNanos, r.attempts.HorizonNanos = r.startNanos+int64(r.bounded(ctx, timeout, horizon)), int64(horizon)
		return nil
	case <-c.watcher.Tried():
	case <-timer.C:
	case <-ctx.Done():
	case <-c.life.Done():
	}
	if err := c.canceled(ctx); err != nil {
		return over(err)
	}
	return unavailable("the cluster's configuration is not known: no node has given it yet", nil)
}

// bounded is the time for a decision: the class's timeout, at most half the horizon, so that no attempt comes later
// than that, and at most until the context's deadline, which may have no monotonic reading.
func (r *run) bounded(ctx context.Context, timeout, horizon time.Duration) time.Duration {
	timeout = min(timeout, horizon/2)
	if end, ok := ctx.Deadline(); ok {
		timeout = min(timeout, end.Sub(r.start))
	}
	return timeout
}

// epochOf is the epoch that a check carries: none where the map is known to be behind, so that the node that is asked
// fills in what it knows.
func epochOf(r router.Route) uint64 {
	if r.Behind {
		return 0
	}
	return r.Epoch
}

// send makes one attempt. The result is valid until the next one.
func (r *run) send(ctx context.Context, node router.Node, epoch uint64) *link.Result {
	l, err := r.c.nodes.to(node)
	if err != nil {
		return &link.Result{Err: err, Unsent: true}
	}
	if r.firstNanos == 0 {
		r.firstNanos = r.c.now()
	}
	r.k.request(&r.call.Check, epoch, r.sent+1)
	l.Ask(ctx, r.call, r.deadlineNanos)
	res := &r.call.Result
	if !res.Unsent {
		if r.sent++; r.sent == 1 {
			r.c.sends.Add(1)
			l.Retries.Earn(res.ReceivedNanos)
		} else {
			r.c.retries.Add(1)
		}
	}
	return res
}

// next is what to do after an attempt without a decision, and why there was none.
func (r *run) next(route router.Route, node router.Node, res *link.Result) (router.Step, *quotaerr.Error) {
	// Where an attempt before got no answer there was little time left to be queued in: what is wrong is that.
	crowded := res.Crowded && r.unreached == nil && !r.attempts.MaybeConsumed
	why, f := failureOf(res, crowded)
	switch {
	case !res.Unsent || crowded || res.Err == nil:
	case !late(res.Err):
		r.unreached = res.Err
	case r.unreached != nil: // the last attempt only had no time left to find it out again
		why.Cause = r.unreached
	}
	now := r.c.now()
	r.attempts.SinceFirstNanos, r.attempts.LeftNanos = now-r.firstNanos, r.deadlineNanos-now
	r.attempts.MaybeConsumed = r.attempts.MaybeConsumed || res.Unsure
	switch {
	case cutOff[why.Reason] && res.Refusal != nil:
		// A majority without it may have another leader, which the next check finds by another replica.
		r.c.table.Learn(route, node.ID, router.Failure{})
	case f.Reason != "" || !late(res.Err):
		r.c.table.Learn(route, node.ID, f)
	default: // it may answer the next one in time; if it answers nothing at all, it is given up
	}
	step := router.Next(r.attempts, f)
	r.attempts.MaybeConsumed, r.attempts.Planned, r.attempts.Unsent = step.MaybeConsumed, step.Planned, step.Unsent
	return step, why
}

// cutOff are the reasons of a node that a majority may do without.
var cutOff = map[quotaerr.Reason]bool{quotaerr.NoQuorum: true, quotaerr.PolicyLeaseExpired: true}

// late reports whether an attempt ended because its time was over.
func late(err error) bool {
	return errors.Is(err, link.ErrTimeout) || errors.Is(err, context.DeadlineExceeded)
}

// failureOf is why an attempt got no decision, for the operator and for the router. A reason that is not known, and an
// answer of a kind that is not known, is internal.
func failureOf(res *link.Result, crowded bool) (*quotaerr.Error, router.Failure) {
	switch refusal := res.Refusal; {
	case res.Err != nil && errors.Is(res.Err, errNotUnderstood):
		return quotaerr.Wrap(quotaerr.Internal, res.Err, notUnderstood), router.Failure{Reason: string(quotaerr.Internal)}
	case res.Err != nil:
		why := quotaerr.Wrap(quotaerr.OutcomeUnknown, res.Err, "the node broke off before it answered")
		switch {
		case errors.Is(res.Err, link.ErrUnknownCall):
			why = quotaerr.Wrap(quotaerr.NoQuorum, res.Err, "the node cannot be asked")
		case crowded:
			why = quotaerr.New(quotaerr.Overloaded, "there are more checks under way than are sent in their time")
			return why, router.Failure{Reason: string(quotaerr.Overloaded), Unsent: true}
		case res.Unsent:
			why = quotaerr.Wrap(quotaerr.NoQuorum, res.Err, "the node cannot be reached")
		case late(res.Err):
			why = quotaerr.New(quotaerr.OutcomeUnknown, "no answer came within the class's timeout")
		}
		return why, router.Failure{Unsent: res.Unsent}
	case refusal == nil:
		return quotaerr.New(quotaerr.Internal, notUnderstood), router.Failure{Reason: string(quotaerr.Internal)}
	default:
		reason := quotaerr.Reason(refusal.GetReason())
		if !reason.Known() || reason.IsDecision() {
			return quotaerr.New(quotaerr.Internal, notUnderstood), router.Failure{Reason: string(quotaerr.Internal)}
		}
		wait := int64(time.Duration(min(max(0, refusal.GetRetryAfterMs()), maxWaitMillis)) * time.Millisecond)
		why := quotaerr.New(reason, "%s", refusal.GetMessage())
		why.RetryAfterNanos = wait
		return why, router.Failure{
			Reason: string(reason), Epoch: refusal.GetEpoch(), Leader: refusal.GetLeader(),
			LeaderAddr: refusal.GetLeaderAddr(), RetryAfterNanos: wait,
		}
	}
}

const (
	notUnderstood = "the answer is not understood, and this client may be older than the cluster"
	// maxWaitMillis bounds the waits in an answer: two years, above the longest window with any slow-down of the clock's,
	// and so little that as nanoseconds they do not overflow.
	maxWaitMillis = int64(2 * 365 * 24 * 3600 * 1000)
)

// affords reports whether the budget has a retry. What has not left this process costs nothing.
func (r *run) affords(to router.Node, route router.Route, res *link.Result) bool {
	if res.Unsent {
		return true
	}
	if to.ID == "" {
		to = route.Node
	}
	l, err := r.c.nodes.to(to)
	if err != nil {
		return true // the attempt fails before it is sent
	}
	if l.Retries.Spend(r.c.now()) {
		return true
	}
	r.c.withheld.Add(1)
	return false
}

// pause waits before a retry, up to half as long again, so that not all come at once. It reports whether there is time.
func (r *run) pause(ctx context.Context, nanos int64) bool {
	if nanos <= 0 {
		return r.c.now() < r.deadlineNanos
	}
	nanos += rand.Int64N(nanos/2 + 1)
	if r.c.now()+nanos >= r.deadlineNanos {
		return false
	}
	t := time.NewTimer(time.Duration(nanos))
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
	case <-r.c.life.Done():
	}
	return false
}

// refresh waits, for a part of the time that is left, for a map newer than a route's. If none comes the check goes on
// without an epoch: the node that is asked fills in what it knows.
func (r *run) refresh(ctx context.Context, old router.Route) (router.Route, router.Node, uint64) {
	wait := time.NewTimer(time.Duration(r.deadlineNanos-r.c.now()) / 3)
	defer wait.Stop()
	for {
		changed := r.c.changed.next()
		route, _ := r.c.table.Lookup(r.k.principal)
		if route.MapVersion > old.MapVersion && !route.Behind && route.Node.ID != "" {
			return route, route.Node, route.Epoch
		}
		select {
		case <-changed:
			continue
		case <-wait.C:
		case <-ctx.Done():
		case <-r.c.life.Done():
		}
		if route.Node.ID == "" {
			route = old
		}
		return route, route.Node, 0
	}
}

// learnLeader notes who leads, so that the next check need not be forwarded.
func (r *run) learnLeader(route router.Route, asked router.Node, leader string) {
	if leader == "" || leader == asked.ID {
		return
	}
	for _, n := range route.Replicas {
		if n.ID == leader && !r.c.nodes.suspect(n) {
			r.c.table.Learn(route, asked.ID, router.Failure{Reason: router.ReasonNotLeader, Leader: leader})
		}
	}
}

// failure is the error of the decision.
func (r *run) failure(why *quotaerr.Error) *Error {
	e := newError(why.Reason, why.Message)
	e.MaybeConsumed, e.Attempts, e.ID, e.cause = r.attempts.MaybeConsumed, r.sent, r.k.id, why.Cause
	e.RetryAfter = errtable.Wait(why)
	return e
}

var errNotUnderstood = errors.New("the decision is of a kind that is not known here")

// understand takes a decision that says what it must. Everything else is none, and never an allow.
func (r *run) understand(p *link.Decision) (Decision, error) {
	reason := quotaerr.Reason(p.Reason)
	allowed := p.Outcome == quoratev1.Outcome_OUTCOME_ALLOWED && reason == quotaerr.Allowed
	denied := p.Outcome == quoratev1.Outcome_OUTCOME_DENIED && reason.IsDecision() && reason != quotaerr.Allowed
	if !allowed && !denied || p.ID != r.k.id {
		return Decision{}, errNotUnderstood
	}
	d := Decision{
		Allowed: allowed, Source: SourceOwner, Reason: p.Reason, Limit: p.Limit, Remaining: p.Remaining,
		PolicyVersion: p.PolicyVersion, PolicyRevision: p.PolicyRevision, ID: r.k.id,
		Replayed: p.Replayed, Recorded: p.Recorded, Attempts: r.sent,
	}
	if p.Dated {
		d.RetryAfter = time.Duration(min(max(0, p.RetryAfterMillis), maxWaitMillis)) * time.Millisecond
		d.RetryAt = time.Now().Add(d.RetryAfter)
	}
	if len(p.Limits) > 0 {
		d.Limits = make([]LimitState, len(p.Limits))
	}
	for i := range p.Limits {
		l := &p.Limits[i]
		d.Limits[i] = LimitState{
			Name: l.Name, Limit: l.Limit, Window: l.Window, Remaining: l.Remaining,
			Reset: time.Duration(min(max(0, l.ResetMillis), maxWaitMillis)) * time.Millisecond,
		}
	}
	return d, nil
}
