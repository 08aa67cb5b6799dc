package rpc

import (
	"context"
	"time"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/policy"
	quoratev1 "github.com/quorate/quorate/proto/quorate/v1"
	"github.com/quorate/quorate/quotaerr"
)

// Backend is the node behind the edge. All methods may be called at once. Errors are *quotaerr.Error;
// anything else counts as internal.
type Backend interface {
	// Check has c decided by the partition of its principal if this node leads it, else it answers
	// not_leader. A check whose context has ended is answered without being proposed; one that was
	// proposed and whose fate is unknown gets outcome_unknown.
	Check(ctx context.Context, c fsm.Check) (Answer, error)
	// Peek is the same for a peek.
	Peek(ctx context.Context, p fsm.Peek) (UsageAnswer, error)
	// Leader tells at once who leads the partition of principal, as far as this node knows.
	Leader(principal string) Leadership
	// ControlLeader tells at once which node leads the control group, as far as this node knows; empty while
	// none is known.
	ControlLeader() string
	// ReplayHorizon is the replay horizon in force for apiClass; 0 when not known, and then no check
	// is retried here after an unknown outcome.
	ReplayHorizon(apiClass string) time.Duration
	// Members lists the cluster's nodes, this one among them.
	Members() []Member
	// Replicas tells how this node's replicas stand.
	Replicas(ctx context.Context) ([]Replica, error)
	// Waiting is what this node waits for before it has its replicas, in a few words; empty once it has.
	Waiting() string
	// ReportPace hears that a follower saw partition time outrun its own clock.
	ReportPace(ctx context.Context, p Pace) error
	// Learn hears what the node asked has answered to a check or peek of principal: e is a not_leader or a
	// wrong_epoch, and says where to look instead, as far as that node knows.
	Learn(principal, asked string, e *quotaerr.Error)
	// KnowsNode reports whether the certificate of the node id counts: not once it is removed. An id that is
	// not on the list of nodes counts while there is no list yet, and while the node cannot know that its list
	// is the present one.
	KnowsNode(id string) bool
	// Confirmed reports whether what Config gives was confirmed, within a policy lease, to be what the control group has
	// decided. A node that is cut off goes on with what it knows, but its gateways are not to take that for the present.
	Confirmed() bool
	// Config is what gateways route and behave by, and a channel that is closed when there is something
	// newer. It is nil before there is a map.
	Config() (*ConfigView, <-chan struct{})
	// Policy is the policy in force, by which Envoy's descriptors are read. It waits a little for one that this node
	// knows of and does not have yet, and is an error where this node cannot tell which policy is in force.
	Policy(ctx context.Context) (*policy.Policy, error)
	// Admin answers operators' calls. It is there always, also before the cluster is made.
	Admin() Admin
	// Interior answers other nodes' calls. It is there always.
	Interior() Interior
}

// Queuer is a Backend that has many checks decided without a goroutine for each.
type Queuer interface {
	Backend
	// Leaders is Leader of the principals of many checks, in their order.
	Leaders(asked []Asked) []Leadership
	// Enqueue has checks decided, each as Check does, and waits for none. done gets one outcome of each, those that come
	// together in one call, from any goroutine, also before Enqueue has returned; it does not block. asked is not kept.
	// Nothing is proposed once ctx has ended or a deadline has passed, but that nothing tells: the caller calls giveUp
	// for each check that has no outcome then, and done gets it.
	Enqueue(ctx context.Context, asked []Asked, done func([]Outcome)) (giveUp func(index int, cause error))
}

// Asked is one of the checks that are queued together.
type Asked struct {
	Check    fsm.Check
	Deadline time.Time
	First    bool // nobody was asked for it before
}

// Outcome is what one of them came to: Err, or an answer.
type Outcome struct {
	Index  int     // of the check among those that were queued together
	Answer *Answer // is not changed any more
	Err    error
}

// ConfigView is what gateways route and behave by. Neither part changes once it was handed out: what is new
// comes as another pointer.
type ConfigView struct {
	Map *quoratev1.RoutingMap
	// Policy is nil before the first revision. It has all classes.
	Policy *quoratev1.PolicySettings
}

// Answer is a decision with its deadlines translated from partition time into real waits.
type Answer struct {
	fsm.Decision
	// RetryAfterNanos is the real wait until RetryAt, at least 0; only with ReasonQuotaExhausted.
	RetryAfterNanos int64
	// ResetAfterNanos has, for each of Limits, the real wait until its oldest admission expires; 0
	// when it has none.
	ResetAfterNanos []int64
}

// UsageAnswer is a usage with its deadlines translated in the same way.
type UsageAnswer struct {
	fsm.Usage
	ResetAfterNanos []int64
}

// Leadership is who leads a principal's partition, as one node knows it.
type Leadership struct {
	// Node is the leader's id; empty while none is known.
	Node string
	// Local says that it is this node.
	Local bool
	// Epoch is the ownership epoch of the principal's slot; 0 while not known.
	Epoch fsm.Epoch
	// Changed is closed when this may no longer be so. nil: it has to be asked again.
	Changed <-chan struct{}
}

// Member is one node of the cluster.
type Member struct {
	ID               string
	GRPC, HTTP, Raft string // host:port
	Zone             string // where it is, as far as failures go; may be empty
	State            string // active or draining
}

// Role is what a replica does in its group.
type Role uint8

// The roles.
const (
	RoleUnknown Role = iota
	RoleLeader
	RoleFollower
	RoleCandidate
	RoleLearner
	_ // unreachable: what others say, never a replica itself
	RoleStopped
)

// ControlGroup is what Replica.Partition says for a replica of the control group.
const ControlGroup = "control"

// Replica is one replica as its own node sees it.
type Replica struct {
	Partition     string // or ControlGroup
	Role          Role
	Leader        string // node id; empty while it knows none
	Term          uint64
	AppliedIndex  uint64
	Digest        []byte // of the state at AppliedIndex
	Members       []ReplicaMember
	Ranges        []fsm.OwnedRange
	Revision      fsm.Revision
	PolicyVersion string
	Stopped       string // why it has stopped for good; empty while it has not
	FeatureLevel  uint32 // that its log has reached
	DiskLow       bool   // its node's disk has too little room left
	Instance      string // of its data directory
}

// ReplicaMember is one replica of a group.
type ReplicaMember struct {
	Node     string
	Instance string // tells its data directory from others that its node has had
	Learner  bool   // without a vote
}

// Pace compares two spans between the same two entries, as a follower saw them.
type Pace struct {
	From           string // the reporting node
	Partition      string
	Term           uint64 // of the leadership that stamped the later entry
	PartitionNanos int64
	LocalNanos     int64
}
