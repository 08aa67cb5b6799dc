package node

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"iter"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/quorate/quorate/backup"
	"github.com/quorate/quorate/control"
	"github.com/quorate/quorate/control/bodies"
	"github.com/quorate/quorate/control/state"
	"github.com/quorate/quorate/node/admin"
	"github.com/quorate/quorate/quotaerr"
)

const (
	// restoresAtOnce is how many partitions are in memory, and under way to their new replicas, at one time.
	restoresAtOnce = 2
	// spreadPatience bounds the wait until a majority of nodes holds the policies.
	spreadPatience = time.Minute
)

// incarnationsFrom is when the incarnations of restored clusters are counted from, in seconds.
var incarnationsFrom = time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC)

// Restore makes a cluster of a backup on this node.
func (c *cluster) Restore(ctx context.Context, r admin.Restore) (admin.Restored, error) {
	n := (*Node)(c)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(n.life, cancel)()
	if err := n.mayRestore(); err != nil {
		return admin.Restored{}, err
	}
	if !n.forming.CompareAndSwap(false, true) {
		return admin.Restored{}, errForming()
	}
	defer n.forming.Store(false)
	if !n.hasCluster() { // before a large file comes for nothing
		if _, err := n.mustBeFirst(ctx, isInTheWay); err != nil {
			return admin.Restored{}, err
		}
	}
	from, err := n.receive(ctx, r.Backup)
	if err != nil {
		return admin.Restored{}, err
	}
	defer func() { _ = from.spool.Close() }() // it has no name any more
	if err := from.check(ctx); err != nil {
		return admin.Restored{}, err
	}
	return from.make(ctx, &r)
}

// mayRestore refuses where there is a cluster already that is not waiting for the rest of a backup.
func (n *Node) mayRestore() error {
	c := n.control()
	if c == nil {
		return nil
	}
	s := c.State()
	switch {
	case !s.Born || s.RestoredFrom != (state.Digest{}) && (!allOwned(s) || len(openRestores(s)) > 0):
		return nil
	case s.RestoredFrom != (state.Digest{}):
		return quotaerr.New(quotaerr.InvalidArgument, "cluster %s is made already, of the backup with digest %s: see "+
			"`quorate cluster status`", s.Cluster, s.RestoredFrom)
	}
	return quotaerr.New(quotaerr.InvalidArgument, "cluster %s is made already: a backup is restored on nodes with empty "+
		"data directories", s.Cluster)
}

// openRestores are the plans under way that make partitions of a backup.
func openRestores(s *state.State) (out []*state.Plan) {
	for _, p := range s.Plans {
		if p.Kind == state.PlanRestore {
			out = append(out, p)
		}
	}
	return out
}

// make makes the cluster, or goes on making it.
func (r *restoring) make(ctx context.Context, q *admin.Restore) (out admin.Restored, err error) {
	goesOn := false
	c, err := r.found(ctx, q.Actor, func(s *state.State) (*state.Command, error) {
		goesOn = s.Born
		return r.init(q), r.mayGoOn(s, q)
	})
	if err != nil {
		return out, err
	}
	if goesOn {
		if err := r.note(ctx, c, q); err != nil {
			return out, err
		}
	}
	if err := r.spreadBodies(ctx, c); err != nil {
		return out, err
	}
	s, err := c.Read(ctx)
	if err != nil {
		return out, err
	}
	for _, known := range s.Nodes {
		if known.State != state.NodeRemoved {
			out.Nodes = append(out.Nodes, known.ID)
		}
	}
	all, partitionsCtx := errgroup.WithContext(ctx)
	all.SetLimit(restoresAtOnce)
	for k, p := range r.backup.Manifest().Partitions {
		all.Go(func() error { return r.restore(partitionsCtx, c, k, p, out.Nodes, q) })
	}
	if err := all.Wait(); err != nil {
		return out, err
	}
	if s, err = c.Read(ctx); err != nil {
		return out, err
	}
	if !allOwned(s) {
		return out, quotaerr.New(quotaerr.Internal, "all partitions were restored, and some slots have no owner")
	}
	out.Cluster, out.Incarnation = s.Cluster, s.Incarnation
	for _, p := range s.Partitions {
		out.Partitions = append(out.Partitions, p.ID.String())
	}
	r.logger.Info("a backup was restored", "digest", s.RestoredFrom.String(), "incarnation", s.Incarnation)
	return out, nil
}

