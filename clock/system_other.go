//go:build !linux

package clock

import "errors"

// System is the machine's own clocks; on this system an error, since CLOCK_MONOTONIC_RAW and
// CLOCK_BOOTTIME are what partition time rests on.
func System() (Source, error) {
	return nil, errors.New("clock: quorate servers need Linux: its unslewed monotonic clock keeps the caps exact")
}
