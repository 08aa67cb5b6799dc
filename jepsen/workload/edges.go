package workload

import (
	"context"
	"fmt"
	"time"

	"github.com/quorate/quorate/jepsen/history"
)

const (
	saturateMax        = 10
	saturateWindow     = 10 * time.Second
	saturatePrincipals = 10
	// saturateFor is how long a principal is asked for most; then another one is filled.
	saturateFor = 3 * saturateWindow
)

// saturate fills principals and hammers at them: whatever a fault loses of what was admitted is admitted again at once.
func saturate() Kind {
	return Kind{
		Name: "saturate", About: "fills principals, then hammers at them through the faults; a window of 10 s",
		Classes: map[string]history.Class{"saturate": class(saturateMax, saturateWindow, 30*time.Second)},
		clients: 10,
		ask: func(ctx context.Context, c *client) {
			for c.pause(ctx, 90*time.Millisecond) {
				turn := int(c.now() / saturateFor)
				if c.rand.IntN(8) == 0 {
					turn = max(0, turn-1) // who was filled before has used nothing less
				}
				principal := fmt.Sprintf("saturate-%d-%d", turn, c.rand.IntN(saturatePrincipals))
				c.decide(ctx, c.check(principal, "saturate", 1), retryFor)
			}
		},
	}
}

const (
	boundaryMax    = 5
	boundaryWindow = time.Second
)

// boundary asks at the very edge of a window: when an admission is about to expire, and when it has.
func boundary() Kind {
	return Kind{
		Name:    "boundary",
		About:   "bursts from a millisecond before an admission's window ends to one after it; a window of 1 s",
		Classes: map[string]history.Class{"boundary": class(boundaryMax, boundaryWindow, 10*time.Second)},
		clients: 2,
		ask: func(ctx context.Context, c *client) {
			for c.pause(ctx, 300*time.Millisecond) {
				principal := fmt.Sprintf("boundary-%d-%d", c.number, c.rand.IntN(2))
				first, ok := earliest(c.burst(ctx, boundaryMax+2, principal, "boundary"))
				if !ok {
					continue
				}
				// It was decided somewhere between the two.
				c.burst(ctx, boundaryMax+1, principal, "boundary",
					first.Sent+boundaryWindow-time.Millisecond, first.Sent+boundaryWindow+time.Millisecond,
					first.Received+boundaryWindow-time.Millisecond, first.Received+boundaryWindow+time.Millisecond)
			}
		},
	}
}

// earliest is the admission that was asked for first.
func earliest(asked []history.Asked) (first history.Asked, ok bool) {
	for _, a := range asked {
		if a.Answer.Allowed && (!ok || a.Sent < first.Sent) {
			first, ok = a, true
		}
	}
	return first, ok
}

const (
	idleMax    = 5
	idleWindow = 5 * time.Second
)

// idleBurst is silent for longer than the window, and then asks all nodes at once.
func idleBurst() Kind {
	return Kind{
		Name: "idle-burst", About: "is silent for longer than the window, then asks all nodes at once; a window of 5 s",
		Classes: map[string]history.Class{"idle": class(idleMax, idleWindow, 30*time.Second)},
		clients: 2,
		ask: func(ctx context.Context, c *client) {
			principal := fmt.Sprint("idle-burst-", c.number)
			for c.pause(ctx, 2*idleWindow) {
				c.burst(ctx, 3*idleMax, principal, "idle")
				if !c.wait(ctx, idleWindow/2) {
					return
				}
				c.burst(ctx, 2*idleMax, principal, "idle")
			}
		},
	}
}
