package storage

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/internal/chaos"
	"github.com/quorate/quorate/internal/guard"
)

// log is the guarded log of one group: its entries are sealed on the disk, and the floor follows it.
type log struct {
	LogBackend
	file      string
	stop      *failStop
	floor     *floor
	snapshots *snapshots
	ledger    *ledger
	closed    atomic.Bool
	faulted   atomic.Bool // a read ended in a fault: see faultError
	stored    func()      // called after each append

	writing turn // one append or truncation at a time; guards the fields below
	sealer  *sealer
	tail    chainHash // of the last entry; zero when the log is empty

	readers sync.Pool // of *sealer
}

var (
	_ raft.LogStore          = (*log)(nil)
	_ raft.MonotonicLogStore = (*log)(nil)
)

// IsMonotonic makes Raft drop the whole log after the install of a snapshot, with either backend. It
// would otherwise keep trailing entries that may conflict with the snapshot (hashicorp/raft#697).
func (l *log) IsMonotonic() bool { return true }

// GetLog reads an entry and checks it. Raft panics when one that must be there cannot be read; this says
// why first. raft-wal goes on answering for entries that were truncated from the head of its newest
// segment; here they are gone.
func (l *log) GetLog(index uint64, out *raft.Log) error {
	if !l.ledger.holds(index) {
		return raft.ErrLogNotFound
	}
	_, err := l.read(index, out)
	if err == nil || l.closed.Load() {
		return err
	}
	if errors.Is(err, raft.ErrLogNotFound) && !l.ledger.holds(index) {
		return err // it was truncated meanwhile
	}
	return l.stop.fail(fmt.Errorf("partition %s: %w", l.stop.partition, damagedEntry(l.file, index, err)))
}

// read gives an entry in its own form, and its predecessor's hash.
func (l *log) read(index uint64, out *raft.Log) (before chainHash, err error) {
	s, _ := l.readers.Get().(*sealer)
	if s == nil {
		s = newSealer()
	}
	defer l.readers.Put(s)
	before, err = readEntry(l.LogBackend, s, index, out)
	if faulted(err) {
		l.faulted.Store(true)
	}
	return before, err
}

// readEntry reads an entry from a backend, whatever the disk does to the attempt.
func readEntry(b LogBackend, s *sealer, index uint64, out *raft.Log) (before chainHash, err error) {
	if err := survive(func() error { return b.GetLog(index, out) }); err != nil {
		return before, err
	}
	return s.unseal(out, index)
}

func damagedEntry(file string, index uint64, err error) error {
	return damaged(fmt.Errorf("%s: entry %d cannot be believed: %w", file, index, err))
}

func (l *log) StoreLog(entry *raft.Log) error { return l.StoreLogs([]*raft.Log{entry}) }

// StoreLogs appends entries, which follow the last one. They are on the disk, and the floor says so,
// when it returns.
func (l *log) StoreLogs(logs []*raft.Log) error {
	if len(logs) == 0 {
		return nil
	}
	l.writing.Lock()
	defer l.writing.Unlock()
	last := logs[len(logs)-1]
	sealed, tail := l.sealer.seal(logs, l.tail)
	err := l.stop.do(l.file, "append", func() error {
		if _, end := l.ledger.bounds(); end != 0 && logs[0].Index != end+1 {
			return fmt.Errorf("entry %d does not follow the last one, %d", logs[0].Index, end)
		}
		chaos.SlowSync()
		if err := l.LogBackend.StoreLogs(sealed); err != nil {
			return err
		}
		return l.floor.note(func(r *floorRecord) {
			r.at, r.chain = Position{Term: last.Term, Index: last.Index}, tail
		})
	})
	if err != nil {
		return err
	}
	l.tail = tail
	l.ledger.add(logs)
	l.stored()
	return nil
}

