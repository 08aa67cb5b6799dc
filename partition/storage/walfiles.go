package storage

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/hashicorp/raft"
	wal "github.com/hashicorp/raft-wal"
	walfs "github.com/hashicorp/raft-wal/fs"
	"github.com/hashicorp/raft-wal/metadb"
	"github.com/hashicorp/raft-wal/types"
	"go.etcd.io/bbolt"

	"github.com/quorate/quorate/internal/guard"
)

var errReadOnly = errors.New("the log is open for reading only")

// walFiles are the files of raft-wal. Read-only, nothing on the disk changes: what raft-wal would make or
// repair exists in memory.
type walFiles struct {
	types.VFS
	readOnly bool
	turned   *segmentTurn

	mu   sync.Mutex // guards open
	open []io.Closer
}

func newWALFiles(readOnly bool, t *segmentTurn) *walFiles {
	return &walFiles{VFS: walfs.New(), readOnly: readOnly, turned: t}
}

// Create makes a segment file. A tail that a crash left without its file is read as empty.
func (v *walFiles) Create(dir, name string, size uint64) (types.WritableFile, error) {
	if v.readOnly {
		return emptyFile{}, nil
	}
	f, err := v.VFS.Create(dir, name, size)
	return v.writable(f, v.turned.note(err))
}

// Delete removes a segment file.
func (v *walFiles) Delete(dir, name string) error {
	if v.readOnly {
		return errReadOnly // raft-wal goes on
	}
	return v.VFS.Delete(dir, name)
}

// OpenReader opens a segment that is complete.
func (v *walFiles) OpenReader(dir, name string) (types.ReadableFile, error) {
	f, err := v.VFS.OpenReader(dir, name)
	if err == nil {
		v.track(f)
	}
	return f, err
}

// OpenWriter opens the tail.
func (v *walFiles) OpenWriter(dir, name string) (types.WritableFile, error) {
	if v.readOnly {
		f, err := os.Open(filepath.Join(dir, name))
		if err != nil {
			return nil, err
		}
		v.track(f)
		return readOnlyFile{f}, nil
	}
	f, err := v.writable(v.VFS.OpenWriter(dir, name))
	if err != nil {
		return nil, err
	}
	// What kill -9 left may be in memory only: it is made durable before the floor says that it is, and
	// before Raft acknowledges it.
	if err := f.Sync(); err != nil {
		return nil, fmt.Errorf("sync %s: %w", filepath.Join(dir, name), err)
	}
	return f, nil
}

func (v *walFiles) writable(f types.WritableFile, err error) (types.WritableFile, error) {
	if err != nil {
		return nil, err
	}
	v.track(f)
	if !guard.On(guard.SyncedWrite) {
		return unsyncedFile{f}, nil
	}
	return &segmentFile{WritableFile: f}, nil
}

func (v *walFiles) track(f io.Closer) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.open = append(v.open, f)
}

// abandon closes what raft-wal leaves open when it cannot be opened.
func (v *walFiles) abandon() {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, f := range v.open {
		_ = f.Close() // there is an error to report already
	}
}

// opened ends the tracking: raft-wal closes its files itself.
func (v *walFiles) opened() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.open = nil
}

// emptyFile has nothing in it.
type emptyFile struct{}

func (emptyFile) ReadAt([]byte, int64) (int, error)  { return 0, io.EOF }
func (emptyFile) WriteAt([]byte, int64) (int, error) { return 0, errReadOnly }
func (emptyFile) Sync() error                        { return errReadOnly }
func (emptyFile) Close() error                       { return nil }

type readOnlyFile struct{ *os.File }

func (readOnlyFile) WriteAt([]byte, int64) (int, error) { return 0, errReadOnly }
func (readOnlyFile) Sync() error                        { return errReadOnly }

// segmentFile is a segment that is appended to, whose size is given to it when it is made. Its first sync is a full
// one, also of the folder. From then on the data is synced, and of the file's own record only what it takes to read
// them: not when the file was changed, which would be a second write to the disk.
type segmentFile struct {
	types.WritableFile
	synced bool // wholly, once; raft-wal syncs from one goroutine at a time
}

func (f *segmentFile) Sync() error {
	if f.synced {
		return syncData(f.WritableFile)
	}
	if err := f.WritableFile.Sync(); err != nil {
		return err
	}
	f.synced = true
	return nil
}

