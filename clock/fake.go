package clock

import "sync"

// Fake is a machine whose clocks a test drives. Its zero value is a machine with perfect clocks at 0.
type Fake struct {
	mu      sync.Mutex // guards the fields below
	read    Reading
	wall    Wall
	monoPPM int64
	rawPPM  int64
	frozen  bool
}

// Rates sets by how many parts per million the slewed and the raw clock run fast; negative is slow.
func (f *Fake) Rates(monoPPM, rawPPM int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.monoPPM, f.rawPPM = monoPPM, rawPPM
}

// Freeze stops the monotonic clocks, or lets them go on.
func (f *Fake) Freeze(frozen bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.frozen = frozen
}

// Advance lets nanos of true time pass.
func (f *Fake) Advance(nanos int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.wall.Nanos += nanos
	if f.frozen {
		return
	}
	f.read.Mono += nanos + scale(nanos, f.monoPPM)
	f.read.Boot += nanos + scale(nanos, f.monoPPM)
	f.read.Raw += nanos + scale(nanos, f.rawPPM)
}

// Suspend lets nanos of true time pass while the machine sleeps.
func (f *Fake) Suspend(nanos int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.wall.Nanos += nanos
	f.read.Boot += nanos
}

// StepWall moves the wall clock.
func (f *Fake) StepWall(nanos int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.wall.Nanos += nanos
}

// Synchronise sets what the kernel says of the wall clock.
func (f *Fake) Synchronise(errorNanos int64, bounded bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.wall.ErrorNanos, f.wall.Bounded = errorNanos, bounded
}

// Read implements Source.
func (f *Fake) Read() Reading {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.read
}

// Wall implements Source.
func (f *Fake) Wall() Wall {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.wall
}

// scale is nanos times ppm over a million, rounded towards zero.
func scale(nanos, ppm int64) int64 {
	return nanos/million*ppm + nanos%million*ppm/million
}

const million = 1_000_000

var _ Source = (*Fake)(nil)
