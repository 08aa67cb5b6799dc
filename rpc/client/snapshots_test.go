package client

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"google.golang.org/grpc"

	"github.com/quorate/quorate/internal/errtable"
	quoratev1 "github.com/quorate/quorate/proto/quorate/v1"
	"github.com/quorate/quorate/quotaerr"
)

// SaveSnapshot sends three pieces.
func (o *operated) SaveSnapshot(
	_ *quoratev1.SaveSnapshotRequest, s grpc.ServerStreamingServer[quoratev1.SaveSnapshotResponse],
) error {
	if err := o.next(s.Context(), "/SaveSnapshot"); err != nil {
		return err
	}
	for i := range 3 {
		if err := s.Send(&quoratev1.SaveSnapshotResponse{Chunk: []byte("abc")[i : i+1]}); err != nil {
			return err
		}
		if o.breaks == i+1 {
			return errtable.ToStatus(s.Context(), quotaerr.New(quotaerr.NoQuorum, "the leader of p1 is gone")).Err()
		}
	}
	return nil
}

// RestoreSnapshot keeps the backup, and answers by the script once it is there.
func (o *operated) RestoreSnapshot(
	s grpc.ClientStreamingServer[quoratev1.RestoreSnapshotRequest, quoratev1.RestoreSnapshotResponse],
) error {
	var body []byte
	said := ""
	for {
		m, err := s.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		body, said = append(body, m.GetChunk()...), said+m.GetComment()
	}
	o.mu.Lock()
	o.body = body
	o.mu.Unlock()
	if err := o.next(s.Context(), "/RestoreSnapshot"); err != nil {
		return err
	}
	return s.SendAndClose(&quoratev1.RestoreSnapshotResponse{ClusterId: said})
}

// Shows that a backup comes down whole, past nodes that do not answer or know no leader, each asked once; that a failure
// which another node would not mend is the answer; that one that breaks off is an error and is not gone on with from
// another node; and that a writer that fails is.
func TestSaveSnapshot(t *testing.T) {
	lost := &operated{script: []error{
		quotaerr.ErrNoQuorum, quotaerr.ErrNoQuorum, quotaerr.ErrOverloaded, quotaerr.New(quotaerr.Internal, "a defect"),
	}}
	first, good := mustOperate(t, lost), &operated{}
	c := mustClient(t, mustDeadAddr(t), first, mustOperate(t, good))
	var to bytes.Buffer
	if err := c.SaveSnapshot(within(t, 20*time.Second), &quoratev1.SaveSnapshotRequest{}, &to); err != nil ||
		to.String() != "abc" {
		t.Errorf("%v %q", err, &to)
	}
	if err := c.SaveSnapshot(within(t, 10*time.Second), &quoratev1.SaveSnapshotRequest{}, failing{}); err == nil {
		t.Error("a full disk is no error")
	}
	c = mustClient(t, first, mustDeadAddr(t))
	err := c.SaveSnapshot(within(t, time.Minute), &quoratev1.SaveSnapshotRequest{}, &to)
	if quotaerr.ReasonOf(err) != quotaerr.Overloaded || len(lost.called()) != 3 {
		t.Errorf("nobody else is there: %v after %v", err, lost.called())
	}
	c = mustClient(t, first, mustOperate(t, good))
	good.calls = nil
	err = c.SaveSnapshot(within(t, time.Minute), &quoratev1.SaveSnapshotRequest{}, &to)
	if quotaerr.ReasonOf(err) != quotaerr.Internal || len(good.called()) != 0 {
		t.Errorf("what another would not mend: %v, then %v", err, good.called())
	}
	broken, other := &operated{breaks: 2}, &operated{}
	c = mustClient(t, mustOperate(t, broken), mustOperate(t, other))
	to.Reset()
	err = c.SaveSnapshot(within(t, 10*time.Second), &quoratev1.SaveSnapshotRequest{}, &to)
	if quotaerr.ReasonOf(err) != quotaerr.NoQuorum || len(other.called()) != 0 || to.String() != "ab" {
		t.Errorf("half-way: %v, %q, then %v", err, &to, other.called())
	}
}

// Shows that a backup goes up whole, to one node, once, whatever it answers; and that one that cannot be read is an
// error of its own.
func TestRestoreSnapshot(t *testing.T) {
	first := &quoratev1.RestoreSnapshotRequest{Comment: "fire"}
	for _, size := range []int{0, 1, chunkBytes, 3*chunkBytes + 1} {
		body := bytes.Repeat([]byte("p"), size)
		o := &operated{}
		got, err := mustClient(t, mustOperate(t, o)).RestoreSnapshot(within(t, 20*time.Second), first, bytes.NewReader(body))
		if err != nil || got.GetClusterId() != "fire" || !bytes.Equal(o.body, body) {
			t.Errorf("%d bytes: %v, %v", size, got, err)
		}
	}
	for _, e := range []*quotaerr.Error{quotaerr.ErrNoQuorum, quotaerr.ErrOverloaded, quotaerr.ErrOutcomeUnknown} {
		o := &operated{script: []error{e}}
		_, err := mustClient(t, mustOperate(t, o)).RestoreSnapshot(within(t, 10*time.Second), first, strings.NewReader("x"))
		if quotaerr.ReasonOf(err) != e.Reason || len(o.called()) != 1 {
			t.Errorf("%s: %v after %v", e.Reason, err, o.called())
		}
	}
	o := &operated{}
	addr := mustOperate(t, o)
	_, err := mustClient(t, addr).RestoreSnapshot(within(t, 10*time.Second), first, iotest.ErrReader(errors.New("gone")))
	if quotaerr.ReasonOf(err) != quotaerr.InvalidArgument || !strings.Contains(err.Error(), "gone") {
		t.Errorf("unreadable: %v", err)
	}
	_, err = mustClient(t, addr, mustDeadAddr(t)).RestoreSnapshot(within(t, 10*time.Second), first, strings.NewReader("x"))
	if quotaerr.ReasonOf(err) != quotaerr.InvalidArgument || len(o.called()) != 0 {
		t.Errorf("on two nodes: %v after %v", err, o.called())
	}
}
