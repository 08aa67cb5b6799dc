package rpc

import (
	"context"
	"errors"
	"io"
	"time"

	"google.golang.org/grpc"

	quoratev1 "github.com/quorate/quorate/proto/quorate/v1"
	"github.com/quorate/quorate/quotaerr"
)

// snapshotTimeout bounds the making, and the restoring, of a backup of whatever size.
const snapshotTimeout = 4 * time.Hour

// SaveSnapshot sends a backup.
func (s *adminService) SaveSnapshot(
	req *quoratev1.SaveSnapshotRequest, stream grpc.ServerStreamingServer[quoratev1.SaveSnapshotResponse],
) error {
	who := actorOf(identityOf(stream.Context()))
	done, err := s.desk.snapshots.take(who.Name)
	if err != nil {
		return err
	}
	defer done()
	ctx, cancel := context.WithTimeout(stream.Context(), snapshotTimeout)
	defer cancel()
	w := &sender{ctx: ctx, send: func(chunk []byte) error {
		return stream.Send(&quoratev1.SaveSnapshotResponse{Chunk: chunk})
	}}
	if err := s.desk.backend.Admin().SaveSnapshot(ctx, who, req, w); err != nil {
		return quotaerr.As(err)
	}
	return w.flush()
}

// RestoreSnapshot takes a backup in and has a cluster made of it.
func (s *adminService) RestoreSnapshot(
	stream grpc.ClientStreamingServer[quoratev1.RestoreSnapshotRequest, quoratev1.RestoreSnapshotResponse],
) error {
	who := actorOf(identityOf(stream.Context()))
	done, err := s.desk.snapshots.take(who.Name)
	if err != nil {
		return err
	}
	defer done()
	ctx, cancel := context.WithTimeout(stream.Context(), snapshotTimeout)
	defer cancel()
	first, err := firstOf(ctx, stream.Recv)
	if err != nil {
		return err
	}
	backup := &receiver{ctx: ctx, next: func() ([]byte, error) {
		m, err := stream.Recv()
		if err == nil && (m.GetAcceptLoss() || m.GetComment() != "") {
			return nil, quotaerr.New(quotaerr.InvalidArgument, "accept_loss and comment belong in the first piece")
		}
		return m.GetChunk(), err
	}}
	if err := backup.take(first.GetChunk()); err != nil {
		return err
	}
	resp, err := s.desk.backend.Admin().RestoreSnapshot(ctx, who, first, backup)
	if err != nil {
		return quotaerr.As(err)
	}
	return stream.SendAndClose(resp)
}

// sender is the writing end of a stream: it sends what is written in pieces of MaxChunkBytes, the last one by flush.
// After an error the stream has to end.
type sender struct {
	ctx    context.Context
	send   func(chunk []byte) error
	buffer []byte
	failed error
}

func (w *sender) Write(b []byte) (int, error) {
	written := 0
	for len(b) > 0 && w.failed == nil {
		if w.buffer == nil {
			w.buffer = make([]byte, 0, MaxChunkBytes)
		}
		n := min(len(b), MaxChunkBytes-len(w.buffer))
		w.buffer = append(w.buffer, b[:n]...)
		b, written = b[n:], written+n
		if len(w.buffer) == MaxChunkBytes {
			_ = w.flush() // it stays in failed
		}
	}
	return written, w.failed
}

// flush sends what has not been sent yet.
func (w *sender) flush() error {
	if w.failed != nil || len(w.buffer) == 0 {
		return w.failed
	}
	chunk := w.buffer
	if err := patiently(w.ctx, streamPatience, "read", func() error { return w.send(chunk) }); err != nil {
		w.failed = brokenOff(err)
		w.buffer = nil // the step may not have ended
		return w.failed
	}
	w.buffer = w.buffer[:0]
	return nil
}

// receiver is the reading end of a stream, until next has no more.
type receiver struct {
	ctx    context.Context
	next   func() ([]byte, error)
	chunk  []byte
	failed error
}

// take makes chunk what is read next.
func (r *receiver) take(chunk []byte) error {
	if len(chunk) > MaxChunkBytes {
		return quotaerr.New(quotaerr.InvalidArgument, "chunk has %d bytes: send at most %d at once", len(chunk),
			MaxChunkBytes)
	}
	r.chunk = chunk
	return nil
}

func (r *receiver) Read(b []byte) (int, error) {
	if len(b) == 0 {
		return 0, nil
	}
	for len(r.chunk) == 0 && r.failed == nil {
		var chunk []byte
		err := patiently(r.ctx, streamPatience, "sent", func() (err error) {
			chunk, err = r.next()
			return err
		})
		switch {
		case errors.Is(err, io.EOF):
			r.failed = io.EOF
		case err != nil: // and the step may not have ended: chunk is its own
			r.failed = brokenOff(err)
		default:
			r.failed = r.take(chunk)
		}
	}
	if r.failed != nil {
		return 0, r.failed
	}
	n := copy(b, r.chunk)
	r.chunk = r.chunk[n:]
	return n, nil
}
