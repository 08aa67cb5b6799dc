package sdk

import (
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/quorate/quorate/internal/errtable"
	"github.com/quorate/quorate/internal/guard"
	quoratev1 "github.com/quorate/quorate/proto/quorate/v1"
	"github.com/quorate/quorate/quotaerr"
	"github.com/quorate/quorate/router"
	"github.com/quorate/quorate/sdk/internal/link"
)

// run is one decision that is asked for: its attempts, one after another, until there is an answer or no time.
//
// Runs are kept for other decisions when they are over: what a decision needs is allocated with them. Many wait at
// once, each with its stack, and what is woken has long left the processor's caches: so runs are small, and what waits
// stands on few and small frames. What is rarely done is therefore in functions of its own.
type run struct {
	c    *Client
	call *link.Call
	// lastID is the last number that it has given an id, endID the last one that it may give: so not every check asks
	// for a number that all share.
	lastID, endID uint64

	round uint64 // of the hints
	era   uint64 // of the policies

	startNanos, deadlineNanos int64
	contextNanos              int64 // the context's deadline

	// attempts has the route; node is asked next, with epoch.
	attempts  router.Attempts
	asked     [router.MaxSends]string // room for attempts.Asked
	node      router.Node
	epoch     uint64
	sent      int   // how often it has left this process
	unreached error // why an attempt could not be sent

	// firstNanos is when it was about to be sent first, sentNanos and receivedNanos are of the attempt that was answered.
	firstNanos, sentNanos, receivedNanos int64
}

// newRun begins a decision: the class's timeout runs from nowNanos, until untilNanos, the context's deadline, at most.
func (c *Client) newRun(k *check, nowNanos, untilNanos int64) *run {
	r, _ := c.runs.Get().(*run)
	if r == nil {
		r = &run{c: c, call: link.NewCall()}
	}
	r.startNanos, r.firstNanos, r.round, r.era = nowNanos, nowNanos, c.hints.Round(), c.era.Load()
	k.request(&r.call.Check)
	if !k.ownID {
		r.call.Check.ID = r.nextID()
	}
	r.contextNanos = untilNanos
	r.limit(c.timeouts(k))
	r.attempts.Asked = r.asked[:0]
	return r
}

// end keeps the run for another decision. Nobody may use it any more.
func (r *run) end() {
	r.call.Check = link.Check{}
	*r = run{c: r.c, call: r.call, lastID: r.lastID, endID: r.endID}
	r.c.runs.Put(r)
}

// idsOfARun is how many ids a run takes from its client at once.
const idsOfARun = 256

// nextID is a decision id: 128 random bits of this client, and a number that it gives once.
func (r *run) nextID() string {
	if r.lastID == r.endID {
		r.endID = r.c.lastID.Add(idsOfARun)
		r.lastID = r.endID - idsOfARun
	}
	r.lastID++
	var b [64]byte
	return string(strconv.AppendUint(append(b[:0], r.c.idPrefix...), r.lastID, 36))
}

// contextNanos is a context's deadline, which may have no monotonic reading, by the client's clock, which is at
// nowNanos; without one, later than any time.
func contextNanos(ctx context.Context, nowNanos int64) int64 {
	if end, ok := ctx.Deadline(); ok {
		return nowNanos + int64(time.Until(end))
	}
	return math.MaxInt64
}

// limit sets the time for a decision: the class's timeout, at most half the horizon, so that no attempt comes later
// than that, and at most until the context's deadline.
func (r *run) limit(timeout, horizon time.Duration) {
	r.deadlineNanos = min(r.startNanos+int64(min(timeout, horizon/2)), r.contextNanos)
	r.attempts.HorizonNanos = int64(horizon)
}

// timeouts are the shortest timeout and replay horizon of the check's classes.
func (c *Client) timeouts(k *check) (timeout, horizon time.Duration) {
	set := c.classes.Load()
	in := set.Of(k.class)
	timeout, horizon = in.Timeout, in.Horizon
	for i := range k.also {
		in = set.Of(k.also[i].Class)
		timeout, horizon = min(timeout, in.Timeout), min(horizon, in.Horizon)
	}
	return timeout, horizon
}

