package group

import (
	"io"
	"sync"
	"sync/atomic"

	"github.com/hashicorp/raft"
)

const (
	transportPool       = 3 // idle connections kept for each peer
	maxRequestsInFlight = 2 // AppendEntries on their way to one peer; more only adds latency
)

// guarded is Raft's network transport without what makes it unsafe. See the package documentation.
type guarded struct {
	*raft.NetworkTransport
	requests chan raft.RPC
	done     chan struct{}
	once     sync.Once
	loop     sync.WaitGroup
	commits  recentCommits
	// installed is called after each snapshot that Raft says it has installed, before the answer leaves.
	installed func()
}

var (
	_ raft.Transport   = (*guarded)(nil)
	_ raft.WithPreVote = (*guarded)(nil) // without it Raft silently does without pre-votes
	_ raft.WithClose   = (*guarded)(nil)
)

func newGuarded(c *raft.NetworkTransportConfig, installed func()) *guarded {
	c.MaxPool, c.MaxRPCsInFlight, c.MsgpackUseNewTimeFormat = transportPool, maxRequestsInFlight, true
	g := &guarded{
		NetworkTransport: raft.NewNetworkTransportWithConfig(c),
		requests:         make(chan raft.RPC),
		done:             make(chan struct{}),
		installed:        installed,
	}
	g.loop.Go(g.receive)
	return g
}

// SetHeartbeatHandler is ignored. The handler would change term and state from the connection's
// goroutine while Raft's main goroutine stamps entries with the term (hashicorp/raft#695).
func (g *guarded) SetHeartbeatHandler(func(raft.RPC)) {}

// Consumer delivers requests to Raft, heartbeats among them.
func (g *guarded) Consumer() <-chan raft.RPC { return g.requests }

// Close ends all connections.
func (g *guarded) Close() error {
	err := g.NetworkTransport.Close()
	g.once.Do(func() { close(g.done) })
	g.loop.Wait()
	return err
}

func (g *guarded) receive() {
	for {
		select {
		case <-g.done:
			return
		case r := <-g.NetworkTransport.Consumer():
			switch command := r.Command.(type) {
			case *raft.AppendEntriesRequest:
				g.commits.note(command)
				clampCommit(command)
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

// The rest adds the node id to the target, so that the preamble can name it.

// AppendEntriesPipeline opens a pipeline to a peer.
func (g *guarded) AppendEntriesPipeline(id raft.ServerID, target raft.ServerAddress,
) (raft.AppendPipeline, error) {
	return g.NetworkTransport.AppendEntriesPipeline(id, joinTarget(id, target))
}

// AppendEntries sends entries, or a heartbeat.
func (g *guarded) AppendEntries(id raft.ServerID, target raft.ServerAddress,
	args *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse,
) error {
	return g.NetworkTransport.AppendEntries(id, joinTarget(id, target), args, resp)
}

// RequestVote asks for a vote.
func (g *guarded) RequestVote(id raft.ServerID, target raft.ServerAddress,
	args *raft.RequestVoteRequest, resp *raft.RequestVoteResponse,
) error {
	return g.NetworkTransport.RequestVote(id, joinTarget(id, target), args, resp)
}

// RequestPreVote asks whether a vote would be given.
func (g *guarded) RequestPreVote(id raft.ServerID, target raft.ServerAddress,
	args *raft.RequestPreVoteRequest, resp *raft.RequestPreVoteResponse,
) error {
	return g.NetworkTransport.RequestPreVote(id, joinTarget(id, target), args, resp)
}

// InstallSnapshot sends a snapshot.
func (g *guarded) InstallSnapshot(id raft.ServerID, target raft.ServerAddress,
	args *raft.InstallSnapshotRequest, resp *raft.InstallSnapshotResponse, data io.Reader,
) error {
	return g.NetworkTransport.InstallSnapshot(id, joinTarget(id, target), args, resp, data)
}

// TimeoutNow tells a peer to campaign at once.
func (g *guarded) TimeoutNow(id raft.ServerID, target raft.ServerAddress,
	args *raft.TimeoutNowRequest, resp *raft.TimeoutNowResponse,
) error {
	return g.NetworkTransport.TimeoutNow(id, joinTarget(id, target), args, resp)
}
