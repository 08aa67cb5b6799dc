package client

import (
	"context"
	"errors"
	"io"

	"google.golang.org/grpc"

	"github.com/quorate/quorate/internal/errtable"
	quoratev1 "github.com/quorate/quorate/proto/quorate/v1"
	"github.com/quorate/quorate/quotaerr"
)

// SaveSnapshot writes a backup of the cluster to to, and takes the time that it takes. Each node is asked once, since
// that may be much work: one that fails before the first byte, and for a reason that another may not have, is followed
// by the next; else the failure is the answer, and what to has got is worth nothing.
func (c *Client) SaveSnapshot(ctx context.Context, req *quoratev1.SaveSnapshotRequest, to io.Writer) error {
	if err := sendable(req); err != nil {
		return err
	}
	var last *quotaerr.Error
	for i := range c.conns {
		at := (int(c.answered.Load()) + i) % len(c.conns)
		begun, err := once(ctx, c.conns[at], manner{}, func(ctx context.Context, conn *grpc.ClientConn) (bool, error) {
			ctx, cancel := context.WithCancel(ctx) // ends a stream that is given up half-way
			defer cancel()
			return save(ctx, quoratev1.NewAdminClient(conn), req, to)
		})
		if err == nil {
			return nil
		}
		e := errtable.FromStatus(err)
		// What a node answered says more than that another one cannot be reached.
		if last == nil || !errors.Is(e, errUnreachable) {
			last = e
		}
		if begun || ctx.Err() != nil || !errtable.Lookup(e.Reason).Retryable() && !errors.Is(e, errUnproven) {
			break
		}
	}
	return operatorsWords(reading, last)
}

// save reads one node's backup; it has begun once a byte has come.
func save(
	ctx context.Context, admin quoratev1.AdminClient, req *quoratev1.SaveSnapshotRequest, to io.Writer,
) (begun bool, err error) {
	stream, err := admin.SaveSnapshot(ctx, req)
	if err != nil {
		return false, err
	}
	for {
		piece, err := stream.Recv()
		switch {
		case errors.Is(err, io.EOF) && !begun:
			return false, quotaerr.New(quotaerr.Internal, "the node sent a backup of no bytes; check that versions agree")
		case errors.Is(err, io.EOF):
			return true, nil
		case err != nil:
			return begun, err
		}
		begun = true
		if _, err := to.Write(piece.GetChunk()); err != nil {
			return true, quotaerr.Wrap(quotaerr.InvalidArgument, err, "the backup cannot be written: %v", err)
		}
	}
}

// RestoreSnapshot makes a cluster of a backup on the client's node, which must be its only one, and takes the time that
// it takes. It is asked once. first has what is to be said of the backup.
func (c *Client) RestoreSnapshot(
	ctx context.Context, first *quoratev1.RestoreSnapshotRequest, backup io.Reader,
) (*quoratev1.RestoreSnapshotResponse, error) {
	if len(c.conns) != 1 {
		return nil, quotaerr.New(quotaerr.InvalidArgument,
			"a cluster is made on one node: name it alone with --addr, not %d", len(c.conns))
	}
	if err := sendable(first); err != nil {
		return nil, err
	}
	out, err := once(ctx, c.conns[0], changing,
		func(ctx context.Context, conn *grpc.ClientConn) (*quoratev1.RestoreSnapshotResponse, error) {
			ctx, cancel := context.WithCancel(ctx) // ends a stream that is given up half-way
			defer cancel()
			return restore(ctx, quoratev1.NewAdminClient(conn), first, backup)
		})
	if err != nil {
		return nil, operatorsWords(changing, errtable.FromStatus(err))
	}
	return out, nil
}

func restore(
	ctx context.Context, admin quoratev1.AdminClient, first *quoratev1.RestoreSnapshotRequest, backup io.Reader,
) (*quoratev1.RestoreSnapshotResponse, error) {
	stream, err := admin.RestoreSnapshot(ctx)
	if err != nil {
		return nil, err
	}
	buffer := make([]byte, chunkBytes)
	piece := &quoratev1.RestoreSnapshotRequest{AcceptLoss: first.GetAcceptLoss(), Comment: first.GetComment()}
	for {
		n, err := io.ReadFull(backup, buffer)
		ended := errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
		if err != nil && !ended {
			return nil, quotaerr.Wrap(quotaerr.InvalidArgument, err, "the backup cannot be read: %v", err)
		}
		piece.Chunk = buffer[:n] // encoded when Send returns
		err = stream.Send(piece)
		if err != nil && !errors.Is(err, io.EOF) {
			return nil, err
		}
		if ended || err != nil { // an io.EOF: the node has answered already
			return stream.CloseAndRecv()
		}
		piece = &quoratev1.RestoreSnapshotRequest{}
	}
}
