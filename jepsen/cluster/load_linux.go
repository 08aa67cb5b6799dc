package cluster

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/quorate/quorate/jepsen/history"
	"github.com/quorate/quorate/jepsen/process"
)

const (
	// answerTimeout bounds one attempt, unless the load says otherwise; what comes later is no answer.
	answerTimeout = 1500 * time.Millisecond
	// retryFor is how long a check is repeated that has no decision, well within the replay horizon.
	retryFor = 8 * time.Second
	// retryPause is between two attempts at a check.
	retryPause = 50 * time.Millisecond
	// avoidFor is how long a node that gave no answer is asked less.
	avoidFor = 2 * time.Second
	// maxChecks bounds a load.
	maxChecks = 400_000
	// echoFor is how old a check gets that is repeated once more, well within the replay horizon.
	echoFor = 20 * time.Second
	// maxEcho bounds how many checks back are looked at to find one to repeat.
	maxEcho = 2000
)

// LoadOptions are what differs between loads.
type LoadOptions struct {
	Seed       uint64
	Clients    int
	Principals int
	Classes    []string      // what is asked for; one that is named twice is asked for twice as often
	Pause      time.Duration // of each client between two checks
	Timeout    time.Duration // of one attempt; 0: answerTimeout
	// Hot are the first of the principals, for whom every second check is; 0: none is asked for more than others.
	Hot int
	// Echo has decided checks repeated some time later, on average each one time in so many; 0: none is.
	Echo int
}

// Load has checks decided until it is stopped, and records them. Its methods may be called by several goroutines.
type Load struct {
	options LoadOptions
	nodes   []*Node
	http    *http.Client
	begun   time.Time
	stop    chan struct{}
	done    sync.WaitGroup
	halt    sync.Once
	turn    sync.RWMutex // clients hold it while they ask

	mu      sync.Mutex // guards the fields below
	first   int        // the number of the first principal that is asked for
	checks  []*history.Check
	silent  map[string]time.Duration // when a node last gave no answer
	answers []history.Attempt        // all that were answered, as they came in
	failed  []history.Attempt        // all that were not
}

// StartLoad begins a load on all nodes of a cluster. Once ctx has ended nothing is answered any more.
func (c *Cluster) StartLoad(ctx context.Context, o LoadOptions) (*Load, error) {
	config, err := c.gateway()
	if err != nil {
		return nil, err
	}
	if o.Timeout == 0 {
		o.Timeout = answerTimeout
	}
	l := &Load{
		options: o, nodes: slices.Clone(c.Nodes), begun: time.Now(), stop: make(chan struct{}),
		silent: map[string]time.Duration{},
		http: &http.Client{Transport: &http.Transport{
			DialContext:     c.DialContext,
			TLSClientConfig: config, MaxIdleConnsPerHost: o.Clients, TLSHandshakeTimeout: answerTimeout,
		}},
	}
	for k := range o.Clients {
		l.done.Go(func() { l.work(ctx, rand.New(rand.NewPCG(o.Seed, uint64(k)))) })
	}
	return l, nil
}

// Now is the instant of the history that the load writes.
func (l *Load) Now() time.Duration { return time.Since(l.begun) }

func (l *Load) work(ctx context.Context, r *rand.Rand) {
	for {
		select {
		case <-l.stop:
			return
		case <-ctx.Done():
			return
		case <-time.After(l.options.Pause/2 + rand.N(l.options.Pause+1)):
		}
		if !l.once(ctx, r) {
			return
		}
	}
}

