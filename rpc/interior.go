package rpc

import (
	"context"
	"iter"

	"google.golang.org/grpc"

	quoratev1 "github.com/quorate/quorate/proto/quorate/v1"
	"github.com/quorate/quorate/quotaerr"
)

// Interior answers the calls by which nodes keep the cluster together. The caller is a node that
// Backend.KnowsNode, and the one that the request says. Errors reach the other node as they are.
type Interior interface {
	ConfirmPolicy(context.Context, *quoratev1.ConfirmPolicyRequest) (*quoratev1.ConfirmPolicyResponse, error)
	PartitionPolicy(context.Context, *quoratev1.PartitionPolicyRequest) (*quoratev1.PartitionPolicyResponse, error)
	HasBody(context.Context, *quoratev1.HasBodyRequest) (*quoratev1.HasBodyResponse, error)
	// PutBody takes a body in, piece by piece, as Admin.UploadPolicy does.
	PutBody(ctx context.Context, digest []byte, epoch uint64, chunks iter.Seq2[[]byte, error]) error
	// GetBody reads a body, as Admin.DownloadPolicy does.
	GetBody(context.Context, *quoratev1.GetBodyRequest) (iter.Seq2[[]byte, error], error)
	// PlanStep makes a step of a plan at the partition that this node leads, and tells how it stands after it.
	PlanStep(context.Context, *quoratev1.PlanStepRequest) (*quoratev1.PlanStepResponse, error)
	// ExportSlots reads the state of slots. The messages are as they are sent: at most MaxChunkBytes of data each.
	ExportSlots(context.Context, *quoratev1.ExportSlotsRequest) (iter.Seq2[*quoratev1.ExportSlotsResponse, error], error)
	// ExportPartition reads a partition's whole state, as its snapshot, as Admin.DownloadPolicy does a body.
	ExportPartition(context.Context, *quoratev1.ExportPartitionRequest) (iter.Seq2[[]byte, error], error)
}

// interior is a request that says which cluster it belongs to, and which node it is from.
type interior interface {
	GetClusterId() string
	GetFromNode() string
}

// ask has a request of another node answered.
func ask[Q interior, R any](
	ctx context.Context, s *peerService, req Q,
	method func(Interior, context.Context, Q) (R, error),
) (R, error) {
	var none R
	if err := s.admit(ctx, req.GetClusterId(), req.GetFromNode()); err != nil {
		return none, err
	}
	ctx, cancel := boundedBy(ctx, DefaultTimeout)
	defer cancel()
	resp, err := method(s.desk.backend.Interior(), ctx, req)
	if err != nil {
		return none, quotaerr.As(err)
	}
	return resp, nil
}

func (s *peerService) ConfirmPolicy(
	ctx context.Context, req *quoratev1.ConfirmPolicyRequest,
) (*quoratev1.ConfirmPolicyResponse, error) {
	return ask(ctx, s, req, Interior.ConfirmPolicy)
}

func (s *peerService) PartitionPolicy(
	ctx context.Context, req *quoratev1.PartitionPolicyRequest,
) (*quoratev1.PartitionPolicyResponse, error) {
	return ask(ctx, s, req, Interior.PartitionPolicy)
}

func (s *peerService) HasBody(
	ctx context.Context, req *quoratev1.HasBodyRequest,
) (*quoratev1.HasBodyResponse, error) {
	return ask(ctx, s, req, Interior.HasBody)
}

// PutBody takes a body in that another node sends.
func (s *peerService) PutBody(
	stream grpc.ClientStreamingServer[quoratev1.PutBodyRequest, quoratev1.PutBodyResponse],
) error {
	err := receive(stream.Context(), s.desk.transfers, stream.Recv, func(
		ctx context.Context, first *quoratev1.PutBodyRequest, chunks iter.Seq2[[]byte, error],
	) error {
		if err := s.admit(ctx, first.GetClusterId(), first.GetFromNode()); err != nil {
			return err
		}
		return s.desk.backend.Interior().PutBody(ctx, first.GetDigest(), first.GetEpoch(), chunks)
	})
	if err != nil {
		return err
	}
	return stream.SendAndClose(&quoratev1.PutBodyResponse{})
}

// GetBody sends a body to another node.
func (s *peerService) GetBody(
	req *quoratev1.GetBodyRequest, stream grpc.ServerStreamingServer[quoratev1.GetBodyResponse],
) error {
	if err := s.admit(stream.Context(), req.GetClusterId(), req.GetFromNode()); err != nil {
		return err
	}
	if err := mayBeDigest(req.GetDigest()); err != nil {
		return err
	}
	return sendTo(stream.Context(), s, func(ctx context.Context) error {
		chunks, err := s.desk.backend.Interior().GetBody(ctx, req)
		if err != nil {
			return err
		}
		return sendPieces(ctx, chunks, func(chunk []byte) error {
			return stream.Send(&quoratev1.GetBodyResponse{Chunk: chunk})
		})
	})
}

// PlanStep has a step of a plan made here.
func (s *peerService) PlanStep(
	ctx context.Context, req *quoratev1.PlanStepRequest,
) (*quoratev1.PlanStepResponse, error) {
	return ask(ctx, s, req, Interior.PlanStep)
}

// ExportSlots sends the state of slots to another node.
func (s *peerService) ExportSlots(
	req *quoratev1.ExportSlotsRequest, stream grpc.ServerStreamingServer[quoratev1.ExportSlotsResponse],
) error {
	if err := s.admit(stream.Context(), req.GetClusterId(), req.GetFromNode()); err != nil {
		return err
	}
	return sendTo(stream.Context(), s, func(ctx context.Context) error {
		messages, err := s.desk.backend.Interior().ExportSlots(ctx, req)
		if err != nil {
			return err
		}
		for m, err := range messages {
			if err != nil {
				return err
			}
			if err := patiently(ctx, streamPatience, "read", func() error { return stream.Send(m) }); err != nil {
				return brokenOff(err)
			}
		}
		return nil
	})
}

// ExportPartition sends a partition's whole state to another node.
func (s *peerService) ExportPartition(
	req *quoratev1.ExportPartitionRequest, stream grpc.ServerStreamingServer[quoratev1.ExportPartitionResponse],
) error {
	if err := s.admit(stream.Context(), req.GetClusterId(), req.GetFromNode()); err != nil {
		return err
	}
	return sendTo(stream.Context(), s, func(ctx context.Context) error {
		chunks, err := s.desk.backend.Interior().ExportPartition(ctx, req)
		if err != nil {
			return err
		}
		return sendPieces(ctx, chunks, func(chunk []byte) error {
			return stream.Send(&quoratev1.ExportPartitionResponse{Chunk: chunk})
		})
	})
}

// sendTo sends something large to another node, which was admitted, as one of its transfers.
func sendTo(ctx context.Context, s *peerService, send func(context.Context) error) error {
	done, err := s.desk.transfers.take(identityOf(ctx).String())
	if err != nil {
		return err
	}
	defer done()
	ctx, cancel := context.WithTimeout(ctx, transferTimeout)
	defer cancel()
	if err := send(ctx); err != nil {
		return quotaerr.As(err)
	}
	return nil
}
