package node

import (
	"context"
	"errors"
	"sync"

	"golang.org/x/sync/errgroup"
)

// openStored opens the replicas whose stores are in the data directory, all together. None is changed before all
// are known to be whole and not older than what they were seen to be: else a directory that is refused, for the
// right one to be put back, would have voted and acknowledged in the groups that were judged first.
func (n *Node) openStored(ctx context.Context) error {
	ids := n.claim.Groups()
	g := newGate(len(ids))
	all, ctx := errgroup.WithContext(ctx)
	for _, id := range ids {
		r := n.hosted.of(id)
		r.gate, r.mayBeBlank = g, false
		all.Go(func() error {
			if id == controlID {
				return n.openControl(ctx, nil)
			}
			err := n.openPartition(ctx, r, nil)
			if errors.Is(err, errBlank) {
				return nil // host opens it, with its founder
			}
			return err
		})
	}
	err := all.Wait()
	for _, id := range ids {
		r := n.hosted.of(id)
		r.gate, r.mayBeBlank = nil, id != controlID
	}
	return err
}

// gate opens when all have come to it.
type gate struct {
	mu   sync.Mutex // guards left
	left int
	open chan struct{}
}

func newGate(count int) *gate { return &gate{left: count, open: make(chan struct{})} }

// pass is what one of those who are waited for says, once.
func (g *gate) pass() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.left--; g.left == 0 {
		close(g.open)
	}
}

// wait waits until the gate is open, or ctx ends: then it stays shut.
func (g *gate) wait(ctx context.Context) error {
	select {
	case <-g.open:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
