package rpc

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"hash"
	"io"
	"iter"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"

	"github.com/quorate/quorate/internal/errtable"
	"github.com/quorate/quorate/internal/identity"
	quoratev1 "github.com/quorate/quorate/proto/quorate/v1"
	"github.com/quorate/quorate/quotaerr"
)

// upload sends a body of so many chunks, made up as it goes, and returns its digest with the answer.
func upload(
	t testing.TB, admin quoratev1.AdminClient, chunks, chunkBytes int,
) (sum []byte, _ *quoratev1.UploadPolicyResponse, _ error) {
	t.Helper()
	stream, err := admin.UploadPolicy(within(t, 60*time.Second))
	if err != nil {
		t.Fatal(err)
	}
	h := sha256.New()
	chunk := make([]byte, chunkBytes)
	for i := range chunks {
		chunk[0] = byte(i)
		h.Write(chunk)
		req := &quoratev1.UploadPolicyRequest{Chunk: chunk}
		if i == 0 {
			req.Digest = make([]byte, sha256.Size)
		}
		if err := stream.Send(req); err != nil {
			break // the answer says why
		}
	}
	resp, err := stream.CloseAndRecv()
	return h.Sum(nil), resp, err
}

// hashing is an upload's end that keeps nothing.
func hashing(h hash.Hash) func(context.Context, []byte, iter.Seq2[[]byte, error]) error {
	return func(_ context.Context, _ []byte, chunks iter.Seq2[[]byte, error]) error {
		for chunk, err := range chunks {
			if err != nil {
				return err
			}
			h.Write(chunk)
		}
		return nil
	}
}

// Shows that a body of 100 MiB goes up whole and in order, with the memory of the process staying far below its
// size.
func TestLargeUpload(t *testing.T) {
	backend := allowing()
	h := sha256.New()
	var peak, pieces uint64
	base := heap()
	backend.admin.upload = func(ctx context.Context, digest []byte, chunks iter.Seq2[[]byte, error]) error {
		return hashing(h)(ctx, digest, func(yield func([]byte, error) bool) {
			for chunk, err := range chunks {
				if pieces++; pieces%20 == 0 {
					peak = max(peak, heap())
				}
				if !yield(chunk, err) {
					return
				}
			}
		})
	}
	n := mustNode(t, "n1", backend)
	sum, resp, err := upload(t, quoratev1.NewAdminClient(n.conn), 200, MaxChunkBytes)
	if err != nil || resp.GetHeld() != 3 || !bytes.Equal(sum, h.Sum(nil)) || pieces != 200 {
		t.Fatalf("%v, %v, %d pieces", resp, err, pieces)
	}
	if peak > base+32<<20 {
		t.Errorf("the heap grew from %d to %d bytes", base, peak)
	}
}

// heap is how much is in use, once what is not has been thrown away.
func heap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// Shows what of an upload is refused as invalid, with how far the backend gets: a chunk that is too large, a digest
// that is none, a second body's digest, no message at all, and a message that is none.
func TestUploadsThatAreRefused(t *testing.T) {
	for name, c := range map[string]struct {
		send   []*quoratev1.UploadPolicyRequest
		raw    []byte
		pieces int // that reach the backend
		asked  bool
	}{
		"large":           {[]*quoratev1.UploadPolicyRequest{{Digest: make([]byte, 32), Chunk: make([]byte, MaxChunkBytes+1)}}, nil, 0, true},
		"large later":     {[]*quoratev1.UploadPolicyRequest{{Digest: make([]byte, 32), Chunk: []byte("a")}, {Chunk: make([]byte, MaxChunkBytes+1)}}, nil, 1, true},
		"beyond messages": {[]*quoratev1.UploadPolicyRequest{{Digest: make([]byte, 32), Chunk: make([]byte, maxMessageBytes)}}, nil, 0, false},
		"no digest":       {[]*quoratev1.UploadPolicyRequest{{Chunk: []byte("a")}}, nil, 0, false},
		"short digest":    {[]*quoratev1.UploadPolicyRequest{{Digest: make([]byte, 31)}}, nil, 0, false},
		"two bodies":      {[]*quoratev1.UploadPolicyRequest{{Digest: make([]byte, 32), Chunk: []byte("a")}, {Digest: bytes.Repeat([]byte{1}, 32)}}, nil, 1, true},
		"nothing":         {nil, nil, 0, false},
		"malformed":       {nil, []byte{0xff}, 0, false},
	} {
		backend := allowing()
		pieces := 0
		backend.admin.upload = func(_ context.Context, _ []byte, chunks iter.Seq2[[]byte, error]) error {
			for _, err := range chunks {
				if err != nil {
					return err
				}
				pieces++
			}
			return nil
		}
		n := mustNode(t, "n1", backend)
		stream, err := n.conn.NewStream(within(t, 10*time.Second), &grpc.StreamDesc{ClientStreams: true},
			quoratev1.Admin_UploadPolicy_FullMethodName, grpc.ForceCodecV2(newStrictCodec()))
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range c.send {
			_ = stream.SendMsg(m) // the answer says why it failed
		}
		if c.raw != nil {
			_ = stream.SendMsg(encoded(c.raw))
		}
		_ = stream.CloseSend()
		err = stream.RecvMsg(&quoratev1.UploadPolicyResponse{})
		if e := errtable.FromStatus(err); e == nil || e.Reason != quotaerr.InvalidArgument {
			t.Errorf("%s: %v", name, err)
		}
		if asked := len(backend.admin.asked()) > 0; pieces != c.pieces || asked != c.asked {
			t.Errorf("%s: %d pieces reached the backend, asked %v", name, pieces, asked)
		}
	}
}

