package group

import (
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/partition/storage"
)

// Position is a place in a log.
type Position = storage.Position

// acknowledged is what followers have said to have on their disks, while this replica led.
type acknowledged struct {
	mu     sync.Mutex // guards the fields below
	of     map[raft.ServerID]Position
	heard  map[raft.ServerID]time.Time // when each last answered
	follow map[raft.ServerID]time.Time // when each last answered to more than a heartbeat
	failed map[raft.ServerID]time.Time // when a request to each last got no answer
}

func newAcknowledged() acknowledged {
	return acknowledged{
		of: map[raft.ServerID]Position{}, heard: map[raft.ServerID]time.Time{}, follow: map[raft.ServerID]time.Time{},
		failed: map[raft.ServerID]time.Time{},
	}
}

// missed notes that a request got no answer.
func (a *acknowledged) missed(id raft.ServerID) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.failed[id] = time.Now()
}

// follows reports that a replica was sent more than heartbeats within a time, and answered, and that nothing failed
// since. After failures Raft goes on with heartbeats at once, but may pause the rest for many seconds.
func (a *acknowledged) follows(id raft.ServerID, within time.Duration) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	last := a.follow[id]
	return time.Since(last) <= within && !a.failed[id].After(last)
}

func (a *acknowledged) note(id raft.ServerID, q *raft.AppendEntriesRequest, r *raft.AppendEntriesResponse) {
	if !r.Success {
		return
	}
	p := Position{Term: q.PrevLogTerm, Index: q.PrevLogEntry}
	if n := len(q.Entries); n > 0 {
		p = Position{Term: q.Entries[n-1].Term, Index: q.Entries[n-1].Index}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.heard[id] = time.Now()
	if p.Index > 0 {
		a.follow[id] = a.heard[id]
	}
	if a.of[id].Before(p) {
		a.of[id] = p
	}
}

// forget drops what a replica that is removed has acknowledged.
func (a *acknowledged) forget(id raft.ServerID) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.of, id)
	delete(a.heard, id)
	delete(a.follow, id)
	delete(a.failed, id)
}

func (a *acknowledged) by(id raft.ServerID) Position {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.of[id]
}

// Acknowledged is how far a replica is known to have acknowledged this one's entries, while this one
// led since Open. A replica whose log ends before that has lost something.
func (g *RaftGroup) Acknowledged(m Member) Position { return g.transport.acked.by(m.replicaID()) }

// Heard is when a replica last acknowledged anything to this one, heartbeats included; zero if it has not
// since Open.
func (g *RaftGroup) Heard(m Member) time.Time {
	a := &g.transport.acked
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.heard[m.replicaID()]
}

// pipeline is an AppendPipeline whose answers are noted.
type pipeline struct {
	raft.AppendPipeline
	id    raft.ServerID
	acked *acknowledged
	out   chan raft.AppendFuture
	done  chan struct{}
	once  sync.Once
	loop  sync.WaitGroup
}

func newPipeline(inner raft.AppendPipeline, id raft.ServerID, acked *acknowledged) *pipeline {
	p := &pipeline{
		AppendPipeline: inner, id: id, acked: acked,
		out: make(chan raft.AppendFuture), done: make(chan struct{}),
	}
	p.loop.Go(p.follow)
	return p
}

func (p *pipeline) follow() {
	for {
		select {
		case f, ok := <-p.AppendPipeline.Consumer():
			if !ok {
				return
			}
			// It has been answered: its error is there.
			if f.Error() == nil {
				p.acked.note(p.id, f.Request(), f.Response())
			} else {
				p.acked.missed(p.id)
			}
			select {
			case p.out <- f:
			case <-p.done:
				return
			}
			if f.Error() != nil || !f.Response().Success {
				// Raft takes no answer after it, but may go on sending for a moment: what it sends would wait
				// behind answers that nobody takes, and with it all replication to this peer, for as long as
				// the leadership lasts.
				_ = p.AppendPipeline.Close() // it is closed again, and the error reported, when Raft does
				return
			}
		case <-p.done:
			return
		}
	}
}

// Consumer delivers the requests that have been answered.
func (p *pipeline) Consumer() <-chan raft.AppendFuture { return p.out }

// Close ends the pipeline.
func (p *pipeline) Close() error {
	err := p.AppendPipeline.Close()
	p.once.Do(func() { close(p.done) })
	p.loop.Wait()
	return err
}
