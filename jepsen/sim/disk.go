package sim

import (
	"errors"
	"io/fs"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/hashicorp/raft"
	"github.com/hashicorp/raft-wal/types"

	"github.com/quorate/quorate/partition/storage"
)

// disk is the data directory of one instance of a node. It outlives processes.
type disk struct {
	mu     sync.Mutex // guards the fields below
	rng    *rand.Rand
	files  map[string]*file // of the log
	meta   types.PersistentState
	floor  *file             // nil: not there
	table  map[string][]byte // nil: not there
	snaps  []*image          // newest first
	folder bool              // the log is there
	faults diskFaults
	// holds is what is durable in the log: the term of each entry.
	holds map[uint64]uint64
	used  bool // the group was opened here once
	// replaced are entries that were removed from the log's end, as they were stored; with stale the disk
	// gives them back.
	replaced map[uint64]raft.Log
	stale    bool
}

// diskFaults are what goes wrong until the process ends, but for slow.
type diskFaults struct {
	slow      time.Duration // added to each sync
	stuck     bool          // a sync hangs
	failSync  bool
	failWrite bool
	failLog   bool          // syncs of the log alone fail
	hold      chan struct{} // a sync waits until it is closed
	// cutAfterPut is called after a write of the table of one pair whose key is given.
	cutAfterPut string
	cut         func()
}

func newDisk(rng *rand.Rand) *disk {
	return &disk{rng: rng, files: map[string]*file{}, holds: map[uint64]uint64{},
		replaced: map[uint64]raft.Log{}}
}

// losePower keeps what is durable, and of the rest what chance leaves.
func (d *disk) losePower() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(d.files)) {
		d.files[name].lose(d.rng)
	}
	if d.floor != nil {
		d.floor.lose(d.rng)
	}
	d.endFaults()
}

// reboot is what follows a failed sync: the pages in memory count as clean and are not what is on the
// platter, so that only a machine that was started anew tells the truth.
func (d *disk) reboot() {
	d.mu.Lock()
	failed := d.faults.failSync || d.faults.failWrite || d.faults.failLog
	d.mu.Unlock()
	if failed {
		d.losePower()
	}
}

func (d *disk) endFaults() { d.faults = diskFaults{} }

// restart is what a new process finds: faults that lasted until the process ended are gone.
func (d *disk) restart() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.endFaults()
}

func (d *disk) set(f func(*diskFaults)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	f(&d.faults)
}

// durable reports whether the entry survives a loss of power.
func (d *disk) durable(index, term uint64) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.snaps) > 0 && index <= d.snaps[0].meta.Index {
		return true
	}
	return d.holds[index] == term
}

// last is where the durable log ends.
func (d *disk) last() (p storage.Position) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.snaps) > 0 {
		p = storage.Position{Term: d.snaps[0].meta.Term, Index: d.snaps[0].meta.Index}
	}
	for i, t := range d.holds {
		if i > p.Index {
			p = storage.Position{Term: t, Index: i}
		}
	}
	return p
}

// flip changes one bit of the log's files; it reports whether there was one to change.
func (d *disk) flip() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	f, used := d.anyFile()
	if used == 0 {
		return false
	}
	// Not in the file's header: raft-wal sees to that itself.
	at := 32 + d.rng.IntN(max(1, used-32))
	if at >= len(f.data) {
		return false
	}
	f.data[at] ^= 1 << d.rng.IntN(8)
	f.durable = slices.Clone(f.data)
	return true
}

// cutTail removes the end of the log, as a file system does that lost what it had promised.
func (d *disk) cutTail() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	names := slices.Sorted(maps.Keys(d.files))
	if len(names) == 0 {
		return false
	}
	f := d.files[names[len(names)-1]]
	used := usedBytes(f)
	if used <= 64 {
		return false
	}
	from := 32 + d.rng.IntN(used-32)
	clear(f.data[from:])
	f.durable, f.dirty = slices.Clone(f.data), nil
	d.holds = map[uint64]uint64{} // not known any more
	return true
}

// loseWrites makes the disk give back what had been replaced.
func (d *disk) loseWrites() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.stale = true
}

// anyFile needs mu.
func (d *disk) anyFile() (*file, int) {
	names := slices.Sorted(maps.Keys(d.files))
	if len(names) == 0 {
		return nil, 0
	}
	f := d.files[names[d.rng.IntN(len(names))]]
	return f, usedBytes(f)
}