// Shows that uploads are four at a time, that who breaks one off makes room for another, and that the backend is told
// of the breaking off as no defect.
func TestUploadsAreBounded(t *testing.T) {
	backend := allowing()
	var broken, begun atomic.Int32
	backend.admin.upload = func(ctx context.Context, _ []byte, chunks iter.Seq2[[]byte, error]) error {
		begun.Add(1)
		for _, err := range chunks {
			if err != nil {
				if quotaerr.ReasonOf(err) != quotaerr.Internal {
					broken.Add(1)
				}
				return err
			}
		}
		return nil
	}
	n := mustNode(t, "n1", backend)
	admin := quoratev1.NewAdminClient(n.conn)
	ctx, cancel := context.WithCancel(within(t, 20*time.Second))
	defer cancel()
	for range maxUploads {
		stream, err := admin.UploadPolicy(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if err := stream.Send(&quoratev1.UploadPolicyRequest{Digest: make([]byte, 32)}); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "all are under way", func() bool { return begun.Load() == maxUploads })
	if _, _, err := upload(t, admin, 1, 1); errtable.FromStatus(err) == nil ||
		errtable.FromStatus(err).Reason != quotaerr.Overloaded {
		t.Errorf("one more: %v", err)
	}
	cancel()
	eventually(t, "they are broken off", func() bool { return broken.Load() == maxUploads })
	eventually(t, "there is room", func() bool {
		_, _, err := upload(t, admin, 1, 1)
		return err == nil
	})
}

// Shows in virtual time that a body whose sender falls silent, or takes for ever, ends with an error.
func TestSilentSender(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for name, c := range map[string]struct {
			every, limit time.Duration
		}{"silent": {time.Hour, streamPatience}, "for ever": {time.Second, transferTimeout}} {
			ctx, cancel := context.WithTimeout(t.Context(), transferTimeout)
			over := make(chan struct{})
			next := func() (*quoratev1.PutBodyRequest, error) {
				select {
				case <-time.After(c.every):
					return &quoratev1.PutBodyRequest{Chunk: []byte("x")}, nil
				case <-over:
					return nil, io.EOF
				}
			}
			start := time.Now()
			var last error
			for _, err := range pieces(ctx, &quoratev1.PutBodyRequest{}, next) {
				last = err
			}
			if d := time.Since(start); quotaerr.ReasonOf(last) != quotaerr.Overloaded || d > c.limit {
				t.Errorf("%s: %v after %s", name, last, d)
			}
			close(over)
			cancel()
		}
	})
}

// Shows that a revision comes down with what it is first and then whole, in pieces of a bounded size; that a failure
// half-way is told, with its reason; and that one at the beginning is.
func TestDownload(t *testing.T) {
	backend := allowing()
	body := bytes.Repeat([]byte("policy"), 400_000)
	var fails, early error
	backend.admin.download = func(context.Context) (*quoratev1.Revision, iter.Seq2[[]byte, error], error) {
		return &quoratev1.Revision{Number: 4}, func(yield func([]byte, error) bool) {
			if yield(body[:10], nil) && fails != nil {
				yield(nil, fails)
			} else if fails == nil {
				yield(body[10:], nil)
			}
		}, early
	}
	admin := quoratev1.NewAdminClient(mustNode(t, "n1", backend).conn)
	read := func() (revision uint64, got []byte, largest int, err error) {
		stream, err := admin.DownloadPolicy(within(t, 20*time.Second), &quoratev1.DownloadPolicyRequest{})
		for err == nil {
			var m *quoratev1.DownloadPolicyResponse
			if m, err = stream.Recv(); m.GetRevision() != nil {
				revision = m.GetRevision().GetNumber()
			}
			got, largest = append(got, m.GetChunk()...), max(largest, len(m.GetChunk()))
		}
		return revision, got, largest, err
	}
	revision, got, largest, err := read()
	if !errors.Is(err, io.EOF) || revision != 4 || !bytes.Equal(got, body) || largest > MaxChunkBytes {
		t.Errorf("%v, revision %d, %d bytes, at most %d at once", err, revision, len(got), largest)
	}
	fails = quotaerr.New(quotaerr.NoQuorum, "the disk")
	if _, got, _, err := read(); errtable.FromStatus(err).Reason != quotaerr.NoQuorum || len(got) != 10 {
		t.Errorf("half-way: %v after %d bytes", err, len(got))
	}
	early = quotaerr.New(quotaerr.InvalidArgument, "no such revision")
	if _, _, _, err := read(); errtable.FromStatus(err).Reason != quotaerr.InvalidArgument {
		t.Errorf("at the beginning: %v", err)
	}
}

