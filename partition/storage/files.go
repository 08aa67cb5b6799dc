package storage

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
	boltdb "github.com/hashicorp/raft-boltdb/v2"
	wal "github.com/hashicorp/raft-wal"
	"github.com/hashicorp/raft-wal/segment"

	"github.com/quorate/quorate/internal/guard"
	"github.com/quorate/quorate/internal/raftlog"
)

// Backend is how a log is kept in files.
type Backend string

// The backends.
const (
	WAL    Backend = "wal"    // raft-wal: half the latency, flat after compaction; the default
	BoltDB Backend = "boltdb" // raft-boltdb: one file, two syncs a commit
)

// segmentBytes is the size of a raft-wal segment. Each is preallocated, so with many groups on a node
// raft-wal's own 64 MiB would fill the disk with nothing.
const segmentBytes = 8 << 20

// The names in a group's folder.
const (
	walFolder      = "wal"
	boltFile       = "log.db"
	stableFile     = "stable.db"
	floorFile      = "floor"
	snapshotFolder = "snapshots" // Raft's own name for it
)

// Files is the Disk of the product: a folder of files.
type Files struct {
	dir     string
	backend Backend
	logger  *slog.Logger

	segmentBytes int // of raft-wal
}

var _ Disk = (*Files)(nil)

// NewFiles is the Disk in dir, whose log is of the given backend; "" means WAL, a nil logger discards. It
// touches nothing.
func NewFiles(dir string, b Backend, logger *slog.Logger) *Files {
	if b == "" {
		b = WAL
	}
	if logger == nil {
		logger = slog.New(slog.DiscardHandler)
	}
	return &Files{dir: dir, backend: b, logger: logger, segmentBytes: segmentBytes}
}

// Name is the path of a part.
func (f *Files) Name(p Part) string {
	name := map[Part]string{
		PartLog: walFolder, PartStable: stableFile, PartFloor: floorFile, PartSnapshots: snapshotFolder,
	}[p]
	if p == PartLog && f.backend == BoltDB {
		name = boltFile
	}
	return filepath.Join(f.dir, name)
}

// Parts are those that are there.
func (f *Files) Parts() ([]Part, error) {
	if err := f.otherBackend(); err != nil {
		return nil, err
	}
	var found []Part
	for _, p := range []Part{PartLog, PartStable, PartFloor, PartSnapshots} {
		_, err := os.Stat(f.Name(p))
		switch {
		case err == nil:
			found = append(found, p)
		case !errors.Is(err, fs.ErrNotExist):
			return nil, err
		}
	}
	return found, nil
}

// otherBackend refuses a log that is kept the other way: it must not be taken for an empty one.
func (f *Files) otherBackend() error {
	for name, other := range map[string]Backend{walFolder: WAL, boltFile: BoltDB} {
		path := filepath.Join(f.dir, name)
		if _, err := os.Stat(path); err == nil && other != f.backend {
			return fmt.Errorf("log backend is set to %q, but %s holds a log of backend %q: "+
				"set it back to %q", f.backend, path, other, other)
		}
	}
	return nil
}

// Log opens the log.
func (f *Files) Log(readOnly bool) (LogBackend, error) {
	if err := f.otherBackend(); err != nil {
		return nil, err
	}
	if !readOnly {
		if err := f.makeFolder(); err != nil {
			return nil, err
		}
	}
	switch f.backend {
	case WAL:
		return f.wal(readOnly)
	case BoltDB:
		path := f.Name(PartLog)
		s, err := openBolt(path, readOnly, func(path string) (*boltdb.BoltStore, error) {
			return boltdb.New(boltdb.Options{
				Path: path, BoltOptions: boltOptions(readOnly), MsgpackUseNewTimeFormat: true,
				NoSync: !guard.On(guard.SyncedWrite),
			})
		})
		if err != nil {
			return nil, fmt.Errorf("open log %s: %w", path, err)
		}
		return s, nil
	default:
		return nil, fmt.Errorf("log backend %q is unknown: use %q or %q", f.backend, WAL, BoltDB)
	}
}

func (f *Files) wal(readOnly bool) (LogBackend, error) {
	dir, logger := f.Name(PartLog), raftlog.New(f.logger, "wal")
	if readOnly {
		blank, err := blankWAL(dir)
		if err != nil {
			return nil, err
		}
		if blank {
			return nil, fmt.Errorf("%s holds no log: %w", dir, fs.ErrNotExist)
		}
		logger = hclog.NewNullLogger() // what it would repair is not repaired
	} else {
		if err := os.MkdirAll(dir, 0o750); err != nil {
			return nil, fmt.Errorf("make log directory: %w", err)
		}
		if err := syncDir(f.dir); err != nil {
			return nil, fmt.Errorf("make log directory: %w", err)
		}
	}
	turned := &segmentTurn{}
	files, meta := newWALFiles(readOnly, turned), &walMeta{readOnly: readOnly, turned: turned}
	opened := false
	defer func() {
		if !opened { // an error, or a panic on what cannot be read
			files.abandon()
			_ = meta.Close() // there is an error to report already
		}
	}()
	w, err := wal.Open(dir, wal.WithSegmentSize(f.segmentBytes), wal.WithLogger(logger),
		wal.WithSegmentFiler(segment.NewFiler(dir, files)), wal.WithMetaStore(meta))
	if err != nil {
		return nil, fmt.Errorf("open log %s: %w", dir, err)
	}
	opened = true
	files.opened()
	return walLog{w, turned}, nil
}

// makeFolder makes the folder, durably.
func (f *Files) makeFolder() error {
	if err := os.MkdirAll(f.dir, 0o750); err != nil {
		return fmt.Errorf("make directory: %w", err)
	}
	if err := syncDir(filepath.Dir(f.dir)); err != nil {
		return fmt.Errorf("make directory: %w", err)
	}
	return nil
}

// Floor opens the floor.
func (f *Files) Floor(readOnly bool) (File, error) {
	if readOnly {
		file, err := os.Open(f.Name(PartFloor))
		if err != nil {
			return nil, err
		}
		return file, nil
	}
	if err := f.makeFolder(); err != nil {
		return nil, err
	}
	file, err := os.OpenFile(f.Name(PartFloor), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := syncDir(f.dir); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	if !guard.On(guard.SyncedWrite) {
		return unsyncedFile{file}, nil
	}
	return file, nil
}

// Stable opens the table of term and vote.
func (f *Files) Stable(readOnly bool) (Table, error) {
	if !readOnly {
		if err := f.makeFolder(); err != nil {
			return nil, err
		}
	}
	t, err := openTable(f.Name(PartStable), readOnly)
	if err != nil {
		return nil, err // not a Table that holds nil
	}
	return t, nil
}

// Snapshots opens the snapshots.
func (f *Files) Snapshots() (raft.SnapshotStore, error) {
	// Raft makes its own folder inside.
	store, err := raft.NewFileSnapshotStoreWithLogger(f.dir, retainedSnapshots, raftlog.New(f.logger, "snapshots"))
	if err != nil {
		return nil, fmt.Errorf("open snapshots in %s: %w", f.dir, err)
	}
	return store, nil
}
