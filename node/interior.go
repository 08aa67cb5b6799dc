package node

import (
	"context"
	"iter"
	"time"

	"github.com/quorate/quorate/control"
	"github.com/quorate/quorate/control/state"
	quoratev1 "github.com/quorate/quorate/proto/quorate/v1"
	"github.com/quorate/quorate/quotaerr"
	"github.com/quorate/quorate/rpc"

	"google.golang.org/protobuf/types/known/durationpb"
)

// interior answers other nodes.
type interior Node

var _ rpc.Interior = (*interior)(nil)

// ConfirmPolicy tells which policy is in force, if this node leads the control group.
func (i *interior) ConfirmPolicy(
	ctx context.Context, q *quoratev1.ConfirmPolicyRequest,
) (*quoratev1.ConfirmPolicyResponse, error) {
	return (*Node)(i).confirm(ctx, q)
}

// PartitionPolicy tells which policy a partition has, if this node leads it.
func (i *interior) PartitionPolicy(
	_ context.Context, q *quoratev1.PartitionPolicyRequest,
) (*quoratev1.PartitionPolicyResponse, error) {
	return (*Node)(i).partitionPolicyHere(q.GetPartition())
}

// partitionPolicyHere is the policy of a partition that this node leads.
func (n *Node) partitionPolicyHere(id string) (*quoratev1.PartitionPolicyResponse, error) {
	_, p, err := n.ledPartition(id)
	if err != nil {
		return nil, err
	}
	out := &quoratev1.PartitionPolicyResponse{Installed: uint64(p.Revision())}
	for _, c := range p.Carried() {
		out.Carried = append(out.Carried, &quoratev1.CarriedRule{
			ApiClass: c.Class, Revision: uint64(c.Revision), Version: c.Version,
			EndsIn: durationpb.New(time.Duration(c.EndsInNanos)),
		})
	}
	return out, nil
}

// HasBody tells whether a policy's body is here.
func (i *interior) HasBody(_ context.Context, q *quoratev1.HasBodyRequest) (*quoratev1.HasBodyResponse, error) {
	c, d, err := (*Node)(i).bodyOf(q.GetDigest())
	if err != nil {
		return nil, err
	}
	has, err := c.Bodies().Has(d, q.GetEpoch())
	return &quoratev1.HasBodyResponse{Has: has}, err
}

// PutBody keeps a policy's body, and makes it ready: else the install of a large one would find this node decoding for
// longer than its policy lease runs.
func (i *interior) PutBody(
	ctx context.Context, digest []byte, epoch uint64, chunks iter.Seq2[[]byte, error],
) error {
	c, d, err := (*Node)(i).bodyOf(digest)
	if err != nil {
		return err
	}
	if _, err = c.Bodies().Put(d, epoch, chunks); err == nil {
		_, err = c.Body(ctx, d)
	}
	return err
}

// GetBody reads a policy's body.
func (i *interior) GetBody(_ context.Context, q *quoratev1.GetBodyRequest) (iter.Seq2[[]byte, error], error) {
	c, d, err := (*Node)(i).bodyOf(q.GetDigest())
	if err != nil {
		return nil, err
	}
	return pieces(c.Bodies().Chunks(d)), nil
}

func (n *Node) bodyOf(digest []byte) (*control.Control, state.Digest, error) {
	c := n.control()
	switch {
	case c == nil:
		return nil, state.Digest{}, n.errNotMade()
	case len(digest) != len(state.Digest{}):
		return nil, state.Digest{}, quotaerr.New(quotaerr.InvalidArgument, "digest: it has %d bytes, a SHA-256 has 32",
			len(digest))
	}
	return c, state.Digest(digest), nil
}
