package node

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/quorate/quorate/backup"
	"github.com/quorate/quorate/control"
	"github.com/quorate/quorate/control/state"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/quotaerr"
)

const (
	// saveAttempts is how often a backup is begun anew because the cluster changed meanwhile.
	saveAttempts = 3
	// plansPatience bounds the wait for plans that are under way.
	plansPatience = 30 * time.Second
	// committedTimeout bounds the question for the state that is committed.
	committedTimeout = 5 * time.Second
)

// Save writes a backup of the whole cluster, made by this node whoever leads. All is collected first, so that
// whoever reads slowly holds nothing up.
func (c *cluster) Save(ctx context.Context, w io.Writer) (digest state.Digest, err error) {
	n := (*Node)(c)
	if _, err := c.Control(); err != nil {
		return digest, err
	}
	if !n.saving.CompareAndSwap(false, true) {
		return digest, quotaerr.New(quotaerr.Overloaded, "node %s makes a backup at this moment: wait until it is done, or "+
			"ask another node", n.cfg.ID)
	}
	defer n.saving.Store(false)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(n.life, cancel)()
	s := &save{Node: n, at: time.Now()}
	defer s.close()
	if err := s.collect(ctx); err != nil {
		return digest, err
	}
	out := bufio.NewWriterSize(w, pieceBytes)
	d, err := s.write(out)
	if err == nil {
		err = out.Flush()
	}
	if err == nil {
		n.logger.Info("a backup was made", "digest", d.String(), "partitions", len(s.parts),
			"took", time.Since(s.at).String())
	}
	return state.Digest(d), err
}

// save is a backup in the making.
type save struct {
	*Node
	at    time.Time
	state *state.State // as of which all of it is
	kept  *state.Restored
	parts []savedPart
	audit *spool
	// bodies are in the order of their names.
	bodies []savedBody
}

// savedPart is a partition's state in a file.
type savedPart struct {
	*spool
	backup.Partition
	revision fsm.Revision
	owned    owns
	carried  []fsm.Revision
}

type savedBody struct {
	digest state.Digest
	size   int64
}

func (s *save) close() {
	s.drop()
	if s.audit != nil {
		_ = s.audit.Close() // it has no name any more
	}
}

// drop forgets the partitions.
func (s *save) drop() {
	for _, p := range s.parts {
		_ = p.Close() // it has no name any more
	}
	s.parts = nil
}

// collect copies everything into files.
func (s *save) collect(ctx context.Context) error {
	var changed error
	for range saveAttempts {
		before, err := s.quiet(ctx)
		if err != nil {
			return err
		}
		s.drop()
		if err := s.exportAll(ctx, before); err != nil {
			return err
		}
		if s.state, err = s.committed(ctx); err != nil {
			return err
		}
		if changed = s.fits(before); changed == nil {
			break
		}
		s.logger.Info("the backup is begun anew", "because", changed)
	}
	if changed != nil {
		return quotaerr.New(quotaerr.NoQuorum, "the cluster has changed while the backup was made, %d times: %v; try again "+
			"later", saveAttempts, changed)
	}
	s.kept = s.state.Restored()
	if last := len(s.kept.Revisions); last == 0 || s.kept.Revisions[last-1].Number != s.state.RevisionNumber() {
		return quotaerr.New(quotaerr.Internal, "the policy in force does not fit into a backup")
	}
	if err := s.collectBodies(ctx); err != nil {
		return err
	}
	return s.collectAudit(ctx)
}

// committed is the state as of an entry that was committed after the call, as this node has applied it.
func (s *save) committed(ctx context.Context) (out *state.State, err error) {
	ctx, cancel := context.WithTimeout(ctx, committedTimeout)
	defer cancel()
	c := s.control()
	r, err := (*cluster)(s.Node).Propose(ctx, &state.Command{Kind: state.KindConfirm})
	if err != nil {
		return nil, quotaerr.Wrap(quotaerr.NoQuorum, err, "the control group does not answer: %s", quotaerr.As(err).Message)
	}
	err = awaitState(ctx, c, func(now *state.State) bool {
		out = now
		return now.Version >= r.Version
	})
	if err != nil {
		return nil, quotaerr.Wrap(quotaerr.NoQuorum, err, "node %s is behind the control group: ask another", s.cfg.ID)
	}
	return out, nil
}

