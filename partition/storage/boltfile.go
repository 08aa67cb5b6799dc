package storage

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"go.etcd.io/bbolt"

	"github.com/quorate/quorate/internal/guard"
)

var stableBucket = []byte("stable")

// boltOptions: without the freelist a commit writes less and a large file does not slow it; a file
// that another process holds is an error, not a wait for ever.
func boltOptions(readOnly bool) *bbolt.Options {
	return &bbolt.Options{
		NoFreelistSync: true, FreelistType: bbolt.FreelistMapType, Timeout: time.Second, ReadOnly: readOnly,
		NoSync: !guard.On(guard.SyncedWrite), NoGrowSync: !guard.On(guard.SyncedWrite),
	}
}

// openBolt opens a bbolt file. Read-only it is checked first, since bbolt trusts what it maps. Otherwise a
// missing one is made, whole or not at all: bbolt alone may leave one that it cannot open.
func openBolt[T io.Closer](path string, readOnly bool, open func(path string) (T, error)) (t T, err error) {
	if readOnly {
		if err := checkBolt(path); err != nil {
			return t, err
		}
		return open(path)
	}
	err = syncFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		err = makeBolt(path, open)
	}
	if err != nil {
		return t, err
	}
	return open(path)
}

func makeBolt[T io.Closer](path string, open func(path string) (T, error)) error {
	tmp := path + ".tmp"
	if err := os.RemoveAll(tmp); err != nil {
		return err
	}
	made, err := open(tmp)
	if err != nil {
		return err
	}
	if err := made.Close(); err != nil {
		return err
	}
	if err := os.Rename(tmp, path); err != nil {
		return err
	}
	return syncDir(filepath.Dir(path))
}

// syncFile makes durable what kill -9 left of a file, which may be in memory only: before the floor says
// that it is there, and before Raft acts on it.
func syncFile(path string) error {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	if guard.On(guard.SyncedWrite) {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

// boltTable is a Table in a bbolt file.
type boltTable struct {
	db   *bbolt.DB
	file string
}

func hasBucket(db *bbolt.DB) (has bool) {
	err := db.View(func(tx *bbolt.Tx) error {
		has = tx.Bucket(stableBucket) != nil
		return nil
	})
	return has && err == nil
}

func openTable(file string, readOnly bool) (*boltTable, error) {
	t, err := openBolt(file, readOnly, func(path string) (*boltTable, error) {
		db, err := bbolt.Open(path, 0o640, boltOptions(readOnly))
		if err != nil {
			return nil, err
		}
		if !readOnly && !hasBucket(db) { // a start that is refused after all has then written nothing
			err = db.Update(func(tx *bbolt.Tx) error {
				_, err := tx.CreateBucketIfNotExists(stableBucket)
				return err
			})
		}
		if err != nil {
			_ = db.Close() // the first error is the one to report
			return nil, err
		}
		return &boltTable{db: db, file: file}, nil
	})
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", file, err)
	}
	return t, nil
}

// Get is a copy of a key's value.
func (t *boltTable) Get(key []byte) ([]byte, error) {
	var value []byte
	err := t.db.View(func(tx *bbolt.Tx) error {
		b := tx.Bucket(stableBucket)
		if b == nil {
			return fmt.Errorf("bucket %q is missing", stableBucket)
		}
		value = bytes.Clone(b.Get(key))
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", t.file, err)
	}
	return value, nil
}

// Put sets all pairs in one transaction.
func (t *boltTable) Put(pairs ...Pair) error {
	return t.db.Update(func(tx *bbolt.Tx) error {
		b := tx.Bucket(stableBucket)
		for _, p := range pairs {
			if err := b.Put(p.Key, p.Value); err != nil {
				return err
			}
		}
		return nil
	})
}

// Close closes the file.
func (t *boltTable) Close() error { return t.db.Close() }
