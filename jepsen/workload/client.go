package workload

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/quorate/quorate/jepsen/history"
)

const (
	// answerWithin bounds one attempt, where a kind does not say otherwise; what comes later is no answer.
	answerWithin = 1500 * time.Millisecond
	// retryFor is how long a check is repeated that has no decision, where a kind does not say otherwise.
	retryFor = 8 * time.Second
	// retryPause is between two attempts at a check.
	retryPause = 50 * time.Millisecond
)

// client asks for one kind. It is for one goroutine; what a burst does beside it has names and nodes of its own.
type client struct {
	crowd  *Crowd
	kind   string
	name   string
	number int // among the clients of its kind
	life   int // goes up when it does not learn what came of an attempt
	door   Door
	pinned *Node // nil when it asks any
	rand   *rand.Rand
	within time.Duration // of one attempt
	last   int           // number of its last check
}

// newClient is the k-th client of a kind, and the number-th of all.
func newClient(w *Crowd, kind Kind, k, number int) *client {
	c := &client{
		crowd: w, kind: kind.Name, name: fmt.Sprint(kind.Name, "-", k), number: k,
		door:   w.options.Doors[number/2%len(w.options.Doors)],
		rand:   rand.New(rand.NewPCG(w.options.Seed, uint64(number))),
		within: answerWithin,
	}
	if number%4 != 3 {
		c.pinned = &w.options.Nodes[number%len(w.options.Nodes)]
	}
	return c
}

func (c *client) now() time.Duration { return c.crowd.options.Now() }

// check is a new one.
func (c *client) check(principal, class string, cost int64) *Check {
	c.last++
	return &Check{ID: fmt.Sprint(c.name, "-", c.last), Principal: principal, Class: class, Cost: cost}
}

// pause waits half to one and a half times as long as is said, longer where the load is less than the whole. It reports
// whether the client goes on.
func (c *client) pause(ctx context.Context, d time.Duration) bool {
	return c.wait(ctx, time.Duration(float64(d/2+rand.N(d+1))/c.crowd.options.Share))
}

// until waits for an instant of the history. It reports whether the client goes on.
func (c *client) until(ctx context.Context, at time.Duration) bool { return c.wait(ctx, at-c.now()) }

func (c *client) wait(ctx context.Context, d time.Duration) bool {
	if ctx.Err() != nil {
		return false
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// node is the one to ask next.
func (c *client) node() *Node {
	if c.pinned != nil {
		return c.pinned
	}
	return c.crowd.node(c.rand)
}

// client's name in the history.
func (c *client) called() string { return fmt.Sprint(c.name, ".", c.life) }

// attempt sends a check once.
func (c *client) attempt(ctx context.Context, k *Check, at *Node) history.Asked {
	k.Attempt++
	a := c.send(ctx, *k, at, c.called())
	if a.Received == history.Never || a.Answer.Reason == "outcome_unknown" {
		c.life++
	}
	return a
}

// send sends a check once, under a name, and records what came of it.
func (c *client) send(ctx context.Context, k Check, at *Node, name string) history.Asked {
	// An attempt that is under way when the crowd is stopped has its time all the same.
	asking, cancel := context.WithTimeout(context.WithoutCancel(ctx), c.within)
	defer cancel()
	a := history.Asked{
		ID: k.ID, Principal: k.Principal, Class: k.Class, Cost: k.Cost, Workload: c.kind, Client: name, Node: at.ID,
		Sent: c.now(), Received: history.Never,
	}
	if answer, err := c.door.Ask(asking, at, &k); err == nil {
		a.Received, a.Answer = c.now(), answer
	}
	c.crowd.tell(a)
	return a
}

// peek asks how much a principal has used, where the client's door can be asked that.
func (c *client) peek(ctx context.Context, principal, class string) {
	door, ok := c.door.(Peeker)
	if !ok {
		return
	}
	asking, cancel := context.WithTimeout(context.WithoutCancel(ctx), c.within)
	defer cancel()
	at := c.node()
	a := history.Asked{
		ID: c.check(principal, class, 1).ID, Principal: principal, Class: class, Workload: c.kind, Client: c.called(),
		Node: at.ID, Peek: true, Sent: c.now(), Received: history.Never,
	}
	if answer, err := door.Peek(asking, at, principal, class); err == nil {
		a.Received, a.Answer = c.now(), answer
	}
	c.crowd.tell(a)
}

// final reports whether another attempt would be answered no differently.
func final(a *history.Answer) bool {
	return a.Decided() || a.Reason == "cost_exceeds_limit" || a.Reason == "decision_id_conflict"
}

// decide asks until there is a decision, for so long from now at most, with the same id. It reports whether there is
// one.
func (c *client) decide(ctx context.Context, k *Check, longest time.Duration) (history.Asked, bool) {
	for end := c.now() + longest; ; {
		a := c.attempt(ctx, k, c.node())
		if final(&a.Answer) {
			return a, true
		}
		if c.now() > end || !c.wait(ctx, retryPause) {
			return a, false
		}
	}
}

// burst sends n checks at once, each to any node, at each of some instants of the history, and returns what came of
// them.
func (c *client) burst(ctx context.Context, n int, principal, class string, instants ...time.Duration) []history.Asked {
	if len(instants) == 0 {
		instants = []time.Duration{c.now()}
	}
	out := make([]history.Asked, n*len(instants))
	var asking sync.WaitGroup
	for i := range out {
		k, at, when := c.check(principal, class, 1), c.crowd.node(c.rand), instants[i/n]
		k.Attempt = 1
		asking.Go(func() {
			if c.until(ctx, when) {
				out[i] = c.send(ctx, *k, at, fmt.Sprint("of ", k.ID))
			}
		})
	}
	asking.Wait()
	return out
}
