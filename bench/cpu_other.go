//go:build !linux

package bench

import (
	"errors"
	"time"
)

// OwnCPU is not known on this platform: 0.
func OwnCPU() (time.Duration, error) { return 0, nil }

// CPU is not known on this platform.
func CPU(int) (time.Duration, error) {
	return 0, errors.New("the processors' time of another process is told on Linux only: leave its pid out")
}
