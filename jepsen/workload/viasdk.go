package workload

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/quorate/quorate/jepsen/history"
	"github.com/quorate/quorate/sdk"
)

// sdkTimeout is the gateway's budget for one check.
const sdkTimeout = time.Second

// sdkCalls asks as a gateway does, through the SDK with its routes, retries and hints.
func sdkCalls() Kind {
	c := class(10, 10*time.Second, 30*time.Second)
	c.Timeout = history.Window(sdkTimeout)
	return Kind{
		Name: "sdk", About: "a gateway on the SDK: its routes, retries and deny hints",
		Classes: map[string]history.Class{"sdk": c},
		clients: 3, gateway: true,
		ask: func(ctx context.Context, c *client) {
			for c.pause(ctx, 120*time.Millisecond) {
				k := c.check(fmt.Sprint("sdk-", c.rand.IntN(3)), "sdk", 1)
				own := c.rand.IntN(2) == 0
				if !own {
					k.ID = "" // the SDK makes it, and may answer from a hint
				}
				if !c.through(ctx, k) && own && c.wait(ctx, retryPause) {
					c.through(ctx, k)
				}
			}
		},
	}
}

// through has a check decided by the gateway, and reports whether it is known what came of it.
func (c *client) through(ctx context.Context, k *Check) (known bool) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*sdkTimeout)
	defer cancel()
	a := history.Asked{
		Principal: k.Principal, Class: k.Class, Cost: k.Cost, Workload: c.kind, Client: c.called(),
		Sent: c.now(), Received: history.Never,
	}
	answer, known, asked := c.crowd.options.Gateway.Check(ctx, k)
	if !asked {
		return true // by a hint, or nothing was sent: no owner has said anything
	}
	if a.ID = k.ID; a.ID == "" {
		a.ID = c.check(k.Principal, k.Class, k.Cost).ID // it told none, and nobody can repeat it
	}
	if known {
		a.Received, a.Answer = c.now(), answer
	} else {
		c.life++
	}
	c.crowd.tell(a)
	return known
}

// SDK is a gateway in this process. Its checks get the ids that it was given, or those that it makes.
type SDK struct{ Client *sdk.Client }

var _ Gateway = (*SDK)(nil)

// Check has a check decided, and puts the id into it that the SDK has made.
func (s *SDK) Check(ctx context.Context, k *Check) (answer history.Answer, known, asked bool) {
	options := []sdk.CheckOption{sdk.WithCost(k.Cost)}
	if k.ID != "" {
		options = append(options, sdk.WithID(k.ID))
	}
	d, err := s.Client.Check(ctx, k.Principal, k.Class, options...)
	var failed *sdk.Error
	switch {
	case errors.As(err, &failed):
		if k.ID == "" {
			k.ID = failed.ID
		}
		return history.Answer{Reason: string(failed.Reason), Detail: failed.Message}, !failed.MaybeConsumed,
			failed.Attempts > 0
	case err != nil: // the context has ended
		return history.Answer{}, false, true
	case d.Source != sdk.SourceOwner:
		return history.Answer{}, true, false
	}
	k.ID = d.ID
	answer = history.Answer{
		Allowed: d.Allowed, Reason: d.Reason, Revision: d.PolicyRevision, Version: d.PolicyVersion,
		Remaining: d.Remaining, Replayed: d.Replayed, Recorded: d.Recorded, Limit: d.Limit,
		RetryAfterMS: (d.RetryAfter + time.Millisecond - 1).Milliseconds(),
	}
	for _, l := range d.Limits {
		answer.Limits = append(answer.Limits, history.LimitAnswer{Name: l.Name, Limit: l.Limit, Remaining: l.Remaining})
	}
	return answer, true, true
}
