package storage

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
	boltdb "github.com/hashicorp/raft-boltdb/v2"
	wal "github.com/hashicorp/raft-wal"
	"go.etcd.io/bbolt"
)

// Backend is how a log is kept on the disk.
type Backend string

// The backends.
const (
	WAL    Backend = "wal"    // raft-wal: half the latency, flat after compaction; the default
	BoltDB Backend = "boltdb" // raft-boltdb: one file, two syncs a commit
)

// segmentBytes is the size of a raft-wal segment. Each is preallocated, so with many groups on a node
// raft-wal's own 64 MiB would fill the disk with nothing.
const segmentBytes = 8 << 20

// logBackend is a log store that can be closed.
type logBackend interface {
	raft.LogStore
	io.Closer
}

// boltOptions: without the freelist a commit writes less and a large file does not slow it; a file
// that another process holds is an error, not a wait for ever.
func boltOptions() *bbolt.Options {
	return &bbolt.Options{NoFreelistSync: true, FreelistType: bbolt.FreelistMapType, Timeout: time.Second}
}

// openBackend opens the log in dir and returns the name of its file or folder.
func openBackend(dir string, b Backend, logger hclog.Logger) (logBackend, string, error) {
	walDir, boltFile := filepath.Join(dir, "wal"), filepath.Join(dir, "log.db")
	// A log that is kept the other way must not be taken for an empty one.
	for path, other := range map[string]Backend{walDir: WAL, boltFile: BoltDB} {
		if _, err := os.Stat(path); err == nil && other != b {
			return nil, "", fmt.Errorf("log backend is set to %q, but %s holds a log of backend %q: "+
				"set it back to %q", b, path, other, other)
		}
	}
	switch b {
	case WAL:
		if err := os.MkdirAll(walDir, 0o750); err != nil {
			return nil, "", fmt.Errorf("make log directory: %w", err)
		}
		if err := syncDir(dir); err != nil {
			return nil, "", fmt.Errorf("make log directory: %w", err)
		}
		w, err := wal.Open(walDir, wal.WithSegmentSize(segmentBytes), wal.WithLogger(logger.Named("wal")))
		if err != nil {
			return nil, "", fmt.Errorf("open log %s: %w", walDir, err)
		}
		return w, walDir, nil
	case BoltDB:
		s, err := boltdb.New(boltdb.Options{
			Path: boltFile, BoltOptions: boltOptions(), MsgpackUseNewTimeFormat: true,
		})
		if err != nil {
			return nil, "", fmt.Errorf("open log %s: %w", boltFile, err)
		}
		return s, boltFile, nil
	default:
		return nil, "", fmt.Errorf("log backend %q is unknown: use %q or %q", b, WAL, BoltDB)
	}
}

// log is the guarded log of one group.
type log struct {
	logBackend
	file   string
	guard  *failStop
	ledger ledger
	closed atomic.Bool
	stored func() // called after each append
}

var (
	_ raft.LogStore          = (*log)(nil)
	_ raft.MonotonicLogStore = (*log)(nil)
)

// load fills the ledger, and so reads every entry once.
func (l *log) load() error {
	first, err := l.FirstIndex()
	if err != nil {
		return fmt.Errorf("read %s: %w", l.file, err)
	}
	last, err := l.LastIndex()
	if err != nil {
		return fmt.Errorf("read %s: %w", l.file, err)
	}
	for i := first; i <= last && i != 0; i++ {
		var entry raft.Log
		if err := l.logBackend.GetLog(i, &entry); err != nil {
			return fmt.Errorf("%s: entry %d of %d..%d cannot be read: %w; data was lost: replace this replica",
				l.file, i, first, last, err)
		}
		l.ledger.add([]*raft.Log{&entry})
	}
	return nil
}

// IsMonotonic makes Raft drop the whole log after the install of a snapshot, with either backend. It
// would otherwise keep trailing entries that may conflict with the snapshot (hashicorp/raft#697).
func (l *log) IsMonotonic() bool { return true }

// GetLog reads an entry. Raft panics when one that must be there cannot be read; this says why first.
// raft-wal goes on answering for entries that were truncated from the head of its newest segment; here
// they are gone.
func (l *log) GetLog(index uint64, out *raft.Log) error {
	if !l.ledger.holds(index) {
		return raft.ErrLogNotFound
	}
	err := l.logBackend.GetLog(index, out)
	if err == nil || l.closed.Load() {
		return err
	}
	if errors.Is(err, raft.ErrLogNotFound) && !l.ledger.holds(index) {
		return err // it was truncated meanwhile
	}
	return l.guard.fail(fmt.Errorf("partition %s: entry %d of %s cannot be read: %w; "+
		"check the disk, and replace this replica if it stays so", l.guard.partition, index, l.file, err))
}

func (l *log) StoreLog(entry *raft.Log) error { return l.StoreLogs([]*raft.Log{entry}) }

func (l *log) StoreLogs(logs []*raft.Log) error {
	err := l.guard.do(l.file, "append", func() error { return l.logBackend.StoreLogs(logs) })
	if err != nil {
		return err
	}
	l.ledger.add(logs)
	l.stored()
	return nil
}

func (l *log) DeleteRange(lowest, highest uint64) error {
	// First here, so that a reader who finds an entry gone can tell that it was meant to go.
	l.ledger.remove(lowest, highest)
	return l.guard.do(l.file, "truncation", func() error { return l.logBackend.DeleteRange(lowest, highest) })
}

func (l *log) Close() error {
	l.closed.Store(true)
	return l.logBackend.Close()
}
