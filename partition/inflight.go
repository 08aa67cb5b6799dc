package partition

import (
	"context"
	"runtime"
	"sync/atomic"
	"time"
)

// longestPlace is how long an entry may keep its place among those of a node. One that takes longer is stuck rather
// than slow, and the other partitions go on without waiting for it.
const longestPlace = 200 * time.Millisecond

// InFlight bounds the entries that the partitions which a node leads have under way together. An entry costs every
// replica about as much processor time as a hundred checks, so where many partitions compete, fewer and larger
// entries decide more: a partition that waits for a place closes its batch only when it has got one. Where one
// partition is busy it is in nobody's way.
type InFlight struct {
	places chan struct{}
}

// NewInFlight makes the bound of a node: an entry for each processor, and not fewer than one partition may use.
func NewInFlight() *InFlight { return newInFlight(max(maxInFlight, runtime.GOMAXPROCS(0))) }

func newInFlight(places int) *InFlight { return &InFlight{places: make(chan struct{}, places)} }

// take waits for a place, in turn with others; ok is false when ctx ended first. Without a bound there is always one.
func (f *InFlight) take(ctx context.Context) (p *place, ok bool) {
	if f == nil {
		return nil, true
	}
	select {
	case f.places <- struct{}{}:
	case <-ctx.Done():
		return nil, false
	}
	p = &place{of: f}
	p.timer = time.AfterFunc(longestPlace, p.vacate)
	return p, true
}

// place is an entry's place among those of the node; nil is one where there is no bound.
type place struct {
	of      *InFlight
	timer   *time.Timer
	vacated atomic.Bool
}

// giveBack lets the next have the place, unless it has it already.
func (p *place) giveBack() {
	if p == nil {
		return
	}
	p.timer.Stop()
	p.vacate()
}

func (p *place) vacate() {
	if p.vacated.CompareAndSwap(false, true) {
		<-p.of.places
	}
}
