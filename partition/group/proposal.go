package group

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/internal/guard"
)

// proposal is an entry on its way.
type proposal struct {
	done   chan struct{}
	once   sync.Once
	result any
	err    error
}

var _ Proposal = (*proposal)(nil)

func (p *proposal) Done() <-chan struct{} { return p.done }

func (p *proposal) Result() (any, error) { return p.result, p.err }

// complete keeps the first outcome.
func (p *proposal) complete(result any, err error) {
	p.once.Do(func() {
		p.result, p.err = result, err
		close(p.done)
	})
}

func refused(err error) *proposal {
	p := &proposal{done: make(chan struct{})}
	p.complete(nil, err)
	return p
}

// outcome turns Raft's error into a definite no or an unknown fate.
func outcome(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, raft.ErrNotLeader), errors.Is(err, raft.ErrEnqueueTimeout),
		errors.Is(err, raft.ErrLeadershipTransferInProgress):
		return fmt.Errorf("%w: %w", ErrNotLeader, err)
	default:
		// Among them ErrRaftShutdown, which Raft gives for entries that never reached it as well as for
		// committed ones that were not applied in time.
		return fmt.Errorf("%w: %w", ErrUnknown, err)
	}
}

// Propose hands data to the log.
func (g *RaftGroup) Propose(data []byte) Proposal {
	select {
	case g.proposals <- struct{}{}:
	default:
		return refused(fmt.Errorf("%w: %d proposals are in flight already", ErrNotLeader, cap(g.proposals)))
	}
	p := &proposal{done: make(chan struct{})}
	if !g.track(p) {
		<-g.proposals
		return refused(fmt.Errorf("%w: %w", ErrNotLeader, ErrClosed))
	}
	future := g.raft.Apply(data, g.config.Timing.Enqueue)
	deadline := time.AfterFunc(g.config.Timing.Proposal, func() {
		if !guard.On(guard.ProposalDeadline) {
			return
		}
		g.finish(p, nil, fmt.Errorf("%w: no outcome within %v", ErrUnknown, g.config.Timing.Proposal))
	})
	go func() {
		// A future that Raft forgot (hashicorp/raft#498) keeps this goroutine and its place, but not the
		// proposal: the deadline and Close complete that. So MaxProposals bounds both.
		err := future.Error()
		deadline.Stop()
		g.observeTransfer(err)
		if err != nil {
			g.finish(p, nil, outcome(err))
		} else {
			g.finish(p, future.Response(), nil)
		}
		<-g.proposals
	}()
	return p
}

// track adds p to those that Close completes; false when the group is closed.
func (g *RaftGroup) track(p *proposal) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return false
	}
	g.pending[p] = struct{}{}
	return true
}

func (g *RaftGroup) finish(p *proposal, result any, err error) {
	g.mu.Lock()
	delete(g.pending, p)
	g.mu.Unlock()
	p.complete(result, err)
}

// await waits for a future of a rare operation, with a deadline of its own.
func (g *RaftGroup) await(f raft.Future, limit time.Duration) error {
	done := make(chan error, 1)
	go func() { done <- f.Error() }()
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case err := <-done:
		return err
	case <-timer.C:
		return fmt.Errorf("%w: no outcome within %v", ErrUnknown, limit)
	case <-g.closing:
		return ErrClosed
	}
}
