package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"github.com/quorate/quorate/bench"
)

// sample is one measurement.
type sample struct {
	Peer        string        `json:"peer"`
	Outstanding int           `json:"outstanding"`
	Round       int           `json:"round"`
	Report      *bench.Report `json:"report"`
}

// result is all that was measured.
type result struct {
	Machine     machine       `json:"machine"`
	Rounds      int           `json:"rounds"`
	Outstanding []int         `json:"outstanding"`
	WarmUp      time.Duration `json:"warm_up_ns"`
	Duration    time.Duration `json:"duration_ns"`
	Missing     []string      `json:"missing"`
	Samples     []sample      `json:"samples"`
	peers       []peer
}

// measure runs all rounds. Every other round goes the other way about, so that none is always after the same.
func (c *config) measure(ctx context.Context, found []peer, res *result, stderr io.Writer) error {
	res.peers = found
	for round := range c.rounds {
		order := slices.Clone(found)
		if round%2 == 1 {
			slices.Reverse(order)
		}
		for _, p := range order {
			err := c.one(ctx, p, round, res, stderr)
			switch {
			case err == nil:
			case p.Name == res.peers[0].Name || ctx.Err() != nil:
				return fmt.Errorf("%s: %w", p.Name, err)
			default: // the others are measured all the same
				fmt.Fprintf(stderr, "%s is left out: %v\n", p.Name, err)
				res.Missing = append(res.Missing, fmt.Sprintf("%s failed in round %d and was left out from there: %v.", p.Name,
					round+1, err))
				found = slices.DeleteFunc(slices.Clone(found), func(f peer) bool { return f.Name == p.Name })
			}
		}
	}
	return nil
}

// one starts a peer, measures it and ends it.
func (c *config) one(ctx context.Context, p peer, round int, res *result, stderr io.Writer) (err error) {
	at, err := c.fresh(p.Name)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(at.dir)) }()
	s, err := p.start(ctx, at)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	if err := enforces(ctx, s.Target); err != nil {
		return err
	}
	for _, n := range c.outstanding {
		l := bench.Load{
			Target: s.Target, Clients: n, WarmUp: c.warmUp, Duration: c.duration, PIDs: s.pids,
			Keys: bench.Keys{N: keys, Prefix: fmt.Sprintf("p%d-", n)},
		}
		r, err := l.Run(ctx)
		if err != nil {
			return err
		}
		if r.Interrupted {
			return errors.New("it was interrupted: nothing is written")
		}
		fmt.Fprintf(stderr, "round %d, %s, %d outstanding: %.0f/s, p50 %d µs, p99 %d µs, CPU %.1f + %.1f µs\n", round+1,
			p.Name, n, r.DecisionsPerS, r.P50Us, r.P99Us, r.NodesCPUUs, r.ClientCPUUs)
		if bad := r.Errors + r.Unavailable + r.Bypassed; bad > 0 {
			fmt.Fprintf(stderr, "  %d of %d checks got no decision: %s\n", bad, r.Checks(), r.FirstError)
		}
		res.Samples = append(res.Samples, sample{p.Name, n, round, r})
	}
	return nil
}

// enforces has one principal ask past its limit: it gets the limit and not more.
func enforces(ctx context.Context, t bench.Target) error {
	allowed := 0
	begin := time.Now()
	for range limit + 1 {
		o, err := t.Do(ctx, 0, "enforced")
		if err != nil {
			return err
		}
		if o == bench.Allowed {
			allowed++
		}
	}
	if took := time.Since(begin); allowed != limit && took < window/2 {
		return fmt.Errorf("%d of %d checks within %s were allowed, and the limit is %d: it does not enforce what is compared",
			allowed, limit+1, took, limit)
	}
	return nil
}
