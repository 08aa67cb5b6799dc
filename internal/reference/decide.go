package reference

import (
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/quorate/quorate/fsm"
)

// The bounds of a check, and of recorded denials.
const (
	maxPrincipalBytes  = 512
	maxClassBytes      = 128
	maxDecisionIDBytes = 128
	maxTierBytes       = 64
	maxCost            = int64(1) << 53
	maxAlso            = 7
	maxDenialRecords   = 64
)

// Check decides the check in an entry of its own. Of a refusal Reason and AsOf are set, and Epoch of
// wrong_epoch.
func (m *Model) Check(at fsm.Time, c fsm.Check) fsm.Decision {
	m.Tick(at)
	d := m.decide(c)
	d.AsOf = m.now
	return d
}

func (m *Model) decide(c fsm.Check) fsm.Decision {
	charges := append([]fsm.Charge{c.Charge}, c.Also...)
	// 1. Malformed.
	if malformed(c, charges) {
		return fsm.Decision{Reason: fsm.ReasonInvalidArgument}
	}
	// 2. Ownership.
	if reason, epoch := m.ownership(c.Principal, c.RouteEpoch); reason != fsm.ReasonUnspecified {
		return fsm.Decision{Reason: reason, Epoch: epoch}
	}
	// 3. Replay.
	for _, r := range m.records {
		if r.principal == c.Principal && r.gateway == c.Gateway && r.id == c.DecisionID &&
			m.now < r.end {
			if !slices.Equal(r.charges, charges) {
				return fsm.Decision{Reason: fsm.ReasonDecisionIDConflict}
			}
			d := r.decision
			d.Replayed = true
			d.Limits = nil
			return d
		}
	}
	// 4. Revision.
	if c.PolicyRevision != 0 && c.PolicyRevision < m.current().number {
		return fsm.Decision{Reason: fsm.ReasonPolicyStale}
	}
	if c.PolicyRevision > m.current().number {
		return fsm.Decision{Reason: fsm.ReasonPolicyBehind}
	}
	// 5 to 9, for each member.
	d := m.judge(c.Principal, charges)
	if d.Allowed() || d.Reason.Denied() {
		d.Revision, d.Version = m.current().number, m.current().policy.Version
	}
	// 10. Record.
	m.record(c, charges, &d)
	return d
}

func malformed(c fsm.Check, charges []fsm.Charge) bool {
	bad := func(s string, maxBytes int) bool {
		return len(s) > maxBytes || !utf8.ValidString(s) || strings.ContainsRune(s, 0)
	}
	if c.Principal == "" || bad(c.Principal, maxPrincipalBytes) ||
		c.DecisionID == "" || bad(c.DecisionID, maxDecisionIDBytes) || len(c.Also) > maxAlso {
		return true
	}
	for _, charge := range charges {
		if charge.Class == "" || bad(charge.Class, maxClassBytes) ||
			bad(charge.Tier, maxTierBytes) || charge.Cost < 1 || charge.Cost > maxCost {
			return true
		}
	}
	return false
}

func (m *Model) ownership(principal string, asked fsm.Epoch) (fsm.Reason, fsm.Epoch) {
	if m.Slots == nil {
		return fsm.ReasonUnspecified, 0
	}
	epoch, frozen := m.Slots(principal)
	if epoch == 0 || epoch != asked {
		return fsm.ReasonWrongEpoch, epoch
	}
	if frozen {
		return fsm.ReasonFrozen, 0
	}
	return fsm.ReasonUnspecified, 0
}

// judge measures the members of a check in order, and appends their costs if all have room.
func (m *Model) judge(principal string, charges []fsm.Charge) fsm.Decision {
	var taken []admission // what the members so far would take
	var all []limit       // the limits of the members so far
	for _, charge := range charges {
		a := m.applicable(principal, charge)
		if d := m.member(principal, charge, a, taken); d.Reason != fsm.ReasonAllowed {
			return d
		}
		for _, class := range a.classes {
			taken = append(taken, admission{m.now, principal, class, charge.Cost})
		}
		all = append(all, a.limits...)
	}
	m.admissions = append(m.admissions, taken...)
	d := fsm.Decision{Reason: fsm.ReasonAllowed}
	m.stand(&d, principal, all)
	return d
}

