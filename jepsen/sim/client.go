package sim

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/quotaerr"
)

const (
	// callTimeout is how long a client waits for one node.
	callTimeout = 1500 * time.Millisecond
	// clientPatience is how long it tries one decision.
	clientPatience = 6 * time.Second
)

// client is one gateway: it asks for hot principals, again under the same id when it does not know.
type client struct {
	c     *cluster
	rng   *rand.Rand
	name  string
	guess *node
	n     int
	past  []fsm.Check
}

// serve starts clients.
func (c *cluster) serve(clients int) {
	for i := range clients {
		k := &client{c: c, rng: rand.New(rand.NewPCG(c.seed, uint64(1000+i))), name: fmt.Sprintf("g%d", i), guess: c.nodes[0]}
		c.clients.Go(k.run)
	}
}

func (k *client) run() {
	for {
		wait := time.Duration(20+k.rng.IntN(280)) * time.Millisecond
		select {
		case <-k.c.quiet:
			return
		case <-k.c.ctx.Done():
			return
		case <-time.After(wait):
		}
		switch r := k.rng.IntN(20); {
		case r == 0:
			k.peek()
		case r < 3 && len(k.past) > 0:
			k.decide(k.past[k.rng.IntN(len(k.past))])
		default:
			k.decide(k.fresh())
		}
	}
}

func (k *client) principal() string { return []string{"hot", "warm"}[k.rng.IntN(2)] }

func (k *client) fresh() fsm.Check {
	k.n++
	cost := int64(1)
	if k.rng.IntN(5) == 0 {
		cost = 2
	}
	check := fsm.Check{
		Principal: k.principal(), Gateway: k.name, DecisionID: fmt.Sprintf("%s-%d", k.name, k.n),
		RouteEpoch: simEpoch, Charge: fsm.Charge{Class: "c", Cost: cost},
	}
	k.past = append(k.past, check)
	return check
}

// decide asks until there is an answer, or patience ends.
func (k *client) decide(check fsm.Check) {
	for end := time.Now().Add(clientPatience); time.Now().Before(end); {
		n := k.pick()
		if k.ask(n, check) {
			return
		}
		select {
		case <-time.After(time.Duration(10+k.rng.IntN(90)) * time.Millisecond):
		case <-k.c.ctx.Done():
			return
		}
	}
}

func (k *client) pick() *node {
	if k.rng.IntN(4) == 0 {
		return k.c.nodes[k.rng.IntN(len(k.c.nodes))]
	}
	return k.guess
}

// ask asks one node once.
func (k *client) ask(n *node, check fsm.Check) bool {
	ctx, cancel := context.WithTimeout(k.c.ctx, callTimeout)
	defer cancel()
	began := time.Now()
	a, err := n.check(ctx, check)
	if took := time.Since(began); took > callTimeout+100*time.Millisecond {
		k.c.history.violate(endsHolds, "a call on %s took %v", n.id, took)
	}
	if err != nil {
		k.guess = k.c.nodes[k.rng.IntN(len(k.c.nodes))]
		if e := quotaerr.As(err); e != nil && e.Leader != "" {
			k.guess = k.c.byID(e.Leader)
		}
		return false
	}
	k.guess = n
	if k.rng.IntN(30) == 0 {
		return false // the answer is lost on its way
	}
	k.c.history.told(result{id: check.DecisionID, reason: a.Reason, recorded: a.Recorded, node: n.id})
	return true
}

func (k *client) peek() {
	p := k.pick().now()
	if p == nil {
		return
	}
	ctx, cancel := context.WithTimeout(k.c.ctx, callTimeout)
	defer cancel()
	_, _ = p.partition.Peek(ctx, fsm.Peek{Principal: k.principal(), Class: "c", RouteEpoch: simEpoch})
}
