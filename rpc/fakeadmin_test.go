package rpc

import (
	"context"
	"io"
	"iter"
	"sync"

	"google.golang.org/protobuf/proto"

	"github.com/quorate/quorate/internal/identity"
	quoratev1 "github.com/quorate/quorate/proto/quorate/v1"
	"github.com/quorate/quorate/quotaerr"
)

// operated is one call that reached a fakeAdmin.
type operated struct {
	Method string // its last part
	Who    Actor
}

// fakeAdmin answers every operation as a test tells it to, by default with an empty answer, and notes what it was
// asked.
type fakeAdmin struct {
	answer   func(ctx context.Context, method string, req, resp proto.Message) error
	token    func(secret string) (string, identity.Role, error)
	attempt  func(ctx context.Context, who Actor, method, reason string)
	upload   func(ctx context.Context, digest []byte, chunks iter.Seq2[[]byte, error]) error
	download func(ctx context.Context) (*quoratev1.Revision, iter.Seq2[[]byte, error], error)
	save     func(ctx context.Context, w io.Writer) error
	restore  func(ctx context.Context, first *quoratev1.RestoreSnapshotRequest, backup io.Reader) error

	mu   sync.Mutex // guards the rest
	seen []operated
}

var _ Admin = (*fakeAdmin)(nil)

// note notes a call.
func (a *fakeAdmin) note(method string, who Actor) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.seen = append(a.seen, operated{method, who})
}

// asked returns what reached it.
func (a *fakeAdmin) asked() []operated {
	a.mu.Lock()
	defer a.mu.Unlock()
	return append([]operated(nil), a.seen...)
}

func answered[R any, PR message[R]](
	ctx context.Context, a *fakeAdmin, method string, who Actor, req proto.Message,
) (PR, error) {
	a.note(method, who)
	resp := PR(new(R))
	if a.answer == nil {
		return resp, nil
	}
	if err := a.answer(ctx, method, req, resp); err != nil {
		return nil, err
	}
	return resp, nil
}

func (a *fakeAdmin) UploadPolicy(
	ctx context.Context, who Actor, digest []byte, chunks iter.Seq2[[]byte, error],
) (*quoratev1.UploadPolicyResponse, error) {
	a.note("UploadPolicy", who)
	if a.upload != nil {
		if err := a.upload(ctx, digest, chunks); err != nil {
			return nil, err
		}
	}
	return &quoratev1.UploadPolicyResponse{Held: 3, Nodes: 3}, nil
}

func (a *fakeAdmin) DownloadPolicy(
	ctx context.Context, who Actor, _ *quoratev1.DownloadPolicyRequest,
) (*quoratev1.Revision, iter.Seq2[[]byte, error], error) {
	a.note("DownloadPolicy", who)
	if a.download == nil {
		return &quoratev1.Revision{Number: 1}, func(func([]byte, error) bool) {}, nil
	}
	return a.download(ctx)
}

func (a *fakeAdmin) SaveSnapshot(
	ctx context.Context, who Actor, _ *quoratev1.SaveSnapshotRequest, w io.Writer,
) error {
	a.note("SaveSnapshot", who)
	if a.save == nil {
		return nil
	}
	return a.save(ctx, w)
}

func (a *fakeAdmin) RestoreSnapshot(
	ctx context.Context, who Actor, first *quoratev1.RestoreSnapshotRequest, backup io.Reader,
) (*quoratev1.RestoreSnapshotResponse, error) {
	a.note("RestoreSnapshot", who)
	if a.restore != nil {
		if err := a.restore(ctx, first, backup); err != nil {
			return nil, err
		}
	}
	return &quoratev1.RestoreSnapshotResponse{ClusterId: testCluster}, nil
}

func (a *fakeAdmin) Token(_ context.Context, secret string) (string, identity.Role, error) {
	if a.token == nil {
		return "", 0, quotaerr.New(quotaerr.Unauthenticated, "no such token")
	}
	return a.token(secret)
}

func (a *fakeAdmin) Attempt(ctx context.Context, who Actor, method, reason string) {
	if a.attempt != nil {
		a.attempt(ctx, who, method, reason)
	}
}

