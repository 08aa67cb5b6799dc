package node

import (
	"bufio"
	"context"
	"errors"
	"io"
	"iter"
	"time"

	"github.com/quorate/quorate/control/state"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/internal/errtable"
	quoratev1 "github.com/quorate/quorate/proto/quorate/v1"
	"github.com/quorate/quorate/quotaerr"
)

const (
	// revisionPatience bounds the wait for a partition to install the policy in force.
	revisionPatience = 15 * time.Second
	// revisionPoll is between two looks whether it has.
	revisionPoll = 50 * time.Millisecond
)

// exportAll copies each partition.
func (s *save) exportAll(ctx context.Context, now *state.State) error {
	for _, p := range now.Partitions {
		if len(p.Ranges) == 0 {
			continue // it owns nothing, so it has nothing that counts
		}
		if err := s.awaitRevision(ctx, p.ID.String(), now.RevisionNumber()); err != nil {
			return err
		}
		part, err := s.export(ctx, p.ID.String())
		if err != nil {
			return err
		}
		s.parts = append(s.parts, part)
	}
	return nil
}

// awaitRevision waits until a partition has installed a revision.
func (s *save) awaitRevision(ctx context.Context, id string, want fsm.Revision) error {
	waiting, cancel := context.WithTimeout(ctx, revisionPatience)
	defer cancel()
	for {
		a, err := (*cluster)(s.Node).PartitionPolicy(waiting, id)
		if err == nil && fsm.Revision(a.GetInstalled()) >= want {
			return nil
		}
		select {
		case <-waiting.Done():
			if err != nil {
				return quotaerr.Wrap(quotaerr.NoQuorum, err, "the leader of partition %s does not answer: see `quorate partition "+
					"list`, then save again; `quorate partition recover` is for one that has lost its majority for good", id)
			}
			return quotaerr.New(quotaerr.NoQuorum, "partition %s has policy revision %d and is yet to install %d: see `quorate "+
				"partition list`, then save again", id, a.GetInstalled(), want)
		case <-time.After(revisionPoll):
		}
	}
}

// export copies a partition from its leader, and reads the copy back: what could not be restored is found now.
func (s *save) export(ctx context.Context, id string) (out savedPart, err error) {
	if out.spool, err = s.newSpool(); err != nil {
		return out, err
	}
	defer func() {
		if err != nil {
			_ = out.Close() // it has no name any more
		}
	}()
	if err := s.copyTo(ctx, out.spool, id); err != nil {
		return out, err
	}
	loaded, err := loadState(bufio.NewReaderSize(out.again(), pieceBytes))
	if err != nil {
		return out, quotaerr.Wrap(quotaerr.Internal, err, "the copy of partition %s cannot be read back: %v", id, err)
	}
	out.Partition, out.owned, out.revision = loaded.describe(), loaded.ownedBy(), loaded.machine.Revision()
	for _, rule := range loaded.machine.Carried() {
		out.carried = append(out.carried, rule.Revision)
	}
	if out.ID != id {
		return out, quotaerr.New(quotaerr.Internal, "what was sent for partition %s is %.63q", id, out.ID)
	}
	return out, nil
}

// exportTries bounds the attempts to copy a partition whose leader changes.
const exportTries = 5

// copyTo copies a partition, from its next leader when it changes meanwhile.
func (s *save) copyTo(ctx context.Context, to *spool, id string) error {
	for try := 1; ; try++ {
		err := s.copyOnce(ctx, to, id)
		reason := quotaerr.As(err)
		switch {
		case err == nil:
			return nil
		case try < exportTries && (reason.Reason == quotaerr.NotLeader || reason.Reason == quotaerr.NoQuorum):
			if err := to.empty(); err != nil {
				return err
			}
			pauseFor(ctx, time.Duration(try)*revisionPoll*4, nil)
		default:
			return quotaerr.Wrap(reason.Reason, err, "partition %s cannot be copied: %s", id, reason.Message)
		}
	}
}

func (s *save) copyOnce(ctx context.Context, to *spool, id string) error {
	chunks, err := s.exportFrom(ctx, id)
	if err != nil {
		return err
	}
	for chunk, err := range chunks {
		if err != nil {
			return err
		}
		if _, err := to.Write(chunk); err != nil {
			return err
		}
	}
	return nil
}

// exportFrom begins to read a partition from the node that leads it.
func (s *save) exportFrom(ctx context.Context, id string) (iter.Seq2[[]byte, error], error) {
	q := &quoratev1.ExportPartitionRequest{ClusterId: s.cfg.ClusterID, FromNode: s.cfg.ID, Partition: id}
	leader, ok := (*cluster)(s.Node).Leader(id)
	switch {
	case !ok:
		return nil, quotaerr.New(quotaerr.NoQuorum, "no leader of partition %s is known: see `quorate partition list`", id)
	case leader == s.cfg.ID:
		return (*interior)(s.Node).ExportPartition(ctx, q)
	}
	peer, err := s.server.Peer(leader)
	if err != nil {
		return nil, err
	}
	stream, err := peer.ExportPartition(ctx, q)
	if err != nil {
		return nil, errtable.FromStatus(err)
	}
	return func(yield func([]byte, error) bool) {
		for {
			m, err := stream.Recv()
			switch {
			case errors.Is(err, io.EOF):
				return
			case err != nil:
				yield(nil, errtable.FromStatus(err))
				return
			case !yield(m.GetChunk(), nil):
				return
			}
		}
	}, nil
}
