package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/quorate/quorate/jepsen/gateways/talk"
	"github.com/quorate/quorate/sdk"
)

// checkTimeout ends a check that does not end by itself; a test takes that for a failure.
const checkTimeout = 10 * time.Second

// load has checks decided until it is stopped.
type load struct {
	*gateway
	of     talk.Load
	done   sync.WaitGroup
	ending chan struct{}
}

func startLoad(ctx context.Context, g *gateway, of talk.Load) *load {
	l := &load{gateway: g, of: of, ending: make(chan struct{})}
	for k := range of.Workers {
		r := rand.New(rand.NewPCG(of.Seed, uint64(k)))
		l.done.Go(func() {
			if of.Obey {
				l.comeBack(ctx, k)
			} else {
				l.work(ctx, r)
			}
		})
	}
	return l
}

// stop waits until no check is under way.
func (l *load) stop() {
	close(l.ending)
	l.done.Wait()
}

// wait waits until an instant, and reports whether the load goes on.
func (l *load) wait(until time.Time) bool {
	timer := time.NewTimer(time.Until(until))
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-l.ending:
		return false
	}
}

// work asks at times that do not hang on when it is answered, unless that takes too long.
func (l *load) work(ctx context.Context, r *rand.Rand) {
	interval := time.Duration(float64(l.of.Workers) / l.of.PerSecond * float64(time.Second))
	next := time.Now().Add(rand.N(interval))
	for l.wait(next) {
		cost := int64(1)
		if l.of.Heavy > 0 && r.IntN(l.of.Heavy) == 0 {
			cost = 2
		}
		l.check(ctx, l.of.First+r.IntN(l.of.Principals), cost, 0)
		next = next.Add(interval)
		for now := time.Now(); next.Before(now); next = next.Add(interval) {
			l.skipped.Add(1)
		}
	}
}

// comeBack asks for one principal without a pause, and when it is denied waits exactly as long as it is told.
func (l *load) comeBack(ctx context.Context, k int) {
	told := time.Duration(0)
	for at := time.Now(); l.wait(at); {
		told, at = l.check(ctx, l.of.First+k%l.of.Principals, 1, told)
	}
}

// check has one check decided and tells of it. It returns how long to wait before the next, and until when.
func (l *load) check(ctx context.Context, k int, cost int64, told time.Duration) (time.Duration, time.Time) {
	c := &talk.Check{
		Principal: fmt.Sprint(l.of.Prefix, k), Class: l.of.Classes[k%len(l.of.Classes)], Cost: cost, Told: int64(told),
	}
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	c.Sent = talk.Now()
	d, err := l.client.Check(ctx, c.Principal, c.Class, sdk.WithCost(cost))
	returned := time.Now()
	c.Received = talk.Now()
	if err != nil {
		failed(c, err)
	} else {
		decided(c, &d)
	}
	l.events.tell(talk.Event{Kind: talk.KindCheck, Check: c})
	wait := time.Duration(c.WaitNanos)
	if c.Allowed {
		wait = 0
	} else if wait == 0 {
		wait = 10 * time.Millisecond // nobody knows
		return 0, returned.Add(wait)
	}
	return wait, returned.Add(wait)
}

func decided(c *talk.Check, d *sdk.Decision) {
	c.Allowed, c.Source, c.Reason, c.Limit, c.Remaining = d.Allowed, d.Source.String(), d.Reason, d.Limit, d.Remaining
	c.Revision, c.Version, c.ID, c.Replayed, c.Recorded = d.PolicyRevision, d.PolicyVersion, d.ID, d.Replayed, d.Recorded
	c.Attempts, c.WaitNanos = d.Attempts, int64(d.RetryAfter)
	for _, s := range d.Limits {
		c.Limits = append(c.Limits, talk.LimitState{Name: s.Name, Limit: s.Limit, Remaining: s.Remaining})
	}
	var cause *sdk.Error
	if errors.As(d.Cause, &cause) {
		c.MaybeConsumed, c.Cause = cause.MaybeConsumed, string(cause.Reason)
	}
}

func failed(c *talk.Check, err error) {
	c.Failed, c.Kind, c.Reason = true, "other", err.Error()
	for kind, is := range map[string]error{
		"unavailable": sdk.ErrUnavailable, "overloaded": sdk.ErrOverloaded, "refused": sdk.ErrRefused,
		"closed": sdk.ErrClosed,
	} {
		if errors.Is(err, is) {
			c.Kind = kind
		}
	}
	var e *sdk.Error
	if errors.As(err, &e) {
		c.Reason, c.MaybeConsumed, c.Attempts = string(e.Reason), e.MaybeConsumed, e.Attempts
		c.WaitNanos, c.ID = int64(e.RetryAfter), e.ID
	}
}
