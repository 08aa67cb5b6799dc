package rpc

import (
	"bytes"
	"context"
	"errors"
	"io"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/quorate/quorate/internal/errtable"
	quoratev1 "github.com/quorate/quorate/proto/quorate/v1"
	"github.com/quorate/quorate/quotaerr"
)

// aBackup is so many bytes, of which no two pieces are alike.
func aBackup(size int) []byte {
	b := make([]byte, size)
	for i := range b {
		b[i] = byte(i ^ i>>8 ^ i>>16)
	}
	return b
}

// saved reads a backup to the end of its stream.
func saved(ctx context.Context, n *testNode) (out []byte, err error) {
	stream, err := quoratev1.NewAdminClient(n.conn).SaveSnapshot(ctx, &quoratev1.SaveSnapshotRequest{})
	if err != nil {
		return nil, err
	}
	for {
		m, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return out, nil
		}
		if err != nil {
			return out, err
		}
		if len(m.GetChunk()) == 0 || len(m.GetChunk()) > MaxChunkBytes {
			return out, errors.New("a piece of no bytes, or of too many")
		}
		out = append(out, m.GetChunk()...)
	}
}

// Shows that a backup comes down whole and in order, in pieces within the bound, however it is written; and that one
// that fails half-way ends with its error, whatever has been sent.
func TestBackupComesDownWhole(t *testing.T) {
	for _, size := range []int{0, 1, MaxChunkBytes, 3*MaxChunkBytes + 17} {
		for _, piece := range []int{1000, MaxChunkBytes, 2*MaxChunkBytes + 1} {
			want, backend := aBackup(size), allowing()
			backend.admin.save = func(_ context.Context, w io.Writer) error {
				buffer := make([]byte, piece)
				for rest := want; len(rest) > 0; {
					n := copy(buffer, rest)
					if m, err := w.Write(buffer[:n]); err != nil || m != n {
						return errors.Join(errors.New("a short write"), err)
					}
					clear(buffer) // what was written must have been taken
					rest = rest[n:]
				}
				return nil
			}
			got, err := saved(within(t, 20*time.Second), mustNode(t, "n1", backend))
			if err != nil || !bytes.Equal(got, want) {
				t.Errorf("%d bytes by %d: %d bytes, %v", size, piece, len(got), err)
			}
		}
	}
	backend := allowing()
	backend.admin.save = func(_ context.Context, w io.Writer) error {
		if _, err := w.Write(aBackup(2 * MaxChunkBytes)); err != nil {
			return err
		}
		return quotaerr.New(quotaerr.NoQuorum, "the leader of p1 is gone")
	}
	_, err := saved(within(t, 20*time.Second), mustNode(t, "n1", backend))
	if e := errtable.FromStatus(err); e == nil || e.Reason != quotaerr.NoQuorum || e.Message != "the leader of p1 is gone" {
		t.Errorf("half-way: %v", err)
	}
}

// restored sends messages and returns what becomes of them.
func restored(
	ctx context.Context, n *testNode, messages ...*quoratev1.RestoreSnapshotRequest,
) (*quoratev1.RestoreSnapshotResponse, error) {
	stream, err := quoratev1.NewAdminClient(n.conn).RestoreSnapshot(ctx)
	if err != nil {
		return nil, err
	}
	for _, m := range messages {
		if stream.Send(m) != nil {
			break // the answer says why
		}
	}
	return stream.CloseAndRecv()
}

