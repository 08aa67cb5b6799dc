package state

import "github.com/quorate/quorate/fsm"

// Kind tells what a command does. The numbers are durable.
type Kind uint8

// The kinds of commands.
const (
	KindConfirm     Kind = 1
	KindInit        Kind = 2
	KindPutNode     Kind = 3
	KindLoseNode    Kind = 4
	KindNodeState   Kind = 5
	KindCreate      Kind = 6
	KindRetire      Kind = 7
	KindReplicas    Kind = 8
	KindStartPlan   Kind = 9
	KindDecidePlan  Kind = 10
	KindAbortPlan   Kind = 11
	KindClosePlan   Kind = 12
	KindPublish     Kind = 13
	KindSwitchClass Kind = 14
	KindRollback    Kind = 15
	KindInstalled   Kind = 16
	KindSweep       Kind = 17
	KindAttempt     Kind = 18
	KindRaise       Kind = 19
	KindPutToken    Kind = 20
	KindRevokeToken Kind = 21
	KindNote        Kind = 22
)

// Level is a feature level: what the log may ask of the replicas. It only rises, by KindRaise.
type Level uint32

// The feature levels.
const (
	BirthLevel Level = 1
	// MaxLevel is the highest level that this program knows.
	MaxLevel Level = 1
)

// CommandID makes a command that is sent again the same command. The zero is no id.
type CommandID [16]byte

// Basis names a state: its digest once the entry at Index had been applied. Index 0 is none.
type Basis struct {
	Index  uint64
	Digest [16]byte
}

// Command is one entry of the control group's log.
type Command struct {
	Kind Kind
	ID   CommandID
	// Basis is the proposer's state, for other replicas to compare with theirs. It decides nothing.
	Basis Basis
	// Actor is who asked, as authenticated; WallNanos when, in nanoseconds since 1970 by the proposer's
	// clock; Comment why. Difference tells people what changes. None of them decides anything, but that a
	// token which had ended by WallNanos may make room for a new one.
	Actor      string
	WallNanos  int64
	Comment    string
	Difference string

	Init      *Init
	Node      *PutNode
	NodeID    string      // KindLoseNode, KindNodeState
	Instance  string      // KindLoseNode: the one that was lost
	State     NodeState   // KindNodeState
	Create    *Create     //
	Partition PartitionID // KindRetire, KindReplicas
	Replicas  *Replicas
	Start     *StartPlan
	Plan      fsm.PlanID // KindDecidePlan, KindAbortPlan, KindClosePlan
	Decide    *Decide
	Publish   *Publish
	Switch    *SwitchClass
	Rollback  *Rollback
	Installed []Note // by partition
	Epoch     uint64 // KindSweep: the body epoch that ends
	Attempt   *Attempt
	Level     Level  // KindRaise
	Token     *Token // KindPutToken; never revoked
	TokenID   string // KindRevokeToken
	Act       *Act
}

// Init makes the cluster, once.
type Init struct {
	Cluster     string
	Incarnation uint32   // from 1
	Seed        [16]byte // zero where Restored brings one
	// Restored is what the cluster takes over from a backup; nil for a new one.
	Restored *Restored
}

// PutNode makes a node known, or changes its addresses and zone.
type PutNode struct {
	ID, Instance, GRPC, HTTP, Raft, Zone string
}

// Create makes a partition. Map is the map version that it was made against.
type Create struct {
	Map      uint64
	Ranges   []fsm.SlotRange // that no partition owns; none for the destination of a plan
	Replicas []string        // the first founds it
}

// Replicas sets the nodes that hold a partition, if ConfVersion is still its own.
type Replicas struct {
	ConfVersion uint64
	Nodes       []string
}

// StartPlan begins to move slots.
type StartPlan struct {
	Kind PlanKind
	// Source has the slots; for a restore it is the number that the partition has in the backup.
	Source PartitionID
	// Destination is to have them. It is not looked at where New makes one.
	Destination PartitionID
	// New are the nodes of a destination that is made for the plan, the first its founder: for a split, a recovery
	// and a restore. Else there are none.
	New []string
	// Ranges are what moves; none for a merge and a recovery, since there all does.
	Ranges     []fsm.SlotRange
	From       string // see Plan; for a recovery and a restore only
	AcceptLoss bool   // see Plan; for a recovery and a restore only
}

// Decide is the digests that both ends of a plan reported of the state that was moved: of what the source exported,
// and of what the destination has sealed.
type Decide struct {
	Exported, Imported [16]byte
}

// Publish puts a new policy in force, if Base still is.
type Publish struct {
	Base  fsm.Revision // 0 for the first
	Label string
	Body  Digest
	Bytes int64
	// Held: a majority of replicas has said, under BodyEpoch, that it holds the body.
	Held      bool
	BodyEpoch uint64
}

// SwitchClass disables or enables one class, if Base is still in force.
type SwitchClass struct {
	Base     fsm.Revision
	Class    string
	Disabled bool
}

// Rollback puts an older policy in force again, as it was then, if Base is still in force.
type Rollback struct {
	Base, To  fsm.Revision
	Held      bool // as in Publish
	BodyEpoch uint64
}

// Note is a partition's newest installed policy revision.
type Note struct {
	Partition PartitionID
	Revision  fsm.Revision
}

// Attempt notes in the audit trail what was refused before it became a command.
type Attempt struct {
	Action, Object, Reason string
}

// Act notes in the audit trail what was done outside this state, or is about to be.
type Act struct {
	Action, Object, Message string
}

// Result is what a command came to.
type Result struct {
	Index     uint64       // of the log entry that decided
	Version   uint64       // of the state after it
	Map       uint64       // map version after it
	Revision  fsm.Revision // policy revision in force after it
	Partition PartitionID  // that KindCreate made; for KindStartPlan the destination
	Plan      fsm.PlanID   // that KindStartPlan made
	Refused   *Refusal     // nil when it was done
	Repeated  bool         // it had been applied before, and changed nothing now
}

// Record is one line of the audit trail.
type Record struct {
	Index      uint64 // of the log entry
	WallNanos  int64  // by the proposer's clock, for people
	Actor      string
	Action     string
	Object     string
	Comment    string
	Difference string
	Result     string // "done", or the code of the refusal
	Message    string // of the refusal, or what was made
}

// action is what the audit trail calls a kind; empty for those that leave no record.
func (k Kind) action() string {
	switch k {
	case KindInit:
		return "cluster.init"
	case KindPutNode:
		return "node.put"
	case KindLoseNode:
		return "node.replace"
	case KindNodeState:
		return "node.state"
	case KindCreate:
		return "partition.create"
	case KindRetire:
		return "partition.retire"
	case KindReplicas:
		return "partition.replicas"
	case KindStartPlan:
		return "plan.start"
	case KindDecidePlan:
		return "plan.decide"
	case KindAbortPlan:
		return "plan.abort"
	case KindClosePlan:
		return "plan.close"
	case KindPublish:
		return "policy.publish"
	case KindSwitchClass:
		return "class.switch"
	case KindRollback:
		return "policy.rollback"
	case KindRaise:
		return "cluster.raise"
	case KindPutToken:
		return "token.create"
	case KindRevokeToken:
		return "token.revoke"
	case KindAttempt:
		return "attempt"
	case KindNote:
		return "note"
	case KindConfirm, KindInstalled, KindSweep:
	}
	return ""
}
