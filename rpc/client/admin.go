package client

import (
	"context"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	quoratev1 "github.com/quorate/quorate/proto/quorate/v1"
	"github.com/quorate/quorate/quotaerr"
)

const (
	// readTimeout bounds one attempt to read what operators look at.
	readTimeout = 5 * time.Second
	// repeatTimeout bounds one attempt to change something where another one is harmless.
	repeatTimeout = 15 * time.Second
)

// How operators' calls are asked for. After an unknown fate a change is asked for again only where that is
// harmless: where it names a base revision, or what is to be so, by id. Any other may take all the time that there
// is: given up early, its fate would be unknown.
var (
	reading   = manner{operator: true, timeout: readTimeout}
	repeating = manner{operator: true, timeout: repeatTimeout}
	changing  = manner{operator: true, once: true}
)

// changingUnless is how a call is asked for that is harmless to repeat only where it says which.
func changingUnless(named bool) manner {
	if named {
		return repeating
	}
	return changing
}

// operate asks one of Admin's methods.
func operate[Q proto.Message, R any](
	ctx context.Context, c *Client, m manner, req Q,
	method func(quoratev1.AdminClient, context.Context, Q, ...grpc.CallOption) (R, error),
) (R, error) {
	if err := sendable(req); err != nil {
		var zero R
		return zero, err
	}
	out, err := ask(ctx, c, m, func(ctx context.Context, conn *grpc.ClientConn) (R, error) {
		return method(quoratev1.NewAdminClient(conn), ctx, req)
	})
	return out, operatorsWords(m, err)
}

// operatorsWords says of an unknown outcome what an operator can do about it.
func operatorsWords(m manner, err error) error {
	if quotaerr.ReasonOf(err) != quotaerr.OutcomeUnknown {
		return err
	}
	if m == reading {
		return quotaerr.Wrap(quotaerr.NoQuorum, err, "no answer came in time: check the nodes, and ask again")
	}
	return quotaerr.Wrap(quotaerr.OutcomeUnknown, err,
		"no answer came: it may have been done or not; look how things stand before asking again")
}

// ClusterStatus tells how the cluster stands, as the first node that answers sees it.
func (c *Client) ClusterStatus(ctx context.Context) (*quoratev1.ClusterStatusResponse, error) {
	return operate(ctx, c, reading, &quoratev1.ClusterStatusRequest{}, quoratev1.AdminClient.ClusterStatus)
}

// InitCluster makes the cluster on the client's node, which must be its only one. It is asked once.
func (c *Client) InitCluster(
	ctx context.Context, req *quoratev1.InitClusterRequest,
) (*quoratev1.InitClusterResponse, error) {
	if len(c.conns) != 1 {
		return nil, quotaerr.New(quotaerr.InvalidArgument,
			"a cluster is made on one node: name it alone with --addr, not %d", len(c.conns))
	}
	return operate(ctx, c, changing, req, quoratev1.AdminClient.InitCluster)
}

// ListNodes tells which nodes there are, and which wait to be added.
func (c *Client) ListNodes(
	ctx context.Context, req *quoratev1.ListNodesRequest,
) (*quoratev1.ListNodesResponse, error) {
	return operate(ctx, c, reading, req, quoratev1.AdminClient.ListNodes)
}

// AddNode takes in a node that waits. It is repeated after an unknown outcome.
func (c *Client) AddNode(ctx context.Context, req *quoratev1.AddNodeRequest) (*quoratev1.AddNodeResponse, error) {
	return operate(ctx, c, repeating, req, quoratev1.AdminClient.AddNode)
}

// DrainNode moves a node's replicas away, or takes that back. It is repeated after an unknown outcome.
func (c *Client) DrainNode(
	ctx context.Context, req *quoratev1.DrainNodeRequest,
) (*quoratev1.DrainNodeResponse, error) {
	return operate(ctx, c, repeating, req, quoratev1.AdminClient.DrainNode)
}

// RemoveNode removes a drained node for good. It is repeated after an unknown outcome.
func (c *Client) RemoveNode(
	ctx context.Context, req *quoratev1.RemoveNodeRequest,
) (*quoratev1.RemoveNodeResponse, error) {
	return operate(ctx, c, repeating, req, quoratev1.AdminClient.RemoveNode)
}

// ReplaceNode takes a node's lost replicas out of their groups. It is repeated after an unknown outcome.
func (c *Client) ReplaceNode(
	ctx context.Context, req *quoratev1.ReplaceNodeRequest,
) (*quoratev1.ReplaceNodeResponse, error) {
	return operate(ctx, c, repeating, req, quoratev1.AdminClient.ReplaceNode)
}

// TransferLeader hands a partition's leadership over. It is repeated after an unknown outcome only if it names
// the node that is to lead.
func (c *Client) TransferLeader(
	ctx context.Context, req *quoratev1.TransferLeaderRequest,
) (*quoratev1.TransferLeaderResponse, error) {
	return operate(ctx, c, changingUnless(req.GetNode() != ""), req, quoratev1.AdminClient.TransferLeader)
}

