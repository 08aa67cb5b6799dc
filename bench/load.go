package bench

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// MaxClients bounds the checks that may be under way.
	MaxClients = 65_536
	// MaxRatePerS bounds an open loop.
	MaxRatePerS = 10_000_000
	// drainTimeout is how long what is under way at the end may take.
	drainTimeout = 10 * time.Second
	// exhausters is how many keys are exhausted at once.
	exhausters = 256
)

// Load is a load to be put on a target. Keys, Clients and Duration have to be set.
type Load struct {
	Target Target
	Keys   Keys
	// Clients is how many checks may be under way at once, 1 to MaxClients.
	Clients int
	// RatePerS makes it an open loop of that many checks per second; 0: a closed one.
	RatePerS float64
	// WarmUp goes before what is measured, under the same load.
	WarmUp, Duration time.Duration
	// Progress is called about once a second, if it is set.
	Progress func(Progress)
	// PIDs are processes of this machine whose processors' time is to be told.
	PIDs []int

	// until waits for an instant in an open loop; nil for the real one.
	until func(time.Time)
}

// Progress is how far a load has come.
type Progress struct {
	// Stage is exhausting, warm-up, measuring or draining.
	Stage string
	// Done is the part that is over, 0 to 1, of the stage.
	Done float64
	// PerS is how many checks ended per second since the last call, and P99 their latency.
	PerS float64
	P99  time.Duration
}

// Validate reports all that is wrong, the target aside.
func (l *Load) Validate() error {
	errs := []error{l.Keys.validate()}
	if l.Clients < 1 || l.Clients > MaxClients {
		errs = append(errs, fmt.Errorf("%d clients: give 1 to %d", l.Clients, MaxClients))
	}
	if !(l.RatePerS >= 0 && l.RatePerS <= MaxRatePerS) {
		errs = append(errs, fmt.Errorf("a rate of %v/s: give up to %d, or 0 for a closed loop", l.RatePerS,
			MaxRatePerS))
	}
	if l.Duration <= 0 || l.Duration > 24*time.Hour || l.WarmUp < 0 || l.WarmUp > time.Hour {
		errs = append(errs, fmt.Errorf("a duration of %s after %s: give up to 24h after up to 1h", l.Duration, l.WarmUp))
	}
	return errors.Join(errs...)
}

// Run puts the load on its target and reports. When ctx ends before its time it reports what was measured until
// then, or ErrNothingMeasured. Other errors are of the load itself, not of checks.
func (l *Load) Run(ctx context.Context) (*Report, error) {
	if err := l.Validate(); err != nil {
		return nil, err
	}
	if _, ok := l.Target.(Exhauster); !ok && l.Keys.ExhaustedShare > 0 {
		return nil, errors.New("this target cannot exhaust keys: give an exhausted share of 0")
	}
	r := &running{Load: l, names: l.Keys.names()}
	if err := r.exhaust(ctx); err != nil {
		return nil, err
	}
	return r.run(ctx)
}

// running is a load that runs.
type running struct {
	*Load
	names   names
	began   time.Time
	rec     *recorder
	work    sync.WaitGroup
	stopped chan struct{} // closed when no more is to be sent
	over    atomic.Bool   // the same, cheaper to read
}

