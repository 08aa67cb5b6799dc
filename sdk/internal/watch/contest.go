package watch

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	quoratev1 "github.com/quorate/quorate/proto/quorate/v1"
)

// contest is one round: nodes are tried until one tells a configuration that holds, which is then followed alone. One
// that says nothing for nextAfter is not given up, but another one is tried beside it.
type contest struct {
	w        *Watcher
	targets  []Target // that are left to try
	heard    chan event
	over     sync.WaitGroup
	open     []*attempt
	followed *attempt // nil until one tells a configuration that holds
}

// attempt is one node that is being watched.
type attempt struct {
	target      Target
	cancel      context.CancelCauseFunc
	parts       assembly
	behindSince int64 // when the node began to be behind; 0 while it is not
	ended       bool  // what it says no longer counts
}

// event is what comes of an attempt: a message, or the error that ends it.
type event struct {
	of  *attempt
	m   *quoratev1.WatchConfigResponse
	err error
}

var (
	errSilent = errors.New("the node says nothing")
	errBehind = errors.New("the node is behind: it still tells an older map or policy than was seen elsewhere")
)

// run runs the round.
func (c *contest) run(ctx context.Context) {
	next := time.NewTimer(nextAfter)
	defer next.Stop()
	for c.try(ctx, next); ctx.Err() == nil && len(c.open) > 0; {
		select {
		case <-next.C:
			c.try(ctx, next)
		case <-ctx.Done():
		case e := <-c.heard:
			if e.of.ended {
				continue
			}
			if err := c.take(e); err != nil && ctx.Err() == nil {
				c.end(e.of)
				c.w.left = e.of.target
				c.w.failed(e.of.target, err)
				c.try(ctx, next)
			}
		}
	}
}

// try begins to watch the next node, unless one is or was followed, enough are tried, or there is none.
func (c *contest) try(ctx context.Context, next *time.Timer) {
	if c.followed != nil || len(c.open) >= maxOpen || len(c.targets) == 0 {
		return
	}
	a := &attempt{target: c.targets[0]}
	c.targets, c.open = c.targets[1:], append(c.open, a)
	var within context.Context
	within, a.cancel = context.WithCancelCause(ctx)
	tell := func(e event) {
		select {
		case c.heard <- e:
		case <-ctx.Done():
		}
	}
	c.over.Go(func() { tell(event{of: a, err: c.w.listen(within, a, tell)}) })
	next.Reset(nextAfter)
}

// end ends an attempt.
func (c *contest) end(a *attempt) {
	a.ended = true
	a.cancel(nil)
	left := c.open[:0]
	for _, other := range c.open {
		if other != a {
			left = append(left, other)
		}
	}
	c.open = left
}

// take takes what comes of an attempt. The error ends it. What is outdated confirms nothing.
func (c *contest) take(e event) error {
	w, a := c.w, e.of
	if e.err != nil {
		return e.err
	}
	if err := w.take(e.m, &a.parts); err != nil {
		return fmt.Errorf("the configuration cannot be used: %w", err)
	}
	now := w.Now()
	behind, outdated := w.behind(&a.parts)
	switch {
	case !behind:
		a.behindSince = 0
	case a.behindSince == 0:
		a.behindSince = now
	case now-a.behindSince >= int64(BehindFor):
		return errBehind
	}
	// A node that tells a map and then that there is nothing else has no policy yet.
	complete := w.haveClasses || a.parts.toldMap != 0 && e.m.GetMap() == nil && e.m.GetPolicy() == nil
	if outdated && w.known || !w.haveMap || !complete {
		return nil
	}
	w.lastNanos.Store(now)
	w.connected.Store(true)
	if c.followed == nil {
		c.follow(a)
	}
	return nil
}

// follow goes on with one node alone.
func (c *contest) follow(a *attempt) {
	c.followed, c.w.known = a, true
	for len(c.open) > 1 {
		other := c.open[0]
		if other == a {
			other = c.open[1]
		}
		c.end(other)
	}
	c.w.following(a.target)
}

// listen tells what a node says until it breaks off. There is always an error.
func (w *Watcher) listen(ctx context.Context, a *attempt, tell func(event)) error {
	conn, err := w.Dial(a.target)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }() // only ever errs when it is closed already
	watchdog := time.AfterFunc(firstWithin, func() { a.cancel(errSilent) })
	defer watchdog.Stop()
	stream, err := quoratev1.NewQuotaClient(conn).WatchConfig(ctx, &quoratev1.WatchConfigRequest{})
	for err == nil {
		var m *quoratev1.WatchConfigResponse
		if m, err = stream.Recv(); err == nil {
			watchdog.Reset(SilentAfter)
			tell(event{of: a, m: m})
		}
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}
