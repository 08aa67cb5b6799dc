package fsm

// PeekUnlogged answers a peek by the state as it stands, without an entry that asks: see guard.LoggedPeek. Nothing of
// it is in the product's program. The machine must be born.
func PeekUnlogged(m *Machine, p *Peek) Usage { return m.peek(p) }