// exhaust uses up the allowance of the exhausted share.
func (r *running) exhaust(ctx context.Context) error {
	target, ok := r.Target.(Exhauster)
	if !ok || r.Keys.ExhaustedShare == 0 {
		return nil
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var next atomic.Int64
	var work sync.WaitGroup
	for range min(exhausters, r.Clients) {
		work.Go(func() {
			for {
				i := int(next.Add(1)) - 1
				if i >= r.Keys.N || ctx.Err() != nil {
					return
				}
				if !r.Keys.Exhausted(i) {
					continue
				}
				if err := target.Exhaust(ctx, r.names.of(i)); err != nil {
					cancel(fmt.Errorf("cannot exhaust %s: %w", r.names.of(i), err))
				}
			}
		})
	}
	done := make(chan struct{})
	go func() { work.Wait(); close(done) }()
	r.watch(done, time.Time{}, "exhausting", func() (float64, uint64, time.Duration) {
		n := min(next.Load(), int64(r.Keys.N))
		return float64(n) / float64(r.Keys.N), uint64(n), 0
	})
	if err := context.Cause(ctx); err != nil {
		if errors.Is(err, context.Canceled) {
			err = ErrNothingMeasured
		}
		return err
	}
	return nil
}

// run is the load itself.
func (r *running) run(ctx context.Context) (*Report, error) {
	begin := time.Now()
	r.began = begin
	from := begin.Add(r.WarmUp)
	to := from.Add(r.Duration)
	r.rec = newRecorder(from, to, r.RatePerS > 0)
	r.rec.watched = r.Progress != nil
	r.stopped = make(chan struct{})
	working, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	r.start(working, begin, to)

	r.watchLoad(ctx.Done(), from, "warm-up", r.WarmUp)
	first, err := r.usage()
	if err == nil {
		r.watchLoad(ctx.Done(), to, "measuring", r.Duration)
	}
	end := time.Now()
	last, errLast := r.usage()
	r.over.Store(true)
	close(r.stopped)
	giveUp := time.AfterFunc(drainTimeout, cancel)
	defer giveUp.Stop()
	r.work.Wait()
	if r.RatePerS > 0 && err == nil { // what was due is a part of what was measured
		last, errLast = r.usage()
	}
	if err := errors.Join(err, errLast); err != nil {
		return nil, err
	}
	if !end.After(from) {
		return nil, ErrNothingMeasured
	}
	if end.After(to) {
		end = to
	}
	return r.report(r.rec, end, first, last), nil
}

// start starts the clients.
func (r *running) start(ctx context.Context, begin, to time.Time) {
	if r.RatePerS == 0 {
		for w := range r.Clients {
			r.work.Go(func() { r.closed(ctx, w) })
		}
		return
	}
	until := r.until
	if until == nil {
		until = preciseUntil
	}
	due := Schedule{PerSecond: r.RatePerS}.pace(begin, to, until, r.stopped)
	for w := range r.Clients {
		r.work.Go(func() { r.open(ctx, w, due) })
	}
}

// closed sends the next check when the one before was answered.
func (r *running) closed(ctx context.Context, worker int) {
	ctx, cancel := context.WithCancel(ctx) // of its own, as a request has: to wait for one end of all is dear
	defer cancel()
	keys := r.Keys.picker(worker)
	for sent := r.now(); !r.over.Load(); {
		sent = r.one(ctx, worker, &keys, sent, sent)
	}
}

// open sends what is due.
func (r *running) open(ctx context.Context, worker int, due <-chan time.Time) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	keys := r.Keys.picker(worker)
	for at := range due {
		r.one(ctx, worker, &keys, at, r.now())
	}
}

// now is the time by the clock that does not jump, which is half as dear to read as both.
func (r *running) now() time.Time { return r.began.Add(time.Since(r.began)) }

// one has a check decided, and returns when it was answered.
func (r *running) one(ctx context.Context, worker int, keys *picker, due, sent time.Time) time.Time {
	i := keys.next()
	e := event{due: due, sent: sent, exhausted: r.Keys.ExhaustedShare > 0 && r.Keys.Exhausted(i)}
	e.outcome, e.err = r.Target.Do(ctx, worker, r.names.of(i))
	e.answered = r.now()
	r.rec.add(worker, &e)
	return e.answered
}

// watchLoad waits for an instant, or the end, and tells how it goes.
func (r *running) watchLoad(done <-chan struct{}, until time.Time, stage string, length time.Duration) {
	r.watch(done, until, stage, func() (float64, uint64, time.Duration) {
		part := 1 - time.Until(until).Seconds()/max(length.Seconds(), 1e-9)
		return min(max(part, 0), 1), r.rec.ended(), r.rec.recentP99()
	})
}

// watch waits until done or, if it is set, an instant. It tells the progress once a second; look gives the part that
// is over, a count that grows, and a latency.
func (r *running) watch(
	done <-chan struct{}, until time.Time, stage string, look func() (float64, uint64, time.Duration),
) {
	var timer <-chan time.Time
	if !until.IsZero() {
		t := time.NewTimer(time.Until(until))
		defer t.Stop()
		timer = t.C
	}
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	_, count, _ := look()
	last := time.Now()
	for {
		select {
		case <-done:
			return
		case <-timer:
			return
		case <-tick.C:
		}
		if r.Progress == nil {
			continue
		}
		part, n, p99 := look()
		now := time.Now()
		r.Progress(Progress{
			Stage: stage, Done: part, PerS: float64(n-count) / max(now.Sub(last).Seconds(), 1e-9), P99: p99,
		})
		count, last = n, now
	}
}

// round rounds to a number of decimal places.
func round(x float64, places int) float64 {
	p := math.Pow10(places)
	return math.Round(x*p) / p
}
