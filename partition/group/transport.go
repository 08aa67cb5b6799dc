package group

import (
	"errors"
	"io"
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
	replica  replicaView
}

// replicaView is what the transport has to know of the replica behind it.
type replicaView interface {
	// installed is called after each snapshot that Raft says it has installed, before the answer leaves.
	installed()
	// committed is the last index that this replica knows to be committed; 0 before it is open.
	committed() uint64
	// beginsAfter is the first entry in the log, or the end of the newest snapshot when the log is empty, if
	// that lies beyond an index.
	beginsAfter(index uint64) (p Position, ok bool)
}

var _ Transport = (*guarded)(nil)

func newGuarded(inner Transport, replica replicaView) *guarded {
	g := &guarded{
		Transport: inner,
		requests:  make(chan raft.RPC),
		done:      make(chan struct{}),
		acked:     newAcknowledged(),
		replica:   replica,
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
				skipCommitted(command, g.replica)
				g.commits.note(command)
				if guard.On(guard.CommitClamp) {
					clampCommit(command)
				}
			case *raft.InstallSnapshotRequest:
				if g.outdated(r, command) {
					continue
				}
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

// campaign has this replica ask for an election at once, as the target of a transfer of leadership does: the only
// member of a new group has nobody to hear from first.
func (g *guarded) campaign() {
	request := &raft.TimeoutNowRequest{RPCHeader: raft.RPCHeader{ProtocolVersion: raft.ProtocolVersionMax}}
	answered := make(chan raft.RPCResponse, 1)
	g.loop.Go(func() {
		select {
		case g.requests <- raft.RPC{Command: request, RespChan: answered}:
		case <-g.done:
		}
	})
}

// skipCommitted lets a request begin where this replica's log does, when it begins before and all that lies
// between is committed here. Raft would look for an entry that is compacted away, refuse the request, and
// be sent one that begins earlier still. What is committed is the same in every leader's log.
func skipCommitted(r *raft.AppendEntriesRequest, replica replicaView) {
	if r.PrevLogEntry == 0 && len(r.Entries) == 0 {
		return // a heartbeat
	}
	p, ok := replica.beginsAfter(r.PrevLogEntry)
	if !ok || p.Index > replica.committed() {
		return
	}
	r.PrevLogEntry, r.PrevLogTerm = p.Index, p.Term
	for len(r.Entries) > 0 && r.Entries[0].Index <= p.Index {
		r.Entries = r.Entries[1:]
	}
}

// outdated answers a snapshot that ends within what this replica knows to be committed, and reports whether
// it did. Raft would install it: go back to an older state and drop the entries behind, which it has
// acknowledged. The leader goes on behind the snapshot.
func (g *guarded) outdated(r raft.RPC, q *raft.InstallSnapshotRequest) bool {
	// As a heartbeat, first: Raft then has handled all requests before, and has looked at the sender's term.
	answered := make(chan raft.RPCResponse, 1)
	probe := raft.RPC{
		Command:  &raft.AppendEntriesRequest{RPCHeader: q.RPCHeader, Term: q.Term},
		RespChan: answered,
	}
	select {
	case g.requests <- probe:
	case <-g.done:
		return true
	}
	var response raft.RPCResponse
	select {
	case response = <-answered:
	case <-g.done:
		return true
	}
	heartbeat, ok := response.Response.(*raft.AppendEntriesResponse)
	if !ok || response.Error != nil || !heartbeat.Success || q.LastLogIndex > g.replica.committed() {
		return false
	}
	g.loop.Go(func() {
		// What follows it on the connection is read only when all of it has been.
		_, err := io.Copy(io.Discard, r.Reader)
		r.Respond(&raft.InstallSnapshotResponse{Term: heartbeat.Term, Success: err == nil}, err)
	})
	return true
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
				g.replica.installed()
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
	} else {
		g.acked.missed(id)
	}
	return err
}

// AppendEntriesPipeline opens a pipeline to a peer, and notes what the peer has.
func (g *guarded) AppendEntriesPipeline(id raft.ServerID, target raft.ServerAddress,
) (raft.AppendPipeline, error) {
	inner, err := g.Transport.AppendEntriesPipeline(id, target)
	if err != nil {
		if !errors.Is(err, raft.ErrPipelineReplicationNotSupported) {
			g.acked.missed(id)
		}
		return nil, err
	}
	return newPipeline(inner, id, &g.acked), nil
}
