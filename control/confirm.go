package control

import (
	"context"
	"sync"
	"time"

	"github.com/quorate/quorate/control/state"
	"github.com/quorate/quorate/quotaerr"
)

// confirmWithin bounds an entry that several callers wait for; each has its own deadline beside it.
const confirmWithin = 15 * time.Second

// confirmer makes callers that wait at the same time share entries. A caller joins the round that has not
// been proposed yet, so its entry is always proposed after the call. One entry is on its way at a time.
type confirmer struct {
	control *Control

	mu      sync.Mutex // guards the fields below
	next    *round     // not proposed yet; nil when nobody waits for it
	running bool       // a round is on its way
	closed  bool       // no round is started any more
}

// round is one entry that callers wait for.
type round struct {
	done    chan struct{} // closed when the rest is set
	applied *Applied
	err     error
}

func (f *confirmer) init(c *Control) { f.control = c }

// ask waits for an entry that is proposed after the call.
func (f *confirmer) ask(ctx context.Context) (*Applied, error) {
	r := f.join()
	select {
	case <-r.done:
		return r.applied, r.err
	case <-ctx.Done():
		// Nothing was changed, so nothing is unknown.
		return nil, quotaerr.Wrap(quotaerr.NoQuorum, ctx.Err(), "the control group has not answered in time: try again")
	case <-f.control.closing:
		return nil, quotaerr.New(quotaerr.NotLeader, "this node is stopping: ask another")
	}
}

// join takes part in the next round, and starts it when none is on its way.
func (f *confirmer) join() *round {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.next == nil {
		f.next = &round{done: make(chan struct{})}
	}
	r := f.next
	if !f.running && !f.closed {
		f.running = true
		f.control.loops.Go(f.run)
	}
	return r
}

// close lets no more rounds begin.
func (f *confirmer) close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.closed = true
}

// run proposes rounds until nobody waits. The group ends each proposal, so it ends too.
func (f *confirmer) run() {
	for {
		f.mu.Lock()
		r := f.next
		f.next = nil
		if r == nil || f.closed {
			f.running = false
			f.mu.Unlock()
			return
		}
		f.mu.Unlock()
		r.applied, r.err = f.propose()
		close(r.done)
	}
}

func (f *confirmer) propose() (*Applied, error) {
	ctx, cancel := context.WithTimeout(context.Background(), confirmWithin)
	defer cancel()
	applied, err := f.control.propose(ctx, &state.Command{Kind: state.KindConfirm})
	if quotaerr.ReasonOf(err) == quotaerr.OutcomeUnknown {
		err = quotaerr.Wrap(quotaerr.NoQuorum, err, "the control group has not answered in time: try again")
	}
	return applied, err
}
