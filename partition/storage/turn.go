package storage

// turn is a lock for those who write to a disk one after the other, and so is held for as long as the disk
// takes. As a channel, unlike a mutex, it lets the clock of a synctest bubble go on while somebody waits.
type turn chan struct{}

func newTurn() turn { return make(turn, 1) }

// Lock waits for the turn.
func (t turn) Lock() { t <- struct{}{} }

// Unlock gives it to the next.
func (t turn) Unlock() { <-t }
