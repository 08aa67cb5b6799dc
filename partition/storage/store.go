package storage

import (
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/hashicorp/raft"
)

// DefaultWriteTimeout is how long a write may take before the disk counts as stuck.
const DefaultWriteTimeout = 10 * time.Second

// Config is where and how a group's stores are kept.
type Config struct {
	Disk      Disk   // where the group's stores are
	Partition string // names the group in messages
	// First says that nothing was ever acknowledged from this disk for the group: it may be empty, and is
	// then made. Without it an empty disk is data that was lost.
	First bool
	// Admit, if set, is called when all has been read and found whole, and nothing changed yet, with where it
	// ends and the members as they are there. An error ends the opening.
	Admit func(last Position, members raft.Configuration) error
	// WriteTimeout is how long a write may take; 0 means DefaultWriteTimeout. Beyond it the process is
	// to end, so it must exceed the longest pause that the disk is known to make.
	WriteTimeout time.Duration
	// Fatal ends the process with a message; required. Called once at most, from any goroutine.
	Fatal func(error)
	// Stored, if set, is called after each append, from Raft's main goroutine: it must not block.
	Stored func()
}

// Store is the open stores of one group.
type Store struct {
	Log       raft.LogStore
	Stable    raft.StableStore
	Snapshots raft.SnapshotStore

	log       *log
	stable    *stable
	snapshots *snapshots
	floor     *floor
}

// Open opens the stores of a group. First it reads all of them, once, without changing anything, and
// refuses with ErrDamaged what shows that data was lost or damaged; the disk is then as it was.
func Open(c Config) (*Store, error) {
	if c.Disk == nil || c.Partition == "" || c.Fatal == nil {
		return nil, errors.New("storage: Disk, Partition and Fatal must be set")
	}
	if len(c.Partition) > maxNameBytes {
		return nil, fmt.Errorf("storage: the partition's name has %d bytes, at most %d are possible",
			len(c.Partition), maxNameBytes)
	}
	if c.WriteTimeout == 0 {
		c.WriteTimeout = DefaultWriteTimeout
	}
	if c.Stored == nil {
		c.Stored = func() {}
	}
	f, err := verify(c)
	if err != nil {
		return nil, fmt.Errorf("partition %s: %w", c.Partition, err)
	}
	if c.Admit != nil {
		members, err := f.configuration()
		if err == nil {
			err = c.Admit(f.end().at, members)
		}
		if err != nil {
			return nil, err
		}
	}
	s, err := open(c, f)
	if err != nil {
		return nil, fmt.Errorf("partition %s: %w", c.Partition, err)
	}
	return s, nil
}

// open opens for writing what has been verified. The floor comes last: while there is none, nothing has
// been acknowledged.
func open(c Config, f *found) (_ *Store, err error) {
	stop := &failStop{partition: c.Partition, fatal: c.Fatal, bound: c.WriteTimeout}
	s := &Store{}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Close())
		}
	}()
	if s.log, err = openLog(c, f, stop); err != nil {
		return nil, err
	}
	table, err := c.Disk.Stable(false)
	if err != nil {
		return nil, err
	}
	s.stable = &stable{table: table, file: c.Disk.Name(PartStable), stop: stop}
	if s.snapshots, err = openSnapshots(c.Disk, f.snapshot(), stop); err != nil {
		return nil, err
	}
	file, err := c.Disk.Floor(false)
	if err != nil {
		return nil, err
	}
	if s.floor, err = openFloor(file, c.Disk.Name(PartFloor), stop, c.Partition, f.floor, f.slot); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	s.log.floor, s.stable.floor, s.snapshots.floor, s.log.snapshots = s.floor, s.floor, s.floor, s.snapshots
	if err := s.settle(f); err != nil {
		return nil, err
	}
	if err := reconcile(s.log, f.log, f.snapshot()); err != nil {
		return nil, err
	}
	s.Log, s.Stable, s.Snapshots = newCache(s.log, cachedEntries, cachedBytes), s.stable, s.snapshots
	return s, nil
}

func openLog(c Config, f *found, stop *failStop) (*log, error) {
	backend, err := c.Disk.Log(false)
	if err != nil {
		return nil, err
	}
	l := &log{
		writing:    newTurn(),
		LogBackend: backend, file: c.Disk.Name(PartLog), stop: stop, stored: c.Stored,
		ledger: f.log.ledger, sealer: newSealer(), tail: f.log.tail,
	}
	first, err := backend.FirstIndex()
	if err != nil {
		return nil, errors.Join(err, backend.Close())
	}
	last, err := backend.LastIndex()
	if err == nil && (first != f.log.first || last != f.log.last) {
		err = fmt.Errorf("%s held entries %d to %d a moment ago and holds %d to %d now: stop what else writes there",
			l.file, f.log.first, f.log.last, first, last)
	}
	if err != nil {
		return nil, errors.Join(err, backend.Close())
	}
	return l, nil
}