// once is what a client does at a time. It reports false when there have been too many checks.
func (l *Load) once(ctx context.Context, r *rand.Rand) bool {
	l.turn.RLock()
	defer l.turn.RUnlock()
	check := l.next(r)
	if check == nil {
		return false
	}
	if r.IntN(8) == 0 { // an impatient client: the same id twice at once
		var twice sync.WaitGroup
		other := rand.New(rand.NewPCG(r.Uint64(), 0))
		twice.Go(func() { l.decide(ctx, check, other) })
		l.decide(ctx, check, r)
		twice.Wait()
		return true
	}
	if l.decide(ctx, check, r) && r.IntN(6) == 0 { // one that forgets that it has an answer
		l.attempt(ctx, check, l.pick(r))
	}
	if l.options.Echo > 0 && r.IntN(l.options.Echo) == 0 {
		if old := l.older(r); old != nil {
			l.attempt(ctx, old, l.pick(r))
		}
	}
	return true
}

// Quiet runs f while no client asks for anything.
func (l *Load) Quiet(f func() error) error {
	l.turn.Lock()
	defer l.turn.Unlock()
	return f()
}

// older draws a check that has been decided some time ago; nil when it finds none.
func (l *Load) older(r *rand.Rand) *history.Check {
	now := l.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	for range 8 {
		check := l.checks[len(l.checks)-1-r.IntN(min(len(l.checks), maxEcho))]
		decided := slices.ContainsFunc(check.Attempts, func(a history.Attempt) bool { return a.Answer.Decided() })
		if decided && now-check.First() < echoFor {
			return check
		}
	}
	return nil
}

// Renew has n principals that were asked for replaced by new ones.
func (l *Load) Renew(n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.first += n
}

// AskEach asks for one decision in a class of each principal of the present, or, with all, that there has been.
func (l *Load) AskEach(ctx context.Context, class string, r *rand.Rand, all bool) error {
	l.mu.Lock()
	k, end := l.first, l.first+l.options.Principals
	l.mu.Unlock()
	if all {
		k = 0
	}
	for ; k < end; k++ {
		check := &history.Check{Principal: fmt.Sprint("p", k), Class: class, Cost: 1}
		if !l.add(check) {
			return fmt.Errorf("there have been %d checks, and there may be no more", maxChecks)
		}
		if !l.decide(ctx, check, r) {
			return fmt.Errorf("%s of principal %s is not decided", check.ID, check.Principal)
		}
	}
	return nil
}

// next draws a new check; nil when there have been too many.
func (l *Load) next(r *rand.Rand) *history.Check {
	l.mu.Lock()
	first := l.first
	l.mu.Unlock()
	of := l.options.Principals
	if l.options.Hot > 0 && r.IntN(2) == 0 {
		of = l.options.Hot
	}
	check := &history.Check{
		Principal: fmt.Sprint("p", first+r.IntN(of)),
		Class:     l.options.Classes[r.IntN(len(l.options.Classes))], Cost: 1,
	}
	if r.IntN(10) == 0 {
		check.Cost = 2
	}
	if !l.add(check) {
		return nil
	}
	return check
}

// add gives a check its id. It reports false when there have been too many.
func (l *Load) add(check *history.Check) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.checks) >= maxChecks {
		return false
	}
	check.ID = fmt.Sprint("d", len(l.checks))
	l.checks = append(l.checks, check)
	return true
}

// decide asks one node after another until one decides, and reports whether one did.
func (l *Load) decide(ctx context.Context, check *history.Check, r *rand.Rand) bool {
	until := l.Now() + retryFor
	for {
		a := l.attempt(ctx, check, l.pick(r))
		if a.Answer.Decided() || a.Answer.Reason == "cost_exceeds_limit" {
			return true
		}
		if l.Now() > until {
			return false
		}
		select {
		case <-l.stop:
			return false
		case <-ctx.Done():
			return false
		case <-time.After(retryPause):
		}
	}
}

// pick draws a node, seldom one that was silent a moment ago.
func (l *Load) pick(r *rand.Rand) *Node {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := l.nodes[r.IntN(len(l.nodes))]
	for range 8 {
		at, silent := l.silent[n.ID]
		if !silent || l.Now()-at > avoidFor {
			break
		}
		n = l.nodes[r.IntN(len(l.nodes))]
	}
	return n
}

