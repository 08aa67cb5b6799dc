package storage

// turn is a lock that is held for as long as a disk takes. It is a channel and not a mutex, so that the
// time of a simulation passes while somebody waits for it.
type turn chan struct{}

func newTurn() turn { return make(turn, 1) }

// Lock waits for the turn.
func (t turn) Lock() { t <- struct{}{} }

// Unlock gives it to the next.
func (t turn) Unlock() { <-t }
