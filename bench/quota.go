package bench

import (
	"context"
	"errors"
	"fmt"

	"github.com/quorate/quorate/sdk"
)

// Quota is a cluster of Quorate as a Target, asked through the SDK.
type Quota struct {
	// Clients share the load: worker w uses that with number w modulo their count.
	Clients []*sdk.Client
	// Class is the apiClass of each check.
	Class string
}

var (
	_ Exhauster = (*Quota)(nil)
	_ Counting  = (*Quota)(nil)
)

// Do has one check decided.
func (q *Quota) Do(ctx context.Context, worker int, principal string) (Outcome, error) {
	d, err := q.Clients[worker%len(q.Clients)].Check(ctx, principal, q.Class)
	if err != nil {
		return failure(err)
	}
	return decided(&d)
}

func failure(err error) (Outcome, error) {
	switch {
	case errors.Is(err, sdk.ErrOverloaded):
		return Overloaded, err
	case errors.Is(err, sdk.ErrUnavailable):
		return Unavailable, err
	}
	return Failed, err
}

func decided(d *sdk.Decision) (Outcome, error) {
	switch d.Source {
	case sdk.SourceOwner:
		if d.Allowed {
			return Allowed, nil
		}
		return Denied, nil
	case sdk.SourceHint:
		return Hinted, nil
	case sdk.SourceConfig:
		return Failed, errors.New("the class is switched off: name another, or switch it on with `quorate class enable`")
	case sdk.SourceBypass, sdk.SourceLocal:
		return Bypassed, d.Cause
	case sdk.SourceNone:
	}
	return Failed, errors.New("the SDK did not say who decided")
}

// Exhaust takes one unit, and then all that remains.
func (q *Quota) Exhaust(ctx context.Context, principal string) error {
	for cost := int64(1); ; {
		d, err := q.Clients[0].Check(ctx, principal, q.Class, sdk.WithCost(cost))
		outcome := Failed
		if err == nil {
			outcome, err = decided(&d)
		}
		switch {
		case outcome == Denied || outcome == Hinted, outcome == Allowed && d.Remaining == 0:
			return nil
		case outcome == Allowed:
			cost = d.Remaining
		case err == nil:
			return fmt.Errorf("outcome %d is no decision", outcome)
		default:
			return err
		}
	}
}

// Counters are those of all clients.
func (q *Quota) Counters() (c Counters) {
	for _, client := range q.Clients {
		s := client.Stats()
		c.Sends, c.Retries = c.Sends+s.Sends, c.Retries+s.Retries
		c.RetriesWithheld, c.Frames = c.RetriesWithheld+s.RetriesWithheld, c.Frames+s.Frames
	}
	return c
}
