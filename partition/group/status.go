package group

import (
	"strconv"
	"time"

	"github.com/hashicorp/raft"
)

// Status is what a replica tells about itself. It is for people and metrics, never for a decision: its
// fields are not read at one instant.
type Status struct {
	State         string // Follower, Candidate, Leader or Shutdown
	Term          uint64
	LastIndex     uint64 // last entry in the log
	CommitIndex   uint64
	AppliedIndex  uint64 // last entry given to the Applier
	SnapshotIndex uint64 // where the newest snapshot ends; 0 without one
	LogBytes      uint64 // of entries beyond the newest snapshot
	// LastContact is how long ago a leader was heard of; 0 on the leader, negative if never.
	LastContact        time.Duration
	InFlight           int    // proposals without an outcome
	SnapshotsTaken     uint64 // since Open
	SnapshotsInstalled uint64 // since Open, sent by a leader
}

// Status is the present state of this replica.
func (g *RaftGroup) Status() Status {
	s := Status{
		State: g.raft.State().String(), Term: g.raft.CurrentTerm(),
		LastIndex: g.raft.LastIndex(), CommitIndex: g.raft.CommitIndex(),
		AppliedIndex: g.AppliedIndex(), SnapshotIndex: g.store.Load().SnapshotIndex(),
		LogBytes: g.logBytes(), InFlight: len(g.proposals),
		SnapshotsTaken: g.snapshots.Load(), SnapshotsInstalled: g.installs.Load(),
	}
	switch last := g.raft.LastContact(); {
	case g.raft.State() == raft.Leader:
	case last.IsZero():
		s.LastContact = -1
	default:
		s.LastContact = time.Since(last)
	}
	return s
}

// String is a line for a log.
func (s Status) String() string {
	return s.State + " term " + strconv.FormatUint(s.Term, 10) +
		" applied " + strconv.FormatUint(s.AppliedIndex, 10) +
		" of " + strconv.FormatUint(s.LastIndex, 10)
}
