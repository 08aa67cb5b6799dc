package storage

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
)

const (
	// DefaultWriteTimeout is how long a write may take before the disk counts as stuck.
	DefaultWriteTimeout = 10 * time.Second
	// cachedEntries are kept in memory for followers that are a little behind: at 256 KiB for the
	// largest entry, 16 MiB at most.
	cachedEntries = 64
)

// Config is where and how a group's stores are kept.
type Config struct {
	Dir       string  // the group's own directory; made when missing
	Partition string  // names the group in messages
	Backend   Backend // "" means WAL
	// WriteTimeout is how long a write may take; 0 means DefaultWriteTimeout. Beyond it the process is
	// to end, so it must exceed the longest pause that the disk is known to make.
	WriteTimeout time.Duration
	// Fatal ends the process with a message; required. Called once at most, from any goroutine.
	Fatal func(error)
	// Stored, if set, is called after each append, from Raft's main goroutine: it must not block.
	Stored func()
	Logger hclog.Logger // nil discards
}

// Store is the open stores of one group.
type Store struct {
	Log       raft.LogStore
	Stable    raft.StableStore
	Snapshots raft.SnapshotStore

	log       *log
	stable    *stable
	snapshots *snapshots
}

// Open opens the stores of a group, reading its log once. It refuses, without repairing, what shows
// that data was lost.
func Open(c Config) (*Store, error) {
	if c.Dir == "" || c.Partition == "" || c.Fatal == nil {
		return nil, errors.New("storage: Dir, Partition and Fatal must be set")
	}
	if c.Backend == "" {
		c.Backend = WAL
	}
	if c.WriteTimeout == 0 {
		c.WriteTimeout = DefaultWriteTimeout
	}
	if c.Logger == nil {
		c.Logger = hclog.NewNullLogger()
	}
	if c.Stored == nil {
		c.Stored = func() {}
	}
	s, err := open(c)
	if err != nil {
		return nil, fmt.Errorf("partition %s: %w", c.Partition, err)
	}
	return s, nil
}

func open(c Config) (_ *Store, err error) {
	if err := os.MkdirAll(c.Dir, 0o750); err != nil {
		return nil, fmt.Errorf("make directory: %w", err)
	}
	if err := syncDir(filepath.Dir(c.Dir)); err != nil {
		return nil, fmt.Errorf("make directory: %w", err)
	}
	guard := &failStop{partition: c.Partition, fatal: c.Fatal, bound: c.WriteTimeout}
	backend, file, err := openBackend(c.Dir, c.Backend, c.Logger)
	if err != nil {
		return nil, err
	}
	s := &Store{log: &log{logBackend: backend, file: file, guard: guard, stored: c.Stored}}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Close())
		}
	}()
	if err := s.log.load(); err != nil {
		return nil, err
	}
	if s.stable, err = openStable(filepath.Join(c.Dir, "stable.db"), guard); err != nil {
		return nil, err
	}
	var newest *raft.SnapshotMeta
	if s.snapshots, newest, err = openSnapshots(c.Dir, guard, c.Logger); err != nil {
		return nil, err
	}
	if err := reconcile(s.log, newest); err != nil {
		return nil, err
	}
	cache, err := raft.NewLogCache(cachedEntries, s.log)
	if err != nil {
		return nil, fmt.Errorf("make log cache: %w", err)
	}
	s.Log, s.Stable, s.Snapshots = cache, s.stable, s.snapshots
	return s, nil
}

// Started tells the store that Raft has loaded what it needs: until then a snapshot that cannot be
// read is an error for good, and is returned here even if Raft went on with an older one.
func (s *Store) Started() error { return s.snapshots.started() }

// SnapshotIndex is the log index of the newest snapshot; 0 when there is none.
func (s *Store) SnapshotIndex() uint64 { return s.snapshots.newest.Load() }

// BytesAfter is about how many bytes the log holds in entries above an index.
func (s *Store) BytesAfter(index uint64) uint64 { return s.log.ledger.after(index) }

// EntriesWithin is how many of the newest entries have at most the given bytes together.
func (s *Store) EntriesWithin(bytes uint64) uint64 { return s.log.ledger.trailing(bytes) }

// LastStored is the index of the last entry on the disk, snapshot included.
func (s *Store) LastStored() (uint64, error) {
	last, err := s.log.LastIndex()
	return max(last, s.SnapshotIndex()), err
}

// Err is why the stores have failed, nil while they have not.
func (s *Store) Err() error { return s.log.guard.err() }

// Close closes the files. Raft must have stopped.
func (s *Store) Close() error {
	if s.stable == nil {
		return s.log.Close()
	}
	return closeAll(s.log, s.stable)
}