// unsyncedFile is a file without the guard SyncedWrite.
type unsyncedFile struct{ types.WritableFile }

func (unsyncedFile) Sync() error { return nil }

// walMeta is raft-wal's list of segments, in the format and under the name of its own metadb, opened with
// this package's options and, read-only, without changing anything.
type walMeta struct {
	readOnly bool
	turned   *segmentTurn
	db       *bbolt.DB
}

var _ types.MetaStore = (*walMeta)(nil)

// Load opens the file, and makes it if it is missing.
func (m *walMeta) Load(dir string) (state types.PersistentState, err error) {
	path := filepath.Join(dir, metadb.FileName)
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) && !m.readOnly {
		var maker metadb.BoltMetaDB // makes it whole or not at all
		_, err := maker.Load(dir)
		if err := errors.Join(err, maker.Close()); err != nil {
			return state, err
		}
	}
	check := syncFile
	if m.readOnly {
		check = checkBolt
	}
	if err := check(path); err != nil {
		return state, err
	}
	if m.db, err = bbolt.Open(path, 0o640, boltOptions(m.readOnly)); err != nil {
		return state, fmt.Errorf("open %s: %w", path, err)
	}
	raw, err := m.get(metadb.MetaBucket, metadb.MetaKey)
	if err == nil && raw != nil {
		err = json.Unmarshal(raw, &state)
	}
	if err != nil {
		return state, fmt.Errorf("read %s: %w", path, err)
	}
	if m.readOnly {
		return state, nil
	}
	changed, err := endSegment(dir, &state)
	if err != nil || !changed {
		return state, err
	}
	return state, m.CommitState(state)
}

func (m *walMeta) get(bucket, key string) (value []byte, err error) {
	err = m.db.View(func(tx *bbolt.Tx) error {
		b := tx.Bucket([]byte(bucket))
		if b == nil {
			return fmt.Errorf("bucket %q is missing", bucket)
		}
		value = append(value, b.Get([]byte(key))...)
		return nil
	})
	return value, err
}

func (m *walMeta) put(bucket, key string, value []byte) error {
	return m.db.Update(func(tx *bbolt.Tx) error {
		b, err := tx.CreateBucketIfNotExists([]byte(bucket))
		if err != nil {
			return err
		}
		return b.Put([]byte(key), value)
	})
}

// CommitState replaces the list. Read-only, the change stays in raft-wal's memory.
func (m *walMeta) CommitState(s types.PersistentState) error {
	if m.readOnly {
		return nil
	}
	raw, err := json.Marshal(s)
	if err != nil {
		return err
	}
	return m.turned.note(m.put(metadb.MetaBucket, metadb.MetaKey, raw))
}

// GetStable is here for the interface: term and vote are kept elsewhere.
func (m *walMeta) GetStable(key []byte) ([]byte, error) {
	return m.get(metadb.StableBucket, string(key))
}

// SetStable is here for the interface.
func (m *walMeta) SetStable(key, value []byte) error {
	if m.readOnly {
		return errReadOnly
	}
	return m.put(metadb.StableBucket, string(key), value)
}

// Close closes the file.
func (m *walMeta) Close() error {
	if m.db == nil {
		return nil
	}
	return m.db.Close()
}

// walLog is raft-wal with the reason why it refuses appends.
type walLog struct {
	*wal.WAL
	turned *segmentTurn
}

// StoreLogs appends. When the turn to the next segment failed, raft-wal only says that the last is sealed.
func (l walLog) StoreLogs(logs []*raft.Log) error {
	err := l.WAL.StoreLogs(logs)
	if cause := l.turned.failed(); errors.Is(err, wal.ErrSealed) && cause != nil {
		return fmt.Errorf("begin of a segment: %w", cause)
	}
	return err
}

// StoreLog appends one entry.
func (l walLog) StoreLog(entry *raft.Log) error { return l.StoreLogs([]*raft.Log{entry}) }

// segmentTurn is the first error of turning to the next segment, which raft-wal does behind an append's
// back.
type segmentTurn struct {
	mu  sync.Mutex // guards err
	err error
}

func (t *segmentTurn) note(err error) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.err == nil {
		t.err = err
	}
	return err
}

func (t *segmentTurn) failed() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.err
}

// blankWAL reports whether a log folder is as a crash before its first use leaves it.
func blankWAL(dir string) (bool, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return false, err
	}
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), ".tmp") {
			return false, nil
		}
	}
	return true, nil
}
