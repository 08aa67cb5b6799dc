package rpc

import (
	"context"
	"io"
	"iter"

	"github.com/quorate/quorate/internal/identity"
	quoratev1 "github.com/quorate/quorate/proto/quorate/v1"
)

// Actor is who operates the cluster.
type Actor struct {
	// Name is as the audit trail has it: "admin/ops", "viewer/board", "token/NAME", or "insecure".
	Name string
	// Role is identity.Admin or identity.Viewer; with a refused attempt also another one.
	Role identity.Role
}

// actorOf is how an identity operates.
func actorOf(id Identity) Actor {
	who := Actor{Name: id.String(), Role: id.Roles}
	switch { // the broadest counts, where there is more than one
	case id.Roles.Is(identity.Admin):
		who.Role = identity.Admin
	case id.Roles.Is(identity.Viewer):
		who.Role = identity.Viewer
	}
	return who
}

// Admin answers operators' calls, whose callers have been authorised. Errors are *quotaerr.Error; anything else
// counts as internal. A not_leader that names its leader is asked of that node; one that does not, and a
// no_quorum, is asked again after a pause: both have changed nothing. What changes something writes the audit
// trail itself. An answer has at most MaxAnswerBytes: what can be longer is paged by its bytes too.
type Admin interface {
	InitCluster(context.Context, Actor, *quoratev1.InitClusterRequest) (*quoratev1.InitClusterResponse, error)
	ListNodes(context.Context, Actor, *quoratev1.ListNodesRequest) (*quoratev1.ListNodesResponse, error)
	AddNode(context.Context, Actor, *quoratev1.AddNodeRequest) (*quoratev1.AddNodeResponse, error)
	DrainNode(context.Context, Actor, *quoratev1.DrainNodeRequest) (*quoratev1.DrainNodeResponse, error)
	RemoveNode(context.Context, Actor, *quoratev1.RemoveNodeRequest) (*quoratev1.RemoveNodeResponse, error)
	ReplaceNode(context.Context, Actor, *quoratev1.ReplaceNodeRequest) (*quoratev1.ReplaceNodeResponse, error)
	TransferLeader(
		context.Context, Actor, *quoratev1.TransferLeaderRequest) (*quoratev1.TransferLeaderResponse, error)

	StartPlan(context.Context, Actor, *quoratev1.StartPlanRequest) (*quoratev1.StartPlanResponse, error)
	AbortPlan(context.Context, Actor, *quoratev1.AbortPlanRequest) (*quoratev1.AbortPlanResponse, error)
	ListPlans(context.Context, Actor, *quoratev1.ListPlansRequest) (*quoratev1.ListPlansResponse, error)

	ApplyPolicy(context.Context, Actor, *quoratev1.ApplyPolicyRequest) (*quoratev1.ApplyPolicyResponse, error)
	RollbackPolicy(context.Context, Actor, *quoratev1.RollbackPolicyRequest) (*quoratev1.ApplyPolicyResponse, error)
	SwitchClass(context.Context, Actor, *quoratev1.SwitchClassRequest) (*quoratev1.ApplyPolicyResponse, error)
	ListPolicies(context.Context, Actor, *quoratev1.ListPoliciesRequest) (*quoratev1.ListPoliciesResponse, error)
	DiffPolicies(context.Context, Actor, *quoratev1.DiffPoliciesRequest) (*quoratev1.DiffPoliciesResponse, error)
	PolicyStatus(context.Context, Actor, *quoratev1.PolicyStatusRequest) (*quoratev1.PolicyStatusResponse, error)

	ForgiveUsage(context.Context, Actor, *quoratev1.ForgiveUsageRequest) (*quoratev1.ForgiveUsageResponse, error)
	SearchAudit(context.Context, Actor, *quoratev1.SearchAuditRequest) (*quoratev1.SearchAuditResponse, error)
	CreateToken(context.Context, Actor, *quoratev1.CreateTokenRequest) (*quoratev1.CreateTokenResponse, error)
	ListTokens(context.Context, Actor, *quoratev1.ListTokensRequest) (*quoratev1.ListTokensResponse, error)
	RevokeToken(context.Context, Actor, *quoratev1.RevokeTokenRequest) (*quoratev1.RevokeTokenResponse, error)

	// UploadPolicy takes a body in, piece by piece, each at most MaxChunkBytes. The pieces end with an error
	// when the caller breaks off. It is asked of the node that the caller has reached and of no other.
	UploadPolicy(
		ctx context.Context, who Actor, digest []byte, chunks iter.Seq2[[]byte, error],
	) (*quoratev1.UploadPolicyResponse, error)
	// DownloadPolicy reads a revision's policy. The pieces are read while ctx lasts, in this call's
	// goroutine, or not at all; each is used before the next is asked for.
	DownloadPolicy(
		ctx context.Context, who Actor, req *quoratev1.DownloadPolicyRequest,
	) (*quoratev1.Revision, iter.Seq2[[]byte, error], error)

	// SaveSnapshot writes a backup of the cluster to w, whose errors end it. What was written is of use only if it
	// returns nil. It is asked of the node that the caller has reached, whichever that is.
	SaveSnapshot(ctx context.Context, who Actor, req *quoratev1.SaveSnapshotRequest, w io.Writer) error
	// RestoreSnapshot makes a cluster of a backup, which is read to its end; first has what the caller has said of
	// it. It is asked of the node that the caller has reached and of no other.
	RestoreSnapshot(
		ctx context.Context, who Actor, first *quoratev1.RestoreSnapshotRequest, backup io.Reader,
	) (*quoratev1.RestoreSnapshotResponse, error)

	// Token tells whose token secret is, and what it allows: identity.Admin or identity.Viewer. It answers
	// from what this node knows, at once; unauthenticated for one that does not count (any more).
	Token(ctx context.Context, secret string) (name string, role identity.Role, err error)
	// Attempt notes in the audit trail that who was refused a call of method (a full name) that would have
	// changed something. It does what it can until ctx ends, and no longer.
	Attempt(ctx context.Context, who Actor, method, reason string)
}

// MaxChunkBytes bounds one piece of a policy's body or of a backup on its way.
const MaxChunkBytes = 512 << 10
