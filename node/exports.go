package node

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"strings"
	"sync"

	"github.com/quorate/quorate/control/state"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/partition"
	quoratev1 "github.com/quorate/quorate/proto/quorate/v1"
	"github.com/quorate/quorate/quotaerr"
)

// backups are the states out of backups that this node holds open, by name: what plans of kind restore make
// partitions of.
type backups struct {
	mu      sync.Mutex // guards sources
	sources map[string]partition.Source
}

// put makes a state known under the name that state.Plan.SourceName gives.
func (b *backups) put(name string, s partition.Source) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.sources == nil {
		b.sources = map[string]partition.Source{}
	}
	b.sources[name] = s
}

// drop forgets a state.
func (b *backups) drop(name string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.sources, name)
}

// of is the state of a name; nil when there is none.
func (b *backups) of(name string) partition.Source {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.sources[name]
}

// ExportSlots reads slots.
func (i *interior) ExportSlots(
	ctx context.Context, q *quoratev1.ExportSlotsRequest,
) (iter.Seq2[*quoratev1.ExportSlotsResponse, error], error) {
	return (*Node)(i).exportSlotsHere(ctx, q)
}

// exportSlotsHere reads slots of what this node has. Of a source that stands still the last message says what it has.
func (n *Node) exportSlotsHere(
	ctx context.Context, q *quoratev1.ExportSlotsRequest,
) (iter.Seq2[*quoratev1.ExportSlotsResponse, error], error) {
	source, still, err := n.exportSourceOf(q)
	if err != nil {
		return nil, err
	}
	ranges, err := slotRanges(q.GetRanges())
	if err != nil {
		return nil, err
	}
	if err := n.mustOwn(q, source); err != nil {
		return nil, err
	}
	have := make([]fsm.SlotDigest, len(q.GetHave()))
	for i, h := range q.GetHave() {
		if h.GetSlot() > uint32(fsm.HistorySlot) || len(h.GetDigest()) != len(have[i].Digest) ||
			i > 0 && fsm.Slot(h.GetSlot()) <= have[i-1].Slot {
			return nil, quotaerr.New(quotaerr.InvalidArgument, "have: item %d is no digest of a slot, or out of order", i)
		}
		have[i] = fsm.SlotDigest{Slot: fsm.Slot(h.GetSlot()), Digest: [16]byte(h.GetDigest())}
	}
	return func(yield func(*quoratev1.ExportSlotsResponse, error) bool) {
		for pieces := range partition.Export(source, ranges, have) {
			if ctx.Err() != nil {
				yield(nil, quotaerr.Wrap(quotaerr.Overloaded, ctx.Err(), "the export was broken off"))
				return
			}
			if !yield(messageOf(pieces), nil) {
				return
			}
		}
		if !still {
			return
		}
		manifest, born := partition.ManifestOf(source, ranges)
		err := n.mustOwn(q, source) // it has been so all the time, since it can begin to be so only once
		if err == nil && !born {
			err = quotaerr.New(quotaerr.InvalidArgument, "%.80s has never held anything", q.GetSource())
		}
		if err != nil {
			yield(nil, err)
			return
		}
		yield(&quoratev1.ExportSlotsResponse{Manifest: manifestOnWire(manifest)}, nil)
	}, nil
}

// mustOwn refuses a replica that does not own the slots as they are wanted: it may not have come as far as to take over
// what was moved to the partition, or not as far as to have given it back. Then usage is missing that nobody can have
// meant when accepting the loss of what came after the replica's last entry.
func (n *Node) mustOwn(q *quoratev1.ExportSlotsRequest, source partition.Source) error {
	if !q.GetAnyReplica() || strings.HasPrefix(q.GetSource(), state.BackupPrefix) {
		return nil
	}
	var owned []fsm.OwnedRange
	source.View(func(m *fsm.Machine) { owned = m.Status().Owned })
	slots, lacks := notOwned(owned, q.GetRanges())
	if !lacks {
		return nil
	}
	return quotaerr.New(quotaerr.InvalidArgument, "the replica of %.63q on node %s does not own slots %d to %d as the "+
		"cluster has them, so more is missing there than its last entries: take another replica, or recover the partition "+
		"without accepting the loss", q.GetSource(), n.cfg.ID, slots.First, slots.Last)
}