// attempt sends a check once and records what came of it.
func (l *Load) attempt(ctx context.Context, check *history.Check, n *Node) history.Attempt {
	a := history.Attempt{Node: n.ID, Sent: l.Now(), Received: history.Never}
	answer, err := l.ask(ctx, check, n)
	now := l.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	if err == nil {
		a.Received, a.Answer = now, answer
		l.answers = append(l.answers, a)
	} else {
		l.silent[n.ID] = now
		l.failed = append(l.failed, a)
	}
	check.Attempts = append(check.Attempts, a)
	return a
}

func (l *Load) ask(ctx context.Context, check *history.Check, n *Node) (answer history.Answer, err error) {
	ctx, cancel := context.WithTimeout(ctx, l.options.Timeout)
	defer cancel()
	body, err := json.Marshal(map[string]any{
		"principal": check.Principal, "api_class": check.Class, "decision_id": check.ID, "cost": check.Cost,
	})
	if err != nil {
		return answer, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://"+n.HTTP+"/v1/check", bytes.NewReader(body))
	if err != nil {
		return answer, err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := l.http.Do(req)
	if err != nil {
		return answer, err
	}
	text, err := io.ReadAll(resp.Body)
	if err = errors.Join(err, resp.Body.Close()); err != nil {
		return answer, err
	}
	if err := json.Unmarshal(text, &answer); err != nil {
		return answer, fmt.Errorf("status %d: %w: %s", resp.StatusCode, err, text)
	}
	if answer.Allowed != (answer.Reason == "allowed") || answer.Allowed != (resp.StatusCode == http.StatusOK) {
		answer.Reason = fmt.Sprintf("status %d, %s", resp.StatusCode, text) // it contradicts itself
	}
	return answer, nil
}

// Since are the answers that have come since an instant.
func (l *Load) Since(at time.Duration) []history.Attempt {
	l.mu.Lock()
	defer l.mu.Unlock()
	i, _ := slices.BinarySearchFunc(l.answers, at, func(a history.Attempt, at time.Duration) int {
		return int(a.Received - at)
	})
	return slices.Clone(l.answers[i:])
}

// AwaitAnswers waits until n answers of a kind have come since an instant, to checks that were sent after it.
func (l *Load) AwaitAnswers(
	ctx context.Context, since time.Duration, n int, what string, kind func(*history.Answer) bool,
) (at time.Duration, err error) {
	err = process.Await(ctx, fmt.Sprintf("%d answers of kind %s", n, what), func() bool {
		seen := 0
		for _, a := range l.Since(since) {
			if a.Sent >= since && kind(&a.Answer) {
				seen, at = seen+1, a.Received
			}
			if seen == n {
				return true
			}
		}
		return false
	})
	return at, err
}

// AwaitUndecided waits until n attempts at a node that were sent after an instant have got no decision.
func (l *Load) AwaitUndecided(ctx context.Context, since time.Duration, n int, at *Node) error {
	return process.Await(ctx, fmt.Sprintf("%d attempts at %s without a decision", n, at.ID), func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		seen := 0
		for _, a := range slices.Concat(l.answers, l.failed) {
			if a.Node == at.ID && a.Sent >= since && !a.Answer.Decided() {
				seen++
			}
		}
		return seen >= n
	})
}

// Stop ends the load, waits for the answers that are still to come, and returns what there was. It may be called
// again.
func (l *Load) Stop(revisions []history.Revision) *history.History {
	l.halt.Do(func() { close(l.stop) })
	l.done.Wait()
	l.http.CloseIdleConnections()
	return l.history(revisions)
}

// history is what there is. Nobody may ask anything meanwhile.
func (l *Load) history(revisions []history.Revision) *history.History {
	l.mu.Lock()
	defer l.mu.Unlock()
	return &history.History{Checks: l.checks, Revisions: revisions}
}
