package node

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/quotaerr"
	"github.com/quorate/quorate/rpc"
)

// Checks of many partitions that are queued together come each to one outcome, under the place that they have among
// all: decided where this node leads, not_leader where another does. Who leads is what each would be told alone.
func TestEnqueue(t *testing.T) {
	nodes := mustCluster(t, 3, 4)
	defer mustEnd(t, nodes...)
	const count = 200
	var principals []string
	for i := range count {
		principals = append(principals, fmt.Sprint("u", i))
	}
	mustAnswer(t, nodes, "u0", "before")
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	decided := 0
	for _, n := range nodes {
		b := (*backend)(n.Node)
		var asked []rpc.Asked
		for _, p := range principals {
			asked = append(asked, rpc.Asked{Deadline: time.Now().Add(20 * time.Second), Check: fsm.Check{
				Principal: p, Gateway: "gw", DecisionID: "together-" + p, Charge: fsm.Charge{Class: "any", Cost: 1},
			}})
		}
		leads := b.Leaders(asked)
		for i, p := range principals {
			if alone := b.Leader(p); alone.Local != leads[i].Local || alone.Epoch != leads[i].Epoch {
				t.Fatalf("%s is led as %+v, alone as %+v", p, leads[i], alone)
			}
			asked[i].Check.RouteEpoch = leads[i].Epoch
		}
		came := make(chan rpc.Outcome, 2*count)
		giveUp := b.Enqueue(ctx, asked, func(some []rpc.Outcome) {
			for _, o := range some {
				came <- o
			}
		})
		seen := map[int]bool{}
		for len(seen) < count {
			select {
			case o := <-came:
				switch {
				case seen[o.Index]:
					t.Fatalf("%s has two outcomes", principals[o.Index])
				case leads[o.Index].Local && o.Err == nil && o.Answer.Allowed():
					decided++
				case leads[o.Index].Local || quotaerr.ReasonOf(o.Err) != quotaerr.NotLeader:
					t.Fatalf("%s, led as %+v, came to %+v", principals[o.Index], leads[o.Index], o)
				}
				seen[o.Index] = true
			case <-ctx.Done():
				t.Fatalf("%d outcomes of %d", len(seen), count)
			}
		}
		for i := range count {
			giveUp(i, context.DeadlineExceeded)
		}
		if len(came) != 0 {
			t.Fatalf("%+v is one too many", <-came)
		}
	}
	if decided != count {
		t.Errorf("%d checks were decided, want each by one node", decided)
	}
}
