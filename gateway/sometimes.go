package gateway

import (
	"log/slog"
	"sync"
	"time"
)

// warnInterval is how often the same is said at most.
const warnInterval = 10 * time.Second

// sometimes logs what callers can cause, and not as often as they like. Metrics have the counts.
type sometimes struct {
	log  *slog.Logger
	mu   sync.Mutex // guards last
	last map[string]time.Time
}

func newSometimes(log *slog.Logger) *sometimes {
	return &sometimes{log: log, last: map[string]time.Time{}}
}

// warn logs a message, of which there are few.
func (s *sometimes) warn(message string, args ...any) {
	s.mu.Lock()
	now := time.Now()
	silent := now.Sub(s.last[message]) < warnInterval
	if !silent {
		s.last[message] = now
	}
	s.mu.Unlock()
	if !silent {
		s.log.Warn(message, args...)
	}
}