// fakeInterior is what an Interior is to a test.
type fakeInterior struct {
	confirm func(*quoratev1.ConfirmPolicyRequest) (*quoratev1.ConfirmPolicyResponse, error)
	put     func(digest []byte, epoch uint64, chunks iter.Seq2[[]byte, error]) error
	get     func() iter.Seq2[[]byte, error]
	step    func(*quoratev1.PlanStepRequest) (*quoratev1.PlanStepResponse, error)
	slots   func(*quoratev1.ExportSlotsRequest) (iter.Seq2[*quoratev1.ExportSlotsResponse, error], error)
	whole   func(*quoratev1.ExportPartitionRequest) (iter.Seq2[[]byte, error], error)
}

var _ Interior = (*fakeInterior)(nil)

func (i *fakeInterior) ConfirmPolicy(
	_ context.Context, req *quoratev1.ConfirmPolicyRequest,
) (*quoratev1.ConfirmPolicyResponse, error) {
	return i.confirm(req)
}

func (i *fakeInterior) PartitionPolicy(
	_ context.Context, req *quoratev1.PartitionPolicyRequest,
) (*quoratev1.PartitionPolicyResponse, error) {
	return nil, &quotaerr.Error{Reason: quotaerr.NotLeader, Leader: "n9", Message: req.GetPartition()}
}

func (i *fakeInterior) HasBody(
	_ context.Context, req *quoratev1.HasBodyRequest,
) (*quoratev1.HasBodyResponse, error) {
	return &quoratev1.HasBodyResponse{Has: req.GetEpoch() == 7}, nil
}

func (i *fakeInterior) PutBody(
	_ context.Context, digest []byte, epoch uint64, chunks iter.Seq2[[]byte, error],
) error {
	return i.put(digest, epoch, chunks)
}

func (i *fakeInterior) GetBody(
	context.Context, *quoratev1.GetBodyRequest,
) (iter.Seq2[[]byte, error], error) {
	return i.get(), nil
}

func (a *fakeAdmin) InitCluster(
	ctx context.Context, who Actor, req *quoratev1.InitClusterRequest,
) (*quoratev1.InitClusterResponse, error) {
	return answered[quoratev1.InitClusterResponse](ctx, a, "InitCluster", who, req)
}

func (a *fakeAdmin) ListNodes(
	ctx context.Context, who Actor, req *quoratev1.ListNodesRequest,
) (*quoratev1.ListNodesResponse, error) {
	return answered[quoratev1.ListNodesResponse](ctx, a, "ListNodes", who, req)
}

func (a *fakeAdmin) AddNode(
	ctx context.Context, who Actor, req *quoratev1.AddNodeRequest,
) (*quoratev1.AddNodeResponse, error) {
	return answered[quoratev1.AddNodeResponse](ctx, a, "AddNode", who, req)
}

func (a *fakeAdmin) DrainNode(
	ctx context.Context, who Actor, req *quoratev1.DrainNodeRequest,
) (*quoratev1.DrainNodeResponse, error) {
	return answered[quoratev1.DrainNodeResponse](ctx, a, "DrainNode", who, req)
}

func (a *fakeAdmin) RemoveNode(
	ctx context.Context, who Actor, req *quoratev1.RemoveNodeRequest,
) (*quoratev1.RemoveNodeResponse, error) {
	return answered[quoratev1.RemoveNodeResponse](ctx, a, "RemoveNode", who, req)
}

func (a *fakeAdmin) ReplaceNode(
	ctx context.Context, who Actor, req *quoratev1.ReplaceNodeRequest,
) (*quoratev1.ReplaceNodeResponse, error) {
	return answered[quoratev1.ReplaceNodeResponse](ctx, a, "ReplaceNode", who, req)
}

func (a *fakeAdmin) TransferLeader(
	ctx context.Context, who Actor, req *quoratev1.TransferLeaderRequest,
) (*quoratev1.TransferLeaderResponse, error) {
	return answered[quoratev1.TransferLeaderResponse](ctx, a, "TransferLeader", who, req)
}

