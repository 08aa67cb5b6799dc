package sdk

import (
	"context"
	"errors"
	"time"

	"github.com/quorate/quorate/quotaerr"
	"github.com/quorate/quorate/sdk/internal/ceiling"
	"github.com/quorate/quorate/sdk/internal/class"
	"github.com/quorate/quorate/sdk/internal/hints"
)

// Check asks whether a request of principal, of a class apiClass, may go on. A denial is a Decision and no error; the
// error is an *Error, ErrClosed, or that of the context, when it was canceled or was over before. It returns within
// the class's timeout.
func (c *Client) Check(
	ctx context.Context, principal, apiClass string, options ...CheckOption,
) (d Decision, err error) {
	k := checkOf(principal, apiClass, options)
	err = c.check(ctx, &k, &d)
	c.count(k.class, &d, err)
	return d, err
}

// check decides, step by step: what can be said without the owner, then the owner, then the failure mode. What was
// decided is put into d, which is zero before; it stays so with an error.
func (c *Client) check(ctx context.Context, k *check, d *Decision) error {
	if ctx == nil {
		return noContext()
	}
	if c.closed.Load() {
		return ErrClosed
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	now := c.now()
	until := contextNanos(ctx, now)
	if until <= now {
		return context.DeadlineExceeded
	}
	if c.hinted(k, now, d) {
		return nil
	}
	if err := k.validate(); err != nil {
		return err
	}
	if c.switchedOff(k, now, d) {
		return nil
	}
	if err := c.admit(k, now); err != nil {
		return err
	}
	defer c.leave(k)
	r := c.newRun(k, now, until)
	defer r.end()
	if failed := r.decide(ctx, k, d); failed != nil {
		return c.fail(k, failed, d)
	}
	if !d.Allowed {
		r.remember(k, d)
	}
	return nil
}

// hinted puts the denial of a hint into d: the owner has denied the same check a moment ago. It holds only while the
// watch is live. A check that has a hint is well formed, and its classes are not switched off.
func (c *Client) hinted(k *check, nanos int64, d *Decision) bool {
	if k.ownID || !c.watcher.Live(nanos) {
		return false
	}
	h := c.hints.Get(nanos, k.key())
	if h == nil {
		return false
	}
	*d = h.Denial
	if h.RetryNanos != 0 { // the instant stays, and comes nearer
		d.RetryAfter = time.Duration(h.RetryNanos - nanos)
	}
	return true
}

// switchedOff puts the refusal of a class that is switched off into d, which is known only while the watch is live.
func (c *Client) switchedOff(k *check, nanos int64, d *Decision) bool {
	set := c.classes.Load()
	if !c.disabled(set, k) || !c.watcher.Live(nanos) {
		return false
	}
	*d = disabledDecision(set)
	return true
}

func (c *Client) disabled(set *class.Set, k *check) bool {
	off := set.Of(k.class).Disabled
	for i := range k.also {
		off = off || set.Of(k.also[i].Class).Disabled
	}
	return off
}

func disabledDecision(set *class.Set) Decision {
	return Decision{
		Source: SourceConfig, Reason: string(quotaerr.EndpointDisabled), PolicyVersion: set.Version,
		PolicyRevision: set.Revision,
	}
}

// admit lets a check out of this client, within its bounds. Then leave is due when it is over.
func (c *Client) admit(k *check, nanos int64) error {
	hash := ceiling.Hash(k.principal)
	if ok, wait := c.ceiling.Take(nanos, hash); !ok {
		e := newError(quotaerr.Overloaded, "this principal hammers: more checks in a second than the ceiling of this client")
		e.RetryAfter = time.Duration(wait)
		return e
	}
	var room bool
	if k.flying, room = c.flight.Enter(hash, k.principal); !room {
		return newError(quotaerr.Overloaded,
			"as many checks of this principal are in flight as this client lets one have")
	}
	if c.inFlight.Add(1) > int64(c.settings.maxInFlight) {
		c.inFlight.Add(-1)
		c.flight.Leave(k.flying)
		return newError(quotaerr.Overloaded, "as many checks are in flight as this client may have")
	}
	return nil
}

func (c *Client) leave(k *check) {
	c.inFlight.Add(-1)
	c.flight.Leave(k.flying)
}

// remember keeps a denial as a hint: of a first send, under the newest revision that is known, while the watch is live.
func (r *run) remember(k *check, d *Decision) {
	c := r.c
	if d.Allowed || d.Source != SourceOwner || d.Attempts != 1 || d.Replayed || k.ownID ||
		d.PolicyRevision != c.revision.Load() || !c.watcher.Live(r.receivedNanos) {
		return
	}
	hint := *d
	hint.Source, hint.Recorded, hint.ID, hint.Attempts = SourceHint, false, "", 0
	a := hints.Answer{SentNanos: r.sentNanos, ReceivedNanos: r.receivedNanos, Round: r.round}
	switch quotaerr.Reason(d.Reason) {
	case quotaerr.QuotaExhausted:
		if d.RetryAfter > 0 {
			c.hints.Exhausted(k.key(), hint, a, d.RetryAfter.Milliseconds())
		}
	case quotaerr.Blocked:
		c.hints.Blocked(k.key(), hint, a)
	}
}

// count counts how a check ended.
func (c *Client) count(name string, d *Decision, err error) {
	counters := c.classes.Load().Of(name).Counters
	counters[outcomeOf(d, err)].Add(1)
}

func outcomeOf(d *Decision, err error) class.Outcome {
	switch {
	case err == nil:
		return decided(d)
	case errors.Is(err, ErrRefused):
		return class.Refused
	case errors.Is(err, ErrOverloaded):
		return class.Overloaded
	case errors.Is(err, errNoRoom):
		return class.LocallyDenied
	case errors.Is(err, ErrUnavailable):
		return class.Unavailable
	}
	return class.Canceled
}

func decided(d *Decision) class.Outcome {
	switch d.Source {
	case SourceOwner:
		if d.Allowed {
			return class.Allowed
		}
		return class.Denied
	case SourceHint:
		return class.Hinted
	case SourceConfig:
		return class.Disabled
	case SourceBypass:
		return class.Bypassed
	case SourceLocal:
		return class.LocallyAllowed
	case SourceNone:
	}
	return class.Unavailable
}
