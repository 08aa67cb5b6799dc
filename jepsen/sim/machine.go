package sim

import (
	"sync"
	"time"

	"github.com/quorate/quorate/clock"
)

// machineClock is the clocks of a node's machine, driven by the bubble's time.
type machineClock struct {
	mu   sync.Mutex // guards the fields below
	fake *clock.Fake
	last time.Time
}

var _ clock.Source = (*machineClock)(nil)

// newMachineClock begins at a number that means nothing.
func newMachineClock(begin, monoPPM, rawPPM int64) *machineClock {
	m := &machineClock{fake: &clock.Fake{}, last: time.Now()}
	m.fake.Advance(begin)
	m.fake.Rates(monoPPM, rawPPM)
	return m
}

// catchUp needs mu.
func (m *machineClock) catchUp() {
	now := time.Now()
	m.fake.Advance(int64(now.Sub(m.last)))
	m.last = now
}

func (m *machineClock) change(f func(*clock.Fake)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.catchUp()
	f(m.fake)
}

func (m *machineClock) Read() clock.Reading {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.catchUp()
	return m.fake.Read()
}

func (m *machineClock) Wall() clock.Wall {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.catchUp()
	return m.fake.Wall()
}
