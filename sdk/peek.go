package sdk

import (
	"context"
	"time"

	"github.com/quorate/quorate/internal/errtable"
	quoratev1 "github.com/quorate/quorate/proto/quorate/v1"
	"github.com/quorate/quorate/quotaerr"
	"github.com/quorate/quorate/router"
)

// peekTimeout bounds one look.
const peekTimeout = 2 * time.Second

// Peek tells how a principal stands in a class. It consumes nothing and authorises nothing. It asks up to three
// replicas, within two seconds in all; no failure mode stands in. The error is as that of Check.
func (c *Client) Peek(ctx context.Context, principal, apiClass, tier string) (*quoratev1.PeekResponse, error) {
	k := check{principal: principal, class: apiClass, tier: tier, cost: 1}
	if err := k.validate(); err != nil {
		return nil, err
	}
	if ctx == nil {
		return nil, noContext()
	}
	within, cancel := context.WithTimeout(ctx, peekTimeout)
	defer cancel()
	if err := c.Ready(within); err != nil {
		if canceled := c.canceled(ctx); canceled != nil {
			return nil, canceled
		}
		return nil, unavailable("the cluster's configuration is not known: no node has given it yet", err).err
	}
	e := newError(quotaerr.NoQuorum, "nobody owns the principal's slot by the newest map")
	route, ok := c.table.Lookup(principal)
	for node, n := route.Node, 0; ok && node.ID != "" && n < router.MaxSends; n++ {
		out, err := c.peekAt(within, node, &quoratev1.PeekRequest{Principal: principal, ApiClass: apiClass, Tier: tier})
		if err == nil {
			return out, nil
		}
		if canceled := c.canceled(ctx); canceled != nil {
			return nil, canceled
		}
		why := errtable.FromStatus(err)
		e = newError(why.Reason, why.Message)
		e.RetryAfter, e.Attempts, e.cause = errtable.Wait(why), n+1, err
		if !errtable.Lookup(why.Reason).Retryable() {
			break
		}
		node = following(route, node)
	}
	return nil, e
}

func (c *Client) peekAt(
	ctx context.Context, node router.Node, req *quoratev1.PeekRequest,
) (*quoratev1.PeekResponse, error) {
	l, err := c.nodes.to(&node)
	if err != nil {
		return nil, err
	}
	// One replica that does not answer leaves time for another.
	ctx, cancel := context.WithTimeout(ctx, peekTimeout/router.MaxSends)
	defer cancel()
	return l.Client().Peek(ctx, req)
}

// following is the replica after a node; none where none is known.
func following(r router.Route, n router.Node) router.Node {
	for i, one := range r.Replicas {
		if one.ID == n.ID {
			return r.Replicas[(i+1)%len(r.Replicas)]
		}
	}
	if len(r.Replicas) == 0 {
		return router.Node{}
	}
	return r.Replicas[0]
}
