package sdk

import (
	"context"
	"fmt"
	"time"

	"github.com/quorate/quorate/quotaerr"
	"github.com/quorate/quorate/sdk/internal/bound"
)

// MaxIdentities is how many identities CheckAll takes.
const MaxIdentities = 64

// Decisions is what was decided of several identities.
type Decisions struct {
	// Decisions has one per identity, in order. Those that were not asked for after a denial are zero.
	Decisions []Decision
	// Allowed: every identity is allowed.
	Allowed bool
	// Denied is the index of the identity that was denied; -1 when none was. Where several of one principal were
	// decided together, it is the first of them.
	Denied int
	// Wasted counts the identities whose admission was consumed although the request as a whole is refused.
	Wasted int
	// RetryAfter is that of the denial; 0 when no time is known.
	RetryAfter time.Duration
}

// Tightest is the decision to show to the caller: the denial, or that with the smallest Remaining of those that the
// owner has decided; else the first.
func (d *Decisions) Tightest() Decision {
	if d.Denied >= 0 && d.Denied < len(d.Decisions) {
		return d.Decisions[d.Denied]
	}
	var best *Decision
	for i := range d.Decisions {
		one := &d.Decisions[i]
		if one.Source == SourceOwner && (best == nil || one.Remaining < best.Remaining) {
			best = one
		}
	}
	switch {
	case best != nil:
		return *best
	case len(d.Decisions) > 0:
		return d.Decisions[0]
	}
	return Decision{}
}

// group is what is decided as one: a check, and the identities that it stands for.
type group struct {
	check   check
	members []int
}

// CheckAll decides an ordered list of identities that one request has to pass, such as its address and then its
// account. Identities of one principal are decided together, up to eight, where the first of them stands: all of them
// consume, or none. The others are decided one after another, and the first denial ends it: nothing is handed back of
// what earlier ones have consumed, which Wasted and Stats count. So put first what denies most, and what costs its
// owner least. What is known to be denied before anything is sent wastes nothing.
//
// Each of these decisions has its own class's timeout, so that an owner who is away takes no time from the next one: a
// request with identities of n principals takes up to n timeouts. A deadline of ctx bounds them together, and ends
// the request for those that it leaves no time.
//
// At most MaxIdentities are taken; more are ErrRefused. The error is as that of Check; Decisions then has what was
// decided before, and no Denied.
func (c *Client) CheckAll(ctx context.Context, identities []Identity) (Decisions, error) {
	all := Decisions{Denied: -1}
	switch n := len(identities); {
	case ctx == nil:
		return all, noContext()
	case n == 0:
		return all, newError(quotaerr.InvalidArgument, "there is no identity to check")
	case n > MaxIdentities:
		return all, newError(quotaerr.InvalidArgument,
			fmt.Sprintf("there are %d identities to check: give at most %d", n, MaxIdentities))
	}
	all.Decisions = make([]Decision, len(identities))
	groups := together(identities)
	for i := range groups {
		if err := groups[i].check.validate(); err != nil {
			c.count(groups[i].check.class, nil, err)
			return all, err
		}
	}
	if c.knownDenial(ctx, groups, &all) {
		return all, nil
	}
	for _, g := range groups {
		var d Decision
		err := c.check(ctx, &g.check, &d)
		c.count(g.check.class, &d, err)
		if err != nil {
			c.waste(&all)
			return all, err
		}
		if all.set(g, d); !d.Allowed {
			c.waste(&all)
			return all, nil
		}
	}
	all.Allowed = true
	return all, nil
}

// together groups identities by principal, in the order of the first of each.
func together(identities []Identity) (groups []group) {
	open := map[string]int{} // the group of a principal that has room
	for i, in := range identities {
		at, ok := open[in.Principal]
		if ok && len(groups[at].check.also) < bound.Also {
			g := &groups[at]
			g.check.also = append(g.check.also, Charge{Class: in.Class, Tier: in.Tier, Cost: in.Cost})
			g.members = append(g.members, i)
			continue
		}
		open[in.Principal] = len(groups)
		k := check{principal: in.Principal, class: in.Class, tier: in.Tier, cost: Charge{Cost: in.Cost}.cost()}
		groups = append(groups, group{check: k, members: []int{i}})
	}
	return groups
}

// knownDenial reports whether one of several groups is denied already, and sets that.
func (c *Client) knownDenial(ctx context.Context, groups []group, all *Decisions) bool {
	if ctx.Err() != nil || c.closed.Load() {
		return false
	}
	now := c.now()
	for _, g := range groups {
		var d Decision
		if c.hinted(&g.check, now, &d) || c.switchedOff(&g.check, now, &d) {
			c.count(g.check.class, &d, nil)
			all.set(g, d)
			return true
		}
	}
	return false
}

// set sets what was decided of a group.
func (d *Decisions) set(g group, one Decision) {
	for _, i := range g.members {
		d.Decisions[i] = one
	}
	if !one.Allowed {
		d.Denied, d.RetryAfter = g.members[0], one.RetryAfter
	}
}

// waste counts what was consumed for a request that is refused.
func (c *Client) waste(d *Decisions) {
	for i := range d.Decisions {
		if d.Decisions[i].Verified() {
			d.Wasted++
		}
	}
	c.lost.Add(uint64(d.Wasted))
}
