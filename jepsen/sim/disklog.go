package sim

import (
	"errors"
	"io/fs"
	"maps"
	"os"
	"runtime"
	"slices"
	"syscall"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
	wal "github.com/hashicorp/raft-wal"
	"github.com/hashicorp/raft-wal/segment"
	"github.com/hashicorp/raft-wal/types"

	"github.com/quorate/quorate/internal/guard"
	"github.com/quorate/quorate/partition/storage"
)

// segmentBytes is small, so that a run has several segments.
const segmentBytes = 16 << 10

// Log opens the real raft-wal on the simulated files.
func (s *session) Log(readOnly bool) (storage.LogBackend, error) {
	s.life.breathe()
	s.mu.Lock()
	there := s.folder
	if !readOnly {
		s.folder = true
	}
	s.mu.Unlock()
	if readOnly && !there {
		return nil, fs.ErrNotExist
	}
	l := &walLog{s: s, gate: make(chan struct{}, 1), readOnly: readOnly}
	w, err := wal.Open("wal", wal.WithSegmentFiler(segment.NewFiler("wal", (*walFiles)(l))),
		wal.WithMetaStore((*walMeta)(l)), wal.WithSegmentSize(segmentBytes), wal.WithLogger(hclog.NewNullLogger()))
	if err != nil {
		return nil, err
	}
	l.WAL = w
	if readOnly {
		return l, nil
	}
	return l, l.find()
}

// walLog is the log of one process. A gate takes the place of raft-wal's mutex, since a goroutine that
// waits for a mutex keeps simulated time from passing.
type walLog struct {
	*wal.WAL
	s       *session
	gate    chan struct{}
	pending []*file // synced by the write at hand; durable when it returns. Guarded by the disk's mu.
	writing bool

	readOnly bool
}

var _ storage.LogBackend = (*walLog)(nil)

// write runs a write of raft-wal, then lets the time of its syncs pass.
func (l *walLog) write(f func() error) error {
	select {
	case l.gate <- struct{}{}:
	case <-l.s.life.dead:
		runtime.Goexit()
	}
	defer func() { <-l.gate }()
	l.s.life.breathe()
	l.s.mu.Lock()
	l.writing = true
	l.s.mu.Unlock()
	err := f()
	l.s.mu.Lock()
	l.writing = false
	l.s.mu.Unlock()
	if err != nil {
		return err
	}
	if err := l.s.settle(); err != nil {
		return err
	}
	l.s.life.breathe()
	l.s.mu.Lock()
	defer l.s.mu.Unlock()
	for _, f := range l.pending {
		f.sync()
	}
	l.pending = nil
	return nil
}

// find notes what an earlier process wrote and did not sync: it is durable since the log was opened.
func (l *walLog) find() error {
	first, err := l.FirstIndex()
	if err != nil {
		return err
	}
	last, err := l.LastIndex()
	if err != nil {
		return err
	}
	for i := first; i <= last && i > 0; i++ {
		var e raft.Log
		if err := l.WAL.GetLog(i, &e); err != nil {
			return nil //nolint:nilerr // who opens the log will find it, too
		}
		l.s.mu.Lock()
		l.s.holds[i] = e.Term
		l.s.mu.Unlock()
	}
	return nil
}

func (l *walLog) StoreLog(entry *raft.Log) error { return l.StoreLogs([]*raft.Log{entry}) }

func (l *walLog) StoreLogs(logs []*raft.Log) error {
	if err := l.write(func() error { return l.WAL.StoreLogs(logs) }); err != nil {
		return err
	}
	l.s.mu.Lock()
	defer l.s.mu.Unlock()
	for _, e := range logs {
		l.s.holds[e.Index] = e.Term
	}
	return nil
}

func (l *walLog) DeleteRange(lowest, highest uint64) error {
	l.keep(lowest, highest)
	l.s.mu.Lock()
	for i := lowest; i <= highest; i++ {
		delete(l.s.holds, i)
	}
	l.s.mu.Unlock()
	return l.write(func() error { return l.WAL.DeleteRange(lowest, highest) })
}