// mayGoOn refuses a cluster that was begun with something else.
func (r *restoring) mayGoOn(s *state.State, q *admin.Restore) error {
	switch {
	case !s.Born:
		return nil
	case s.RestoredFrom == (state.Digest{}):
		return quotaerr.New(quotaerr.InvalidArgument, "cluster %s was begun without a backup: use empty data directories",
			s.Cluster)
	case s.RestoredFrom != r.kept.Backup:
		return quotaerr.New(quotaerr.InvalidArgument, "cluster %s is being made of the backup with digest %s, this one has "+
			"%s: repeat with the same file, or begin anew with empty data directories", s.Cluster, s.RestoredFrom, r.kept.Backup)
	}
	for _, p := range slices.Concat(s.Plans, s.Ended) {
		if p.Kind == state.PlanRestore && p.Phase != state.PlanAborted && p.AcceptLoss != q.AcceptLoss {
			with := map[bool]string{true: "with", false: "without"}[p.AcceptLoss]
			return quotaerr.New(quotaerr.InvalidArgument, "this restore was begun %s --accept-loss: repeat it %s "+
				"--accept-loss, or begin anew with blank data directories", with, with)
		}
	}
	return nil
}

// words say in the audit trail what is restored.
func (r *restoring) words(acceptLoss bool) string {
	m := r.backup.Manifest()
	loss := "each principal is denied until its longest window has passed"
	if acceptLoss {
		loss = "with --accept-loss: what was admitted after the backup is given up"
	}
	return fmt.Sprintf("the backup with digest %s, taken at %s from incarnation %d, with %d partitions; %s", r.kept.Backup,
		m.TakenAt.UTC().Format(time.RFC3339), m.Incarnation, len(m.Partitions), loss)
}

// init is the command that makes the cluster.
func (r *restoring) init(q *admin.Restore) *state.Command {
	// The wall clock decides nothing here but that a later restore of the same backup has the later incarnation.
	incarnation := max(r.kept.Incarnation+1, uint32(time.Since(incarnationsFrom)/time.Second))
	return &state.Command{
		Kind: state.KindInit, Actor: q.Actor, Comment: q.Comment, Difference: r.words(q.AcceptLoss),
		Init: &state.Init{Cluster: r.kept.Cluster, Incarnation: incarnation, Restored: r.kept},
	}
}

// note has the audit trail know that the restore goes on, and how.
func (r *restoring) note(ctx context.Context, c *control.Control, q *admin.Restore) error {
	_, err := c.Propose(ctx, &state.Command{
		Kind: state.KindNote, Actor: q.Actor, Comment: q.Comment,
		Act: &state.Act{
			Action: "cluster.restore", Object: "cluster " + r.kept.Cluster, Message: "goes on: " + r.words(q.AcceptLoss),
		},
	})
	return err
}

// spreadBodies brings the policies to a majority of nodes, before any log names them.
func (r *restoring) spreadBodies(ctx context.Context, c *control.Control) error {
	ctx, cancel := context.WithTimeout(ctx, spreadPatience)
	defer cancel()
	for _, f := range r.backup.Manifest().Files {
		sum, isBody := strings.CutPrefix(f.Name, backup.BodyDir)
		if !isBody {
			continue
		}
		raw, err := hex.DecodeString(sum)
		if err != nil || len(raw) != sha256.Size {
			return unusable("%s is no name of a policy", f.Name)
		}
		d := state.Digest(raw)
		from, _, err := r.backup.File(f.Name)
		if err != nil {
			return unusable("%v", err)
		}
		if _, err := c.Bodies().Put(d, c.State().BodyEpoch, bodyPieces(from)); err != nil {
			return quotaerr.Wrap(quotaerr.Internal, err, "a policy of the backup could not be kept; see the node's log")
		}
		for {
			held, of, err := r.spreadBody(ctx, d, c.State().BodyEpoch)
			if 2*held > of {
				break
			}
			select {
			case <-ctx.Done():
				return quotaerr.Wrap(quotaerr.NoQuorum, err, "only %d of %d nodes hold the policies: make the others reachable, "+
					"then repeat with the same file", held, of)
			case <-time.After(birthPoll):
			}
		}
	}
	return nil
}

// bodyPieces reads on in the pieces in which bodies are taken.
func bodyPieces(from io.Reader) iter.Seq2[[]byte, error] {
	return func(yield func([]byte, error) bool) {
		buffer := make([]byte, bodies.MaxChunkBytes)
		for {
			n, err := io.ReadFull(from, buffer)
			ended := errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
			if err != nil && !ended {
				yield(nil, err)
				return
			}
			if n > 0 && !yield(buffer[:n], nil) || ended {
				return
			}
		}
	}
}
