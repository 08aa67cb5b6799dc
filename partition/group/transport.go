package group

import (
	"sync"
	"sync/atomic"

	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/internal/guard"
)

// guarded is a transport without what makes it unsafe. See the package documentation.
type guarded struct {
	Transport
	requests chan raft.RPC
	done     chan struct{}
	once     sync.Once
	loop     sync.WaitGroup
	commits  recentCommits
	acked    acknowledged
	// installed is called after each snapshot that Raft says it has installed, before the answer leaves.
	installed func()
}

var _ Transport = (*guarded)(nil)

func newGuarded(inner Transport, installed func()) *guarded {
	g := &guarded{
		Transport: inner,
		requests:  make(chan raft.RPC),
		done:      make(chan struct{}),
		acked:     newAcknowledged(),
		installed: installed,
	}
	g.loop.Go(g.receive)
	return g
}

// SetHeartbeatHandler is ignored. The handler would change term and state from the connection's
// goroutine while Raft's main goroutine stamps entries with the term (hashicorp/raft#695).
func (g *guarded) SetHeartbeatHandler(f func(raft.RPC)) {
	if !guard.On(guard.HeartbeatQueue) {
		g.Transport.SetHeartbeatHandler(f)
	}
}

// Consumer delivers requests to Raft, heartbeats among them.
func (g *guarded) Consumer() <-chan raft.RPC { return g.requests }

// Close ends all connections.
func (g *guarded) Close() error {
	err := g.Transport.Close()
	g.once.Do(func() { close(g.done) })
	g.loop.Wait()
	return err
}

func (g *guarded) receive() {
	for {
		select {
		case <-g.done:
			return
		case r := <-g.Transport.Consumer():
			switch command := r.Command.(type) {
			case *raft.AppendEntriesRequest:
				g.commits.note(command)
				if guard.On(guard.CommitClamp) {
					clampCommit(command)
				}
			case *raft.InstallSnapshotRequest:
				r.RespChan = g.checkInstall(r.RespChan)
			}
			select {
			case g.requests <- r:
			case <-g.done:
				return
			}
		}
	}
}

// clampCommit keeps a follower from committing entries that this request has not compared with the
// leader's: beyond them its log may hold a stale suffix, which Raft would take for committed.
func clampCommit(r *raft.AppendEntriesRequest) {
	r.LeaderCommitIndex = min(r.LeaderCommitIndex, r.PrevLogEntry+uint64(len(r.Entries)))
}

// recentCommits are the last few commit indexes of which the leader told this follower when it already
// had the entry. Such an entry is applied about when it was committed; one that comes together with the
// news of its commit may be an old one that this follower missed.
type recentCommits [64]atomic.Uint64

func (c *recentCommits) note(r *raft.AppendEntriesRequest) {
	if i := r.LeaderCommitIndex; i != 0 && i <= r.PrevLogEntry {
		c[i%uint64(len(c))].Store(i)
	}
}

func (c *recentCommits) has(index uint64) bool {
	return index != 0 && c[index%uint64(len(c))].Load() == index
}

// checkInstall looks at the outcome of an install before its sender does.
func (g *guarded) checkInstall(answer chan<- raft.RPCResponse) chan<- raft.RPCResponse {
	inner := make(chan raft.RPCResponse, 1)
	g.loop.Go(func() {
		select {
		case response := <-inner:
			if r, ok := response.Response.(*raft.InstallSnapshotResponse); ok && r.Success {
				g.installed()
			}
			answer <- response // has room for one
		case <-g.done:
		}
	})
	return inner
}

// AppendEntries sends entries, or a heartbeat, and notes what the peer has.
func (g *guarded) AppendEntries(id raft.ServerID, target raft.ServerAddress,
	args *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse,
) error {
	err := g.Transport.AppendEntries(id, target, args, resp)
	if err == nil {
		g.acked.note(id, args, resp)
	}
	return err
}

// AppendEntriesPipeline opens a pipeline to a peer, and notes what the peer has.
func (g *guarded) AppendEntriesPipeline(id raft.ServerID, target raft.ServerAddress,
) (raft.AppendPipeline, error) {
	inner, err := g.Transport.AppendEntriesPipeline(id, target)
	if err != nil {
		return nil, err
	}
	return newPipeline(inner, id, &g.acked), nil
}
