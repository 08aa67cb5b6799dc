package fsm

// Time is partition time in nanoseconds. Its zero has no meaning outside one partition.
type Time int64

// Slot is one of the NumSlots slots that a principal is hashed to.
type Slot uint16

// Epoch is the ownership epoch of a slot: the cluster's incarnation above, a counter below, so that
// a later ownership is always the larger number. 0 is no epoch.
type Epoch uint64

// Revision is the growing number of a policy in one cluster, from 1. 0 is none.
type Revision uint64

// PlanID numbers the plans that move slots. 0 is none.
type PlanID uint64

// Charge is one class that a check asks to be charged: cost units of apiClass, under tier.
type Charge struct {
	Class string
	Tier  string
	Cost  int64
}

// Check asks for one decision. The embedded charge comes first, those of Also follow it.
type Check struct {
	Principal  string
	Gateway    string // identity of the asking gateway, as authenticated by the first node
	DecisionID string
	Charge
	Also           []Charge
	PolicyRevision Revision // 0: not checked
	RouteEpoch     Epoch
}

// Peek asks for the usage of (Principal, Class) under Tier. It changes nothing.
type Peek struct {
	Principal  string
	Class      string
	Tier       string
	RouteEpoch Epoch
}

// Kind tells what an entry does.
type Kind uint8

// The kinds of entries. Their numbers are durable.
const (
	KindBirth   Kind = 1
	KindBatch   Kind = 2
	KindInstall Kind = 3
	KindFreeze  Kind = 4
	KindAbort   Kind = 5
	KindRaise   Kind = 6
	KindForgive Kind = 7
	KindStage   Kind = 8
	KindOpen    Kind = 9
	KindSeal    Kind = 10
	// KindActivate and KindRelease end a plan, at its destination and at its source.
	KindActivate Kind = 11
	KindRelease  Kind = 12
)

// String names k.
func (k Kind) String() string {
	if int(k) < len(kindNames) && kindNames[k] != "" {
		return kindNames[k]
	}
	return "unknown"
}

var kindNames = [...]string{
	KindBirth: "birth", KindBatch: "batch", KindInstall: "install", KindFreeze: "freeze", KindAbort: "abort",
	KindRaise: "raise", KindForgive: "forgive", KindStage: "stage", KindOpen: "open", KindSeal: "seal",
	KindActivate: "activate", KindRelease: "release",
}

// Level is a feature level: what the entries of a log may ask of the replicas. It only rises, by an entry
// of the log, when every replica's program knows the next one.
type Level uint32

// The feature levels.
const (
	// BirthLevel is the level of a partition that was just made.
	BirthLevel Level = 1
	// MaxLevel is the highest level that this program knows. Whatever changes the meaning of entries takes
	// the next one, and is proposed only where the state has reached it.
	MaxLevel Level = 1
)

// Entry is one log entry of a partition. Every entry carries its stamp and the Raft term of the
// leadership that drew the stamp; an entry that reached the log in another term is refused whole.
type Entry struct {
	Kind  Kind
	Term  uint64
	Stamp Time
	// WallBound is the latest wall time, in nanoseconds since 1970, that it can have been at the
	// stamp; 0 when the leader's clock gives no bound. It decides nothing here: the state carries it
	// so that a start can tell how long all replicas were down at least.
	WallBound int64
	// Basis is the proposer's state when the entry was made, for the other replicas to compare with
	// theirs. It decides nothing.
	Basis Basis

	Birth   *Birth   // KindBirth
	Checks  []Check  // KindBatch; a batch without checks and peeks is a time tick
	Peeks   []Peek   // KindBatch; answered after the checks
	Install *Install // KindInstall
	Level   Level    // KindRaise
	Forgive *Forgive // KindForgive

	Plan     PlanID      // KindFreeze, KindStage, KindOpen, KindSeal, KindActivate, KindRelease, KindAbort
	Ranges   []SlotRange // KindFreeze, KindOpen; sorted and disjoint
	Revision Revision    // KindFreeze; the policy revision that must be in force
	Pieces   []Piece     // KindStage; at most MaxStageBytes of data
	Manifest Manifest    // KindOpen; what the source has frozen
	Policies []Install   // KindSeal; the carried policies, see Machine.StagedPolicies
	Epoch    Epoch       // KindActivate; of the slots from then on
	// Lost says that admissions may be missing from what was imported, so that every limit counts as full
	// until its window has passed; KindActivate.
	Lost bool
}

// Basis names a state: the digest that it had when the entry at Index of the log had been applied. Index 0
// is none.
type Basis struct {
	Index  uint64
	Digest [16]byte
}

// Birth makes the partition. Only the first one counts.
type Birth struct {
	Cluster   string // cluster id
	Partition string
	Seed      [16]byte // of the slot hash; the same for the whole cluster, for ever
	Owned     []OwnedRange
	Bounds    Bounds
	Install   // the first policy
}

// Forgive drops the usage of one principal: every admission that any limit could count, of one class or of
// all. Replay records stay, so a decision is repeated as it was made.
type Forgive struct {
	Principal string
	// Class is the apiClass whose checks are to find no usage any more; empty for all. It is resolved as that
	// of a check is: what is not listed shares the usage of default.
	Class      string
	RouteEpoch Epoch
}

// SlotRange is the slots First to Last, both included.
type SlotRange struct {
	First, Last Slot
}

// OwnedRange is a range of slots that the partition owns, under one epoch.
type OwnedRange struct {
	SlotRange
	Epoch Epoch
	// FrozenBy is the plan that froze the range; 0 while it is served.
	FrozenBy PlanID
}

// Bounds are the partition's capacity. They decide answers, so they are part of the replicated state
// and not of a node's configuration.
type Bounds struct {
	MaxKeys          int64
	MaxReplayRecords int64
}
