package fsm

// Foresee is the denial that a check would get at a time, as the state stands; ok is false when it would get anything
// else, or when only an entry can tell. It changes nothing, so the denial is not recorded, and whoever answers it must
// see to it that the state was still that of a leader: that an entry of the leadership which asks is committed
// afterwards.
func (m *Machine) Foresee(c *Check, at Time) (d Decision, ok bool) {
	if m.rev == nil || m.packed != nil || ValidateCheck(c) != nil {
		return Decision{}, false
	}
	if of := c.PolicyRevision; of != 0 && of != m.rev.number() {
		return Decision{}, false
	}
	defer func(now Time) { m.now, m.caller = now, caller{} }(m.now)
	m.now = max(m.now, at)
	m.caller = m.callerOf(c.Principal)
	p := &m.caller
	if r, _ := m.serves(p.slot, c.RouteEpoch); r != ReasonUnspecified {
		return Decision{}, false
	}
	p.id = m.hash128(hashReplay, c.Principal, c.Gateway, c.DecisionID)
	if p.findRecord(); p.record != 0 {
		return Decision{}, false
	}
	d, _ = m.judge(p, c)
	return d, d.Reason.Denied()
}
