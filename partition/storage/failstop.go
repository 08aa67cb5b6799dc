package storage

import (
	"fmt"
	"sync"
	"time"

	"github.com/quorate/quorate/internal/guard"
)

// failStop lets no write of one group's stores fail, or hang, unnoticed.
type failStop struct {
	partition string
	fatal     func(error)
	bound     time.Duration // how long a write may take

	mu     sync.Mutex // guards broken
	broken error
}

// do runs a write on the named file. The first error calls the hook; from then on every write fails
// with it, since nothing is known any more of what is on the disk.
func (s *failStop) do(file, operation string, write func() error) error {
	if err := s.err(); err != nil {
		return err
	}
	watchdog := time.AfterFunc(s.bound, func() {
		if !guard.On(guard.WriteWatchdog) {
			return
		}
		_ = s.fail(fmt.Errorf("partition %s: %s on %s has taken longer than %v, the disk is stuck: "+
			"check the disk, then start the node again", s.partition, operation, file, s.bound))
	})
	err := write()
	watchdog.Stop()
	if err != nil && !guard.On(guard.FailStop) {
		return err
	}
	if err != nil {
		return s.fail(fmt.Errorf("partition %s: %s on %s failed: %w; what is on the disk is unknown: "+
			"check the disk and its free space, then start the node again", s.partition, operation, file, err))
	}
	return s.err()
}

// fail breaks the stores for good, and calls the hook once.
func (s *failStop) fail(err error) error {
	s.mu.Lock()
	first := s.broken == nil
	if first {
		s.broken = err
	}
	err = s.broken
	s.mu.Unlock()
	if first {
		s.fatal(err)
	}
	return err
}

func (s *failStop) err() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.broken
}
