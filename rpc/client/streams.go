package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"time"

	"google.golang.org/grpc"

	"github.com/quorate/quorate/internal/errtable"
	quoratev1 "github.com/quorate/quorate/proto/quorate/v1"
	"github.com/quorate/quorate/quotaerr"
)

// chunkBytes is the size of a piece of a policy or a backup on its way.
const chunkBytes = 512 << 10

// UploadPolicy brings the body of a policy to the cluster; digest is its SHA-256. It is repeated from the
// body's beginning after an unknown outcome: a body that is there already does no harm.
func (c *Client) UploadPolicy(
	ctx context.Context, digest []byte, body io.ReadSeeker,
) (*quoratev1.UploadPolicyResponse, error) {
	out, err := ask(ctx, c, manner{operator: true},
		func(ctx context.Context, conn *grpc.ClientConn) (*quoratev1.UploadPolicyResponse, error) {
			if _, err := body.Seek(0, io.SeekStart); err != nil {
				return nil, quotaerr.Wrap(quotaerr.InvalidArgument, err, "the policy cannot be read: %v", err)
			}
			return upload(ctx, quoratev1.NewAdminClient(conn), digest, body)
		})
	return out, operatorsWords(repeating, err)
}

func upload(
	ctx context.Context, admin quoratev1.AdminClient, digest []byte, body io.Reader,
) (*quoratev1.UploadPolicyResponse, error) {
	ctx, cancel := context.WithCancel(ctx) // ends a stream that is given up half-way
	defer cancel()
	stream, err := admin.UploadPolicy(ctx)
	if err != nil {
		return nil, err
	}
	buffer := make([]byte, chunkBytes)
	piece := &quoratev1.UploadPolicyRequest{Digest: digest}
	for {
		n, err := io.ReadFull(body, buffer)
		ended := errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
		if err != nil && !ended {
			return nil, quotaerr.Wrap(quotaerr.InvalidArgument, err, "the policy cannot be read: %v", err)
		}
		piece.Chunk = buffer[:n] // encoded when Send returns
		err = stream.Send(piece)
		if err != nil && !errors.Is(err, io.EOF) {
			return nil, err
		}
		if ended || err != nil { // an io.EOF: the node has answered already
			return stream.CloseAndRecv()
		}
		piece = &quoratev1.UploadPolicyRequest{}
	}
}

// DownloadPolicy reads the policy of a revision into to. A node that fails before the first byte is followed by
// the next; afterwards the failure is the answer, and what to has got is worth nothing.
func (c *Client) DownloadPolicy(
	ctx context.Context, req *quoratev1.DownloadPolicyRequest, to io.Writer,
) (*quoratev1.Revision, error) {
	var begun *quoratev1.Revision
	var broken error
	out, err := ask(ctx, c, manner{operator: true},
		func(ctx context.Context, conn *grpc.ClientConn) (*quoratev1.Revision, error) {
			ctx, cancel := context.WithCancel(ctx)
			defer cancel()
			begun = nil
			begun, broken = download(ctx, quoratev1.NewAdminClient(conn), req, to)
			if begun == nil {
				return nil, broken
			}
			return begun, nil
		})
	switch {
	case err != nil:
		return nil, operatorsWords(reading, err)
	case broken != nil:
		return nil, operatorsWords(reading, errtable.FromStatus(broken))
	}
	return out, nil
}

// download reads one node's answer; the revision is nil while nothing has come.
func download(
	ctx context.Context, admin quoratev1.AdminClient, req *quoratev1.DownloadPolicyRequest, to io.Writer,
) (*quoratev1.Revision, error) {
	ctx, settle := patiently(ctx, readTimeout)
	stream, err := admin.DownloadPolicy(ctx, req)
	if err != nil {
		return nil, settle(err)
	}
	first, err := stream.Recv()
	err = settle(err)
	if errors.Is(err, io.EOF) || err == nil && first.GetRevision() == nil {
		return nil, quotaerr.New(quotaerr.Internal, "the node named no revision; check that versions agree")
	}
	if err != nil {
		return nil, err
	}
	for piece := first; ; {
		if _, err := to.Write(piece.GetChunk()); err != nil {
			return first.GetRevision(), quotaerr.Wrap(quotaerr.InvalidArgument, err, "the policy cannot be written: %v", err)
		}
		piece, err = stream.Recv()
		if errors.Is(err, io.EOF) {
			return first.GetRevision(), nil
		}
		if err != nil {
			return first.GetRevision(), err
		}
	}
}

// WatchConfig follows what gateways route and behave by, as the first node that answers tells it. The sequence
// ends with an error, always: when the stream breaks off, or ctx ends. Who wants to go on watches again.
func (c *Client) WatchConfig(ctx context.Context) iter.Seq2[*quoratev1.WatchConfigResponse, error] {
	return func(yield func(*quoratev1.WatchConfigResponse, error) bool) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		w, err := ask(ctx, c, manner{}, func(_ context.Context, conn *grpc.ClientConn) (watch, error) {
			return follow(ctx, conn)
		})
		for err == nil {
			if !yield(w.last, nil) {
				return
			}
			w.last, err = w.stream.Recv()
		}
		if errors.Is(err, io.EOF) {
			err = quotaerr.New(quotaerr.NoQuorum, "the node has ended the watch")
		}
		yield(nil, fmt.Errorf("watch: %w", errtable.FromStatus(err)))
	}
}

// watch is a stream with the last message of it.
type watch struct {
	stream grpc.ServerStreamingClient[quoratev1.WatchConfigResponse]
	last   *quoratev1.WatchConfigResponse
}

// follow begins a watch at one node and waits for what it says first.
func follow(ctx context.Context, conn *grpc.ClientConn) (watch, error) {
	ctx, settle := patiently(ctx, attemptTimeout)
	stream, err := quoratev1.NewQuotaClient(conn).WatchConfig(ctx, &quoratev1.WatchConfigRequest{})
	if err != nil {
		return watch{}, settle(err)
	}
	first, err := stream.Recv()
	return watch{stream, first}, settle(err)
}

// patiently makes a context for a stream whose first message must come within limit. settle is called with
// what came of that; what it returns is the error. Afterwards the stream lasts as long as ctx.
func patiently(ctx context.Context, limit time.Duration) (_ context.Context, settle func(error) error) {
	ctx, cancel := context.WithCancel(ctx)
	timer := time.AfterFunc(limit, cancel)
	return ctx, func(err error) error {
		if !timer.Stop() && err == nil {
			err = context.Canceled
		}
		if err != nil {
			cancel()
		}
		return err
	}
}
