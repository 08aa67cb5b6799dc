package workload

import (
	"context"
	"fmt"
	"time"

	"github.com/quorate/quorate/jepsen/history"
)

const weightedMax = 40

// weighted asks with costs.
func weighted() Kind {
	return Kind{
		Name: "weighted", About: "costs from 1 to the whole limit",
		Classes: map[string]history.Class{"weighted": class(weightedMax, 10*time.Second, 30*time.Second)},
		clients: 2,
		ask: func(ctx context.Context, c *client) {
			for c.pause(ctx, 150*time.Millisecond) {
				cost := 1 + c.rand.Int64N(12)
				if c.rand.IntN(20) == 0 {
					cost = weightedMax
				}
				c.decide(ctx, c.check(fmt.Sprint("weighted-", c.rand.IntN(3)), "weighted", cost), retryFor)
			}
		},
	}
}

// groups asks in two classes that a limit of a group counts together.
func groups() Kind {
	const window = 10 * time.Second
	classes := []string{"export", "import"}
	return Kind{
		Name: "groups", About: "two classes with limits of their own, and one limit of their group",
		Classes: map[string]history.Class{
			"export": class(8, window, 30*time.Second), "import": class(8, window, 30*time.Second),
		},
		Groups:  map[string]history.Group{"account": {Classes: classes, Limits: limit("account", 10, window)}},
		clients: 2,
		ask: func(ctx context.Context, c *client) {
			for c.pause(ctx, 120*time.Millisecond) {
				k := c.check(fmt.Sprint("groups-", c.rand.IntN(3)), classes[c.rand.IntN(len(classes))], 1)
				c.decide(ctx, k, retryFor)
			}
		},
	}
}

const (
	hotMax        = 20
	hotPrincipals = 1000
)

// hotKey asks for one principal as often as for all others together.
func hotKey() Kind {
	return Kind{
		Name: "hot-key", About: "one principal as often as a thousand others together, and how much they have used",
		Classes: map[string]history.Class{"hot": class(hotMax, 10*time.Second, 30*time.Second)},
		clients: 4,
		ask: func(ctx context.Context, c *client) {
			for c.pause(ctx, 100*time.Millisecond) {
				principal := "hot-key-0"
				if c.rand.IntN(2) == 0 {
					principal = fmt.Sprint("hot-key-", 1+c.rand.IntN(hotPrincipals-1))
				}
				if c.rand.IntN(10) == 0 {
					c.peek(ctx, principal, "hot")
				}
				c.decide(ctx, c.check(principal, "hot", 1), retryFor)
			}
		},
	}
}
