package rpc

import (
	"bytes"
	"context"
	"errors"
	"io"

	"google.golang.org/grpc"

	quoratev1 "github.com/quorate/quorate/proto/quorate/v1"
	"github.com/quorate/quorate/quotaerr"
)

// UploadPolicy takes a policy's body in.
func (s *adminService) UploadPolicy(
	stream grpc.ClientStreamingServer[quoratev1.UploadPolicyRequest, quoratev1.UploadPolicyResponse],
) error {
	who := actorOf(identityOf(stream.Context()))
	done, err := s.desk.uploads.take(who.Name)
	if err != nil {
		return err
	}
	defer done()
	ctx, cancel := context.WithTimeout(stream.Context(), transferTimeout)
	defer cancel()
	first, err := firstOf(ctx, stream.Recv)
	if err != nil {
		return err
	}
	digest, err := digestOf(first.GetDigest())
	if err != nil {
		return err
	}
	next := func() (*quoratev1.UploadPolicyRequest, error) {
		p, err := stream.Recv()
		if err == nil && len(p.GetDigest()) > 0 && !bytes.Equal(p.GetDigest(), digest) {
			return nil, quotaerr.New(quotaerr.InvalidArgument, "digest differs from the first piece's: send one body at once")
		}
		return p, err
	}
	resp, err := s.desk.backend.Admin().UploadPolicy(ctx, who, digest, pieces(ctx, first, next))
	if err != nil {
		return quotaerr.As(err)
	}
	return stream.SendAndClose(resp)
}

// firstOf waits for a stream's first message, without which there is none.
func firstOf[P any](ctx context.Context, next func() (*P, error)) (first *P, err error) {
	err = patiently(ctx, streamPatience, "sent", func() (err error) {
		first, err = next()
		return err
	})
	switch {
	case errors.Is(err, io.EOF):
		return nil, quotaerr.New(quotaerr.InvalidArgument, "the stream has no message: send the digest and the body")
	case err != nil:
		return nil, brokenOff(err)
	}
	return first, nil
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
