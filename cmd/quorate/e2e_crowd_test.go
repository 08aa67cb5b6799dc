package main

import (
	"fmt"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/quorate/quorate/quotaerr"
	"github.com/quorate/quorate/rpc/client"
)

// crowdSize is how many ask at once.
const crowdSize = 200

// killAfter is how many of a crowd are answered when the leader is killed, round by round: before any
// answer, among the allows, and among the denials.
var killAfter = [...]int64{0, 1, 2, 3, 10, 60, 120}

// rounds is how often the crowd comes: $QUORATE_E2E_ROUNDS, or a few times. `make e2e` sets it to 50.
func rounds(t *testing.T) int {
	t.Helper()
	v := os.Getenv("QUORATE_E2E_ROUNDS")
	if v == "" {
		return 4
	}
	n, err := strconv.Atoi(v)
	if err != nil || n < 1 {
		t.Fatalf("QUORATE_E2E_ROUNDS is %q: use a number from 1 on", v)
	}
	return n
}

// crowd is 200 checks at once for one principal. The even ones come over gRPC and turn to the next node
// when one fails, as a gateway does; the odd ones come over HTTP and ask one node, once.
type crowd struct {
	p         *processes
	principal string
	clients   []*client.Client // each begins with another node
	begin     time.Time
	answers   [crowdSize]asked
	answered  atomic.Int64
	killed    time.Time
	killedID  string
}

func crowdID(i int) string { return fmt.Sprint("c", i) }

// byHTTP is the node that check i asks over HTTP.
func (c *crowd) byHTTP(i int) (devNode, bool) { return c.p.nodes[i/2%len(c.p.nodes)], i%2 == 1 }

// rush sends all checks at once, and kills the leader when so many are answered.
func (c *crowd) rush(t *testing.T, leader string, killAfter int64) {
	t.Helper()
	c.begin, c.killedID = time.Now(), leader
	reached := make(chan struct{})
	var once sync.Once
	var wg sync.WaitGroup
	for i := range crowdSize {
		wg.Go(func() {
			a := asked{id: crowdID(i), sent: time.Now()}
			if n, ok := c.byHTTP(i); ok {
				a.decision, a.err = post(n, c.principal, "convert", a.id)
			} else {
				a.decision, a.err = decide(t.Context(), c.clients[i/2%len(c.clients)], c.principal, "convert", a.id)
			}
			a.answered = time.Now()
			c.answers[i] = a
			if c.answered.Add(1) >= killAfter {
				once.Do(func() { close(reached) })
			}
		})
	}
	if killAfter > 0 {
		<-reached
	}
	c.killed = time.Now()
	c.p.kill(t, leader)
	wg.Wait()
}

// crowdCounts are the numbers of all rounds.
type crowdCounts struct {
	checks, allows, kills, reasked int
	reasons                        map[string]int
	longest                        time.Duration // of one check
	pause                          time.Duration // from the kill of a leader to the next answer of another
}

// settle asks again for whatever was allowed or left open, at another node, and checks that there are
// exactly three allows, that none is lost, and that what was refused as not consumed was not.
func (c *crowd) settle(t *testing.T, counts *crowdCounts) {
	t.Helper()
	allowed := 0
	for i, a := range c.answers {
		reason := c.reason(t, i)
		counts.reasons[reason]++
		if reason == string(quotaerr.QuotaExhausted) {
			continue
		}
		d, first := c.again(t, i)
		counts.reasked++
		if d.Allowed {
			allowed++
		}
		unknown := reason == transport || reason == string(quotaerr.OutcomeUnknown)
		switch {
		case a.decision.Allowed && (!d.Allowed || !d.Replayed):
			t.Errorf("the allow of %s was lost: %+v", a.id, d)
		case a.err != nil && !unknown && first && d.Allowed && d.Replayed:
			t.Errorf("%s was told %q, that is not consumed, and it is allowed: %+v", a.id, reason, d)
		}
	}
	if allowed != 3 {
		t.Errorf("%d allows; answers in all rounds: %v", allowed, counts.reasons)
	}
	if took := time.Since(c.begin); took > 50*time.Second {
		t.Fatalf("the round took %s, so that it is no longer all within one window", took)
	}
	c.p.mustUsed(t, c.principal, "convert", 3)
	counts.checks, counts.allows, counts.kills = counts.checks+crowdSize, counts.allows+allowed, counts.kills+1
}

// transport stands for a connection that broke, as only those to a killed node may.
const transport = "transport"

// reason is what check i was answered, and checks that it was something to expect.
func (c *crowd) reason(t *testing.T, i int) string {
	t.Helper()
	a := c.answers[i]
	if a.err == nil {
		return a.decision.Reason
	}
	reason, ok := honest(a.err)
	if ok {
		return string(reason)
	}
	n, ok := c.byHTTP(i)
	if reason != "" || !ok || n.ID != c.killedID || a.answered.Before(c.killed) {
		t.Errorf("check %s: %v", a.id, a.err)
	}
	return transport
}

// again asks for check i until it is decided, another node than before; first tells that it was at once.
func (c *crowd) again(t *testing.T, i int) (d decision, first bool) {
	t.Helper()
	n := c.p.nodes[(i/2+1)%len(c.p.nodes)]
	tries := 0
	until(t, "a decision for "+crowdID(i), func() bool {
		tries++
		var err error
		d, err = post(n, c.principal, "convert", crowdID(i))
		return err == nil
	})
	return d, tries == 1
}

// pauses takes the longest times of the round into counts.
func (c *crowd) pauses(counts *crowdCounts) {
	var next time.Time
	for _, a := range c.answers {
		counts.longest = max(counts.longest, a.answered.Sub(a.sent))
		if a.err == nil && a.answered.After(c.killed) && (next.IsZero() || a.answered.Before(next)) {
			next = a.answered
		}
	}
	if !next.IsZero() {
		counts.pause = max(counts.pause, next.Sub(c.killed))
	}
}

// Shows that 200 concurrent checks for one principal through all three nodes, while the leader is killed
// at another point of the crowd each time, get three allows: never a fourth, never a lost one, and no
// refusal but those that callers are told of.
func TestCrowdAndKilledLeaders(t *testing.T) {
	t.Parallel()
	p := mustCluster(t)
	counts := &crowdCounts{reasons: map[string]int{}}
	var clients []*client.Client
	for k := range p.nodes {
		clients = append(clients, mustClient(t, p.rotated(k)...))
	}
	for round := range rounds(t) {
		c := &crowd{p: p, principal: fmt.Sprint("crowd", round), clients: clients}
		after := killAfter[round%len(killAfter)]
		c.rush(t, p.leaderOf(t, c.principal), after)
		c.pauses(counts)
		p.restart(t, c.killedID)
		c.settle(t, counts)
		if t.Failed() {
			t.Fatalf("in round %d, leader %s killed after %d answers", round, c.killedID, after)
		}
	}
	p.mustAgree(t)
	t.Logf("%d checks, %d allows, %d leaders killed, answers %v, asked again %d; longest check %s, "+
		"longest pause after a kill %s", counts.checks, counts.allows, counts.kills, counts.reasons, counts.reasked,
		counts.longest, counts.pause)
}
