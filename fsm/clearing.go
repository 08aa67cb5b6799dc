package fsm

// Clearing reports that batches still have to unpack what an earlier plan brought, or to drop what one released: the
// first step of the next plan would do all that is left of it at once.
func (m *Machine) Clearing() bool { return m.packed != nil || len(m.leaving) > 0 }