// settle brings the floor to where the disk is: it is behind after a crash between a write and its note
// there, or after a power cut.
func (s *Store) settle(f *found) error {
	end, now := f.end(), s.floor.now()
	if now.at == end.at && now.chain == end.chain && now.ballot() == f.ballot {
		return nil
	}
	return s.floor.stop.do(s.floor.name, "write", func() error {
		return s.floor.noteDurably(func(r *floorRecord) {
			r.at, r.chain = end.at, end.chain
			r.term, r.voteTerm, r.candidate = f.ballot.term, f.ballot.voteTerm, f.ballot.candidate
		})
	})
}

// end is where what was found ends, and the chain hash there if it is in the log.
func (f *found) end() floorRecord {
	end := floorRecord{at: f.snapshot()}
	if f.log.last != 0 && f.log.last >= end.at.Index {
		end.at, end.chain = Position{Term: f.log.lastTerm, Index: f.log.last}, f.log.tail
	}
	return end
}

// Started tells the store that Raft has loaded what it needs: until then a snapshot that cannot be
// read is an error for good, and is returned here even if Raft went on with an older one.
func (s *Store) Started() error { return s.snapshots.started() }

// SnapshotIndex is the log index of the newest snapshot; 0 when there is none.
func (s *Store) SnapshotIndex() uint64 { return s.snapshots.newest.Load().Index }

// BytesAfter is about how many bytes the log holds in entries above an index.
func (s *Store) BytesAfter(index uint64) uint64 { return s.log.ledger.after(index) }

// EntriesWithin is how many of the newest entries have at most the given bytes together.
func (s *Store) EntriesWithin(bytes uint64) uint64 { return s.log.ledger.trailing(bytes) }

// Position is a place in a log: an entry's index and the term in which it was proposed.
type Position struct {
	Term, Index uint64
}

// Before reports whether a log that ends at p lacks something that one which ends at o has: Raft's order
// of logs (Ongaro and Ousterhout, section 5.4.1).
func (p Position) Before(o Position) bool {
	return p.Term < o.Term || p.Term == o.Term && p.Index < o.Index
}

// Last is where what is on the disk ends, snapshot included.
func (s *Store) Last() (Position, error) {
	index, err := s.log.LastIndex()
	if err != nil {
		return Position{}, fmt.Errorf("read %s: %w", s.log.file, err)
	}
	if newest := *s.snapshots.newest.Load(); index <= newest.Index {
		return newest, nil
	}
	var entry raft.Log
	if err := s.log.GetLog(index, &entry); err != nil {
		return Position{}, err
	}
	return Position{Term: entry.Term, Index: index}, nil
}

// BeginsAfter is the first entry in the log, or where the newest snapshot ends when the log is empty, if that
// lies beyond an index; ok is false when it does not, or cannot be read.
func (s *Store) BeginsAfter(index uint64) (p Position, ok bool) {
	first, _ := s.log.ledger.bounds()
	if first == 0 {
		p = *s.snapshots.newest.Load()
		return p, p.Index > index
	}
	if first <= index {
		return p, false
	}
	var entry raft.Log
	if err := s.Log.GetLog(first, &entry); err != nil {
		return p, false
	}
	return Position{Term: entry.Term, Index: first}, true
}

// Condemn marks the disk, durably, as one from which this group is never to be opened again. Open then
// refuses with the reason, of which the first 1024 bytes are kept.
func (s *Store) Condemn(reason string) error {
	if err := s.floor.condemn(reason); err != nil {
		return fmt.Errorf("partition %s: condemn the stores: %w", s.floor.stop.partition, err)
	}
	return nil
}

// Err is why the stores have failed, nil while they have not.
func (s *Store) Err() error { return s.log.stop.err() }

// Close closes the files. Raft must have stopped.
func (s *Store) Close() error {
	var open []io.Closer
	if s.log != nil {
		open = append(open, s.log)
	}
	if s.stable != nil {
		open = append(open, s.stable)
	}
	if s.floor != nil {
		open = append(open, s.floor)
	}
	return closeAll(open...)
}
