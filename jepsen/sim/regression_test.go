package sim

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/internal/guard"
)

// without, if set, shows that a profile breaks something when a guard is off: it takes the build tag chaos.
var without func(t *testing.T, g guard.Guard, f profile)

// holds runs seeds of a profile, all guards in place, and then without the guard if the build allows it.
func holds(t *testing.T, g guard.Guard, f profile) {
	t.Helper()
	if without != nil {
		defer without(t, g, f)
	}
	for seed := uint64(1); seed <= 5; seed++ {
		for _, v := range inBubble(t, seed, false, f).violations {
			t.Errorf("seed %d: %v", seed, v)
		}
	}
}

// A leader that is deposed by a heartbeat writes no entry in a term that it does not lead
// (hashicorp/raft#695).
func TestDeposedLeaderWritesNothing(t *testing.T) { holds(t, guard.HeartbeatQueue, profileDeposed) }

// A follower commits nothing beyond what a request has compared, though its log goes on with stale entries.
func TestNoCommitBeyondRequest(t *testing.T) { holds(t, guard.CommitClamp, profileRewound) }

// A crash between the two halves of a vote gives no vote to a candidate whose log is behind
// (hashicorp/raft#661).
func TestVoteIsOneWrite(t *testing.T) { holds(t, guard.VoteInOneWrite, profileVote) }

// A proposal ends by its own deadline when Raft's future does not (hashicorp/raft#498).
func TestProposalEnds(t *testing.T) { holds(t, guard.ProposalDeadline, profileSlow) }

// A node that won but has not applied an entry of its term draws no stamp, and takes up its office when it
// has.
func TestBarrierAfterWinning(t *testing.T) { holds(t, guard.OwnTermBarrier, profileLate) }

// An allow is answered only after the syncs of two replicas: with those of both followers held there is no
// answer, and with one released there is.
func TestAllowNeedsTwoSyncs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, err := newCluster(1, false)
		if err != nil {
			t.Fatal(err)
		}
		defer c.finish()
		c.operators.Go(c.operate)
		l := c.mustLead()
		if l == nil || !c.until(patience, c.whole) {
			t.Fatal(c.standing())
		}
		gate := make(chan struct{})
		for _, n := range c.others(l) {
			hold := make(chan struct{})
			if n == c.others(l)[0] {
				hold = gate
			}
			n.currentDisk().set(func(f *diskFaults) { f.hold = hold })
			defer func() {
				n.currentDisk().set(func(f *diskFaults) { f.hold = nil })
				if hold != gate {
					close(hold)
				}
			}()
		}
		answered := make(chan error, 1)
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		go func() {
			_, err := l.check(ctx, fsm.Check{
				Principal: "p", Gateway: "g", DecisionID: "d", RouteEpoch: simEpoch,
				Charge: fsm.Charge{Class: "c", Cost: 1},
			})
			answered <- err
		}()
		select {
		case err := <-answered:
			t.Fatalf("answered with one replica's sync: %v", err)
		case <-time.After(300 * time.Millisecond):
		}
		close(gate)
		select {
		case err := <-answered:
			if err != nil {
				t.Fatal(err)
			}
		case <-time.After(300 * time.Millisecond):
			t.Fatal("no answer after the syncs of two replicas")
		}
	})
}
