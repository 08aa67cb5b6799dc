package rpc

import (
	"context"

	"github.com/quorate/quorate/internal/errtable"
	quoratev1 "github.com/quorate/quorate/proto/quorate/v1"
)

// ReportPace tells node, the leader of a partition, that its partition time was seen to outrun a clock.
func (s *Server) ReportPace(ctx context.Context, node string, p Pace) error {
	client, err := s.Peer(node)
	if err != nil {
		return err
	}
	_, err = client.ReportPace(ctx, &quoratev1.ReportPaceRequest{
		ClusterId: s.desk.cluster, FromNode: p.From, Partition: p.Partition, Term: p.Term,
		PartitionNanos: p.PartitionNanos, LocalNanos: p.LocalNanos,
	})
	if err != nil {
		return errtable.FromStatus(err)
	}
	return nil
}

// Peer is the connection to another node, one of Backend.Members, which is made at first use and kept. Errors of
// its calls are gRPC's: errtable.FromStatus reads them. It may be used until Shutdown.
func (s *Server) Peer(node string) (quoratev1.PeerClient, error) { return s.desk.peer(node) }
