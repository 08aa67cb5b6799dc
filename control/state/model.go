package state

import (
	"cmp"
	"encoding/hex"
	"slices"
	"strconv"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/policy"
)

// PartitionID numbers the partitions of a cluster, from 0; none is used twice.
type PartitionID uint64

// String is the id as people and groups know it: p0, p1, …
func (p PartitionID) String() string { return "p" + strconv.FormatUint(uint64(p), 10) }

// Digest is the SHA-256 of a policy body, which is the policy's own digest.
type Digest [32]byte

// String is the digest in hexadecimal.
func (d Digest) String() string { return hex.EncodeToString(d[:]) }

// NodeState is what a node is for. The numbers are durable.
type NodeState uint8

// The states of a node.
const (
	NodeActive   NodeState = 1 // takes replicas
	NodeDraining NodeState = 2 // is to lose its replicas
	NodeRemoved  NodeState = 3 // has none, and never again under the same instance
)

// String is the state in a word.
func (s NodeState) String() string {
	switch s {
	case NodeActive:
		return "active"
	case NodeDraining:
		return "draining"
	case NodeRemoved:
		return "removed"
	}
	return "unknown"
}

// Node is one node of the cluster.
type Node struct {
	ID string
	// Instance tells its data directory from every other that it has had; empty while a lost one has no
	// successor yet.
	Instance string
	Former   []string // instances that must not come back, oldest first
	GRPC     string   // host:port, as are the next two
	HTTP     string
	Raft     string
	Zone     string
	State    NodeState
}

// Range is a range of slots owned under one epoch.
type Range struct {
	fsm.SlotRange
	Epoch fsm.Epoch
}

// Partition is one partition of the map.
type Partition struct {
	ID     PartitionID
	Ranges []Range // sorted; none while it is prepared, and after everything has moved away
	// Replicas are the nodes that hold, or are to hold, a replica; sorted. ConfVersion grows with each change.
	Replicas    []string
	ConfVersion uint64
	// Founder is the data directory, as node@instance, of the first of the replicas that it was made with: no
	// other may begin the partition's log.
	Founder string
	// Plan is the plan, not closed, that it is an end of; 0 for none. A partition that is being recovered stays in a
	// plan of before until the recovery is decided.
	Plan      fsm.PlanID
	Installed fsm.Revision // the newest policy revision that it is known to have installed
}

// RevisionKind says how a policy revision came about. The numbers are durable.
type RevisionKind uint8

// The kinds of revisions.
const (
	RevisionPublish  RevisionKind = 1
	RevisionSwitch   RevisionKind = 2
	RevisionRollback RevisionKind = 3
)

// String is the kind in a word.
func (k RevisionKind) String() string {
	switch k {
	case RevisionPublish:
		return "publish"
	case RevisionSwitch:
		return "switch"
	case RevisionRollback:
		return "rollback"
	}
	return "unknown"
}

// Switch sets whether a class is disabled, whatever the body says.
type Switch = policy.Switch

// Revision is one policy revision. What it puts in force is its body under its label, with its switches
// set: see policy.Policy.With.
type Revision struct {
	Number fsm.Revision
	Label  string
	Kind   RevisionKind
	Base   fsm.Revision // that was in force before
	Body   Digest
	Bytes  int64 // of the body
	// Switches hold beside the body, sorted by class. A publish has none: its body says it all.
	Switches  []Switch
	Of        fsm.Revision // whose body and switches a rollback took; else 0
	Author    string
	WallNanos int64 // by the proposer's clock, for people
	Comment   string
}

// Ref is the policy of the revision, as the logs of partitions name it.
func (r *Revision) Ref() fsm.PolicyRef {
	return fsm.PolicyRef{
		Revision: r.Number, Version: r.Label, Body: r.Body, Bytes: r.Bytes, Switches: slices.Clone(r.Switches),
	}
}

// recorded is the result of a command that may be sent again.
type recorded struct {
	id     CommandID
	result Result
}

