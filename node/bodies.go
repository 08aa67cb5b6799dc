package node

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"slices"
	"time"

	"github.com/quorate/quorate/control/bodies"
	"github.com/quorate/quorate/control/state"
	quoratev1 "github.com/quorate/quorate/proto/quorate/v1"
)

const (
	// pieceBytes is how much of a body one message has.
	pieceBytes = 512 << 10
	// hasBodyTimeout bounds the question whether a node has a body, pieceTimeout how long a node that sends one may be
	// silent, and bodyTimeout the whole.
	hasBodyTimeout = 2 * time.Second
	pieceTimeout   = 5 * time.Second
	bodyTimeout    = 5 * time.Minute
	// maxPushes bounds the nodes to which a body is sent at one time.
	maxPushes = 4
)

// spreadBody brings a body that is here to all nodes, as spreadBodyTo does.
func (n *Node) spreadBody(ctx context.Context, d state.Digest, epoch uint64) (held, of int, err error) {
	ids := []string{n.cfg.ID}
	for _, known := range n.control().State().Nodes {
		if known.State != state.NodeRemoved && known.ID != n.cfg.ID {
			ids = append(ids, known.ID)
		}
	}
	return n.spreadBodyTo(ctx, ids, d, epoch)
}

// spreadBodyTo brings a body that is here to nodes, and tells how many hold it of how many. It returns as soon as a
// majority does, and goes on with the rest meanwhile until ctx ends.
func (n *Node) spreadBodyTo(
	ctx context.Context, nodes []string, d state.Digest, epoch uint64,
) (held, of int, err error) {
	of = len(nodes)
	own, err := n.control().Bodies().Has(d, epoch)
	if err != nil {
		return 0, of, err
	}
	ids := slices.DeleteFunc(slices.Clone(nodes), func(id string) bool { return id == n.cfg.ID })
	if own && len(ids) < of {
		held = 1
	}
	results := make(chan error, len(ids))
	slots := make(chan struct{}, maxPushes)
	for _, id := range ids {
		n.pushes.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			results <- n.giveBody(n.life, id, d, epoch)
		})
	}
	var failed error
	for range ids {
		select {
		case err := <-results:
			if err == nil {
				held++
			} else {
				failed = err
			}
		case <-ctx.Done():
			return held, of, errors.Join(ctx.Err(), failed)
		}
		if 2*held > of {
			return held, of, nil
		}
	}
	return held, of, failed
}

// giveBody makes sure that a node holds a body.
func (n *Node) giveBody(ctx context.Context, id string, d state.Digest, epoch uint64) error {
	peer, err := n.server.Peer(id)
	if err != nil {
		return err
	}
	asking, cancel := context.WithTimeout(ctx, hasBodyTimeout)
	defer cancel()
	a, err := peer.HasBody(asking, &quoratev1.HasBodyRequest{
		ClusterId: n.cfg.ClusterID, FromNode: n.cfg.ID, Digest: d[:], Epoch: epoch,
	})
	if err != nil || a.GetHas() {
		return err
	}
	ctx, stop := context.WithTimeout(ctx, bodyTimeout)
	defer stop()
	stream, err := peer.PutBody(ctx)
	if err != nil {
		return err
	}
	first := &quoratev1.PutBodyRequest{ClusterId: n.cfg.ClusterID, FromNode: n.cfg.ID, Digest: d[:], Epoch: epoch}
	for piece, err := range pieces(n.control().Bodies().Chunks(d)) {
		if err != nil {
			return err
		}
		first.Chunk = piece
		if err := stream.Send(first); err != nil {
			break // CloseAndRecv says why
		}
		first = &quoratev1.PutBodyRequest{}
	}
	_, err = stream.CloseAndRecv()
	return err
}

// pieces cuts chunks to what one message carries.
func pieces(chunks iter.Seq2[[]byte, error]) iter.Seq2[[]byte, error] {
	return func(yield func([]byte, error) bool) {
		for chunk, err := range chunks {
			for first := true; first || len(chunk) > 0; first = false {
				piece := chunk[:min(len(chunk), pieceBytes)]
				if chunk = chunk[len(piece):]; !yield(piece, err) {
					return
				}
			}
		}
	}
}

// fetchBody makes a body local: it asks the other nodes for it, one after another.
func (n *Node) fetchBody(ctx context.Context, d state.Digest) error {
	select {
	case n.fetching <- struct{}{}:
		defer func() { <-n.fetching }()
	case <-ctx.Done():
		return ctx.Err()
	}
	c := n.control()
	s := c.State()
	if has, err := c.Bodies().Has(d, s.BodyEpoch); has || err != nil {
		return err
	}
	failed := fmt.Errorf("%w: %s, and no other node was asked", bodies.ErrNotFound, d)
	for _, known := range s.Nodes {
		if known.ID == n.cfg.ID || known.State == state.NodeRemoved {
			continue
		}
		err := n.fetchFrom(ctx, known.ID, d, s.BodyEpoch)
		if err == nil {
			return nil
		}
		failed = fmt.Errorf("policy body %s from node %s: %w", d, known.ID, err)
	}
	return failed
}

func (n *Node) fetchFrom(ctx context.Context, id string, d state.Digest, epoch uint64) error {
	ctx, cancel := context.WithTimeout(ctx, bodyTimeout)
	defer cancel()
	silent := time.AfterFunc(pieceTimeout, cancel)
	defer silent.Stop()
	peer, err := n.server.Peer(id)
	if err != nil {
		return err
	}
	stream, err := peer.GetBody(ctx, &quoratev1.GetBodyRequest{
		ClusterId: n.cfg.ClusterID, FromNode: n.cfg.ID, Digest: d[:],
	})
	if err != nil {
		return err
	}
	_, err = n.control().Bodies().Put(d, epoch, func(yield func([]byte, error) bool) {
		for {
			m, err := stream.Recv()
			silent.Reset(pieceTimeout)
			if errors.Is(err, io.EOF) || !yield(m.GetChunk(), err) {
				return
			}
		}
	})
	return err
}
