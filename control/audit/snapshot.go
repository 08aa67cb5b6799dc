package audit

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"sync"

	"go.etcd.io/bbolt"

	"github.com/quorate/quorate/control/state"
)

// In a snapshot the trail is the magic number, the index and running hash of its newest record and the
// running hash before its oldest, then batches of records, each with its length and CRC-32C, and an empty
// batch.
var snapshotMagic = [8]byte{'Q', 'U', 'O', 'R', 'A', 'U', 'D', 1}

const (
	batchRecords  = 256
	maxBatchBytes = 64 << 20
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Cut is the trail as of one record. Until it is released no record is dropped.
type Cut struct {
	trail *Trail
	last  uint64
	hash  state.Digest
	once  sync.Once
}

// Cut captures the trail.
func (t *Trail) Cut() *Cut {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.held++
	return &Cut{trail: t, last: t.last, hash: t.hash}
}

// Release lets old records be dropped again.
func (c *Cut) Release() {
	c.once.Do(func() {
		c.trail.mu.Lock()
		defer c.trail.mu.Unlock()
		c.trail.held--
	})
}

// WriteTo writes the trail as it was captured, while later records are appended: each batch is read in a
// transaction of its own, so that no long one keeps the file from being reused.
func (c *Cut) WriteTo(w io.Writer) (written int64, err error) {
	write := func(b []byte) {
		if err != nil {
			return
		}
		var n int
		n, err = w.Write(b)
		written += int64(n)
	}
	var before state.Digest
	verr := c.trail.db.View(func(tx *bbolt.Tx) error {
		copy(before[:], tx.Bucket(trailBucket).Get(beforeKey))
		return nil
	})
	if verr != nil {
		return 0, verr
	}
	head := append(snapshotMagic[:], binary.LittleEndian.AppendUint64(nil, c.last)...)
	write(append(append(head, c.hash[:]...), before[:]...))
	for next := uint64(1); err == nil; {
		batch, last, berr := c.batch(next)
		if berr != nil {
			return written, berr
		}
		frame := binary.LittleEndian.AppendUint32(nil, uint32(len(batch)))
		frame = binary.LittleEndian.AppendUint32(frame, crc32.Checksum(batch, castagnoli))
		write(append(frame, batch...))
		if len(batch) == 0 {
			break
		}
		next = last + 1
	}
	return written, err
}

// batch encodes records from an index on, and tells the index of the last one.
func (c *Cut) batch(from uint64) (b []byte, last uint64, err error) {
	err = c.trail.db.View(func(tx *bbolt.Tx) error {
		cursor := tx.Bucket(recordsBucket).Cursor()
		n := 0
		for k, v := cursor.Seek(key(from)); k != nil && n < batchRecords; k, v = cursor.Next() {
			index := binary.BigEndian.Uint64(k)
			if index > c.last {
				break
			}
			b = binary.LittleEndian.AppendUint32(b, uint32(len(v)-hashBytes))
			b = append(b, v[hashBytes:]...)
			last = index
			n++
		}
		return nil
	})
	return b, last, err
}

// Restore makes the trail what WriteTo wrote. hash is what the state says that its running hash is. A trail
// that has it all, and perhaps what the log brings after it, stays as it is.
func (t *Trail) Restore(from io.Reader, hash state.Digest) error {
	var head [8 + 8 + 2*hashBytes]byte
	if _, err := io.ReadFull(from, head[:]); err != nil {
		return fmt.Errorf("snapshot of the audit trail: %w", err)
	}
	if !bytes.Equal(head[:8], snapshotMagic[:]) {
		return fmt.Errorf("snapshot of the audit trail: it begins with %q, this program knows %q: use the one that "+
			"wrote it", head[:8], snapshotMagic)
	}
	last := binary.LittleEndian.Uint64(head[8:16])
	end, before := state.Digest(head[16:16+hashBytes]), state.Digest(head[16+hashBytes:])
	if end != hash {
		return errors.New("snapshot of the audit trail: it is not that of the state beside it")
	}
	has, err := t.has(last, hash)
	if err != nil {
		return err
	}
	if !has {
		if err := t.clear(before); err != nil {
			return err
		}
	}
	for running := before; ; {
		batch, err := readBatch(from)
		if err == nil && len(batch) == 0 {
			if running != hash {
				return errors.New("snapshot of the audit trail: its running hash is wrong")
			}
			return nil
		}
		if err == nil {
			running, err = t.load(batch, running, !has)
		}
		if err != nil {
			return fmt.Errorf("snapshot of the audit trail: %w", err)
		}
	}
}

// has reports that the trail holds the record at last, with this running hash.
func (t *Trail) has(last uint64, hash state.Digest) (has bool, err error) {
	if last == 0 {
		end, _ := t.End()
		return end == 0, nil
	}
	err = t.db.View(func(tx *bbolt.Tx) error {
		v := tx.Bucket(recordsBucket).Get(key(last))
		has = v != nil && bytes.Equal(v[:hashBytes], hash[:])
		return nil
	})
	return has, err
}

// clear drops everything. The records to come continue from the running hash before.
func (t *Trail) clear(before state.Digest) error {
	err := t.db.Update(func(tx *bbolt.Tx) error {
		if err := tx.DeleteBucket(recordsBucket); err != nil {
			return err
		}
		if _, err := tx.CreateBucket(recordsBucket); err != nil {
			return err
		}
		return tx.Bucket(trailBucket).Put(beforeKey, before[:])
	})
	if err != nil {
		return fmt.Errorf("clear the audit trail %s: %w", t.path, err)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.last, t.hash, t.count = 0, before, 0
	return nil
}

func readBatch(from io.Reader) ([]byte, error) {
	var head [8]byte
	if _, err := io.ReadFull(from, head[:]); err != nil {
		return nil, err
	}
	n := binary.LittleEndian.Uint32(head[:4])
	if n > maxBatchBytes {
		return nil, fmt.Errorf("a batch of %d bytes", n)
	}
	var b bytes.Buffer // grows with what is really there
	if _, err := io.CopyN(&b, from, int64(n)); err != nil {
		return nil, err
	}
	if crc32.Checksum(b.Bytes(), castagnoli) != binary.LittleEndian.Uint32(head[4:]) {
		return nil, errors.New("the checksum of a batch is wrong")
	}
	return b.Bytes(), nil
}

// load checks a batch and, if asked to, stores it.
func (t *Trail) load(batch []byte, running state.Digest, store bool) (state.Digest, error) {
	type entry struct{ key, value []byte }
	var entries []entry
	for len(batch) > 0 {
		if len(batch) < 4 || uint64(binary.LittleEndian.Uint32(batch)) > uint64(len(batch)-4) {
			return running, errors.New("a record is cut short")
		}
		n := int(binary.LittleEndian.Uint32(batch))
		r, err := state.DecodeRecord(batch[4 : 4+n])
		if err != nil {
			return running, err
		}
		running = state.NextHash(running, r)
		entries = append(entries, entry{key(r.Index), append(running[:len(running):len(running)], batch[4:4+n]...)})
		batch = batch[4+n:]
	}
	if !store {
		return running, nil
	}
	err := t.db.Update(func(tx *bbolt.Tx) error {
		for _, e := range entries {
			if err := tx.Bucket(recordsBucket).Put(e.key, e.value); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return running, fmt.Errorf("write to the audit trail %s: %w", t.path, err)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.last, t.hash = binary.BigEndian.Uint64(entries[len(entries)-1].key), running
	t.count += len(entries)
	return running, nil
}
