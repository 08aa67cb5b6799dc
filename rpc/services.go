package rpc

import (
	"context"
	"log/slog"
	"time"

	"github.com/quorate/quorate/internal/identity"
	quoratev1 "github.com/quorate/quorate/proto/quorate/v1"
	"github.com/quorate/quorate/quotaerr"
)

type quotaService struct {
	quoratev1.UnsafeQuotaServer
	desk *desk
	log  *slog.Logger
}

var _ quoratev1.QuotaServer = (*quotaService)(nil)

func (s *quotaService) CheckAndConsume(
	ctx context.Context, req *quoratev1.CheckRequest,
) (*quoratev1.Decision, error) {
	return s.desk.check(ctx, identityOf(ctx), req, protocolGRPC)
}

func (s *quotaService) Peek(
	ctx context.Context, req *quoratev1.PeekRequest,
) (*quoratev1.PeekResponse, error) {
	return s.desk.peek(ctx, identityOf(ctx), req)
}

// peerService answers other nodes. Nothing that arrives here is passed on.
type peerService struct {
	quoratev1.UnsafePeerServer
	desk    *desk
	version string
}

var _ quoratev1.PeerServer = (*peerService)(nil)

// admit refuses who is no node of this cluster, or another than it says; from is empty where it does not say.
func (s *peerService) admit(ctx context.Context, cluster, from string) error {
	id := identityOf(ctx)
	if err := authorise(id, identity.Node, "another node"); err != nil {
		return err
	}
	if from != "" && id.Name != InsecureName && id.Name != from {
		return quotaerr.New(quotaerr.PermissionDenied,
			"the certificate is that of node %s, the request says it is from %.63q", id.Name, from)
	}
	if cluster != s.desk.cluster {
		return quotaerr.New(quotaerr.PermissionDenied,
			"this node belongs to another cluster than the sender: check the sender's addresses")
	}
	if id.Name != InsecureName && !s.desk.backend.KnowsNode(id.Name) {
		// It may be so for a moment only, and says nothing of whoever has asked that node.
		return quotaerr.New(quotaerr.NoQuorum, "node %s does not accept node %.63s, which it does not know, or which was "+
			"removed: ask another node", s.desk.node, id.Name)
	}
	return nil
}

func (s *peerService) ForwardCheck(
	ctx context.Context, req *quoratev1.ForwardCheckRequest,
) (*quoratev1.Decision, error) {
	if err := s.admit(ctx, req.GetClusterId(), req.GetFromNode()); err != nil {
		return nil, err
	}
	if err := s.desk.enter(); err != nil {
		return nil, err
	}
	defer s.desk.leave()
	c, err := checkOf(req.GetCheck(), req.GetGateway())
	if err != nil {
		return nil, err
	}
	if c.RouteEpoch == 0 {
		return nil, quotaerr.New(quotaerr.InvalidArgument, "a forwarded check needs its route_epoch")
	}
	ctx, cancel := boundedBy(ctx, DefaultTimeout)
	defer cancel()
	return s.desk.decide(ctx, c)
}

func (s *peerService) ForwardPeek(
	ctx context.Context, req *quoratev1.ForwardPeekRequest,
) (*quoratev1.PeekResponse, error) {
	if err := s.admit(ctx, req.GetClusterId(), req.GetFromNode()); err != nil {
		return nil, err
	}
	if err := s.desk.enter(); err != nil {
		return nil, err
	}
	defer s.desk.leave()
	p, err := peekOf(req.GetPeek())
	if err != nil {
		return nil, err
	}
	if p.RouteEpoch == 0 {
		return nil, quotaerr.New(quotaerr.InvalidArgument, "a forwarded peek needs its route_epoch")
	}
	ctx, cancel := boundedBy(ctx, DefaultTimeout)
	defer cancel()
	return s.desk.tell(ctx, p)
}

// boundedBy gives ctx a deadline if it has none.
func boundedBy(ctx context.Context, limit time.Duration) (context.Context, context.CancelFunc) {
	if _, ok := ctx.Deadline(); ok {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, limit)
}

func (s *peerService) NodeStatus(
	ctx context.Context, req *quoratev1.NodeStatusRequest,
) (*quoratev1.NodeStatusResponse, error) {
	if err := s.admit(ctx, req.GetClusterId(), ""); err != nil {
		return nil, err
	}
	return ownStatus(ctx, s.desk, s.version)
}

func (s *peerService) ReportPace(
	ctx context.Context, req *quoratev1.ReportPaceRequest,
) (*quoratev1.ReportPaceResponse, error) {
	if err := s.admit(ctx, req.GetClusterId(), req.GetFromNode()); err != nil {
		return nil, err
	}
	err := s.desk.backend.ReportPace(ctx, Pace{
		From: req.GetFromNode(), Partition: req.GetPartition(), Term: req.GetTerm(),
		PartitionNanos: req.GetPartitionNanos(), LocalNanos: req.GetLocalNanos(),
	})
	if err != nil {
		return nil, quotaerr.As(err)
	}
	return &quoratev1.ReportPaceResponse{}, nil
}