// decide sends the check, as often as it may, until there is a definite answer, which it puts into d.
func (r *run) decide(ctx context.Context, k *check, d *Decision) *failed {
	if !r.c.watcher.Known() {
		if f := r.awaitConfig(ctx, k); f != nil {
			return f
		}
	}
	if f := r.firstRoute(); f != nil {
		return f
	}
	for {
		r.send(ctx)
		if r.decided(d) {
			return nil
		}
		if f := r.again(ctx); f != nil {
			return f
		}
	}
}

// decided reports whether the last attempt has got a decision, and puts it into d. One that is not understood is none.
func (r *run) decided(d *Decision) bool {
	res := &r.call.Result
	if !res.Decided {
		return false
	}
	if err := r.understand(&res.Decision, d); err != nil {
		*res = link.Result{Err: err}
		return false
	}
	if res.Leader != "" {
		r.learnLeader(res.Leader)
	}
	r.sentNanos, r.receivedNanos = res.SentNanos, res.ReceivedNanos
	r.c.seenRevision(r.era, d.PolicyRevision)
	return true
}

// again prepares the next attempt after one without a decision, unless that was the last.
//
//go:noinline
func (r *run) again(ctx context.Context) *failed {
	res, route := &r.call.Result, &r.attempts.Route
	if err := r.c.canceled(ctx); err != nil && res.Err != nil {
		return over(err)
	}
	step, why := r.next(res)
	if step.Action == router.GiveUp || !r.affords(step.Node, res) || !r.pause(ctx, step.WaitNanos) {
		if err := r.c.canceled(ctx); err != nil {
			return over(err)
		}
		return &failed{err: r.failure(why), mode: step.FailureMode}
	}
	r.node = step.Node
	switch newer, _ := r.c.table.Lookup(r.call.Check.Principal); {
	case step.Action == router.Refresh:
		r.refresh(ctx)
	case res.Unsent && newer.MapVersion > route.MapVersion && newer.Node.ID != "":
		*route, r.node, r.epoch = newer, newer.Node, epochOf(&newer) // nodes may have been replaced meanwhile
	}
	return nil
}

// firstRoute is where the check goes first.
func (r *run) firstRoute() *failed {
	c, principal := r.c, r.call.Check.Principal
	route := &r.attempts.Route
	var known bool
	if *route, known = c.table.Lookup(principal); !known {
		return unavailable("the cluster's configuration is not known: no node has given it yet", nil)
	}
	if route.Node.ID == "" {
		return unavailable("nobody owns the principal's slot by the newest map", nil)
	}
	if c.nodes.suspect(&route.Node) { // another replica forwards, if the owner can be reached at all
		c.table.Learn(*route, route.Node.ID, router.Failure{})
		*route, _ = c.table.Lookup(principal)
	}
	r.node, r.epoch = route.Node, epochOf(route)
	return nil
}

