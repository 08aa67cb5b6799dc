package bench

import (
	"time"

	"golang.org/x/sys/unix"
)

// preciseUntil waits for an instant, late by some tens of microseconds: the runtime's timers alone are coarser than
// what is measured. Its last stretch cannot be broken off, and is short.
func preciseUntil(t time.Time) {
	const coarse = 3 * time.Millisecond
	if d := time.Until(t); d > coarse {
		<-time.After(d - coarse)
	}
	if d := max(time.Until(t), quantum); d <= coarse {
		ts := unix.NsecToTimespec(int64(d))
		_ = unix.Nanosleep(&ts, nil) // a signal ends it early, which the caller notices
	}
}
