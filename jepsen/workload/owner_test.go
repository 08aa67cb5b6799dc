package workload

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/quorate/quorate/jepsen/history"
)

// owner is a cluster that is one naive counter: it goes by the rules, knows no groups' members but all, and loses some
// answers.
type owner struct {
	policy  history.Policy
	now     func() time.Duration
	mu      sync.Mutex // guards the fields below
	rand    *rand.Rand
	records map[string]record
	log     map[string][]admission // by principal
	asked   map[string]int         // by node
}

type record struct {
	check  Check
	answer history.Answer
	end    time.Duration
}

type admission struct {
	at    time.Duration
	class string
	cost  int64
}

var _ Door = (*owner)(nil)

func newOwner(p history.Policy, now func() time.Duration) *owner {
	return &owner{
		policy: p, now: now, rand: rand.New(rand.NewPCG(1, 2)),
		records: map[string]record{}, log: map[string][]admission{}, asked: map[string]int{},
	}
}

func (o *owner) draw(n int) int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.rand.IntN(n)
}

var errLost = errors.New("lost")

// Ask decides after a while, and answers a while later, or never.
func (o *owner) Ask(ctx context.Context, node *Node, k *Check) (history.Answer, error) {
	wait := func() error {
		select {
		case <-time.After(time.Duration(1+o.draw(20)) * time.Millisecond):
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	if err := wait(); err != nil {
		return history.Answer{}, err
	}
	answer := o.decide(node, k)
	if o.draw(40) == 0 {
		return history.Answer{}, errLost
	}
	return answer, wait()
}

func (o *owner) decide(node *Node, k *Check) history.Answer {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.asked[node.ID]++
	now := o.now()
	if r, ok := o.records[k.ID]; ok && now < r.end {
		if r.check.Cost != k.Cost {
			return history.Answer{Reason: "decision_id_conflict"}
		}
		r.answer.Replayed = true
		return r.answer
	}
	answer := history.Answer{
		Allowed: true, Reason: "allowed", Revision: 1, Version: o.policy.Version, Recorded: true, Remaining: 1 << 60,
	}
	for _, l := range o.policy.Rule(k.Class) {
		used := int64(0)
		for _, a := range o.log[k.Principal] {
			for _, class := range l.Over {
				if a.class == class && a.at > now-time.Duration(l.Window) {
					used += a.cost
				}
			}
		}
		if used+k.Cost > l.Max {
			answer.Allowed, answer.Reason = false, "quota_exhausted"
		}
		answer.Remaining = min(answer.Remaining, l.Max-used)
	}
	if answer.Allowed {
		answer.Remaining -= k.Cost
		o.log[k.Principal] = append(o.log[k.Principal], admission{now, k.Class, k.Cost})
	}
	horizon := time.Duration(o.policy.ClassOf(o.policy.Resolve(k.Class)).ReplayHorizon)
	o.records[k.ID] = record{*k, answer, now + horizon}
	return answer
}

// gateway asks the owner as the SDK would, once.
type gateway struct {
	*owner
	made int
}

// Check makes an id where there is none.
func (g *gateway) Check(ctx context.Context, k *Check) (answer history.Answer, known, asked bool) {
	if k.ID == "" {
		g.mu.Lock()
		g.made++
		k.ID = "made-" + time.Duration(g.made).String()
		g.mu.Unlock()
	}
	answer, err := g.Ask(ctx, &Node{ID: "by the gateway"}, k)
	return answer, err == nil, true
}