// keep remembers a few entries that are removed.
func (l *walLog) keep(lowest, highest uint64) {
	for i := lowest; i <= min(highest, lowest+64); i++ {
		var e raft.Log
		if l.WAL.GetLog(i, &e) != nil {
			return
		}
		l.s.mu.Lock()
		l.s.replaced[i] = e
		l.s.mu.Unlock()
	}
}

func (l *walLog) GetLog(index uint64, out *raft.Log) error {
	l.s.life.breathe()
	if err := l.WAL.GetLog(index, out); err != nil {
		return err
	}
	if out.Type > raft.LogConfiguration && !guard.On(guard.EntryChecksum) {
		l.s.life.hang() // Raft would panic over an entry of no kind: as far as anybody sees the process ends here
	}
	l.s.mu.Lock()
	defer l.s.mu.Unlock()
	if was, ok := l.s.replaced[index]; ok && l.s.stale {
		*out = was
	}
	return nil
}

// walFiles is raft-wal's file system.
type walFiles walLog

var _ types.VFS = (*walFiles)(nil)

func (v *walFiles) ListDir(string) ([]string, error) {
	v.s.mu.Lock()
	defer v.s.mu.Unlock()
	return slices.Sorted(maps.Keys(v.s.files)), nil
}

func (v *walFiles) Create(_, name string, size uint64) (types.WritableFile, error) {
	v.s.life.breathe()
	v.s.mu.Lock()
	defer v.s.mu.Unlock()
	if _, ok := v.s.files[name]; ok {
		return nil, os.ErrExist
	}
	f := &file{data: make([]byte, size), durable: make([]byte, size)}
	v.s.files[name] = f
	return &walFile{handle{v.s, f}, v}, nil
}

func (v *walFiles) Delete(_, name string) error {
	v.s.life.breathe()
	v.s.mu.Lock()
	defer v.s.mu.Unlock()
	if _, ok := v.s.files[name]; !ok {
		return os.ErrNotExist
	}
	delete(v.s.files, name)
	return nil
}

func (v *walFiles) OpenReader(_, name string) (types.ReadableFile, error) { return v.open(name) }

// OpenWriter opens the tail, and makes durable what an earlier process wrote there, as the product's does.
func (v *walFiles) OpenWriter(_, name string) (types.WritableFile, error) {
	w, err := v.open(name)
	if err != nil {
		return nil, err
	}
	if v.readOnly {
		return w, nil
	}
	return w, w.Sync()
}

func (v *walFiles) open(name string) (*walFile, error) {
	v.s.life.breathe()
	v.s.mu.Lock()
	defer v.s.mu.Unlock()
	f, ok := v.s.files[name]
	if !ok {
		return nil, os.ErrNotExist
	}
	return &walFile{handle{v.s, f}, v}, nil
}

// walFile is a segment. What a write of the log syncs is durable when the write returns.
type walFile struct {
	handle
	v *walFiles
}

func (w *walFile) Sync() error {
	w.s.life.breathe()
	w.s.mu.Lock()
	defer w.s.mu.Unlock()
	switch {
	case w.s.faults.failSync, w.s.faults.failLog:
		w.f.forget()
		return syscall.EIO
	case w.v.writing:
		w.v.pending = append(w.v.pending, w.f)
	default:
		w.f.sync()
	}
	return nil
}

// walMeta is raft-wal's list of segments, each change of which is durable.
type walMeta walLog

var _ types.MetaStore = (*walMeta)(nil)

func (m *walMeta) Load(string) (types.PersistentState, error) {
	m.s.mu.Lock()
	defer m.s.mu.Unlock()
	st := m.s.meta
	st.Segments = slices.Clone(st.Segments)
	return st, nil
}

func (m *walMeta) CommitState(st types.PersistentState) error {
	m.s.life.breathe()
	m.s.mu.Lock()
	defer m.s.mu.Unlock()
	if m.s.faults.failSync || m.s.faults.failWrite {
		return syscall.EIO
	}
	st.Segments = slices.Clone(st.Segments)
	m.s.meta = st
	return nil
}

func (m *walMeta) GetStable([]byte) ([]byte, error) { return nil, errors.New("not used") }
func (m *walMeta) SetStable(_, _ []byte) error      { return errors.New("not used") }
func (m *walMeta) Close() error                     { return nil }