// StartPlan begins a plan. It is asked once: a second one would be another plan.
func (c *Client) StartPlan(
	ctx context.Context, req *quoratev1.StartPlanRequest,
) (*quoratev1.StartPlanResponse, error) {
	return operate(ctx, c, changing, req, quoratev1.AdminClient.StartPlan)
}

// AbortPlan undoes a plan. It is repeated after an unknown outcome.
func (c *Client) AbortPlan(
	ctx context.Context, req *quoratev1.AbortPlanRequest,
) (*quoratev1.AbortPlanResponse, error) {
	return operate(ctx, c, repeating, req, quoratev1.AdminClient.AbortPlan)
}

// ListPlans tells how plans stand.
func (c *Client) ListPlans(
	ctx context.Context, req *quoratev1.ListPlansRequest,
) (*quoratev1.ListPlansResponse, error) {
	return operate(ctx, c, reading, req, quoratev1.AdminClient.ListPlans)
}

// ApplyPolicy puts an uploaded policy in force. It is repeated after an unknown outcome: its base can be left
// behind once only.
func (c *Client) ApplyPolicy(
	ctx context.Context, req *quoratev1.ApplyPolicyRequest,
) (*quoratev1.ApplyPolicyResponse, error) {
	return operate(ctx, c, repeating, req, quoratev1.AdminClient.ApplyPolicy)
}

// RollbackPolicy puts an older revision's policy in force again. It is repeated as ApplyPolicy is.
func (c *Client) RollbackPolicy(
	ctx context.Context, req *quoratev1.RollbackPolicyRequest,
) (*quoratev1.ApplyPolicyResponse, error) {
	return operate(ctx, c, repeating, req, quoratev1.AdminClient.RollbackPolicy)
}

// SwitchClass disables or enables a class. It is repeated after an unknown outcome only if it names its base.
func (c *Client) SwitchClass(
	ctx context.Context, req *quoratev1.SwitchClassRequest,
) (*quoratev1.ApplyPolicyResponse, error) {
	return operate(ctx, c, changingUnless(req.GetBase() != 0), req, quoratev1.AdminClient.SwitchClass)
}

// ListPolicies tells the history of revisions.
func (c *Client) ListPolicies(
	ctx context.Context, req *quoratev1.ListPoliciesRequest,
) (*quoratev1.ListPoliciesResponse, error) {
	return operate(ctx, c, reading, req, quoratev1.AdminClient.ListPolicies)
}

// DiffPolicies tells what differs between two revisions.
func (c *Client) DiffPolicies(
	ctx context.Context, req *quoratev1.DiffPoliciesRequest,
) (*quoratev1.DiffPoliciesResponse, error) {
	return operate(ctx, c, reading, req, quoratev1.AdminClient.DiffPolicies)
}

// PolicyStatus tells how far a revision has come.
func (c *Client) PolicyStatus(
	ctx context.Context, req *quoratev1.PolicyStatusRequest,
) (*quoratev1.PolicyStatusResponse, error) {
	return operate(ctx, c, reading, req, quoratev1.AdminClient.PolicyStatus)
}

// ForgiveUsage drops a principal's usage. It is repeated after an unknown outcome only if it names a forgive_id.
func (c *Client) ForgiveUsage(
	ctx context.Context, req *quoratev1.ForgiveUsageRequest,
) (*quoratev1.ForgiveUsageResponse, error) {
	return operate(ctx, c, changingUnless(req.GetForgiveId() != ""), req, quoratev1.AdminClient.ForgiveUsage)
}

// SearchAudit finds records of the audit trail.
func (c *Client) SearchAudit(
	ctx context.Context, req *quoratev1.SearchAuditRequest,
) (*quoratev1.SearchAuditResponse, error) {
	return operate(ctx, c, reading, req, quoratev1.AdminClient.SearchAudit)
}

// CreateToken makes a token. It is asked once: a second one's secret would be shown, and the first stay.
func (c *Client) CreateToken(
	ctx context.Context, req *quoratev1.CreateTokenRequest,
) (*quoratev1.CreateTokenResponse, error) {
	return operate(ctx, c, changing, req, quoratev1.AdminClient.CreateToken)
}

// ListTokens tells which tokens there are.
func (c *Client) ListTokens(
	ctx context.Context, req *quoratev1.ListTokensRequest,
) (*quoratev1.ListTokensResponse, error) {
	return operate(ctx, c, reading, req, quoratev1.AdminClient.ListTokens)
}

// RevokeToken ends a token. It is repeated after an unknown outcome.
func (c *Client) RevokeToken(
	ctx context.Context, req *quoratev1.RevokeTokenRequest,
) (*quoratev1.RevokeTokenResponse, error) {
	return operate(ctx, c, repeating, req, quoratev1.AdminClient.RevokeToken)
}
