package control

import (
	"context"
	"sync"

	"github.com/quorate/quorate/control/state"
)

// view is the newest state of this replica, for readers.
type view struct {
	mu      sync.Mutex // guards the fields below
	now     *state.State
	changed chan struct{} // closed when now is another
}

func (v *view) init(s *state.State) { v.now, v.changed = s, make(chan struct{}) }

func (v *view) set(s *state.State) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.now = s
	close(v.changed)
	v.changed = make(chan struct{})
}

func (v *view) get() (*state.State, <-chan struct{}) {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.now, v.changed
}

// State is the state as this replica has applied it, which may be behind: Read is not.
func (c *Control) State() *state.State {
	s, _ := c.view.get()
	return s
}

// Changed is State, and a channel that is closed when there is another.
func (c *Control) Changed() (*state.State, <-chan struct{}) { return c.view.get() }

// Watch calls f with the present state and with each newer one, until ctx ends, the Control closes or f
// fails, whose error it returns. While f works, states that come are passed over for the newest.
func (c *Control) Watch(ctx context.Context, f func(*state.State) error) error {
	for {
		s, changed := c.view.get()
		if err := f(s); err != nil {
			return err
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		case <-c.closing:
			return nil
		}
	}
}
