//go:build !linux

package bench

import "time"

func preciseUntil(t time.Time) { sleepUntil(t) }
