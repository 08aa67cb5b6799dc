package admin

import (
	"context"
	"fmt"
	"io"

	"github.com/quorate/quorate/control/state"
	quoratev1 "github.com/quorate/quorate/proto/quorate/v1"
	"github.com/quorate/quorate/quotaerr"
	"github.com/quorate/quorate/rpc"
)

// SaveSnapshot writes a backup. That it was begun is in the audit trail before the first byte, and what it came to
// after the last.
func (a *Admin) SaveSnapshot(
	ctx context.Context, who rpc.Actor, req *quoratev1.SaveSnapshotRequest, w io.Writer,
) error {
	const action = "snapshot.save"
	c, err := a.cluster.Control()
	if err != nil {
		return err
	}
	object := "cluster " + c.State().Cluster
	if err := checkWhy("comment", req.GetComment()); err != nil {
		return a.refuseAsked(ctx, who, asked{action: action, object: object, comment: req.GetComment()}, err)
	}
	note := func(message, which string) *state.Command {
		return &state.Command{Kind: state.KindNote, Comment: req.GetComment(), Difference: which, Act: &state.Act{
			Action: action, Object: object, Message: message,
		}}
	}
	if _, err := a.propose(ctx, who, note("begun", "on node "+a.cluster.Self()), a.cluster.Propose); err != nil {
		return notNoted(err)
	}
	counting := &counter{to: w}
	digest, err := a.cluster.Save(ctx, counting)
	if err != nil {
		a.noteAttempt(ctx, who, asked{action: action, object: object, comment: req.GetComment()}, quotaerr.As(err).Message)
		return err
	}
	a.noteEnd(ctx, who, note("sent", fmt.Sprintf("backup %s: %d bytes", digest, counting.bytes)))
	return nil
}

// counter counts what is written.
type counter struct {
	to    io.Writer
	bytes int64
}

func (c *counter) Write(b []byte) (int, error) {
	n, err := c.to.Write(b)
	c.bytes += int64(n)
	return n, err
}

// RestoreSnapshot makes a cluster of a backup on this node. The record of it comes with the cluster.
func (a *Admin) RestoreSnapshot(
	ctx context.Context, who rpc.Actor, first *quoratev1.RestoreSnapshotRequest, backup io.Reader,
) (*quoratev1.RestoreSnapshotResponse, error) {
	err := checkWhy("comment", first.GetComment())
	var made Restored
	if err == nil {
		made, err = a.cluster.Restore(ctx, Restore{
			Actor: who.Name, Comment: first.GetComment(), AcceptLoss: first.GetAcceptLoss(), Backup: backup,
		})
	}
	if err != nil {
		if c, unmade := a.cluster.Control(); unmade == nil {
			what := asked{action: "cluster.restore", object: "cluster " + c.State().Cluster, comment: first.GetComment()}
			if first.GetAcceptLoss() {
				what.difference = "--accept-loss"
			}
			return nil, a.refuseAsked(ctx, who, what, err)
		}
		return nil, err // there is no audit trail
	}
	return &quoratev1.RestoreSnapshotResponse{
		ClusterId: made.Cluster, Incarnation: made.Incarnation, Nodes: made.Nodes, Partitions: made.Partitions,
	}, nil
}
