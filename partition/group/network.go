package group

import (
	"fmt"
	"io"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
)

// Transport is Raft's way to the other replicas of one group, as a library or a simulation offers it. The
// group puts its guards around it.
type Transport interface {
	raft.Transport
	raft.WithPreVote // without it Raft silently does without pre-votes
	raft.WithClose
	// Hangups delivers a replica that closed a connection to this one, as all do when their process ends. It is a hint:
	// some are left out, and one that closes a connection may be well.
	Hangups() <-chan raft.ServerID
	// Absent connects to a replica, and reports whether it is certain that its process does not run there. It waits a
	// few hundred milliseconds at the most, and is not certain of one that does not answer.
	Absent(id raft.ServerID, target raft.ServerAddress) bool
}

// Network gives groups their transports. *Listener is the one of the product.
type Network interface {
	// Transport opens self's share of the network for a group; each of its requests has the given deadline.
	Transport(group string, self Member, request time.Duration, logger hclog.Logger) (Transport, error)
}

var _ Network = (*Listener)(nil)

// Transport makes a group reachable on the listener's socket, under the address of self.
func (l *Listener) Transport(group string, self Member, request time.Duration, logger hclog.Logger,
) (Transport, error) {
	if self.ID != l.config.Node {
		return nil, fmt.Errorf("the replica is of node %q, but the listener is that of node %q", self.ID, l.config.Node)
	}
	stream, err := l.register(group, self)
	if err != nil {
		return nil, err
	}
	return newSocketTransport(stream, request, logger), nil
}

func newSocketTransport(stream *layer, request time.Duration, logger hclog.Logger) *socketTransport {
	return &socketTransport{stream: stream, NetworkTransport: raft.NewNetworkTransportWithConfig(
		&raft.NetworkTransportConfig{
			Stream: stream, Timeout: request, Logger: logger,
			MaxPool: transportPool, MaxRPCsInFlight: maxRequestsInFlight, MsgpackUseNewTimeFormat: true,
		},
	)}
}

const (
	transportPool       = 3 // idle connections kept for each peer
	absentTimeout       = 300 * time.Millisecond
	maxRequestsInFlight = 2 // AppendEntries on their way to one peer; more only adds latency
)

// socketTransport is Raft's network transport, which dials an address and does not say whose. It adds
// the replica's id to the target, so that the preamble can name it.
type socketTransport struct {
	*raft.NetworkTransport
	stream *layer
}

// Hangups delivers the replicas that close connections.
func (s *socketTransport) Hangups() <-chan raft.ServerID { return s.stream.hangups }

// Absent connects to a replica. A process that stands still is not absent: its machine takes the connection.
func (s *socketTransport) Absent(id raft.ServerID, target raft.ServerAddress) bool {
	conn, err := s.stream.dial(string(id), string(target), absentTimeout)
	if err != nil {
		return hungUp(err)
	}
	_ = conn.Close() // it was opened to see whether it can be
	return false
}

// AppendEntriesPipeline opens a pipeline to a peer.
func (s *socketTransport) AppendEntriesPipeline(id raft.ServerID, target raft.ServerAddress,
) (raft.AppendPipeline, error) {
	return s.NetworkTransport.AppendEntriesPipeline(id, joinTarget(id, target))
}

// AppendEntries sends entries, or a heartbeat.
func (s *socketTransport) AppendEntries(id raft.ServerID, target raft.ServerAddress,
	args *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse,
) error {
	return s.NetworkTransport.AppendEntries(id, joinTarget(id, target), args, resp)
}

// RequestVote asks for a vote.
func (s *socketTransport) RequestVote(id raft.ServerID, target raft.ServerAddress,
	args *raft.RequestVoteRequest, resp *raft.RequestVoteResponse,
) error {
	return s.NetworkTransport.RequestVote(id, joinTarget(id, target), args, resp)
}

// RequestPreVote asks whether a vote would be given.
func (s *socketTransport) RequestPreVote(id raft.ServerID, target raft.ServerAddress,
	args *raft.RequestPreVoteRequest, resp *raft.RequestPreVoteResponse,
) error {
	return s.NetworkTransport.RequestPreVote(id, joinTarget(id, target), args, resp)
}

// InstallSnapshot sends a snapshot.
func (s *socketTransport) InstallSnapshot(id raft.ServerID, target raft.ServerAddress,
	args *raft.InstallSnapshotRequest, resp *raft.InstallSnapshotResponse, data io.Reader,
) error {
	return s.NetworkTransport.InstallSnapshot(id, joinTarget(id, target), args, resp, data)
}

// TimeoutNow tells a peer to campaign at once.
func (s *socketTransport) TimeoutNow(id raft.ServerID, target raft.ServerAddress,
	args *raft.TimeoutNowRequest, resp *raft.TimeoutNowResponse,
) error {
	return s.NetworkTransport.TimeoutNow(id, joinTarget(id, target), args, resp)
}
