package rpc

import (
	"context"

	quoratev1 "github.com/quorate/quorate/proto/quorate/v1"
	"github.com/quorate/quorate/quotaerr"
)

// ReplaceNode has the leader take a node's lost replica out of the group.
func (s *adminService) ReplaceNode(
	ctx context.Context, req *quoratev1.ReplaceNodeRequest,
) (*quoratev1.ReplaceNodeResponse, error) {
	if err := nodeName(req.GetNode()); err != nil {
		return nil, err
	}
	var out *quoratev1.ReplaceNodeResponse
	// Asking twice does no more than asking once, so an attempt whose fate is unknown is simply repeated.
	j := &journey{desk: s.desk, harmless: true}
	err := j.run(ctx, func(ctx context.Context, to target) (err error) {
		if to.local {
			out, err = s.desk.replace(ctx, req.GetNode())
			return err
		}
		out, err = to.client.ForwardReplaceNode(ctx, &quoratev1.ForwardReplaceNodeRequest{
			ClusterId: s.desk.cluster, FromNode: s.desk.node, Replace: req,
		})
		return err
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

// ForwardReplaceNode is the same, asked by a node that does not lead.
func (s *peerService) ForwardReplaceNode(
	ctx context.Context, req *quoratev1.ForwardReplaceNodeRequest,
) (*quoratev1.ReplaceNodeResponse, error) {
	if err := s.admit(ctx, req.GetClusterId(), req.GetFromNode()); err != nil {
		return nil, err
	}
	node := req.GetReplace().GetNode()
	if err := nodeName(node); err != nil {
		return nil, err
	}
	ctx, cancel := bounded(ctx)
	defer cancel()
	return s.desk.replace(ctx, node)
}

// replace has it done by this node and nobody else.
func (d *desk) replace(ctx context.Context, node string) (*quoratev1.ReplaceNodeResponse, error) {
	r, err := d.backend.ReplaceNode(ctx, node)
	if err != nil {
		return nil, quotaerr.As(err)
	}
	out := &quoratev1.ReplaceNodeResponse{Next: r.Next}
	for _, m := range r.Removed {
		out.Removed = append(out.Removed, &quoratev1.RemovedReplica{Partition: m.Partition, Instance: m.Instance})
	}
	return out, nil
}

// maxNodeIDBytes bounds a node's id.
const maxNodeIDBytes = 63

// nodeName refuses what cannot be a node's id.
func nodeName(id string) error {
	if id == "" || len(id) > maxNodeIDBytes {
		return quotaerr.New(quotaerr.InvalidArgument, "node: name the node's id, as `quorate cluster status` shows it")
	}
	return nil
}
