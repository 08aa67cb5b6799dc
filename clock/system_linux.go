package clock

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// System is the machine's own clocks.
func System() (Source, error) {
	for _, id := range []int32{unix.CLOCK_MONOTONIC, unix.CLOCK_MONOTONIC_RAW, unix.CLOCK_BOOTTIME, unix.CLOCK_REALTIME} {
		var ts unix.Timespec
		if err := unix.ClockGettime(id, &ts); err != nil {
			return nil, fmt.Errorf("clock: this kernel lacks clock %d: %w", id, err)
		}
	}
	return system{}, nil
}

// timeError is TIME_ERROR of <sys/timex.h>: the clock is not synchronised.
const timeError = 5

type system struct{}

// Read looks at Raw first and at Boot last. Partition time gains no more than Raw does, so a pause between
// two looks gives it nothing; and suspended time, which is what Boot has gained on Mono, comes out larger
// by a pause at the end of a span, and smaller only by one before the span's reading was complete.
func (system) Read() Reading {
	return Reading{
		Raw:  gettime(unix.CLOCK_MONOTONIC_RAW),
		Mono: gettime(unix.CLOCK_MONOTONIC),
		Boot: gettime(unix.CLOCK_BOOTTIME),
	}
}

func (system) Wall() Wall {
	w := Wall{Nanos: gettime(unix.CLOCK_REALTIME)}
	var tx unix.Timex // no modes: it only reads
	state, err := unix.Adjtimex(&tx)
	if err != nil || state == timeError || tx.Status&unix.STA_UNSYNC != 0 || tx.Maxerror <= 0 {
		return w
	}
	w.ErrorNanos, w.Bounded = int64(tx.Maxerror)*1000, true //nolint:unconvert // it is an int32 elsewhere
	return w
}

func gettime(id int32) int64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(id, &ts); err != nil {
		panic(fmt.Sprintf("clock: clock %d was readable at start and is not now: %v", id, err))
	}
	return ts.Nano()
}
