package fsm

// peek tells the usage that a check of one class would be measured against. It changes no answer, nor the digest: it
// may unpack what has come by a plan.
func (m *Machine) peek(p *Peek) Usage {
	u := Usage{AsOf: m.now, Revision: m.rev.number(), Version: m.rev.policy.Version}
	if err := ValidatePeek(p); err != nil {
		u.Reason, u.Detail = ReasonInvalidArgument, err.Error()
		return u
	}
	slot := m.SlotOf(p.Principal)
	if u.Reason, u.Epoch = m.serves(slot, p.RouteEpoch); u.Reason != ReasonUnspecified {
		return u
	}
	m.unpack(slot)
	m.caller = m.callerOf(p.Principal)
	class, settings := m.rev.policy.ClassOf(p.Class)
	u.Reason, u.Class, u.Disabled = ReasonAllowed, class, settings.Disabled
	u.Limits = m.standing(&m.caller, &Check{Principal: p.Principal, Charge: Charge{Class: p.Class, Tier: p.Tier}})
	u.Remaining = least(u.Limits)
	m.caller = caller{} // which would keep the entry's strings
	return u
}
