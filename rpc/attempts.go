package rpc

import (
	"context"
	"sync"
	"time"

	"github.com/quorate/quorate/quotaerr"
)

// The bounds of what is noted of refused attempts. The rest is counted only.
const (
	attemptsNoted    = 10 // of one actor in attemptWindow
	attemptWindow    = time.Minute
	maxAttemptActors = 256 // in attemptWindow
	maxAttemptsAside = 8   // being noted at once
	// attemptTimeout bounds how long a refusal waits for being noted.
	attemptTimeout = 2 * time.Second
)

// attempts has refused attempts to change something noted, a few of each actor.
type attempts struct {
	admin   func() Admin
	metrics *metrics
	now     func() time.Time
	busy    chan struct{}

	mu    sync.Mutex // guards the rest
	until time.Time  // when the window ends
	of    map[string]int
}

func newAttempts(admin func() Admin, m *metrics) *attempts {
	return &attempts{admin: admin, metrics: m, now: time.Now, busy: make(chan struct{}, maxAttemptsAside)}
}

// note has one noted, if there is room for it. Who is refused cannot end the noting by hanging up.
func (a *attempts) note(ctx context.Context, who Actor, method string, refused error) {
	if !a.room(who.Name) {
		a.metrics.attempts.WithLabelValues("counted").Inc()
		return
	}
	select {
	case a.busy <- struct{}{}:
		defer func() { <-a.busy }()
	default:
		a.metrics.attempts.WithLabelValues("counted").Inc()
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), attemptTimeout)
	defer cancel()
	a.admin().Attempt(ctx, who, method, string(quotaerr.ReasonOf(refused)))
	a.metrics.attempts.WithLabelValues("noted").Inc()
}

// room counts one attempt of an actor and reports whether it is among those that are noted.
func (a *attempts) room(actor string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if now := a.now(); a.of == nil || !now.Before(a.until) {
		a.until, a.of = now.Add(attemptWindow), map[string]int{}
	}
	n, known := a.of[actor]
	if n >= attemptsNoted || !known && len(a.of) >= maxAttemptActors {
		return false
	}
	a.of[actor] = n + 1
	return true
}
