package clock_test

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/quorate/quorate/clock"
)

// Shows that a wall clock which jumps by a second or more either way is counted, told by how much, and
// logged once, and that the next look starts from where it stands.
func TestWallWatchCountsJumpsBothWays(t *testing.T) {
	var f clock.Fake
	var log bytes.Buffer
	w := clock.NewWallWatch(&f, slog.New(slog.NewTextHandler(&log, nil)))
	for i, c := range []struct{ step, want int64 }{
		{second, second}, {0, 0}, {-second, -second}, {second - 1, 0}, {1 - second, 0},
		{3600 * second, 3600 * second}, {-7200 * second, -7200 * second}, {0, 0},
	} {
		f.Advance(5 * second)
		f.StepWall(c.step)
		if got := w.Look(); got != c.want {
			t.Errorf("step %d of %d ns is seen as %d", i, c.step, got)
		}
	}
	if w.Jumps() != 4 {
		t.Errorf("%d jumps counted, want 4", w.Jumps())
	}
	if n := strings.Count(log.String(), "jumped"); n != 4 {
		t.Errorf("%d lines logged, want 4:\n%s", n, log.String())
	}
}

// Shows that a suspended machine, and one whose clocks are slewed as much as time services do, is not
// taken for one whose wall clock jumped.
func TestWallWatchAllowsSuspendAndSlew(t *testing.T) {
	var f clock.Fake
	w := clock.NewWallWatch(&f, slog.New(slog.DiscardHandler))
	for _, ppm := range []int64{0, 100_000, -100_000} {
		f.Rates(ppm, 0)
		f.Advance(5 * second)
		f.Suspend(8 * 3600 * second)
		f.Advance(4 * second)
		if jump := w.Look(); jump != 0 {
			t.Errorf("slewed by %d ppm: a jump of %d ns", ppm, jump)
		}
	}
	if w.Jumps() != 0 {
		t.Errorf("%d jumps", w.Jumps())
	}
}

// Shows that a running watch finds a jump by itself within one interval, and ends with its context.
func TestWallWatchRuns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var f clock.Fake
		w := clock.NewWallWatch(&f, slog.New(slog.DiscardHandler))
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { w.Run(ctx); close(ended) }()
		f.StepWall(-10 * second)
		time.Sleep(6 * time.Second) //nolint:forbidigo // of the bubble's clock
		synctest.Wait()
		if w.Jumps() != 1 {
			t.Errorf("%d jumps after one interval, want 1", w.Jumps())
		}
		cancel()
		<-ended
	})
}
