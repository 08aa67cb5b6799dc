package rpc

import (
	"bytes"
	"context"
	"errors"
	"io"
	"iter"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/quorate/quorate/internal/errtable"
	"github.com/quorate/quorate/internal/identity"
	quoratev1 "github.com/quorate/quorate/proto/quorate/v1"
	"github.com/quorate/quorate/quotaerr"
)

// received reads a stream to its end, or its error.
func received[M any](stream grpc.ServerStreamingClient[M], err error) (out []*M, _ error) {
	for err == nil {
		var m *M
		if m, err = stream.Recv(); err == nil {
			out = append(out, m)
		}
	}
	if errors.Is(err, io.EOF) {
		return out, nil
	}
	return out, err
}

// Shows that a step of a plan, slots' state and a whole partition go between nodes as the asked one has them, with
// their refusals at the beginning and half-way, only to nodes of the cluster, and with the time that the asker has.
func TestPlansBetweenNodes(t *testing.T) {
	ca := mustCA(t, tlsCluster)
	there := allowing()
	there.removed = map[string]bool{"n9": true}
	halfWay := quotaerr.New(quotaerr.NotLeader, "the leadership has ended")
	halfWay.Leader = "n3"
	whole := bytes.Repeat([]byte("x"), MaxChunkBytes+7)
	there.interior = fakeInterior{
		step: func(req *quoratev1.PlanStepRequest) (*quoratev1.PlanStepResponse, error) {
			if req.GetPlan() == 9 {
				return nil, quotaerr.New(quotaerr.Capacity, "too many keys")
			}
			return &quoratev1.PlanStepResponse{End: quoratev1.PlanEnd_PLAN_END_OPEN, Revision: req.GetRevision()}, nil
		},
		slots: func(req *quoratev1.ExportSlotsRequest) (iter.Seq2[*quoratev1.ExportSlotsResponse, error], error) {
			if req.GetSource() == "backup/p1" {
				return nil, quotaerr.New(quotaerr.NoQuorum, "it is not open")
			}
			return func(yield func(*quoratev1.ExportSlotsResponse, error) bool) {
				for slot := range uint32(3) {
					piece := &quoratev1.SlotPiece{Slot: slot, Data: bytes.Repeat([]byte{byte(slot)}, MaxChunkBytes)}
					if !yield(&quoratev1.ExportSlotsResponse{Pieces: []*quoratev1.SlotPiece{piece}}, nil) {
						return
					}
				}
				if req.GetSource() == "p2" {
					yield(nil, halfWay)
				}
			}, nil
		},
		whole: func(*quoratev1.ExportPartitionRequest) (iter.Seq2[[]byte, error], error) {
			return func(yield func([]byte, error) bool) { yield(whole, nil) }, nil
		},
	}
	n2 := mustSecure(t, ca, "n2", there)
	here := allowing()
	here.members = []Member{{ID: "n2", GRPC: n2.grpcAddr}}
	n1 := mustSecure(t, ca, "n1", here)
	peer, err := n1.Peer("n2")
	if err != nil {
		t.Fatal(err)
	}
	step := func(peer quoratev1.PeerClient, cluster, from string, plan uint64) (*quoratev1.PlanStepResponse, error) {
		return peer.PlanStep(within(t, 10*time.Second), &quoratev1.PlanStepRequest{
			ClusterId: cluster, FromNode: from, Plan: plan, Revision: 4,
		})
	}
	if a, err := step(peer, tlsCluster, "n1", 8); err != nil || a.GetEnd() != quoratev1.PlanEnd_PLAN_END_OPEN || a.GetRevision() != 4 {
		t.Errorf("%v %v", a, err)
	}
	export := func(peer quoratev1.PeerClient, source string) ([]*quoratev1.ExportSlotsResponse, error) {
		return received(peer.ExportSlots(within(t, 20*time.Second),
			&quoratev1.ExportSlotsRequest{ClusterId: tlsCluster, FromNode: "n1", Source: source}))
	}
	slots, err := export(peer, "p1")
	if err != nil || len(slots) != 3 || len(slots[2].GetPieces()[0].GetData()) != MaxChunkBytes {
		t.Errorf("%d messages, %v", len(slots), err)
	}
	slots, cut := export(peer, "p2")
	if e := errtable.FromStatus(cut); e == nil || e.Leader != "n3" || len(slots) != 3 {
		t.Errorf("half-way: %v after %d messages", cut, len(slots))
	}
	chunks, err := received(peer.ExportPartition(within(t, 20*time.Second),
		&quoratev1.ExportPartitionRequest{ClusterId: tlsCluster, FromNode: "n1", Partition: "p1"}))
	var got []byte
	for _, m := range chunks {
		got = append(got, m.GetChunk()...)
	}
	if err != nil || !bytes.Equal(got, whole) {
		t.Errorf("%d bytes came, %v", len(got), err)
	}
	removed := quoratev1.NewPeerClient(mustDial(t, n2.grpcAddr, ca.must(t, identity.Node, "n9")))
	gateway := quoratev1.NewPeerClient(mustDial(t, n2.grpcAddr, ca.must(t, identity.Gateway, "g1")))
	_, refused := step(peer, tlsCluster, "n1", 9)
	_, foreign := step(peer, foreignCluster, "n1", 8)
	_, other := step(peer, tlsCluster, "n3", 8)
	_, gone := step(removed, tlsCluster, "n9", 8)
	_, notOpen := export(peer, "backup/p1")
	_, toGateway := export(gateway, "p1")
	_, wholeToGateway := received(gateway.ExportPartition(within(t, 10*time.Second), &quoratev1.ExportPartitionRequest{}))
	for name, c := range map[string]struct {
		err  error
		want quotaerr.Reason
	}{
		"refused":          {refused, quotaerr.Capacity},
		"another cluster":  {foreign, quotaerr.PermissionDenied},
		"another node":     {other, quotaerr.PermissionDenied},
		"a removed node":   {gone, quotaerr.NoQuorum},
		"no such backup":   {notOpen, quotaerr.NoQuorum},
		"a gateway":        {toGateway, quotaerr.PermissionDenied},
		"whole, a gateway": {wholeToGateway, quotaerr.PermissionDenied},
	} {
		if e := errtable.FromStatus(c.err); e == nil || e.Reason != c.want {
			t.Errorf("%s: %v", name, c.err)
		}
	}
}

