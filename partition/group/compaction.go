package group

import (
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/hashicorp/raft"
)

// compactionPause is the least time between two snapshots that nobody asked for. It matters when a
// snapshot fails, or ends far before the end of the log.
const compactionPause = time.Second

// compactor takes snapshots: when the log has grown by Compaction.LogBytes, and when asked.
type compactor struct {
	grown chan struct{}   // an entry was stored while the log was over its size
	asked chan chan error // CompactNow
}

// stored is called after each append, on Raft's main goroutine.
func (g *RaftGroup) stored() {
	if g.logBytes() < g.config.Compaction.LogBytes {
		return
	}
	select {
	case g.compact.grown <- struct{}{}:
	default:
	}
}

// logBytes is what the log holds beyond the newest snapshot.
func (g *RaftGroup) logBytes() uint64 {
	s := g.store.Load()
	if s == nil { // bootstrap writes before the store is known
		return 0
	}
	return s.BytesAfter(s.SnapshotIndex())
}

func (g *RaftGroup) runCompactor() {
	var pause <-chan time.Time
	grown := g.compact.grown
	for {
		select {
		case <-g.closing:
			return
		case <-pause:
			pause, grown = nil, g.compact.grown
			g.stored() // it may have gone on growing
		case <-grown:
			if g.logBytes() < g.config.Compaction.LogBytes {
				continue
			}
			if err := g.snapshot(); err != nil && !errors.Is(err, ErrClosed) {
				g.config.Logger.Error("the log was not compacted", "error", err)
			}
			pause, grown = time.After(compactionPause), nil
		case answer := <-g.compact.asked:
			answer <- g.snapshot()
		}
	}
}

// snapshot takes a snapshot, and lets as much of the log stay as Compaction.TrailingBytes says.
func (g *RaftGroup) snapshot() error {
	if slots := g.config.SnapshotSlots; slots != nil {
		select {
		case slots <- struct{}{}:
			defer func() { <-slots }()
		case <-g.closing:
			return ErrClosed
		}
	}
	trailing := max(minTrailing, g.store.Load().EntriesWithin(g.config.Compaction.TrailingBytes))
	err := g.reconfigure(func(c *raft.ReloadableConfig) { c.TrailingLogs = trailing })
	if err != nil {
		return fmt.Errorf("group %s: set the trailing log: %w", g.config.Group, err)
	}
	err = g.raft.Snapshot().Error()
	switch {
	case err == nil:
		g.snapshots.Add(1)
		return nil
	case errors.Is(err, raft.ErrNothingNewToSnapshot):
		return nil
	}
	select {
	case <-g.closing: // Raft reports the interrupted write in words only
		return ErrClosed
	default:
		return fmt.Errorf("group %s: %w", g.config.Group, err)
	}
}

// CompactNow takes a snapshot and drops the log that it covers, but for what trails. It waits for the
// snapshot, however long that takes, or for Close.
func (g *RaftGroup) CompactNow() error {
	answer := make(chan error, 1)
	select {
	case g.compact.asked <- answer:
	case <-g.closing:
		return ErrClosed
	}
	select {
	case err := <-answer:
		return err
	case <-g.closing:
		return ErrClosed
	}
}

// OpenSnapshot takes a snapshot of at least all that has been applied, and opens what the Applier wrote of it. It
// stays readable when newer ones take its place. The caller closes it.
func (g *RaftGroup) OpenSnapshot() (io.ReadCloser, error) {
	if err := g.CompactNow(); err != nil {
		return nil, err
	}
	stored, err := g.store.Load().Snapshots.List()
	if err == nil && len(stored) == 0 {
		err = errors.New("there is none")
	}
	var r io.ReadCloser
	if err == nil {
		_, r, err = g.store.Load().Snapshots.Open(stored[0].ID)
	}
	if err != nil {
		return nil, fmt.Errorf("group %s: the snapshot that was just taken: %w", g.config.Group, err)
	}
	head := make([]byte, snapshotHeadBytes)
	if _, err := io.ReadFull(r, head); err != nil {
		return nil, errors.Join(fmt.Errorf("group %s: the snapshot that was just taken: %w", g.config.Group, err), r.Close())
	}
	return r, nil
}
