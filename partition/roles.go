package partition

import "sync"

// roles tells those who wait that the leadership may have changed.
type roles struct {
	mu sync.Mutex // guards ch
	ch chan struct{}
}

func newRoles() *roles { return &roles{ch: make(chan struct{})} }

// changed is closed at the next change.
func (r *roles) changed() <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.ch
}

func (r *roles) announce() {
	r.mu.Lock()
	defer r.mu.Unlock()
	close(r.ch)
	r.ch = make(chan struct{})
}
