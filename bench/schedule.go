package bench

import (
	"math"
	"time"
)

// Schedule says when the checks of an open loop are due: evenly apart, whatever becomes of them.
type Schedule struct {
	// PerSecond is the rate, above 0.
	PerSecond float64
}

// At is when check n, from 0, is due, counted from the start.
func (s Schedule) At(n int64) time.Duration {
	return time.Duration(math.Ceil(float64(n) / s.PerSecond * float64(time.Second)))
}

// Due is how many checks are due when elapsed has passed: those numbered below it.
func (s Schedule) Due(elapsed time.Duration) int64 {
	if elapsed < 0 {
		return 0
	}
	n := int64(float64(elapsed) / float64(time.Second) * s.PerSecond)
	for s.At(n) <= elapsed { // rounding: at most a step or two
		n++
	}
	for n > 0 && s.At(n-1) > elapsed {
		n--
	}
	return n
}

const (
	// quantum is the shortest wait of an open loop: what comes due within it is sent together, late by at most that
	// much, and the lateness is in the latency.
	quantum = 100 * time.Microsecond
	// queued is how many due checks may wait for a free client before the pacing itself waits. They keep their due
	// times.
	queued = 1 << 12
)

// pace hands out the due times of a schedule, from start until end, and then closes the channel. It never skips one:
// when nobody takes them it hands them out late. until waits for an instant; stopped ends it early.
func (s Schedule) pace(start, end time.Time, until func(time.Time), stopped <-chan struct{}) <-chan time.Time {
	out := make(chan time.Time, queued)
	go func() {
		defer close(out)
		total := s.Due(end.Sub(start) - 1)
		for n := int64(0); n < total; {
			until(start.Add(s.At(n)))
			for due := min(s.Due(time.Since(start)), total); n < due; n++ {
				select {
				case out <- start.Add(s.At(n)):
				case <-stopped:
					return
				}
			}
			select {
			case <-stopped:
				return
			default:
			}
		}
	}()
	return out
}

// sleepUntil waits by the runtime's timers, which are coarse: up to about a millisecond late.
func sleepUntil(t time.Time) {
	if d := time.Until(t); d > 0 {
		<-time.After(d)
	}
}
