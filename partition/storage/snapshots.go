package storage

import (
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/internal/chaos"
)

// retainedSnapshots is how many snapshots stay: the newest, and the one before it, which a transfer to
// a follower may still be reading.
const retainedSnapshots = 2

// snapshots are the guarded snapshots of one group.
type snapshots struct {
	raft.SnapshotStore
	name   string // of their folder
	stop   *failStop
	floor  *floor
	newest atomic.Pointer[Position] // where the newest snapshot ends; never nil

	mu       sync.Mutex // guards the fields below
	starting bool
	broken   error
}

var _ raft.SnapshotStore = (*snapshots)(nil)

func openSnapshots(disk Disk, newest Position, stop *failStop) (*snapshots, error) {
	store, err := disk.Snapshots()
	if err != nil {
		return nil, err
	}
	s := &snapshots{SnapshotStore: store, name: disk.Name(PartSnapshots), stop: stop, starting: true}
	s.newest.Store(&newest)
	return s, nil
}

// List is what there is, the newest first.
func (s *snapshots) List() ([]*raft.SnapshotMeta, error) {
	stored, err := s.SnapshotStore.List()
	if err != nil {
		return nil, err
	}
	metas := make([]*raft.SnapshotMeta, len(stored))
	for i, m := range stored {
		metas[i] = withoutHeader(m)
	}
	return metas, nil
}

// withoutHeader is what Raft is told of a snapshot.
func withoutHeader(m *raft.SnapshotMeta) *raft.SnapshotMeta {
	own := *m
	own.Size -= snapshotHeader
	return &own
}

// open opens a stored snapshot and takes the header off.
func (s *snapshots) open(id string) (*raft.SnapshotMeta, io.ReadCloser, error) {
	meta, r, err := s.SnapshotStore.Open(id)
	if err != nil {
		return nil, nil, err
	}
	header := make([]byte, snapshotHeader)
	_, err = io.ReadFull(r, header)
	if err == nil {
		err = checkSnapshotHeader(meta, header)
	}
	if err != nil {
		return nil, nil, errors.Join(err, r.Close())
	}
	return withoutHeader(meta), r, nil
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
	meta, r, err := s.open(id)
	if err == nil {
		return meta, r, nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.starting {
		s.broken = damaged(fmt.Errorf("snapshot %s cannot be read: %w", filepath.Join(s.name, id), err))
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
	if err := s.stop.err(); err != nil {
		return nil, err
	}
	var inner raft.SnapshotSink
	err := s.stop.do(s.name, "begin of a snapshot", func() (err error) {
		inner, err = s.SnapshotStore.Create(version, index, term, c, configurationIndex, transport)
		if err != nil {
			return err
		}
		header, err := sealSnapshot(&raft.SnapshotMeta{
			Version: version, ID: inner.ID(), Index: index, Term: term,
			Configuration: c, ConfigurationIndex: configurationIndex,
		})
		if err == nil {
			_, err = inner.Write(header)
		}
		if err != nil {
			return errors.Join(err, inner.Cancel())
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return &sink{SnapshotSink: inner, store: s, at: Position{Term: term, Index: index}}, nil
}

// sink is a snapshot that is being written.
type sink struct {
	raft.SnapshotSink
	store *snapshots
	at    Position
	bytes int64 // written
	done  bool
}

// slowestBytesPerSecond is what a disk must do to sync a snapshot in time.
const slowestBytesPerSecond = 4 << 20

// An install waits for the sink on Raft's main goroutine, so it is under the watchdog.

func (k *sink) Write(p []byte) (n int, err error) {
	err = k.store.stop.do(k.store.name, "write of a snapshot", func() error {
		n, err = k.SnapshotSink.Write(p)
		return err
	})
	k.bytes += int64(n)
	return n, err
}

// Close makes the snapshot durable.
func (k *sink) Close() error {
	if k.done {
		return nil
	}
	k.done = true
	bound := k.store.stop.bound + time.Duration(k.bytes/slowestBytesPerSecond)*time.Second
	err := k.store.stop.doWithin(bound, k.store.name, "sync of a snapshot", func() error {
		chaos.SlowSync()
		return k.SnapshotSink.Close()
	})
	if err != nil {
		return err
	}
	err = k.store.stop.do(k.store.floor.name, "write", func() error {
		return k.store.floor.note(func(r *floorRecord) {
			if r.at.Index < k.at.Index { // installed: the log does not reach so far
				r.at, r.chain = k.at, chainHash{}
			}
		})
	})
	if err != nil {
		return err
	}
	// One that the leader sent may have come in while this one was being written.
	for now := k.store.newest.Load(); now.Index < k.at.Index && !k.store.newest.CompareAndSwap(now, &k.at); {
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

// reconcile brings log and newest snapshot, which have been verified, into agreement after a crash between
// the two.
func reconcile(l *log, sc *scan, newest Position) error {
	switch {
	case sc.last == 0, newest.Index == 0:
		return nil
	case sc.last < newest.Index:
		return l.DeleteRange(sc.first, sc.last)
	case sc.first > newest.Index: // by one: nothing to compare
		return nil
	case sc.snapshotTerm == newest.Term:
		return nil
	}
	// The snapshot is committed; a log with another entry in its place is not, from there on.
	return l.DeleteRange(sc.first, sc.last)
}

// closeAll closes in order, and reports all that failed.
func closeAll(closers ...io.Closer) error {
	var err error
	for _, c := range closers {
		err = errors.Join(err, c.Close())
	}
	return err
}
