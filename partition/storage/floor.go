package storage

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"strings"
	"sync"
	"time"

	"github.com/quorate/quorate/internal/chaos"
)

// The floor is how far this node has acknowledged, in a small file beside the log, so that a log which
// ends before it, or says something else there, is known for damaged. The file has slots of one block
// each, which take turns; the valid one with the highest number counts.
//
// A slot:
//
//	0   8  magic
//	8   4  format version, little endian like all numbers here
//	12  4  length of the record
//	16     the record: see encode
//	       CRC-32C of all before it
//
// Why it can be believed, and never refuses a good disk:
//
//  1. Every record is true when it is written: the log or the newest snapshot reaches its position, and
//     the table of term and vote holds at least its term and vote, both durably. (Written after the
//     append, the vote, or the snapshot has returned.)
//  2. It stays true: appends, later terms and later snapshots only go beyond it. A truncation, which
//     does not, first makes a lower record durable; that one has a higher number than all before it.
//  3. At each moment one slot holds the newest record that is known to be durable, and is not written.
//     While it is being replaced a second one is being synced and a third takes new records. So a power
//     cut, which may leave any mixture in the other two, leaves a valid slot; by 2 the valid slot with
//     the highest number is true of the disk, whichever it is.
//  4. A write to a slot stays within one page of the page cache, so kill -9 leaves it whole: after that
//     the floor is exactly what Raft last heard of, or (between append and floor) one write less.
//
// What is not noticed: entries, terms or votes that are lost together with a power cut in the second
// or so for which the floor had not been synced, if they were durable themselves.
const (
	floorMagic   = "quofloor"
	floorVersion = 1
	floorSlots   = 3
	slotBytes    = 4096
	slotHeader   = 16
	// syncPeriod is how long a changed floor may stay without a sync.
	syncPeriod = time.Second
	// The longest strings in a record.
	maxNameBytes   = 1024
	maxReasonBytes = 1024
)

// floorRecord is what a slot says.
type floorRecord struct {
	number uint64 // 1 for the first

	at    Position
	chain chainHash // of the entry there; zero: not known, since it is in a snapshot

	term      uint64 // the current one
	voteTerm  uint64
	candidate string

	partition string // whose floor it is
	condemned string // why this disk is never to be used again; "" it may be
}

// encode is the slot of a record.
func (r *floorRecord) encode() []byte {
	b := make([]byte, 0, 512)
	b = append(b, floorMagic...)
	b = binary.LittleEndian.AppendUint32(b, floorVersion)
	b = binary.LittleEndian.AppendUint32(b, 0) // the length, below
	for _, n := range []uint64{r.number, r.at.Index, r.at.Term} {
		b = binary.LittleEndian.AppendUint64(b, n)
	}
	b = append(b, r.chain[:]...)
	for _, n := range []uint64{r.term, r.voteTerm} {
		b = binary.LittleEndian.AppendUint64(b, n)
	}
	for _, s := range []string{r.partition, r.candidate, r.condemned} {
		b = binary.LittleEndian.AppendUint16(b, uint16(len(s)))
		b = append(b, s...)
	}
	binary.LittleEndian.PutUint32(b[slotHeader-4:], uint32(len(b)-slotHeader))
	return binary.LittleEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
}

var (
	errSlot        = errors.New("it is damaged")
	errSlotVersion = fmt.Errorf("it has an %w: start the program version that wrote it", ErrVersion)
)

// decodeSlot reads what encode wrote, and nothing else.
func decodeSlot(b []byte) (*floorRecord, error) {
	if len(b) < slotHeader || string(b[:8]) != floorMagic {
		return nil, errSlot
	}
	n := uint64(binary.LittleEndian.Uint32(b[slotHeader-4:]))
	if slotHeader+n+4 > uint64(len(b)) {
		return nil, errSlot
	}
	sum := binary.LittleEndian.Uint32(b[slotHeader+n:])
	if crc32.Checksum(b[:slotHeader+n], castagnoli) != sum {
		return nil, errSlot
	}
	if binary.LittleEndian.Uint32(b[8:]) != floorVersion {
		return nil, errSlotVersion
	}
	d := slotReader{rest: b[slotHeader : slotHeader+n]}
	r := &floorRecord{number: d.uint64(), at: Position{Index: d.uint64(), Term: d.uint64()}}
	copy(r.chain[:], d.take(len(r.chain)))
	r.term, r.voteTerm = d.uint64(), d.uint64()
	r.partition, r.candidate, r.condemned = d.string(), d.string(), d.string()
	if d.short || len(d.rest) != 0 {
		return nil, errSlot
	}
	return r, nil
}

// slotReader takes fields off a record.
type slotReader struct {
	rest  []byte
	short bool
}

func (d *slotReader) take(n int) []byte {
	if n > len(d.rest) {
		d.short, d.rest = true, nil
		return make([]byte, n)
	}
	b := d.rest[:n]
	d.rest = d.rest[n:]
	return b
}

func (d *slotReader) uint64() uint64 { return binary.LittleEndian.Uint64(d.take(8)) }

