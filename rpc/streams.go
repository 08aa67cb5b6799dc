package rpc

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"io"
	"iter"
	"time"

	"google.golang.org/grpc"

	"github.com/quorate/quorate/quotaerr"
)

const (
	// streamPatience is how long a stream may stand still for its caller's sake.
	streamPatience = 30 * time.Second
	// transferTimeout bounds a whole body's way.
	transferTimeout = 15 * time.Minute
)

// strictStream has malformed messages refused as strictly has malformed requests.
type strictStream struct{ grpc.ServerStream }

// RecvMsg receives a message. It needs a server with the strict codec.
func (s strictStream) RecvMsg(m any) error {
	e := &envelope{message: m}
	if err := s.ServerStream.RecvMsg(e); err != nil {
		return err
	}
	return e.malformed
}

// patiently waits for one step of a stream, in which its caller takes part. After an error the stream has to end,
// which ends the step.
func patiently(ctx context.Context, patience time.Duration, what string, step func() error) error {
	done := make(chan error, 1)
	go func() { done <- step() }()
	t := time.NewTimer(patience)
	defer t.Stop()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return quotaerr.Wrap(quotaerr.Overloaded, ctx.Err(), "the transfer was broken off, or its time is up")
	case <-t.C:
		return quotaerr.New(quotaerr.Overloaded, "nothing was %s for %s: the stream is ended", what, patience)
	}
}

// piece is a message that is a part of a body, the first of which has its digest.
type piece interface {
	GetDigest() []byte
	GetChunk() []byte
}

// receive has a body taken in that a caller sends, as one of share: next receives a message of it, take gets the first
// one and all chunks.
func receive[P piece](
	ctx context.Context, share *shares, next func() (P, error),
	take func(ctx context.Context, first P, chunks iter.Seq2[[]byte, error]) error,
) error {
	done, err := share.take(identityOf(ctx).String())
	if err != nil {
		return err
	}
	defer done()
	ctx, cancel := context.WithTimeout(ctx, transferTimeout)
	defer cancel()
	first, err := firstOf(ctx, next)
	if err != nil {
		return err
	}
	digest := first.GetDigest()
	if err := mayBeDigest(digest); err != nil {
		return err
	}
	further := func() (P, error) {
		p, err := next()
		if err == nil && len(p.GetDigest()) > 0 && !bytes.Equal(p.GetDigest(), digest) {
			return p, quotaerr.New(quotaerr.InvalidArgument, "digest differs from the first piece's: send one body at once")
		}
		return p, err
	}
	if err := take(ctx, first, pieces(ctx, first, further)); err != nil {
		return quotaerr.As(err)
	}
	return nil
}

// firstOf waits for a stream's first message, without which there is none.
func firstOf[P any](ctx context.Context, next func() (P, error)) (P, error) {
	var first, none P
	err := patiently(ctx, streamPatience, "sent", func() (err error) {
		first, err = next()
		return err
	})
	switch {
	case errors.Is(err, io.EOF):
		return none, quotaerr.New(quotaerr.InvalidArgument, "the stream has no message: send the digest and the body")
	case err != nil: // and the step may not have ended yet
		return none, brokenOff(err)
	}
	return first, nil
}

// pieces are the chunks of a body that comes in, first among them; next receives a further message.
func pieces[P piece](ctx context.Context, first P, next func() (P, error)) iter.Seq2[[]byte, error] {
	return func(yield func([]byte, error) bool) {
		for p := first; ; {
			chunk := p.GetChunk()
			if len(chunk) > MaxChunkBytes {
				yield(nil, quotaerr.New(quotaerr.InvalidArgument, "chunk has %d bytes: send at most %d at once",
					len(chunk), MaxChunkBytes))
				return
			}
			if len(chunk) > 0 && !yield(chunk, nil) {
				return
			}
			err := patiently(ctx, streamPatience, "sent", func() (err error) {
				p, err = next()
				return err
			})
			if errors.Is(err, io.EOF) {
				return
			}
			if err != nil {
				yield(nil, brokenOff(err))
				return
			}
		}
	}
}

// brokenOff is a stream's failure as an error of this program: it is the caller's, who does not read it.
func brokenOff(err error) error {
	var e *quotaerr.Error
	if errors.As(err, &e) {
		return err
	}
	return quotaerr.Wrap(quotaerr.OutcomeUnknown, err, "the other end has broken off")
}

// sendPieces sends a body that goes out.
func sendPieces(ctx context.Context, chunks iter.Seq2[[]byte, error], send func(chunk []byte) error) error {
	for chunk, err := range chunks {
		if err != nil {
			return err
		}
		for len(chunk) > 0 {
			n := min(len(chunk), MaxChunkBytes)
			if err := patiently(ctx, streamPatience, "read", func() error { return send(chunk[:n]) }); err != nil {
				return brokenOff(err)
			}
			chunk = chunk[n:]
		}
	}
	return nil
}

// mayBeDigest refuses what cannot be a body's digest.
func mayBeDigest(b []byte) error {
	if len(b) != sha256.Size {
		return quotaerr.New(quotaerr.InvalidArgument,
			"digest has %d bytes: the first piece needs the SHA-256 of the whole body", len(b))
	}
	return nil
}