func usedBytes(f *file) int {
	n := len(f.data)
	for n > 0 && f.data[n-1] == 0 {
		n--
	}
	return n
}

// session is a disk as one process uses it.
type session struct {
	*disk
	life *life
}

var _ storage.Disk = (*session)(nil)

func (s *session) Name(p storage.Part) string { return "disk/" + string(p) }

func (s *session) Parts() ([]storage.Part, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []storage.Part
	for _, p := range []struct {
		part  storage.Part
		there bool
	}{
		{storage.PartLog, s.folder}, {storage.PartStable, s.table != nil},
		{storage.PartFloor, s.floor != nil}, {storage.PartSnapshots, len(s.snaps) > 0},
	} {
		if p.there {
			out = append(out, p.part)
		}
	}
	return out, nil
}

// settle is the time that a sync takes, with what goes wrong in it. It is called without locks.
func (s *session) settle() error {
	s.mu.Lock()
	faults, took := s.faults, time.Duration(100+s.rng.IntN(900))*time.Microsecond
	s.mu.Unlock()
	if faults.stuck {
		s.life.hang()
	}
	if faults.hold != nil {
		select {
		case <-faults.hold:
		case <-s.life.dead:
		}
	}
	s.life.sleep(took + faults.slow)
	if faults.failSync {
		return syscall.EIO
	}
	return nil
}

// Stable opens the table.
func (s *session) Stable(readOnly bool) (storage.Table, error) {
	s.life.breathe()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.table == nil {
		if readOnly {
			return nil, fs.ErrNotExist
		}
		s.table = map[string][]byte{}
	}
	return &table{s, readOnly}, nil
}

type table struct {
	s        *session
	readOnly bool
}

func (t *table) Get(key []byte) ([]byte, error) {
	t.s.life.breathe()
	t.s.mu.Lock()
	defer t.s.mu.Unlock()
	return slices.Clone(t.s.table[string(key)]), nil
}

// Put writes all pairs at once; a crash while it runs leaves all or none.
func (t *table) Put(pairs ...storage.Pair) error {
	if t.readOnly {
		return errors.New("the table is open to be read")
	}
	t.s.life.breathe()
	if err := t.s.settle(); err != nil {
		return err
	}
	t.s.mu.Lock()
	if t.s.faults.failWrite {
		t.s.mu.Unlock()
		return syscall.EIO
	}
	for _, p := range pairs {
		t.s.table[string(p.Key)] = slices.Clone(p.Value)
	}
	cut := t.s.faults.cut
	hit := cut != nil && slices.ContainsFunc(pairs, func(p storage.Pair) bool {
		return string(p.Key) == t.s.faults.cutAfterPut
	})
	t.s.mu.Unlock()
	if hit {
		cut()
		t.s.life.breathe()
	}
	return nil
}

func (t *table) Close() error { return nil }

// Floor opens the floor.
func (s *session) Floor(readOnly bool) (storage.File, error) {
	s.life.breathe()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.floor == nil {
		if readOnly {
			return nil, fs.ErrNotExist
		}
		s.floor = &file{}
	}
	return &handle{s, s.floor}, nil
}

// handle is an open file, of the log or the floor.
type handle struct {
	s *session
	f *file
}

func (h *handle) ReadAt(p []byte, off int64) (int, error) {
	h.s.life.breathe()
	h.s.mu.Lock()
	defer h.s.mu.Unlock()
	return h.f.readAt(p, int(off))
}

func (h *handle) WriteAt(p []byte, off int64) (int, error) {
	h.s.life.breathe()
	h.s.mu.Lock()
	defer h.s.mu.Unlock()
	if h.s.faults.failWrite {
		return 0, syscall.EIO
	}
	h.f.writeAt(p, int(off))
	return len(p), nil
}

// Sync makes the floor durable. After the end of the process it fails and returns: a store that is being
// closed syncs it.
func (h *handle) Sync() error {
	if h.s.life.over() {
		return syscall.EIO
	}
	h.s.mu.Lock()
	defer h.s.mu.Unlock()
	if h.s.faults.failSync {
		h.f.forget()
		return syscall.EIO
	}
	h.f.sync()
	return nil
}

func (h *handle) Close() error { return nil }