// awaitConfig waits for the first configuration, and has the class's timeout hold from the start. It does not wait for
// nodes that could not be reached so far.
func (r *run) awaitConfig(ctx context.Context, k *check) *failed {
	c := r.c
	timer := time.NewTimer(time.Duration(r.deadlineNanos - c.now()))
	defer timer.Stop()
	select {
	case <-c.watcher.Ready():
		r.limit(c.timeouts(k))
		r.firstNanos = c.now()
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

// epochOf is the epoch that a check carries: none where the map is known to be behind, so that the node that is asked
// fills in what it knows.
func epochOf(r *router.Route) uint64 {
	if r.Behind {
		return 0
	}
	return r.Epoch
}

// send makes one attempt, whose result is then that of the call.
func (r *run) send(ctx context.Context) {
	c, call := r.c, r.call
	r.attempts.Asked = append(r.attempts.Asked, r.node.ID)
	l, err := c.nodes.to(&r.node)
	if err != nil {
		call.Result = link.Result{Err: err, Unsent: true}
		return
	}
	call.Check.Epoch, call.Check.Attempt = r.epoch, uint32(r.sent+1)
	if r.sent > 0 && !guard.On(guard.OneID) {
		call.Check.ID = r.nextID()
	}
	l.Ask(ctx, call, r.deadlineNanos)
	if !call.Result.Unsent {
		r.sent++
	}
}

// next is what to do after an attempt without a decision, and why there was none.
func (r *run) next(res *link.Result) (router.Step, *quotaerr.Error) {
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
		r.c.table.Learn(r.attempts.Route, r.node.ID, router.Failure{})
	case f.Reason != "" || !late(res.Err):
		r.c.table.Learn(r.attempts.Route, r.node.ID, f)
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
func (r *run) affords(to router.Node, res *link.Result) bool {
	if res.Unsent {
		return true
	}
	if to.ID == "" {
		to = r.attempts.Route.Node
	}
	l, err := r.c.nodes.to(&to)
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

// refresh waits, for a part of the time that is left, for a map newer than the route's. If none comes the check goes on
// without an epoch: the node that is asked fills in what it knows.
func (r *run) refresh(ctx context.Context) {
	wait := time.NewTimer(time.Duration(r.deadlineNanos-r.c.now()) / 3)
	defer wait.Stop()
	old := &r.attempts.Route
	for {
		changed := r.c.changed.next()
		route, _ := r.c.table.Lookup(r.call.Check.Principal)
		if route.MapVersion > old.MapVersion && !route.Behind && route.Node.ID != "" {
			*old, r.node, r.epoch = route, route.Node, route.Epoch
			return
		}
		select {
		case <-changed:
			continue
		case <-wait.C:
		case <-ctx.Done():
		case <-r.c.life.Done():
		}
		if route.Node.ID != "" {
			*old = route
		}
		r.node, r.epoch = old.Node, 0
		return
	}
}

// learnLeader notes who leads, so that the next check need not be forwarded.
func (r *run) learnLeader(leader string) {
	if leader == r.node.ID {
		return
	}
	for i := range r.attempts.Route.Replicas {
		if n := &r.attempts.Route.Replicas[i]; n.ID == leader && !r.c.nodes.suspect(n) {
			r.c.table.Learn(r.attempts.Route, r.node.ID, router.Failure{Reason: router.ReasonNotLeader, Leader: leader})
		}
	}
}

// failure is the error of the decision.
func (r *run) failure(why *quotaerr.Error) *Error {
	e := newError(why.Reason, why.Message)
	e.MaybeConsumed, e.Attempts, e.ID, e.cause = r.attempts.MaybeConsumed, r.sent, r.call.Check.ID, why.Cause
	e.RetryAfter = errtable.Wait(why)
	return e
}

var errNotUnderstood = errors.New("the decision is of a kind that is not known here")

// understand takes a decision that says what it must. Everything else is none, and never an allow.
func (r *run) understand(p *link.Decision, d *Decision) error {
	reason := quotaerr.Reason(p.Reason)
	allowed := p.Outcome == quoratev1.Outcome_OUTCOME_ALLOWED && reason == quotaerr.Allowed
	denied := p.Outcome == quoratev1.Outcome_OUTCOME_DENIED && reason.IsDecision() && reason != quotaerr.Allowed
	if !allowed && !denied || !p.Ours {
		return errNotUnderstood
	}
	d.Allowed, d.Source, d.Reason, d.Limit, d.Remaining = allowed, SourceOwner, p.Reason, p.Limit, p.Remaining
	d.PolicyVersion, d.PolicyRevision, d.ID = p.PolicyVersion, p.PolicyRevision, r.call.Check.ID
	d.Replayed, d.Recorded, d.Attempts = p.Replayed, p.Recorded, r.sent
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
	return nil
}