// State is the whole state as of one entry. It is immutable.
type State struct {
	Born        bool
	Cluster     string
	Incarnation uint32
	Seed        [16]byte // of the slot hash
	Level       Level
	// Version grows with each change of the state, MapVersion with each change of what gateways route by.
	Version       uint64
	MapVersion    uint64
	Counter       uint64 // of the last ownership epoch
	NextPartition PartitionID
	LastPlan      fsm.PlanID
	BodyEpoch     uint64
	RestoredFrom  Digest       // of the backup that the cluster was made of; zero for none
	Nodes         []*Node      // by id
	Partitions    []*Partition // by id
	Plans         []*Plan      // not closed, by id
	Ended         []*Plan      // closed, in that order
	Revisions     []*Revision  // oldest first
	Tokens        []*Token     // by id
	AuditCount    uint64       // records ever made
	AuditHash     Digest       // running hash over them
	recorded      []*recorded  // oldest first
	elements      sum          // over the lists above
}

// Node is the node with this id.
func (s *State) Node(id string) (*Node, bool) { return find(s.Nodes, id, nodeID) }

// Partition is the partition with this id.
func (s *State) Partition(id PartitionID) (*Partition, bool) {
	return find(s.Partitions, id, partitionID)
}

// Plan is the plan with this id that has not been closed.
func (s *State) Plan(id fsm.PlanID) (*Plan, bool) { return find(s.Plans, id, planID) }

// Revision is the policy revision of this number, if it is still in the history.
func (s *State) Revision(n fsm.Revision) (*Revision, bool) {
	return find(s.Revisions, n, func(r *Revision) fsm.Revision { return r.Number })
}

// InForce is the newest policy revision; nil before the first publish.
func (s *State) InForce() *Revision {
	if len(s.Revisions) == 0 {
		return nil
	}
	return s.Revisions[len(s.Revisions)-1]
}

// RevisionNumber is the number of the revision in force; 0 before the first publish.
func (s *State) RevisionNumber() fsm.Revision {
	if r := s.InForce(); r != nil {
		return r.Number
	}
	return 0
}

// Wants are the bodies that are to be kept, with the newest revision that names each.
func (s *State) Wants() map[Digest]fsm.Revision {
	const always = 2 // whatever their size
	kept, bytes := map[Digest]fsm.Revision{}, int64(0)
	for i, r := range slices.Backward(s.Revisions) {
		if _, known := kept[r.Body]; known {
			continue
		}
		bytes += r.Bytes
		if i < len(s.Revisions)-always && (len(kept) >= MaxKeptBodies || bytes > MaxKeptBodyBytes) {
			break
		}
		kept[r.Body] = r.Number
	}
	return kept
}

func nodeID(n *Node) string                { return n.ID }
func partitionID(p *Partition) PartitionID { return p.ID }
func planID(p *Plan) fsm.PlanID            { return p.ID }

func index[E any, K cmp.Ordered](list []*E, key K, keyOf func(*E) K) (int, bool) {
	return slices.BinarySearchFunc(list, key, func(e *E, k K) int { return cmp.Compare(keyOf(e), k) })
}

func find[E any, K cmp.Ordered](list []*E, key K, keyOf func(*E) K) (*E, bool) {
	i, ok := index(list, key, keyOf)
	if !ok {
		return nil, false
	}
	return list[i], true
}

// with is list with e in its place; list itself stays.
func with[E any, K cmp.Ordered](list []*E, e *E, keyOf func(*E) K) []*E {
	i, ok := index(list, keyOf(e), keyOf)
	if ok {
		list = slices.Clone(list)
		list[i] = e
		return list
	}
	return slices.Insert(slices.Clone(list), i, e)
}

// without is list without the element of this key; list itself stays.
func without[E any, K cmp.Ordered](list []*E, key K, keyOf func(*E) K) []*E {
	i, ok := index(list, key, keyOf)
	if !ok {
		return list
	}
	return slices.Delete(slices.Clone(list), i, i+1)
}
