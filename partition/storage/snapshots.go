package storage

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
)

// retainedSnapshots is how many snapshots stay: the newest, and the one before it, which a transfer to
// a follower may still be reading.
const retainedSnapshots = 2

// snapshots are the guarded snapshots of one group.
type snapshots struct {
	*raft.FileSnapshotStore
	dir    string
	guard  *failStop
	newest atomic.Uint64 // index of the newest snapshot; 0 none

	mu       sync.Mutex // guards the fields below
	starting bool
	broken   error
}

var _ raft.SnapshotStore = (*snapshots)(nil)

func openSnapshots(dir string, guard *failStop, logger hclog.Logger) (*snapshots, *raft.SnapshotMeta, error) {
	// Raft makes its own folder "snapshots" inside.
	store, err := raft.NewFileSnapshotStoreWithLogger(dir, retainedSnapshots, logger.Named("snapshots"))
	if err != nil {
		return nil, nil, fmt.Errorf("open snapshots in %s: %w", dir, err)
	}
	s := &snapshots{
		FileSnapshotStore: store, dir: filepath.Join(dir, "snapshots"), guard: guard, starting: true,
	}
	metas, err := store.List()
	if err != nil {
		return nil, nil, fmt.Errorf("list snapshots in %s: %w", s.dir, err)
	}
	if err := s.checkNewest(metas); err != nil {
		return nil, nil, err
	}
	if len(metas) == 0 {
		return s, nil, nil
	}
	s.newest.Store(metas[0].Index)
	return s, metas[0], nil
}

// checkNewest refuses a folder with a snapshot newer than the newest that can be read: Raft only warns
// of it, and would start from an older state.
func (s *snapshots) checkNewest(metas []*raft.SnapshotMeta) error {
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		return fmt.Errorf("list snapshots in %s: %w", s.dir, err)
	}
	readable := make(map[string]bool, len(metas))
	var newest uint64
	for _, m := range metas {
		readable[m.ID] = true
		newest = max(newest, m.Index)
	}
	for _, e := range entries {
		var term, index, millis uint64
		name := e.Name()
		if strings.HasSuffix(name, ".tmp") || readable[name] {
			continue
		}
		if n, _ := fmt.Sscanf(name, "%d-%d-%d", &term, &index, &millis); n == 3 && index >= newest {
			return fmt.Errorf("snapshot %s cannot be read: its meta data is damaged; data was lost: "+
				"replace this replica", filepath.Join(s.dir, name))
		}
	}
	return nil
}

// Open opens a snapshot and checks it whole. While Raft starts, one that cannot be read is the end of
// it, so that no older one takes its place.
func (s *snapshots) Open(id string) (*raft.SnapshotMeta, io.ReadCloser, error) {
	s.mu.Lock()
	broken := s.broken
	s.mu.Unlock()
	if broken != nil {
		return nil, nil, broken
	}
	meta, r, err := s.FileSnapshotStore.Open(id)
	if err == nil {
		return meta, r, nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.starting {
		s.broken = fmt.Errorf("snapshot %s cannot be read: %w; data was lost: replace this replica",
			filepath.Join(s.dir, id), err)
		return nil, nil, s.broken
	}
	return nil, nil, err
}

// started ends the strictness of Open: from now on a snapshot may go while somebody looks for it.
func (s *snapshots) started() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.starting = false
	return s.broken
}

// Create begins a snapshot; errors in writing it are fatal like those of the log.
func (s *snapshots) Create(version raft.SnapshotVersion, index, term uint64, c raft.Configuration,
	configurationIndex uint64, transport raft.Transport,
) (raft.SnapshotSink, error) {
	if err := s.guard.err(); err != nil {
		return nil, err
	}
	inner, err := s.FileSnapshotStore.Create(version, index, term, c, configurationIndex, transport)
	if err != nil {
		return nil, s.failed("begin", err)
	}
	return &sink{SnapshotSink: inner, store: s, index: index}, nil
}

func (s *snapshots) failed(operation string, err error) error {
	return s.guard.fail(fmt.Errorf("partition %s: %s of a snapshot in %s failed: %w; "+
		"check the disk and its free space, then start the node again",
		s.guard.partition, operation, s.dir, err))
}

// sink is a snapshot that is being written.
type sink struct {
	raft.SnapshotSink
	store *snapshots
	index uint64
	done  bool
}

func (k *sink) Write(p []byte) (int, error) {
	n, err := k.SnapshotSink.Write(p)
	if err != nil {
		return n, k.store.failed("write", err)
	}
	return n, nil
}

// Close makes the snapshot durable.
func (k *sink) Close() error {
	if k.done {
		return nil
	}
	k.done = true
	if err := k.SnapshotSink.Close(); err != nil {
		return k.store.failed("sync", err)
	}
	// One that the leader sent may have come in while this one was being written.
	for now := k.store.newest.Load(); now < k.index && !k.store.newest.CompareAndSwap(now, k.index); {
		now = k.store.newest.Load()
	}
	return nil
}

// Cancel drops the snapshot; after Close it does nothing.
func (k *sink) Cancel() error {
	if k.done {
		return nil
	}
	k.done = true
	return k.SnapshotSink.Cancel()
}

// reconcile brings log and newest snapshot into agreement after a crash between the two.
func reconcile(l *log, newest *raft.SnapshotMeta) error {
	first, err := l.FirstIndex()
	if err != nil {
		return fmt.Errorf("read %s: %w", l.file, err)
	}
	last, err := l.LastIndex()
	if err != nil {
		return fmt.Errorf("read %s: %w", l.file, err)
	}
	var snapshotIndex uint64
	if newest != nil {
		snapshotIndex = newest.Index
	}
	switch {
	case last == 0:
		return nil
	case first > snapshotIndex+1:
		return fmt.Errorf("%s begins at index %d, but the newest snapshot ends at %d: "+
			"what is between was lost: replace this replica", l.file, first, snapshotIndex)
	case snapshotIndex == 0:
		return nil
	case last < snapshotIndex:
		return l.DeleteRange(first, last)
	case first > snapshotIndex: // first == snapshotIndex+1: nothing to compare
		return nil
	}
	var entry raft.Log
	if err := l.GetLog(snapshotIndex, &entry); err != nil {
		return fmt.Errorf("%s: entry %d cannot be read: %w", l.file, snapshotIndex, err)
	}
	if entry.Term == newest.Term {
		return nil
	}
	// The snapshot is committed; a log with another entry in its place is not, from there on.
	return l.DeleteRange(first, last)
}

// closeAll closes in order, and reports all that failed.
func closeAll(closers ...io.Closer) error {
	var err error
	for _, c := range closers {
		err = errors.Join(err, c.Close())
	}
	return err
}
