package storage

import (
	"errors"
	"fmt"
	"sync"
	"syscall"
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
	return s.doWithin(s.bound, file, operation, write)
}

// doWithin is do for a write that may take another time.
func (s *failStop) doWithin(bound time.Duration, file, operation string, write func() error) error {
	if err := s.err(); err != nil {
		return err
	}
	done := make(chan struct{})
	watchdog := time.AfterFunc(bound/watchSteps, func() {
		if !outlast(bound, done) || !guard.On(guard.WriteWatchdog) {
			return
		}
		_ = s.fail(fmt.Errorf("partition %s: %s on %s has taken longer than %v, the disk is stuck: "+
			"check the disk, then start the node again", s.partition, operation, file, bound))
	})
	err := write()
	close(done)
	watchdog.Stop()
	if err != nil && !guard.On(guard.FailStop) {
		return err
	}
	if err != nil {
		return s.fail(fmt.Errorf("partition %s: %s on %s failed: %w; %s", s.partition, operation, file, err, whatNow(err)))
	}
	return s.err()
}

// watchSteps is how many steps a bound has. Each is waited for by itself, so that a process which was stopped, or a
// machine that was paused, loses one of them at most: it is not the disk that was slow.
const watchSteps = 10

// outlast waits for what is left of a bound after its first step, and reports that the write has not ended by then.
func outlast(bound time.Duration, done <-chan struct{}) bool {
	for range watchSteps - 1 {
		select {
		case <-done:
			return false
		case <-time.After(bound / watchSteps):
		}
	}
	return true
}

// whatNow says what to do about a failed write. After an error of the device memory may hold what the disk
// does not, and would be read by the next start as if it were there.
func whatNow(err error) string {
	if errors.Is(err, syscall.EIO) {
		return "what is on the disk is unknown, and memory may hold what is not: check the disk, mount it anew or " +
			"restart the machine, then start the node again"
	}
	return "what is on the disk is unknown: check the disk and its free space, then start the node again"
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
