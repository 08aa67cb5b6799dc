package rpc

import (
	"context"

	quoratev1 "github.com/quorate/quorate/proto/quorate/v1"
	"github.com/quorate/quorate/quotaerr"
	"github.com/quorate/quorate/rpc/errtable"
)

// ReportPace tells node, the leader of a partition, that its partition time was seen to outrun a clock.
func (s *Server) ReportPace(ctx context.Context, node string, p Pace) error {
	members := s.desk.backend.Members()
	for _, m := range members {
		if m.ID != node {
			continue
		}
		client, err := s.desk.peers.to(m, members)
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
	return quotaerr.New(quotaerr.NoQuorum, "the leader %q is not among the nodes known here", node)
}
