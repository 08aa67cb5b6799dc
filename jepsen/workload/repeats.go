package workload

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/quorate/quorate/jepsen/history"
)

const (
	replayMax     = 10
	replayWindow  = 10 * time.Second
	replayHorizon = 30 * time.Second
	// replayMargin is how long before the end of the horizon an id is repeated at the latest.
	replayMargin = 100 * time.Millisecond
	// maxRepeats bounds the ids that a client remembers to repeat.
	maxRepeats = 512
)

// repeat is an id that is sent again at an instant, as it was or with another cost.
type repeat struct {
	check Check
	due   time.Duration
	end   time.Duration // from then on it is too late
	other bool
}

// repeats are in the order in which they are due.
type repeats []repeat

func (l *repeats) add(r repeat) {
	if len(*l) >= maxRepeats {
		return
	}
	i, _ := slices.BinarySearchFunc(*l, r, func(a, b repeat) int { return cmp.Compare(a.due, b.due) })
	*l = slices.Insert(*l, i, r)
}

// next takes the first that is due and not too late.
func (l *repeats) next(now time.Duration) (repeat, bool) {
	for len(*l) > 0 && (*l)[0].due <= now {
		r := (*l)[0]
		*l = (*l)[1:]
		if now < r.end {
			return r, true
		}
	}
	return repeat{}, false
}

// replay sends ids again: at once to another node, later, near the end of the horizon, and with other parameters.
func replay() Kind {
	return Kind{
		Name:    "replay",
		About:   "the same id again: at other nodes, after no answer, until the end of its horizon; and with another cost",
		Classes: map[string]history.Class{"replay": class(replayMax, replayWindow, replayHorizon)},
		clients: 3,
		ask: func(ctx context.Context, c *client) {
			c.pinned = nil // a repeat goes to another node
			var later repeats
			for c.pause(ctx, 60*time.Millisecond) {
				if r, ok := later.next(c.now()); ok {
					c.repeat(ctx, r)
					continue
				}
				c.begin(ctx, &later)
			}
		},
	}
}

// begin asks for something new, and notes when to repeat it.
func (c *client) begin(ctx context.Context, later *repeats) {
	k := c.check(fmt.Sprint("replay-", c.rand.IntN(3)), "replay", 1)
	from := c.now()
	a, decided := c.decide(ctx, k, replayHorizon/2)
	if !decided {
		return
	}
	end := from + replayHorizon - replayMargin
	now := c.now()
	later.add(repeat{check: *k, due: now, end: end})
	if end > now {
		later.add(repeat{check: *k, due: now + time.Duration(c.rand.Int64N(int64(end-now))), end: end})
	}
	switch c.rand.IntN(3) {
	case 0:
		later.add(repeat{check: *k, due: end - replayMargin, end: end})
	case 1:
		if a.Answer.Recorded {
			later.add(repeat{check: *k, due: now + time.Duration(c.rand.Int64N(int64(replayHorizon/2))), end: end, other: true})
		}
	}
}

// repeat sends an id again, once.
func (c *client) repeat(ctx context.Context, r repeat) {
	if r.other {
		r.check.Cost++
	}
	c.attempt(ctx, &r.check, c.node())
}

const (
	unknownWithin  = 200 * time.Millisecond
	unknownHorizon = 2 * time.Minute
)

// unknownRetry gives up on an answer early, and repeats the id until it knows.
func unknownRetry() Kind {
	return Kind{
		Name: "unknown-retry", About: "waits 200 ms for an answer, and repeats the same id until it is decided",
		Classes: map[string]history.Class{"unknown": class(10, 10*time.Second, unknownHorizon)},
		clients: 3,
		ask: func(ctx context.Context, c *client) {
			c.within = unknownWithin
			for c.pause(ctx, 150*time.Millisecond) {
				k := c.check(fmt.Sprint("unknown-retry-", c.rand.IntN(3)), "unknown", 1)
				c.decide(ctx, k, unknownHorizon/2)
			}
		},
	}
}

const (
	moveMax        = 3
	moveWindow     = 10 * time.Second
	movePrincipals = 18
	moveHorizon    = time.Minute
)

// move has principals all over the slots, so that whatever moves, some of them do, and repeats ids across that.
func move() Kind {
	return Kind{
		Name: "move", About: "principals all over the slots, and ids repeated across whatever moves them",
		Classes: map[string]history.Class{"move": class(moveMax, moveWindow, moveHorizon)},
		clients: 3,
		ask: func(ctx context.Context, c *client) {
			var later repeats
			for c.pause(ctx, 110*time.Millisecond) {
				if r, ok := later.next(c.now()); ok {
					c.repeat(ctx, r)
					continue
				}
				k, from := c.check(fmt.Sprint("move-", c.rand.IntN(movePrincipals)), "move", 1), c.now()
				a, decided := c.decide(ctx, k, retryFor)
				if decided && a.Answer.Recorded && (a.Answer.Allowed || c.rand.IntN(4) == 0) {
					after := time.Duration(c.rand.Int64N(int64(moveHorizon - 10*time.Second)))
					later.add(repeat{check: *k, due: c.now() + after, end: from + moveHorizon - replayMargin})
				}
			}
		},
	}
}