// awaitState waits until the state is as so asks for.
func awaitState(ctx context.Context, c *control.Control, so func(*state.State) bool) error {
	enough := errors.New("it is so")
	err := c.Watch(ctx, func(now *state.State) error {
		if so(now) {
			return enough
		}
		return nil
	})
	switch {
	case errors.Is(err, enough):
		return nil
	case err == nil:
		return quotaerr.New(quotaerr.NotLeader, "this node is stopping: ask another")
	}
	return err
}

// quiet is a committed state in which all slots have an owner, no plan is under way and there is a policy.
func (s *save) quiet(ctx context.Context) (*state.State, error) {
	now, err := s.committed(ctx)
	if err != nil {
		return nil, err
	}
	if now.InForce() == nil {
		return nil, quotaerr.New(quotaerr.InvalidArgument, "the cluster has no policy yet, and has admitted nothing: there "+
			"is nothing to save")
	}
	waiting, cancel := context.WithTimeout(ctx, plansPatience)
	defer cancel()
	err = awaitState(waiting, s.control(), func(newer *state.State) bool {
		now = newer
		return len(now.Plans) == 0
	})
	switch {
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case len(now.Plans) > 0:
		return nil, quotaerr.Wrap(quotaerr.NoQuorum, err, "plan %d is under way: wait until it is done, or abort it, then "+
			"save again", now.Plans[0].ID)
	case err != nil:
		return nil, err
	case !allOwned(now):
		return nil, quotaerr.New(quotaerr.NoQuorum, "the cluster is being made: wait until all its partitions are there")
	}
	return now, nil
}

// fits tells why the copies and the state that was committed after them are not of one moment; nil when they are.
func (s *save) fits(before *state.State) error {
	if s.state.LastPlan != before.LastPlan || len(s.state.Plans) > 0 {
		return errors.New("slots were moved")
	}
	i := 0
	for _, p := range s.state.Partitions {
		if len(p.Ranges) == 0 {
			continue
		}
		switch {
		case i == len(s.parts) || s.parts[i].ID != p.ID.String() || s.parts[i].owned != ownedIn(p.Ranges):
			return fmt.Errorf("partition %s owns other slots", p.ID)
		case s.parts[i].revision != s.state.RevisionNumber():
			return errors.New("a policy was put in force")
		}
		i++
	}
	if i != len(s.parts) {
		return errors.New("a partition is gone")
	}
	return nil
}

// write writes what was collected.
func (s *save) write(to io.Writer) (d backup.Digest, err error) {
	w := backup.NewWriter(to, s.at)
	kept := state.AppendRestored(nil, s.kept)
	_ = w.Add(backup.ControlName, int64(len(kept)), strings.NewReader(string(kept))) // the first error stays
	_ = w.Add(backup.AuditName, s.audit.size, s.audit.again())
	for _, b := range s.bodies {
		if err := s.writeBody(w, b); err != nil {
			return d, err
		}
	}
	m := &backup.Manifest{
		Program: s.version, Cluster: s.state.Cluster, Incarnation: s.state.Incarnation, MapVersion: s.state.MapVersion,
		PolicyRevision: uint64(s.state.RevisionNumber()), PolicyVersion: s.state.InForce().Label,
	}
	for _, p := range s.parts {
		_ = w.Add(backup.PartitionDir+p.ID, p.size, p.again())
		m.Partitions = append(m.Partitions, p.Partition)
	}
	return w.Close(m)
}

func (s *save) writeBody(w *backup.Writer, b savedBody) error {
	body, _, err := s.control().Bodies().Get(b.digest)
	if err != nil {
		return quotaerr.Wrap(quotaerr.Internal, err, "a policy's body could not be read; see the node's log")
	}
	defer func() { _ = body.Close() }() // it was only read
	return w.Add(backup.BodyDir+b.digest.String(), b.size, body)
}