// notOwned are the first slots with an epoch that are not owned under it; false when all are.
func notOwned(owned []fsm.OwnedRange, wanted []*quoratev1.SlotRange) (fsm.SlotRange, bool) {
	for _, w := range wanted {
		next, last := fsm.Slot(w.GetFirstSlot()), fsm.Slot(w.GetLastSlot())
		for _, o := range owned { // in order
			if uint64(o.Epoch) == w.GetEpoch() && o.First <= next && next <= o.Last {
				next = o.Last + 1
			}
		}
		if w.GetEpoch() != 0 && next <= last {
			return fsm.SlotRange{First: next, Last: last}, true
		}
	}
	return fsm.SlotRange{}, false
}

// exportSourceOf is what is to be exported. still says that no plan freezes it, and that it does not change for other
// reasons: a backup, or a replica that is taken as it is.
func (n *Node) exportSourceOf(q *quoratev1.ExportSlotsRequest) (source partition.Source, still bool, err error) {
	id := q.GetSource()
	if strings.HasPrefix(id, state.BackupPrefix) {
		if source = n.backups.of(id); source == nil {
			return nil, false, quotaerr.New(quotaerr.NoQuorum,
				"node %s does not hold %.80s open: repeat the restore there, with the same backup", n.cfg.ID, id)
		}
		return source, true, nil
	}
	if !q.GetAnyReplica() {
		_, p, err := n.ledPartition(id)
		return p, false, err
	}
	if r := n.hosted.of(id); r != nil {
		if p := r.partition.Load(); p != nil {
			if why := p.Status().Diverged; why != "" {
				return nil, false, quotaerr.New(quotaerr.InvalidArgument,
					"the replica of %s on node %s has stopped for good, so its state is wrong: take another (%s)", id, n.cfg.ID, why)
			}
			return p, true, nil
		}
	}
	return nil, false, quotaerr.New(quotaerr.NoQuorum, "node %s has no open replica of partition %.63q", n.cfg.ID, id)
}

// messageOf is pieces as they are sent.
func messageOf(pieces []fsm.Piece) *quoratev1.ExportSlotsResponse {
	out := &quoratev1.ExportSlotsResponse{Pieces: make([]*quoratev1.SlotPiece, len(pieces))}
	for i, p := range pieces {
		out.Pieces[i] = &quoratev1.SlotPiece{
			Slot: uint32(p.Slot), Digest: p.Digest[:], Size: p.Size, Offset: p.Offset, Data: p.Data,
		}
	}
	return out
}

// ExportPartition reads the whole state of a partition that this node leads, as of an entry that was committed after
// the call: what partition.ReadSnapshot reads.
func (i *interior) ExportPartition(
	ctx context.Context, q *quoratev1.ExportPartitionRequest,
) (iter.Seq2[[]byte, error], error) {
	return (*Node)(i).exportPartitionHere(ctx, q.GetPartition())
}

func (n *Node) exportPartitionHere(ctx context.Context, id string) (iter.Seq2[[]byte, error], error) {
	r, p, err := n.ledPartition(id)
	if err != nil {
		return nil, err
	}
	g := r.group.Load()
	if err := p.Barrier(ctx); err != nil {
		return nil, err
	}
	if g == nil {
		return nil, quotaerr.New(quotaerr.NotLeader, "this node is stopping: ask another")
	}
	file, err := g.OpenSnapshot()
	if err != nil {
		return nil, quotaerr.Wrap(quotaerr.NoQuorum, err, "partition %s: its state cannot be read at present: %v", id, err)
	}
	return chunksOf(ctx, file), nil
}

// chunksOf reads to the end and closes, unless nobody begins to read.
func chunksOf(ctx context.Context, from io.ReadCloser) iter.Seq2[[]byte, error] {
	return func(yield func([]byte, error) bool) {
		defer func() { _ = from.Close() }() // it was only read
		for {
			buffer := make([]byte, pieceBytes) // the last one may not have been sent yet
			k, err := io.ReadFull(from, buffer)
			if k > 0 && !yield(buffer[:k], nil) {
				return
			}
			switch {
			case errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF):
				return
			case err == nil && ctx.Err() != nil:
				err = ctx.Err()
			}
			if err != nil {
				yield(nil, fmt.Errorf("a snapshot cannot be read on: %w", err))
				return
			}
		}
	}
}