func (a *fakeAdmin) StartPlan(
	ctx context.Context, who Actor, req *quoratev1.StartPlanRequest,
) (*quoratev1.StartPlanResponse, error) {
	return answered[quoratev1.StartPlanResponse](ctx, a, "StartPlan", who, req)
}

func (a *fakeAdmin) AbortPlan(
	ctx context.Context, who Actor, req *quoratev1.AbortPlanRequest,
) (*quoratev1.AbortPlanResponse, error) {
	return answered[quoratev1.AbortPlanResponse](ctx, a, "AbortPlan", who, req)
}

func (a *fakeAdmin) ListPlans(
	ctx context.Context, who Actor, req *quoratev1.ListPlansRequest,
) (*quoratev1.ListPlansResponse, error) {
	return answered[quoratev1.ListPlansResponse](ctx, a, "ListPlans", who, req)
}

func (a *fakeAdmin) ApplyPolicy(
	ctx context.Context, who Actor, req *quoratev1.ApplyPolicyRequest,
) (*quoratev1.ApplyPolicyResponse, error) {
	return answered[quoratev1.ApplyPolicyResponse](ctx, a, "ApplyPolicy", who, req)
}

func (a *fakeAdmin) RollbackPolicy(
	ctx context.Context, who Actor, req *quoratev1.RollbackPolicyRequest,
) (*quoratev1.ApplyPolicyResponse, error) {
	return answered[quoratev1.ApplyPolicyResponse](ctx, a, "RollbackPolicy", who, req)
}

func (a *fakeAdmin) SwitchClass(
	ctx context.Context, who Actor, req *quoratev1.SwitchClassRequest,
) (*quoratev1.ApplyPolicyResponse, error) {
	return answered[quoratev1.ApplyPolicyResponse](ctx, a, "SwitchClass", who, req)
}

func (a *fakeAdmin) ListPolicies(
	ctx context.Context, who Actor, req *quoratev1.ListPoliciesRequest,
) (*quoratev1.ListPoliciesResponse, error) {
	return answered[quoratev1.ListPoliciesResponse](ctx, a, "ListPolicies", who, req)
}

func (a *fakeAdmin) DiffPolicies(
	ctx context.Context, who Actor, req *quoratev1.DiffPoliciesRequest,
) (*quoratev1.DiffPoliciesResponse, error) {
	return answered[quoratev1.DiffPoliciesResponse](ctx, a, "DiffPolicies", who, req)
}

func (a *fakeAdmin) PolicyStatus(
	ctx context.Context, who Actor, req *quoratev1.PolicyStatusRequest,
) (*quoratev1.PolicyStatusResponse, error) {
	return answered[quoratev1.PolicyStatusResponse](ctx, a, "PolicyStatus", who, req)
}

func (a *fakeAdmin) ForgiveUsage(
	ctx context.Context, who Actor, req *quoratev1.ForgiveUsageRequest,
) (*quoratev1.ForgiveUsageResponse, error) {
	return answered[quoratev1.ForgiveUsageResponse](ctx, a, "ForgiveUsage", who, req)
}

func (a *fakeAdmin) SearchAudit(
	ctx context.Context, who Actor, req *quoratev1.SearchAuditRequest,
) (*quoratev1.SearchAuditResponse, error) {
	return answered[quoratev1.SearchAuditResponse](ctx, a, "SearchAudit", who, req)
}

func (a *fakeAdmin) CreateToken(
	ctx context.Context, who Actor, req *quoratev1.CreateTokenRequest,
) (*quoratev1.CreateTokenResponse, error) {
	return answered[quoratev1.CreateTokenResponse](ctx, a, "CreateToken", who, req)
}

func (a *fakeAdmin) ListTokens(
	ctx context.Context, who Actor, req *quoratev1.ListTokensRequest,
) (*quoratev1.ListTokensResponse, error) {
	return answered[quoratev1.ListTokensResponse](ctx, a, "ListTokens", who, req)
}

func (a *fakeAdmin) RevokeToken(
	ctx context.Context, who Actor, req *quoratev1.RevokeTokenRequest,
) (*quoratev1.RevokeTokenResponse, error) {
	return answered[quoratev1.RevokeTokenResponse](ctx, a, "RevokeToken", who, req)
}
