package model

import (
	"math/rand/v2"

	"github.com/quorate/quorate/clock"
)

// machine is what a node runs on: its clocks, which a reboot exchanges.
type machine struct {
	*clock.Fake
	rng    *rand.Rand
	ppm    int64 // by which its clocks may be off
	asleep int64 // true nanoseconds until it wakes
	frozen int64 // true nanoseconds until its clocks go on
}

var _ clock.Source = (*machine)(nil)

func newMachine(rng *rand.Rand, ppm int64) *machine {
	m := &machine{rng: rng, ppm: ppm}
	m.boot()
	return m
}

// boot starts the clocks anew, at numbers that mean nothing.
func (m *machine) boot() {
	m.Fake = new(clock.Fake)
	m.Advance(m.rng.Int64N(1000 * second))
	m.StepWall(m.rng.Int64N(1_000_000 * second))
	m.setRates()
}

func (m *machine) setRates() {
	raw := m.rng.Int64N(2*m.ppm+1) - m.ppm
	if m.rng.IntN(3) == 0 {
		raw = m.ppm
	}
	slew := int64(0)
	if m.rng.IntN(2) == 0 {
		slew = m.rng.Int64N(160_001) - 80_000
	}
	m.Rates(raw+slew, raw)
}

func (m *machine) pass(nanos int64) {
	if m.asleep > 0 {
		m.asleep -= nanos
		m.Suspend(nanos)
		return
	}
	m.Freeze(m.frozen > 0)
	m.frozen -= nanos
	m.Advance(nanos)
}

// stepBack has the clocks that cannot be set go back all the same, as those of a bad virtual machine.
func (m *machine) stepBack(nanos int64) {
	m.Freeze(false)
	m.Advance(-nanos)
}
