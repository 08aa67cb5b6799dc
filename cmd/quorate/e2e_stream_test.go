package main

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/quorate/quorate/quotaerr"
	"github.com/quorate/quorate/rpc/client"
)

const (
	streamWorkers = 3
	// streamPause is between two checks of a worker.
	streamPause = 25 * time.Millisecond
)

// asked is one check as its caller saw it. If it was allowed, the decision fell between sent and answered.
type asked struct {
	id             string
	sent, answered time.Time
	decision       decision
	err            error
}

// stream asks for one principal without end, through all nodes, and spends its allowance of class quick.
type stream struct {
	principal string
	stop      context.CancelFunc
	workers   sync.WaitGroup
	client    *client.Client

	mu  sync.Mutex // guards log
	log []asked
}

// startStream starts the workers, each with another node first. They end with end, or with the test.
func startStream(t *testing.T, p *processes, principal string) *stream {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	s := &stream{principal: principal, stop: cancel, client: mustClient(t, p.rotated(0)...)}
	for w := range streamWorkers {
		c := mustClient(t, p.rotated(w)...)
		s.workers.Go(func() { s.work(ctx, c, w) })
	}
	t.Cleanup(func() { s.stop(); s.workers.Wait() })
	return s
}

func (s *stream) work(ctx context.Context, c *client.Client, worker int) {
	next := time.NewTicker(streamPause)
	defer next.Stop()
	for i := 0; ; i++ {
		select {
		case <-ctx.Done():
			return
		case <-next.C:
		}
		a := asked{id: fmt.Sprintf("s%d-%d", worker, i), sent: time.Now()}
		// A check that has been sent is seen through, so that its fate is known.
		a.decision, a.err = decide(context.WithoutCancel(ctx), c, s.principal, "quick", a.id)
		a.answered = time.Now()
		s.mu.Lock()
		s.log = append(s.log, a)
		s.mu.Unlock()
	}
}

// allowed counts the allows up to now.
func (s *stream) allowed() (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, a := range s.log {
		if a.decision.Allowed {
			n++
		}
	}
	return n
}

// mustAllow waits until n more are allowed.
func (s *stream) mustAllow(t *testing.T, n int) {
	t.Helper()
	want := s.allowed() + n
	until(t, fmt.Sprintf("%d more are allowed", n), func() bool { return s.allowed() >= want })
}

// end stops asking, finds out what became of the checks whose outcome is unknown, and checks the cap: no
// quickLimit+1 allows can have been decided within one window.
func (s *stream) end(t *testing.T) {
	t.Helper()
	s.stop()
	s.workers.Wait()
	var allows []asked
	refused := map[quotaerr.Reason]int{}
	var longest time.Duration
	for _, a := range s.log {
		longest = max(longest, a.answered.Sub(a.sent))
		if a.err != nil {
			reason, ok := honest(a.err)
			if !ok {
				t.Errorf("check %s: %v", a.id, a.err)
			}
			refused[reason]++
			a.decision = mustDecide(t, s.client, s.principal, "quick", a.id)
			a.answered = time.Now()
		}
		if a.decision.Allowed {
			allows = append(allows, a)
		}
	}
	for _, first := range allows {
		within := 0
		for _, a := range allows {
			if !a.sent.Before(first.sent) && a.answered.Before(first.sent.Add(quickWindow)) {
				within++
			}
		}
		if within > quickLimit {
			t.Errorf("%d allows within %s from %s on", within, quickWindow, first.sent)
		}
	}
	t.Logf("%d checks, %d allows, refused %v, longest %s", len(s.log), len(allows), refused, longest)
}
