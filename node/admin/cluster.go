package admin

import (
	"context"
	"io"
	"time"

	"github.com/quorate/quorate/control"
	"github.com/quorate/quorate/control/state"
	"github.com/quorate/quorate/fsm"
	quoratev1 "github.com/quorate/quorate/proto/quorate/v1"
)

// Cluster is the rest of the node, and the nodes around it, as operators' calls need them. Errors are
// *quotaerr.Error unless something else is said; any other counts as internal.
type Cluster interface {
	// Self is this node's id.
	Self() string
	// Init makes the cluster on this node, in the name of actor: it asks the others and opens the control
	// group. 0 partitions means as many as there are nodes.
	Init(ctx context.Context, actor string, partitions int) (nodes, parts []string, err error)
	// Control is this node's replica of the control group of a cluster that has been made; else no_quorum.
	Control() (*control.Control, error)
	// Propose has a command applied by the node that leads the control group, wherever that is. It is for what
	// any node may say: KindNote and KindAttempt, and KindConfirm. Proposing the same command again applies it
	// once. The result has at least Version, of the state, and Repeated: an act is done only once because of it.
	// outcome_unknown where the command may have been applied, any other reason where it was not.
	Propose(ctx context.Context, cmd *state.Command) (state.Result, error)

	// Waiting are the nodes that announce themselves and are not in the cluster.
	Waiting() []Waiting
	// Down is for how long a node has not answered; 0 while it does.
	Down(node string) time.Duration
	// ControlRole is what a node does in the control group: "voter", "learner" or nothing.
	ControlRole(node string) string
	// Leader is the node that leads a partition, or "control", as far as it is known here.
	Leader(partition string) (node string, ok bool)
	// Held are the groups that have a replica on a node, as their members say and not as it is wanted; an error
	// when one of them cannot be asked.
	Held(ctx context.Context, node string) (groups []string, err error)
	// MayReplace refuses while a replica of the node answers, or a group would be left without a majority.
	MayReplace(ctx context.Context, node string) error
	// Transfer hands the leadership of a partition, or of "control", to a node, or any other if that is empty.
	// not_leader where this node does not lead.
	Transfer(ctx context.Context, partition, node string) error

	// SpreadBody brings a policy body that is here to the other nodes, under a body epoch, and tells how many
	// hold it of how many. Any error says why it is not all.
	SpreadBody(ctx context.Context, d state.Digest, epoch uint64) (held, of int, err error)
	// FetchBody makes a policy body local. Any error says why it could not.
	FetchBody(ctx context.Context, d state.Digest) error
	// PartitionPolicy asks the leader of a partition, wherever it is. Any error: it could not be asked.
	PartitionPolicy(ctx context.Context, partition string) (*quoratev1.PartitionPolicyResponse, error)
	// Forgive drops usage, by this node if it leads the principal's partition; not_leader otherwise.
	Forgive(ctx context.Context, f fsm.Forgive) (fsm.Forgiven, error)

	// PlanReplicas are the nodes that a partition made for a plan is to have its replicas on, the first its
	// founder; none where no node can take one.
	PlanReplicas() []string
	// PlanProgress is what is being done for a plan at present, in a few words, as far as this node drives it;
	// else nothing.
	PlanProgress(plan fsm.PlanID) string

	// Save writes a backup of the whole cluster to w: a consistent copy of every partition and the control
	// group. The digest names the backup. It tells the audit trail nothing. An error leaves what was written useless.
	Save(ctx context.Context, w io.Writer) (state.Digest, error)
	// Restore makes a cluster of a backup on this node, and returns when it serves; the same backup again goes on
	// where it was cut short. It changes nothing before all of the backup was read and verified. The record of it
	// in the audit trail, with Actor, Comment, the backup's digest and whether the loss was accepted, comes with
	// the cluster.
	Restore(ctx context.Context, r Restore) (Restored, error)
}

// Restore is what a cluster is to be made of, and in whose name.
type Restore struct {
	Actor, Comment string
	AcceptLoss     bool      // nothing is denied for what was admitted after the backup
	Backup         io.Reader // the backup's file from its beginning; its errors are *quotaerr.Error
}

// Restored is a cluster that was made of a backup.
type Restored struct {
	Cluster           string // its id
	Incarnation       uint32
	Nodes, Partitions []string
}

// Waiting is a node that announces itself and is not in the cluster.
type Waiting struct {
	ID, Instance     string
	GRPC, HTTP, Raft string // host:port
	Zone             string
}