// Shows that bodies go between nodes whole, with digest and epoch, that a node must be of the cluster and the one
// that it says, and that the answers and refusals of the calls beside them come as they are.
func TestInterior(t *testing.T) {
	ca := mustCA(t, tlsCluster)
	there := allowing()
	there.removed = map[string]bool{"n9": true}
	h := sha256.New()
	var epochs []uint64
	there.interior.put = func(digest []byte, epoch uint64, chunks iter.Seq2[[]byte, error]) error {
		epochs = append(epochs, epoch)
		return hashing(h)(t.Context(), digest, chunks)
	}
	body := bytes.Repeat([]byte("b"), MaxChunkBytes*3+1)
	there.interior.get = func() iter.Seq2[[]byte, error] {
		return func(yield func([]byte, error) bool) { yield(body, nil) }
	}
	there.interior.confirm = func(req *quoratev1.ConfirmPolicyRequest) (*quoratev1.ConfirmPolicyResponse, error) {
		return &quoratev1.ConfirmPolicyResponse{Revision: uint64(len(req.GetInstalled()))}, nil
	}
	n2 := mustSecure(t, ca, "n2", there)
	here := allowing()
	here.members = []Member{{ID: "n2", GRPC: n2.grpcAddr}}
	n1 := mustSecure(t, ca, "n1", here)
	peer, err := n1.Peer("n2")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := n1.Peer("n7"); quotaerr.ReasonOf(err) != quotaerr.NoQuorum {
		t.Errorf("a node that is not there: %v", err)
	}
	put := func(peer quoratev1.PeerClient, cluster, from string) error {
		stream, err := peer.PutBody(within(t, 20*time.Second))
		if err != nil {
			t.Fatal(err)
		}
		first := &quoratev1.PutBodyRequest{ClusterId: cluster, FromNode: from, Digest: make([]byte, 32), Epoch: 5}
		_ = stream.Send(first)
		for chunk := range slices.Chunk(body, MaxChunkBytes) {
			_ = stream.Send(&quoratev1.PutBodyRequest{Chunk: chunk})
		}
		_, err = stream.CloseAndRecv()
		return err
	}
	if err := put(peer, tlsCluster, "n1"); err != nil {
		t.Fatal(err)
	}
	want := sha256.Sum256(body)
	if !bytes.Equal(h.Sum(nil), want[:]) {
		t.Error("the body differs")
	}
	removed := quoratev1.NewPeerClient(mustDial(t, n2.grpcAddr, ca.must(t, identity.Node, "n9")))
	for name, c := range map[string]struct {
		err  error
		want quotaerr.Reason
	}{
		"another cluster":                   {put(peer, foreignCluster, "n1"), quotaerr.PermissionDenied},
		"another node":                      {put(peer, tlsCluster, "n3"), quotaerr.PermissionDenied},
		"a removed node":                    {put(removed, tlsCluster, "n9"), quotaerr.NoQuorum},
		"a removed node of another cluster": {put(removed, foreignCluster, "n9"), quotaerr.PermissionDenied},
	} {
		if e := errtable.FromStatus(c.err); e == nil || e.Reason != c.want {
			t.Errorf("%s: %v", name, c.err)
		}
	}
	mustEqual(t, epochs, []uint64{5})
	stream, err := peer.GetBody(within(t, 20*time.Second), &quoratev1.GetBodyRequest{ClusterId: tlsCluster, FromNode: "n1",
		Digest: want[:]})
	if err != nil {
		t.Fatal(err)
	}
	var got []byte
	for {
		m, err := stream.Recv()
		if err != nil {
			if !errors.Is(err, io.EOF) {
				t.Error(err)
			}
			break
		}
		got = append(got, m.GetChunk()...)
	}
	if !bytes.Equal(got, body) {
		t.Errorf("%d bytes came back", len(got))
	}
	confirmed, err := peer.ConfirmPolicy(within(t, 10*time.Second), &quoratev1.ConfirmPolicyRequest{ClusterId: tlsCluster,
		FromNode: "n1", Installed: []*quoratev1.InstalledPolicy{{}, {}}})
	if err != nil || confirmed.GetRevision() != 2 {
		t.Errorf("%v %v", confirmed, err)
	}
	has, err := peer.HasBody(within(t, 10*time.Second), &quoratev1.HasBodyRequest{ClusterId: tlsCluster, FromNode: "n1", Epoch: 7})
	if err != nil || !has.GetHas() {
		t.Errorf("%v %v", has, err)
	}
	_, err = peer.PartitionPolicy(within(t, 10*time.Second), &quoratev1.PartitionPolicyRequest{ClusterId: tlsCluster,
		FromNode: "n1", Partition: "p1"})
	if e := errtable.FromStatus(err); e == nil || e.Leader != "n9" || e.Message != "p1" {
		t.Errorf("%v", err)
	}
}