func (d *slotReader) string() string {
	return string(d.take(int(binary.LittleEndian.Uint16(d.take(2)))))
}

// readFloor is the newest record in the file and its slot.
func readFloor(file File) (newest *floorRecord, slot int, err error) {
	for i := range floorSlots {
		b := make([]byte, slotBytes)
		n, _ := file.ReadAt(b, int64(i)*slotBytes) // what cannot be read is not valid
		r, slotErr := decodeSlot(b[:n])
		if errors.Is(slotErr, errSlotVersion) {
			return nil, 0, slotErr
		}
		if slotErr == nil && (newest == nil || r.number > newest.number) {
			newest, slot = r, i
		}
	}
	if newest == nil {
		return nil, 0, errors.New("no slot in it is valid")
	}
	return newest, slot, nil
}

// floor is the open file.
type floor struct {
	file File
	name string
	stop *failStop

	syncing sync.Mutex // held during a sync, before mu

	mu     sync.Mutex // guards the fields below
	record floorRecord
	slot   int         // takes the next record
	kept   int         // holds the newest record that is known to be durable: not to be written
	dirty  bool        // something has been written since the last sync began
	timer  *time.Timer // runs while dirty; nil none
	closed bool
}

// openFloor goes on from what a verification found, or begins with found nil.
func openFloor(file File, name string, stop *failStop, partition string, found *floorRecord, slot int) (*floor, error) {
	f := &floor{file: file, name: name, stop: stop, record: floorRecord{partition: partition}}
	if found == nil {
		f.kept = 1
		f.mu.Lock()
		err := f.write()
		f.mu.Unlock()
		if err != nil {
			return nil, err
		}
		return f, f.flush()
	}
	// What kill -9 left may be in memory only: it is made durable before any slot is written.
	if err := file.Sync(); err != nil {
		return nil, fmt.Errorf("sync %s: %w", name, err)
	}
	f.record = *found
	f.kept, f.slot = slot, (slot+1)%floorSlots
	return f, nil
}

// write needs mu.
func (f *floor) write() error {
	f.record.number++
	b := f.record.encode()
	if len(b) > slotBytes {
		return fmt.Errorf("write %s: the record has %d bytes, at most %d fit", f.name, len(b), slotBytes)
	}
	if _, err := f.file.WriteAt(b, int64(f.slot)*slotBytes); err != nil {
		return fmt.Errorf("write %s: %w", f.name, err)
	}
	f.dirty = true
	return nil
}

// note changes the record and writes it. It is synced within a second.
func (f *floor) note(change func(*floorRecord)) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	change(&f.record)
	if err := f.write(); err != nil {
		return err
	}
	if f.timer == nil && !f.closed {
		f.timer = time.AfterFunc(syncPeriod, f.background)
	}
	return nil
}

// noteDurably changes the record, and returns when it is durable.
func (f *floor) noteDurably(change func(*floorRecord)) error {
	if err := f.note(change); err != nil {
		return err
	}
	return f.flush()
}

func (f *floor) background() {
	f.mu.Lock()
	f.timer = nil
	closed := f.closed
	f.mu.Unlock()
	if closed || f.stop.err() != nil {
		return
	}
	// A failure has called the hook.
	_ = f.stop.do(f.name, "sync", f.flush)
}

// flush makes all that has been noted durable.
func (f *floor) flush() error {
	f.syncing.Lock()
	defer f.syncing.Unlock()
	f.mu.Lock()
	if !f.dirty || f.closed {
		f.mu.Unlock()
		return nil
	}
	// Records that come during the sync go to the third slot: neither the durable one nor the one that is
	// being synced is touched.
	synced := f.slot
	f.slot = 0 + 1 + 2 - f.slot - f.kept
	f.dirty = false
	f.mu.Unlock()
	chaos.SlowSync()
	err := f.file.Sync()
	f.mu.Lock()
	defer f.mu.Unlock()
	if err != nil {
		f.dirty = true
		return fmt.Errorf("sync %s: %w", f.name, err)
	}
	f.kept = synced
	return nil
}

// now is the record as it stands.
func (f *floor) now() floorRecord {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.record
}

// condemn marks the disk in every slot, so that one damaged slot does not take it back.
func (f *floor) condemn(reason string) error {
	reason = oneLine(reason)
	reason = strings.ToValidUTF8(reason[:min(len(reason), maxReasonBytes)], "")
	return f.stop.do(f.name, "write", func() error {
		for range floorSlots {
			if err := f.noteDurably(func(r *floorRecord) { r.condemned = reason }); err != nil {
				return err
			}
		}
		return nil
	})
}

// Close makes the floor durable and closes it.
func (f *floor) Close() error {
	var err error
	if f.stop.err() == nil {
		err = f.flush()
	}
	f.syncing.Lock()
	defer f.syncing.Unlock()
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return nil
	}
	f.closed = true
	if f.timer != nil {
		f.timer.Stop()
	}
	return errors.Join(err, f.file.Close())
}