// Shows that exports are among the transfers that a node may have under way, and that one which its reader gives up
// is not one any more.
func TestExportsAreBounded(t *testing.T) {
	ca := mustCA(t, tlsCluster)
	there := allowing()
	begun := make(chan struct{}, maxTransfersEach+1)
	there.interior.whole = func(*quoratev1.ExportPartitionRequest) (iter.Seq2[[]byte, error], error) {
		return func(yield func([]byte, error) bool) {
			begun <- struct{}{}
			for yield(make([]byte, MaxChunkBytes), nil) {
			}
		}, nil
	}
	n2 := mustSecure(t, ca, "n2", there)
	peer := quoratev1.NewPeerClient(mustDial(t, n2.grpcAddr, ca.must(t, identity.Node, "n1")))
	ctx, cancel := context.WithCancel(within(t, 20*time.Second))
	export := func(ctx context.Context) error {
		stream, err := peer.ExportPartition(ctx, &quoratev1.ExportPartitionRequest{ClusterId: tlsCluster, FromNode: "n1"})
		if err == nil {
			_, err = stream.Recv()
		}
		return err
	}
	for range maxTransfersEach {
		if err := export(ctx); err != nil {
			t.Fatal(err)
		}
		<-begun
	}
	if e := errtable.FromStatus(export(ctx)); e == nil || e.Reason != quotaerr.Overloaded {
		t.Errorf("one more: %v", e)
	}
	cancel()
	deadline := time.Now().Add(10 * time.Second)
	for err := errors.New("not asked"); err != nil; err = export(within(t, 10*time.Second)) {
		if time.Now().After(deadline) {
			t.Fatalf("after all were given up: %v", err)
		}
	}
}
