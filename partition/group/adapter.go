package group

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync/atomic"

	"github.com/hashicorp/raft"
)

// A snapshot's file begins with a head of the group's own, since Raft does not say which entry the
// state machine applied last:
//
//	magic "QGS1" | index of the last applied entry, 8 bytes big endian
const (
	snapshotMagic     = "QGS1"
	snapshotHeadBytes = len(snapshotMagic) + 8
)

// adapter is the Applier as Raft sees it.
type adapter struct {
	applier Applier
	group   string
	fatal   func(error)
	closing <-chan struct{}
	live    func(index, term uint64) bool
	applied atomic.Uint64 // index of the last entry given to the Applier
	broken  error         // only used by the goroutine that calls Restore
}

var (
	_ raft.FSM                = (*adapter)(nil)
	_ raft.ConfigurationStore = (*adapter)(nil)
)

// Apply gives a committed entry to the Applier.
func (a *adapter) Apply(l *raft.Log) any {
	result := a.applier.Apply(l.Index, l.Term, l.Data, a.live(l.Index, l.Term))
	a.applied.Store(l.Index)
	return result
}

// StoreConfiguration is there so that Raft counts a membership change as applied: without it, it
// refuses a snapshot until the next entry.
func (a *adapter) StoreConfiguration(uint64, raft.Configuration) {}

// Snapshot captures the Applier's state.
func (a *adapter) Snapshot() (raft.FSMSnapshot, error) {
	s, err := a.applier.Snapshot()
	if err != nil {
		return nil, err
	}
	return &captured{snapshot: s, index: a.applied.Load(), closing: a.closing}, nil
}

// Restore replaces the Applier's state. If it fails the state is neither the old nor the new one, so
// nothing may be applied to it, nor an older snapshot be tried.
func (a *adapter) Restore(from io.ReadCloser) error {
	if a.broken != nil {
		return a.broken
	}
	head := make([]byte, snapshotHeadBytes)
	_, err := io.ReadFull(from, head)
	if err == nil && string(head[:len(snapshotMagic)]) != snapshotMagic {
		err = fmt.Errorf("it begins with %q, expected %q", head[:len(snapshotMagic)], snapshotMagic)
	}
	if err == nil {
		err = a.applier.Restore(from)
	}
	if err != nil {
		a.broken = fmt.Errorf("group %s: a snapshot cannot be restored: %w; start the program version that "+
			"wrote it, or replace this replica", a.group, err)
		a.fatal(a.broken)
		return a.broken
	}
	a.applied.Store(binary.BigEndian.Uint64(head[len(snapshotMagic):]))
	return nil
}

// captured is a snapshot on its way to a file.
type captured struct {
	snapshot Snapshot
	index    uint64
	closing  <-chan struct{}
}

// Persist writes the snapshot; Raft closes or cancels the sink.
func (c *captured) Persist(sink raft.SnapshotSink) error {
	w := &interruptible{to: sink, closing: c.closing}
	head := binary.BigEndian.AppendUint64([]byte(snapshotMagic), c.index)
	_, err := w.Write(head)
	if err == nil {
		_, err = c.snapshot.WriteTo(w)
	}
	if err != nil {
		return errors.Join(err, sink.Cancel())
	}
	return nil
}

// Release lets the Applier forget what it captured.
func (c *captured) Release() { c.snapshot.Release() }

// interruptible ends a long write when the group closes.
type interruptible struct {
	to      io.Writer
	closing <-chan struct{}
}

func (w *interruptible) Write(p []byte) (int, error) {
	select {
	case <-w.closing:
		return 0, ErrClosed
	default:
		return w.to.Write(p)
	}
}