// Shows that a backup goes up whole and in order with what was said of it first, and what of it is refused: too large
// a piece, at first and later, no message at all, and to say again what belongs first.
func TestBackupGoesUpWhole(t *testing.T) {
	whole := aBackup(2*MaxChunkBytes + 5)
	piece := func(b []byte) *quoratev1.RestoreSnapshotRequest { return &quoratev1.RestoreSnapshotRequest{Chunk: b} }
	for name, c := range map[string]struct {
		messages []*quoratev1.RestoreSnapshotRequest
		want     []byte // nil: it is refused
	}{
		"whole": {[]*quoratev1.RestoreSnapshotRequest{
			{AcceptLoss: true, Comment: "fire"}, piece(whole[:MaxChunkBytes]), piece(nil),
			piece(whole[MaxChunkBytes : 2*MaxChunkBytes]), piece(whole[2*MaxChunkBytes:]),
		}, whole},
		"at once":     {[]*quoratev1.RestoreSnapshotRequest{{AcceptLoss: true, Comment: "fire", Chunk: whole[:9]}}, whole[:9]},
		"large":       {[]*quoratev1.RestoreSnapshotRequest{piece(aBackup(MaxChunkBytes + 1))}, nil},
		"large later": {[]*quoratev1.RestoreSnapshotRequest{piece(whole[:1]), piece(aBackup(MaxChunkBytes + 1))}, nil},
		"nothing":     {nil, nil},
		"loss later":  {[]*quoratev1.RestoreSnapshotRequest{piece(whole[:1]), {AcceptLoss: true}}, nil},
		"why later":   {[]*quoratev1.RestoreSnapshotRequest{piece(whole[:1]), {Comment: "fire"}}, nil},
	} {
		backend := allowing()
		var got []byte
		backend.admin.restore = func(_ context.Context, first *quoratev1.RestoreSnapshotRequest, r io.Reader) (err error) {
			if c.want != nil && (!first.GetAcceptLoss() || first.GetComment() != "fire") {
				t.Errorf("%s: %v was said first", name, first)
			}
			got, err = io.ReadAll(r)
			return err
		}
		resp, err := restored(within(t, 20*time.Second), mustNode(t, "n1", backend), c.messages...)
		if c.want == nil {
			if e := errtable.FromStatus(err); e == nil || e.Reason != quotaerr.InvalidArgument {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		if err != nil || resp.GetClusterId() != testCluster || !bytes.Equal(got, c.want) {
			t.Errorf("%s: %v, %v, %d bytes", name, resp, err, len(got))
		}
	}
}

// Shows that one caller makes one backup at a time, and that one who breaks off makes room, with the node told of it
// as no defect of its own.
func TestBackupsAreBounded(t *testing.T) {
	backend := allowing()
	var begun, broken atomic.Int32
	backend.admin.restore = func(_ context.Context, _ *quoratev1.RestoreSnapshotRequest, r io.Reader) error {
		begun.Add(1)
		_, err := io.Copy(io.Discard, r)
		if err != nil && quotaerr.ReasonOf(err) != quotaerr.Internal {
			broken.Add(1)
		}
		return err
	}
	n := mustNode(t, "n1", backend)
	ctx, cancel := context.WithCancel(within(t, 20*time.Second))
	defer cancel()
	stream, err := quoratev1.NewAdminClient(n.conn).RestoreSnapshot(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Send(&quoratev1.RestoreSnapshotRequest{Chunk: []byte("x")}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it is under way", func() bool { return begun.Load() == 1 })
	_, err = saved(within(t, 10*time.Second), n)
	if e := errtable.FromStatus(err); e == nil || e.Reason != quotaerr.Overloaded {
		t.Errorf("one more: %v", err)
	}
	cancel()
	eventually(t, "it is broken off", func() bool { return broken.Load() == 1 })
	eventually(t, "there is room", func() bool {
		_, err := saved(within(t, 10*time.Second), n)
		return err == nil
	})
}

// Shows in virtual time that a backup ends with an error when its reader does not read on, or its sender falls silent,
// and that nothing is read or sent afterwards.
func TestBackupStandsStill(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		over := make(chan struct{})
		var stuck atomic.Int64
		w := &sender{ctx: t.Context(), send: func([]byte) error {
			stuck.Add(1)
			<-over
			return nil
		}}
		r := &receiver{ctx: t.Context(), next: func() ([]byte, error) {
			stuck.Add(1)
			<-over
			return nil, io.EOF
		}}
		for name, step := range map[string]func() (int, error){
			"write": func() (int, error) { return w.Write(make([]byte, MaxChunkBytes)) },
			"read":  func() (int, error) { return r.Read(make([]byte, 1)) },
		} {
			start := time.Now()
			for range 2 {
				if _, err := step(); quotaerr.ReasonOf(err) != quotaerr.Overloaded || time.Since(start) != streamPatience {
					t.Errorf("%s: %v after %s", name, err, time.Since(start))
				}
			}
		}
		if err := w.flush(); err == nil {
			t.Error("what is left is sent all the same")
		}
		if stuck.Load() != 2 {
			t.Errorf("%d steps, want one each", stuck.Load())
		}
		close(over)
		synctest.Wait()
	})
}
