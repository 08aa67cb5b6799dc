package sim

import (
	"runtime"
	"sync"
	"time"
)

// life is one process of a node. What a process does after its end is without effect: a goroutine of it
// that touches the disk, the network or the log ends there, as it would have when the process ended.
type life struct {
	dead chan struct{}
	once sync.Once
}

func newLife() *life { return &life{dead: make(chan struct{})} }

func (l *life) end() { l.once.Do(func() { close(l.dead) }) }

func (l *life) over() bool {
	select {
	case <-l.dead:
		return true
	default:
		return false
	}
}

// breathe ends the calling goroutine if the process has ended.
func (l *life) breathe() {
	if l.over() {
		runtime.Goexit()
	}
}

// sleep lets time pass, or ends the calling goroutine with its process.
func (l *life) sleep(d time.Duration) {
	if d <= 0 {
		l.breathe()
		return
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-l.dead:
		runtime.Goexit()
	}
}

// hang lets the calling goroutine wait until its process ends.
func (l *life) hang() {
	<-l.dead
	runtime.Goexit()
}
