package clock

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"
)

const (
	// wallJumpNanos is by how much the wall clock must leave the monotonic one to count as a jump.
	wallJumpNanos = 1_000_000_000
	wallInterval  = 5 * time.Second
)

// WallWatch counts and logs the jumps of the wall clock. It changes no decision: it is there so that an
// operator who reads wall times in a log knows when not to.
type WallWatch struct {
	source Source
	logger *slog.Logger
	wall   int64 // at the last look
	read   Reading
	jumps  atomic.Int64
}

// NewWallWatch takes the first look.
func NewWallWatch(source Source, logger *slog.Logger) *WallWatch {
	return &WallWatch{source: source, logger: logger, wall: source.Wall().Nanos, read: source.Read()}
}

// Jumps is how often the wall clock has jumped. It is safe for concurrent use.
func (w *WallWatch) Jumps() int64 { return w.jumps.Load() }

// Run looks again and again until ctx ends.
func (w *WallWatch) Run(ctx context.Context) {
	tick := time.NewTicker(wallInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			w.Look()
		}
	}
}

// Look compares the wall clock with CLOCK_BOOTTIME, which counts suspended time as the wall clock does,
// since the last look, and returns by how many nanoseconds the wall clock has jumped; 0 for none. It is
// what Run does at each tick, and is not safe for concurrent use.
func (w *WallWatch) Look() int64 {
	wall, read := w.source.Wall().Nanos, w.source.Read()
	jump := (wall - w.wall) - (read.Boot - w.read.Boot)
	w.wall, w.read = wall, read
	if -wallJumpNanos < jump && jump < wallJumpNanos {
		return 0
	}
	w.jumps.Add(1)
	w.logger.Warn("the wall clock jumped; no decision depends on it", "by", time.Duration(jump).String())
	return jump
}
