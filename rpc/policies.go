package rpc

import (
	"context"
	"iter"

	"google.golang.org/grpc"

	quoratev1 "github.com/quorate/quorate/proto/quorate/v1"
	"github.com/quorate/quorate/quotaerr"
)

// UploadPolicy takes a policy's body in.
func (s *adminService) UploadPolicy(
	stream grpc.ClientStreamingServer[quoratev1.UploadPolicyRequest, quoratev1.UploadPolicyResponse],
) error {
	var resp *quoratev1.UploadPolicyResponse
	err := receive(stream.Context(), s.desk.uploads, stream.Recv, func(
		ctx context.Context, first *quoratev1.UploadPolicyRequest, chunks iter.Seq2[[]byte, error],
	) (err error) {
		resp, err = s.desk.backend.Admin().UploadPolicy(ctx, actorOf(identityOf(ctx)), first.GetDigest(), chunks)
		return err
	})
	if err != nil {
		return err
	}
	return stream.SendAndClose(resp)
}

// DownloadPolicy sends a revision's policy.
func (s *adminService) DownloadPolicy(
	req *quoratev1.DownloadPolicyRequest, stream grpc.ServerStreamingServer[quoratev1.DownloadPolicyResponse],
) error {
	who := actorOf(identityOf(stream.Context()))
	done, err := s.desk.downloads.take(who.Name)
	if err != nil {
		return err
	}
	defer done()
	ctx, cancel := context.WithTimeout(stream.Context(), transferTimeout)
	defer cancel()
	revision, chunks, err := s.desk.backend.Admin().DownloadPolicy(ctx, who, req)
	if err != nil {
		return quotaerr.As(err)
	}
	if err := stream.Send(&quoratev1.DownloadPolicyResponse{Revision: revision}); err != nil {
		return brokenOff(err)
	}
	return sendPieces(ctx, chunks, func(chunk []byte) error {
		return stream.Send(&quoratev1.DownloadPolicyResponse{Chunk: chunk})
	})
}