// member measures one charge, after what earlier members of its check would take.
func (m *Model) member(
	principal string, charge fsm.Charge, a applicable, taken []admission,
) fsm.Decision {
	// 5. Class.
	if a.class.Disabled {
		return fsm.Decision{Reason: fsm.ReasonEndpointDisabled}
	}
	// 7. Limits of 0, and costs above a limit.
	for _, l := range a.limits {
		if l.Max == 0 {
			return fsm.Decision{Reason: fsm.ReasonBlocked}
		}
	}
	for _, l := range a.limits {
		needed := add(m.taking(l, taken), charge.Cost)
		if !l.carried && needed > l.Max {
			return fsm.Decision{Reason: fsm.ReasonCostExceedsLimit}
		}
	}
	// 8. Room.
	d := fsm.Decision{Reason: fsm.ReasonAllowed}
	for _, l := range a.limits {
		needed := add(m.taking(l, taken), charge.Cost)
		if add(m.used(l, principal, m.now), needed) <= l.Max {
			continue
		}
		var deadline fsm.Time
		switch {
		case needed > l.Max: // only a carried one
			deadline = a.exactFrom
		case l.carried:
			deadline = min(a.exactFrom, m.deadline(l, principal, needed))
		default:
			deadline = m.deadline(l, principal, needed)
		}
		deadline = max(deadline, m.lost+fsm.Time(l.WindowNanos))
		if d.Reason == fsm.ReasonAllowed || deadline > d.RetryAt {
			d.Reason, d.Limit, d.RetryAt = fsm.ReasonQuotaExhausted, l.Name, deadline
		}
	}
	if d.Reason == fsm.ReasonQuotaExhausted {
		m.stand(&d, principal, a.limits)
	}
	return d
}

// stand sets Limits and the smallest room over them.
func (m *Model) stand(d *fsm.Decision, principal string, limits []limit) {
	for i, l := range limits {
		s := m.state(l, principal)
		d.Limits = append(d.Limits, s)
		if i == 0 || s.Remaining < d.Remaining {
			d.Remaining = s.Remaining
		}
	}
}

// record keeps a decision for its id, if it is of a kind that is kept and there is room.
func (m *Model) record(c fsm.Check, charges []fsm.Charge, d *fsm.Decision) {
	switch d.Reason {
	case fsm.ReasonAllowed:
	case fsm.ReasonQuotaExhausted:
		denials := 0
		for _, r := range m.records {
			if r.principal == c.Principal && r.gateway == c.Gateway && m.now < r.end &&
				!r.decision.Allowed() {
				denials++
			}
		}
		if denials >= maxDenialRecords {
			return
		}
	default:
		return
	}
	d.Recorded = true
	_, class := resolve(m.current().policy, c.Class)
	m.records = append(m.records, record{
		principal: c.Principal, gateway: c.Gateway, id: c.DecisionID,
		charges:  charges,
		decision: *d,
		end:      m.now + fsm.Time(class.ReplayHorizonNanos),
	})
}

// Peek tells the usage of a principal in a class, in an entry of its own.
func (m *Model) Peek(at fsm.Time, p fsm.Peek) fsm.Usage {
	m.Tick(at)
	if p.Principal == "" || p.Class == "" ||
		malformed(fsm.Check{Principal: p.Principal, DecisionID: "peek"},
			[]fsm.Charge{{Class: p.Class, Tier: p.Tier, Cost: 1}}) {
		return fsm.Usage{Reason: fsm.ReasonInvalidArgument, AsOf: m.now}
	}
	if reason, epoch := m.ownership(p.Principal, p.RouteEpoch); reason != fsm.ReasonUnspecified {
		return fsm.Usage{Reason: reason, Epoch: epoch, AsOf: m.now}
	}
	a := m.applicable(p.Principal, fsm.Charge{Class: p.Class, Tier: p.Tier})
	var d fsm.Decision
	m.stand(&d, p.Principal, a.limits)
	return fsm.Usage{
		Reason:    fsm.ReasonAllowed,
		Class:     a.classes[0],
		AsOf:      m.now,
		Revision:  m.current().number,
		Version:   m.current().policy.Version,
		Disabled:  a.class.Disabled,
		Remaining: d.Remaining,
		Limits:    d.Limits,
	}
}