// DeleteRange removes a head or a tail of the log.
func (l *log) DeleteRange(lowest, highest uint64) error {
	l.writing.Lock()
	defer l.writing.Unlock()
	first, last := l.ledger.bounds()
	if last == 0 || lowest > highest || highest < first || lowest > last {
		return nil
	}
	if lowest > first && highest < last {
		return fmt.Errorf("%s: entries %d to %d are in the middle of %d to %d: only a head or a tail can go",
			l.file, lowest, highest, first, last)
	}
	tail := l.tail
	if highest >= last {
		var err error
		if tail, err = l.lower(first, lowest); err != nil {
			return err
		}
	}
	// First here, so that a reader who finds an entry gone can tell that it was meant to go.
	l.ledger.remove(lowest, highest)
	err := l.stop.do(l.file, "truncation", func() error { return l.LogBackend.DeleteRange(lowest, highest) })
	if err != nil {
		return err
	}
	l.tail = tail
	return nil
}

// lower makes the floor that holds without the entries from lowest on durable before they go: after a
// power cut the old one would refuse the truncated log. It returns the hash of the last entry that stays.
func (l *log) lower(first, lowest uint64) (tail chainHash, err error) {
	// A snapshot is the end when it ends beyond what stays.
	at := *l.snapshots.newest.Load()
	var chain chainHash
	if lowest > first {
		var entry raft.Log
		before, err := l.read(lowest-1, &entry)
		if err != nil {
			return tail, l.stop.fail(fmt.Errorf("partition %s: %w", l.stop.partition,
				damagedEntry(l.file, lowest-1, err)))
		}
		tail = l.sealer.hash(&entry, entry.Extensions, before)
		if entry.Index >= at.Index {
			at, chain = Position{Term: entry.Term, Index: entry.Index}, tail
		}
	}
	return tail, l.stop.do(l.floor.name, "write", func() error {
		return l.floor.noteDurably(func(r *floorRecord) { r.at, r.chain = at, chain })
	})
}

// Close closes the files. After a fault they stay open until the process ends.
func (l *log) Close() error {
	l.closed.Store(true)
	if l.faulted.Load() {
		return nil
	}
	return l.LogBackend.Close()
}

// scan is what the entries of a log are.
type scan struct {
	first, last uint64
	ledger      *ledger
	lastTerm    uint64
	tail        chainHash
	// term and chain of the entry at the index that was asked for
	term  uint64
	chain chainHash
	// term of the entry where the newest snapshot ends
	snapshotTerm uint64
	// configuration is the last entry of members; nil without one
	configuration *raft.Log
}

// scanLog reads every entry once, and checks that each is whole and follows the one before it.
func scanLog(b LogBackend, file string, wanted, snapshot uint64) (*scan, error) {
	sc := &scan{ledger: &ledger{}}
	err := survive(func() (err error) {
		if sc.first, err = b.FirstIndex(); err != nil {
			return err
		}
		sc.last, err = b.LastIndex()
		return err
	})
	if err != nil {
		return nil, damaged(fmt.Errorf("%s cannot be read: %w", file, err))
	}
	if sc.last == 0 && sc.first == 0 {
		return sc, nil
	}
	if sc.first == 0 || sc.first > sc.last || sc.last+1 == 0 {
		return nil, damaged(fmt.Errorf("%s says that it holds entries %d to %d", file, sc.first, sc.last))
	}
	s := newSealer()
	for i := sc.first; i <= sc.last; i++ {
		var entry raft.Log
		before, err := readEntry(b, s, i, &entry)
		if err != nil {
			return nil, damagedEntry(file, i, fmt.Errorf("%w (the log has %d to %d)", err, sc.first, sc.last))
		}
		if i > sc.first && before != sc.tail && guard.On(guard.ChainHash) {
			return nil, damagedEntry(file, i, fmt.Errorf("it does not follow entry %d: "+
				"one of the two was exchanged", i-1))
		}
		sc.lastTerm = entry.Term
		sc.tail = s.hash(&entry, entry.Extensions, before)
		if i == wanted {
			sc.term, sc.chain = entry.Term, sc.tail
		}
		if i == snapshot {
			sc.snapshotTerm = entry.Term
		}
		if entry.Type == raft.LogConfiguration {
			sc.configuration = &entry
		}
		sc.ledger.add([]*raft.Log{&entry})
	}
	return sc, nil
}
