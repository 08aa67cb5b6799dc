package partition

import "github.com/quorate/quorate/fsm"

// peekHere answers a peek by the state of this replica, whoever leads: see guard.LoggedPeek. Nothing of it is in the
// product's program.
func (p *Partition) peekHere(peek *fsm.Peek) (UsageAnswer, error) {
	var u fsm.Usage
	p.replica.view(func(m *fsm.Machine, _ uint64) { u = fsm.PeekUnlogged(m, peek) })
	return p.usageOf(&u)
}
