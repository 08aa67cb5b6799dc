package rpc

import (
	"context"
	"math/rand/v2"
	"time"
)

// patienceOf is ctx, which has a deadline, with a little left over at its end, so that the reason reaches the
// caller before the caller gives up.
func patienceOf(ctx context.Context) (context.Context, context.CancelFunc) {
	return patienceSince(ctx, time.Now())
}

// patienceSince is patienceOf a call that began a while ago.
func patienceSince(ctx context.Context, began time.Time) (context.Context, context.CancelFunc) {
	end, _ := ctx.Deadline()
	spare := min(max(end.Sub(began)/10, time.Millisecond), 100*time.Millisecond)
	return context.WithDeadline(ctx, end.Add(-spare))
}

const (
	minPause = 5 * time.Millisecond
	maxPause = 200 * time.Millisecond
)

// pause is the last one between two attempts of a call; 0 before the first.
type pause time.Duration

// wait pauses before the next attempt, until changed or moved is closed or a growing, jittered time has passed. hinted:
// the last attempt has named where to go, and the first such hint is followed at once. After moved, pauses are short
// again. It is false when the caller cannot wait any longer.
func (p *pause) wait(patience context.Context, hinted bool, changed, moved <-chan struct{}) bool {
	if patience.Err() != nil {
		return false
	}
	if hinted && *p == 0 {
		*p = pause(minPause)
		return true
	}
	*p = min(max(2**p, pause(minPause)), pause(maxPause))
	t := time.NewTimer(time.Duration(*p/2 + rand.N(*p/2+1)))
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-changed:
	case <-moved:
		*p = 0
	case <-patience.Done():
		return false
	}
	// A short rest all the same: a leadership that changes over and over must not be chased.
	t.Reset(minPause)
	<-t.C
	return patience.Err() == nil
}

const (
	// followAfter is how long an attempt at another node lasts before it is looked whether that node still leads,
	// and followInterval is between two looks.
	followAfter    = 200 * time.Millisecond
	followInterval = 100 * time.Millisecond
)

// whileLeading is ctx until another node than asked is known to lead, where known did when the attempt began: a node
// that hangs answers nobody, and would cost the whole deadline.
func whileLeading(
	ctx context.Context, known, asked string, leader func() string,
) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	look := time.AfterFunc(followAfter, func() {
		tick := time.NewTicker(followInterval)
		defer tick.Stop()
		for ctx.Err() == nil {
			if now := leader(); now != "" && now != known && now != asked {
				cancel()
				return
			}
			select {
			case <-ctx.Done():
			case <-tick.C:
			}
		}
	})
	return ctx, func() {
		look.Stop()
		cancel()
	}
}
