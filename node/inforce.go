package node

import (
	"context"
	"time"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/policy"
	"github.com/quorate/quorate/quotaerr"
)

const (
	// configGrace is how long a node goes on by the last policy when it hears no more which one is in force, as a gateway
	// does.
	configGrace = 5 * time.Minute
	// policyPatience bounds the wait for a policy that is in force and on its way here.
	policyPatience = time.Second
)

// Policy is the policy in force, once it is here: none that this node knows to have been replaced, and none that may
// have been replaced for longer than configGrace.
func (b *backend) Policy(ctx context.Context) (*policy.Policy, error) {
	n := (*Node)(b)
	c := n.control()
	if c == nil || !c.State().Born {
		return nil, n.errNotMade()
	}
	wanted, graced := n.lease.graced(n.source.Read())
	if now := c.State().InForce(); now != nil {
		wanted = max(wanted, now.Number)
	}
	switch {
	case wanted == 0:
		return nil, quotaerr.New(quotaerr.PolicyBehind, "there is no policy yet: run `quorate policy apply`")
	case !graced:
		return nil, quotaerr.New(quotaerr.PolicyLeaseExpired, "node %s has not heard in the last %s which policy is in "+
			"force: see whether it reaches the control group", n.cfg.ID, configGrace)
	}
	return n.policyFrom(ctx, wanted)
}

// policyFrom waits a little for the policy of a revision, or of a newer one.
func (n *Node) policyFrom(ctx context.Context, wanted fsm.Revision) (*policy.Policy, error) {
	v := n.view.Load()
	if fsm.Revision(v.Policy.GetRevision()) >= wanted { // as nearly always: without a timer
		return v.inForce, nil
	}
	ctx, cancel := context.WithTimeout(ctx, policyPatience)
	defer cancel()
	for {
		if v = n.view.Load(); fsm.Revision(v.Policy.GetRevision()) >= wanted {
			return v.inForce, nil
		}
		select {
		case <-v.changed:
		case <-ctx.Done():
			return nil, quotaerr.New(quotaerr.PolicyBehind, "node %s does not have the policy of revision %d yet, which is in "+
				"force: ask another", n.cfg.ID, wanted)
		}
	}
}
