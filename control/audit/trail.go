package audit

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"go.etcd.io/bbolt"
	berrors "go.etcd.io/bbolt/errors"

	"github.com/quorate/quorate/control/state"
)

// ErrDamaged says that the file does not hold what was written to it.
var ErrDamaged = errors.New("audit trail damaged")

var (
	recordsBucket = []byte("records") // index, big endian → running hash, record
	trailBucket   = []byte("trail")   // beforeKey → running hash before the oldest record
	beforeKey     = []byte("before")
)

const (
	hashBytes = len(state.Digest{})
	// mapBytes of address space are reserved, so that a growing file seldom has to wait for readers.
	mapBytes = 1 << 30
)

// Trail is an open audit trail.
type Trail struct {
	path string
	max  int
	db   *bbolt.DB

	mu    sync.Mutex // guards the fields below
	last  uint64     // index of the newest record
	hash  state.Digest
	count int
	held  int // snapshots that still need the oldest records
}

// Open opens the trail in the file at path, and makes that when it is missing. max records are kept; 0 means
// state.MaxAuditRecords.
func Open(path string, maxRecords int) (*Trail, error) {
	if maxRecords == 0 {
		maxRecords = state.MaxAuditRecords
	}
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{
		NoFreelistSync: true, FreelistType: bbolt.FreelistMapType, Timeout: time.Second, InitialMmapSize: mapBytes,
	})
	var fromSystem syscall.Errno
	switch {
	case errors.Is(err, berrors.ErrTimeout):
		return nil, fmt.Errorf("audit trail: %s is in use by another process: end that first", path)
	case errors.As(err, &fromSystem):
		return nil, fmt.Errorf("audit trail: %s cannot be opened: %w", path, err)
	case err != nil:
		return nil, fmt.Errorf("%w: %s cannot be opened: %w; move it away and start again: it is made anew from the "+
			"group's snapshot and log", ErrDamaged, path, err)
	}
	t := &Trail{path: path, max: maxRecords, db: db}
	if err = t.makeBuckets(); err == nil {
		err = syncDir(filepath.Dir(path))
	}
	if err == nil {
		err = t.verify()
	}
	if err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return t, nil
}

// makeBuckets makes a new file ready. One that is ready is not written to.
func (t *Trail) makeBuckets() error {
	ready := false
	err := t.db.View(func(tx *bbolt.Tx) error {
		ready = tx.Bucket(recordsBucket) != nil && tx.Bucket(trailBucket) != nil
		return nil
	})
	if err != nil || ready {
		return err
	}
	return t.db.Update(func(tx *bbolt.Tx) error {
		if _, err := tx.CreateBucketIfNotExists(recordsBucket); err != nil {
			return err
		}
		_, err := tx.CreateBucketIfNotExists(trailBucket)
		return err
	})
}

// syncDir makes the names in a directory durable.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// verify reads everything and learns where the trail ends.
func (t *Trail) verify() error {
	err := t.db.View(func(tx *bbolt.Tx) error {
		copy(t.hash[:], tx.Bucket(trailBucket).Get(beforeKey))
		return tx.Bucket(recordsBucket).ForEach(func(k, v []byte) error {
			index, hash, r, err := split(k, v)
			if err != nil {
				return err
			}
			if t.hash = state.NextHash(t.hash, r); t.hash != hash {
				return fmt.Errorf("the running hash at index %d is wrong", index)
			}
			t.last = index
			t.count++
			return nil
		})
	})
	if err != nil {
		return fmt.Errorf("%w: %s: %w; move it away and start again: it is made anew from the group's snapshot and log",
			ErrDamaged, t.path, err)
	}
	return nil
}

// split reads one stored record.
func split(k, v []byte) (index uint64, hash state.Digest, r *state.Record, err error) {
	if len(k) != 8 || len(v) < hashBytes {
		return 0, hash, nil, errors.New("a record is cut short")
	}
	index = binary.BigEndian.Uint64(k)
	copy(hash[:], v)
	r, err = state.DecodeRecord(v[hashBytes:])
	if err == nil && r.Index != index {
		err = fmt.Errorf("the record at index %d says that it is of %d", index, r.Index)
	}
	return index, hash, r, err
}

func key(index uint64) []byte { return binary.BigEndian.AppendUint64(nil, index) }

// End is the index of the newest record, 0 without one, and the running hash there.
func (t *Trail) End() (index uint64, hash state.Digest) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.last, t.hash
}

// Append adds a record, durably. hash is the running hash after it. One that is there already is compared.
func (t *Trail) Append(r *state.Record, hash state.Digest) error {
	t.mu.Lock()
	last, before, drop := t.last, t.hash, t.count+1-t.max
	if t.held > 0 {
		drop = 0
	}
	t.mu.Unlock()
	if r.Index <= last {
		return t.compare(r.Index, hash)
	}
	if next := state.NextHash(before, r); next != hash {
		return fmt.Errorf("%w: %s: the record at index %d does not continue it; move it away and start again: "+
			"it is made anew from the group's snapshot and log", ErrDamaged, t.path, r.Index)
	}
	dropped := 0
	err := t.db.Update(func(tx *bbolt.Tx) error {
		dropped = 0
		records := tx.Bucket(recordsBucket)
		records.FillPercent = 1.0 // they only grow
		if err := records.Put(key(r.Index), state.AppendRecord(hash[:len(hash):len(hash)], r)); err != nil {
			return err
		}
		c := records.Cursor()
		for k, v := c.First(); k != nil && dropped < drop; k, v = c.First() {
			if err := tx.Bucket(trailBucket).Put(beforeKey, bytes.Clone(v[:hashBytes])); err != nil {
				return err
			}
			if err := c.Delete(); err != nil {
				return err
			}
			dropped++
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("write to the audit trail %s: %w; what is on the disk is unknown: check the disk and its "+
			"free space, then start the node again", t.path, err)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.last, t.hash = r.Index, hash
	t.count += 1 - dropped
	return nil
}

// compare holds the record at index, which is there already unless it was dropped, against a running hash.
func (t *Trail) compare(index uint64, hash state.Digest) error {
	return t.db.View(func(tx *bbolt.Tx) error {
		c := tx.Bucket(recordsBucket).Cursor()
		k, v := c.Seek(key(index))
		first, _ := c.First()
		if first != nil && index < binary.BigEndian.Uint64(first) {
			return nil
		}
		if k == nil || binary.BigEndian.Uint64(k) != index || !bytes.Equal(v[:hashBytes], hash[:]) {
			return fmt.Errorf("%w: %s has another record at index %d than the log: move it away and start again; if "+
				"that does not help, replace this replica", ErrDamaged, t.path, index)
		}
		return nil
	})
}

// Close closes the file.
func (t *Trail) Close() error { return t.db.Close() }
