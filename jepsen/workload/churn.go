package workload

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/quorate/quorate/jepsen/history"
)

const (
	churnMax    = 10
	churnWindow = 10 * time.Second
	// churnEvery is how often a policy is published where the workload does that itself.
	churnEvery = 15 * time.Second
	// publishWithin is how long a publish may take. It ends within a lease of 10 s where the control group has a leader.
	publishWithin = 60 * time.Second
)

// policyChurn asks while the limits of its class change.
func policyChurn() Kind {
	return Kind{
		Name: "policy-churn", About: "asks while policies tighten and loosen; publishes them itself where no fault does",
		Classes: map[string]history.Class{"churn": class(churnMax, churnWindow, 30*time.Second)},
		clients: 5, publish: true,
		ask: func(ctx context.Context, c *client) {
			for c.pause(ctx, 100*time.Millisecond) {
				c.decide(ctx, c.check(fmt.Sprint("policy-churn-", c.rand.IntN(5)), "churn", 1), retryFor)
			}
		},
	}
}

// churn publishes one policy after another.
func (w *Crowd) churn(ctx context.Context, r *rand.Rand) {
	for k := 2; ; k++ {
		timer := time.NewTimer(churnEvery/2 + rand.N(churnEvery))
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return
		}
		next := w.options.Publisher.Present()
		next.Version = fmt.Sprint("churn-", k)
		next.Classes["churn"] = drawClass(next.Classes["churn"], r)
		publishing, cancel := context.WithTimeout(context.WithoutCancel(ctx), publishWithin)
		err := w.options.Publisher.Apply(publishing, next)
		cancel()
		if err != nil {
			w.fail(fmt.Errorf("policy %s: %w", next.Version, err))
			return // nobody knows which revision there is
		}
	}
}

// drawClass draws a class that is tighter or looser, or has another window.
func drawClass(was history.Class, r *rand.Rand) history.Class {
	max := []int64{1, 3, churnMax, 2 * churnMax}[r.IntN(4)]
	window := []time.Duration{churnWindow / 2, churnWindow, 2 * churnWindow}[r.IntN(3)]
	was.Limits = limit("rolling", max, window)
	return was
}
