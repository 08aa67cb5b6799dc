package group

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/internal/guard"
)

// What a proposal can come to besides a result. ErrNotLeader is a definite no: the entry is not in the
// log and never will be. ErrUnknown is everything else: the entry may be committed, now or later.
var (
	ErrNotLeader = errors.New("not the leader")
	ErrUnknown   = errors.New("outcome unknown")
	ErrClosed    = errors.New("group is closed")
)

// Member is one replica of a group.
type Member struct {
	ID string // node id
	// Instance tells the node's data directory from any other that it has had: a node with another
	// directory is another replica, since it knows nothing of the votes and entries of the first.
	Instance string
	Addr     string // host:port of the node's Raft listener
	Learner  bool
}

// replicaSeparator stands between node id and instance in the id by which Raft knows a replica.
const replicaSeparator = "@"

// replicaID is the id by which Raft knows the replica.
func (m Member) replicaID() raft.ServerID {
	if m.Instance == "" || !guard.On(guard.Instance) {
		return raft.ServerID(m.ID)
	}
	return raft.ServerID(m.ID + replicaSeparator + m.Instance)
}

// validate says what a member lacks.
func (m Member) validate() error {
	if m.ID == "" || m.Addr == "" {
		return errors.New("a member needs a node id and an address")
	}
	if n := len(m.replicaID()); n > maxIDBytes {
		return fmt.Errorf("node id and instance have %d bytes together, at most %d are possible", n, maxIDBytes)
	}
	if strings.Contains(m.ID, replicaSeparator) {
		return fmt.Errorf("node id %q contains %q", m.ID, replicaSeparator)
	}
	return nil
}

func memberOf(id raft.ServerID, address raft.ServerAddress) Member {
	node, instance, _ := strings.Cut(string(id), replicaSeparator)
	return Member{ID: node, Instance: instance, Addr: string(address)}
}

// Leadership is what a node knows of its own role in a group.
type Leadership struct {
	// Term is the Raft term that this node leads; 0 while it does not lead.
	Term uint64
	// Ready: an entry of Term has been applied on this node, so it may stamp.
	Ready bool
}

// Proposal is an entry on its way through the log.
type Proposal interface {
	// Done is closed when the proposal has come to an end; bounded by the group's own deadline.
	Done() <-chan struct{}
	// Result is what Applier.Apply returned for the entry, or ErrNotLeader, ErrUnknown (wrapped).
	// Only valid after Done is closed.
	Result() (any, error)
}

// Applier is the state machine behind a group. The group calls it from one goroutine at a time.
type Applier interface {
	// Apply applies a committed entry. It must not fail: what cannot go on past an entry ends the process. live
	// says that the entry is the last that the leader is known to have committed, so that it is applied
	// about when it was committed, and not replayed later.
	Apply(index, term uint64, data []byte, live bool) any
	// Snapshot captures the state as of the last applied entry. It must be quick: Apply waits for it.
	Snapshot() (Snapshot, error)
	// Restore replaces the state by one that Snapshot wrote.
	Restore(r io.Reader) error
}

// Snapshot is a captured state on its way to a file. WriteTo runs beside Apply.
type Snapshot interface {
	WriteTo(w io.Writer) (int64, error)
	Release()
}

// Group is one Raft group as its node sees it.
type Group interface {
	// Propose hands data to the log. It blocks at most until Raft's main loop has taken it.
	Propose(data []byte) Proposal
	// Leadership is the present role.
	Leadership() Leadership
	// Changed delivers a signal after each change of Leadership; signals coalesce, so read Leadership anew
	// after each and compare terms.
	Changed() <-chan struct{}
	// Leader is the leader as this node knows it; ok is false while it knows none.
	Leader() (m Member, ok bool)
	// Members are the replicas of the latest configuration.
	Members() []Member
	// AddLearner, Promote and Remove change the replica set, one member at a time.
	AddLearner(m Member) error
	Promote(id string) error
	Remove(id string) error
	// Transfer hands leadership to another member, the most up-to-date one when id is empty.
	Transfer(id string) error
	// CompactNow takes a snapshot and drops the log that it covers.
	CompactNow() error
	// Condemn ends this replica for good: it is marked on the disk, so that no later start opens it, and
	// then closed. Only a clean copy under another instance takes its place.
	Condemn(reason string) error
	// Status is the present state of this replica, for people and metrics.
	Status() Status
	// AppliedIndex is the index of the last entry that the Applier has applied.
	AppliedIndex() uint64
	Close() error
}
