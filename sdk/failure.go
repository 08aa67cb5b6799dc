package sdk

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/quorate/quorate/quotaerr"
	"github.com/quorate/quorate/sdk/internal/class"
	"github.com/quorate/quorate/sdk/internal/rolling"
)

// errNoRoom is the cause of a check that the failure mode local refused.
var errNoRoom = errors.New("the local limit of this gateway has no room")

// failed is why the owner did not decide.
type failed struct {
	err error // an *Error, ErrClosed or the context's
	// mode: the class's failure mode decides.
	mode bool
}

// fail puts the answer to a check that the owner did not decide into d: its failure mode's where that may decide, else
// there is the error. A class that was last known to be switched off is refused whatever its mode.
func (c *Client) fail(k *check, f *failed, d *Decision) (err error) {
	var e *Error
	if !errors.As(f.err, &e) || errors.Is(e, ErrRefused) {
		return f.err
	}
	set := c.classes.Load()
	if c.disabled(set, k) {
		*d = disabledDecision(set)
		return nil
	}
	if !f.mode {
		return e
	}
	now := c.now()
	switch c.mode(set, k, now) {
	case class.Allow:
		*d = Decision{Allowed: true, Source: SourceBypass, ID: e.ID, Attempts: e.Attempts, Cause: e}
		return nil
	case class.Local:
		*d, err = c.admitLocally(set, k, now, e)
		return err
	case class.Deny:
	}
	return e
}

// mode is the strictest of the modes of the check's classes; deny, past the configuration's grace.
func (c *Client) mode(set *class.Set, k *check, now int64) class.Mode {
	if c.pastGrace(now) {
		return class.Deny
	}
	m := set.Of(k.class).Mode
	for i := range k.also {
		m = min(m, set.Of(k.also[i].Class).Mode)
	}
	return m
}

// admitLocally lets pass what the local limits have room for. Where a check has classes of the mode allow beside such
// of the mode local, only the latter are limited.
func (c *Client) admitLocally(set *class.Set, k *check, now int64, e *Error) (Decision, error) {
	charges := make([]rolling.Charge, 0, 1+len(k.also))
	charge := func(name string, cost int64) {
		if in := set.Of(name); in.Mode == class.Local {
			charges = append(charges, rolling.Charge{
				Class: in.Name, Cost: cost, Max: in.LocalMax, WindowNanos: in.LocalWindowNanos,
			})
		}
	}
	charge(k.class, k.cost)
	for _, a := range k.also {
		charge(a.Class, a.cost())
	}
	ok, wait := c.local.Admit(now, k.principal, charges...)
	if ok {
		return Decision{Allowed: true, Source: SourceLocal, ID: e.ID, Attempts: e.Attempts, Cause: e}, nil
	}
	no := *e
	no.cause = errNoRoom
	if e.cause != nil {
		no.cause = fmt.Errorf("%w, after: %w", errNoRoom, e.cause)
	}
	// The owner may be back before there is room here.
	if room := time.Duration(wait); room > 0 && (no.RetryAfter <= 0 || room < no.RetryAfter) {
		no.RetryAfter = room
	}
	return Decision{}, &no
}

// unavailable is the failure of a check that could not be sent anywhere.
func unavailable(message string, cause error) *failed {
	e := newError(quotaerr.NoQuorum, message)
	e.cause = cause
	return &failed{err: e, mode: true}
}

// over is the failure of a check whose caller went away, or whose client was closed.
func over(err error) *failed { return &failed{err: err} }

// canceled is why nobody waits for a check any more: that its context was canceled, or its client closed. A deadline
// that has passed is none: it counts as the timeout.
func (c *Client) canceled(ctx context.Context) error {
	switch err := ctx.Err(); {
	case errors.Is(err, context.Canceled):
		return err
	case c.closed.Load():
		return ErrClosed
	}
	return nil
}
