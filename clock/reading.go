package clock

// Reading is one look at the clocks of a machine that count and cannot be set, in nanoseconds since an
// instant that is the same for the life of the machine and means nothing elsewhere.
type Reading struct {
	// Mono is CLOCK_MONOTONIC: slewed by the time service, by up to 10 %; stands still in suspend.
	Mono int64
	// Raw is CLOCK_MONOTONIC_RAW: not slewed; stands still in suspend.
	Raw int64
	// Boot is CLOCK_BOOTTIME: as Mono, but counts suspended time.
	Boot int64
}

// longestSince is the most that can have passed since an earlier reading of the same machine, by its
// faster clock and with suspended time, which is what Boot has gained on Mono. Boot alone would not do:
// outside of suspend it is slewed as Mono is, and may be slow.
func (r Reading) longestSince(from Reading) int64 {
	suspended := (r.Boot - r.Mono) - (from.Boot - from.Mono)
	return max(r.Boot-from.Boot, r.Raw-from.Raw+suspended)
}

// Wall is one look at the wall clock.
type Wall struct {
	// Nanos is CLOCK_REALTIME, in nanoseconds since 1970.
	Nanos int64
	// ErrorNanos is the kernel's bound of the error of Nanos. It means something only with Bounded.
	ErrorNanos int64
	// Bounded says that the kernel calls the clock synchronised and reports an error above 0.
	// systemd-timesyncd reports 0, which is no bound.
	Bounded bool
}

// Source reads the clocks of one machine. Implementations are safe for concurrent use.
type Source interface {
	Read() Reading
	Wall() Wall
}
