package storage

import (
	"errors"
	"fmt"
	"io/fs"
	"runtime/debug"
	"slices"
	"strings"
	"syscall"

	"github.com/hashicorp/raft"
	bolterrors "go.etcd.io/bbolt/errors"

	"github.com/quorate/quorate/internal/guard"
)

// ErrDamaged says that data which this node has acknowledged was lost or changed, or may have been.
// Nothing on the disk was touched. The message is one line: what was found, what it means, what to do.
var ErrDamaged = errors.New("data was lost or damaged")

// ErrVersion says that another version of the program wrote what is on the disk. Nothing was touched.
var ErrVersion = errors.New("unknown format")

const remedy = "replace this replica: move the data directory away, run `quorate node replace` for this node, " +
	"and start the node again"

// damageError is an ErrDamaged with its cause.
type damageError struct{ cause error }

func (e *damageError) Error() string {
	return fmt.Sprintf("%s; %v: %s", oneLine(e.cause.Error()), ErrDamaged, remedy)
}

func (e *damageError) Unwrap() []error { return []error{ErrDamaged, e.cause} }

// damaged says that a cause is damage, unless the cause is that the disk could not be looked at.
func damaged(cause error) error {
	var known *damageError
	if errors.As(cause, &known) {
		return cause
	}
	for _, other := range []error{
		ErrVersion, fs.ErrPermission, bolterrors.ErrTimeout, syscall.EMFILE, syscall.ENFILE, syscall.ENOMEM,
	} {
		if errors.Is(cause, other) {
			return cause
		}
	}
	return &damageError{cause}
}

func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }

// faultError: a read ended in a fault or a panic. What was being read still holds its locks, so that it
// must not even be closed: that could wait for ever.
type faultError struct{ what any }

func (e *faultError) Error() string { return fmt.Sprintf("reading it failed: %v", e.what) }

func faulted(err error) bool {
	var fault *faultError
	return errors.As(err, &fault)
}

// survive runs a read of files that may be damaged. A file mapped into memory that is too short, or
// structures that make no sense, end a read in a fault or a panic.
func survive(read func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if r := recover(); r != nil {
			err = &faultError{r}
		}
	}()
	return read()
}

// found is what a verification found on the disk; all of it is sound.
type found struct {
	floor  *floorRecord // nil when there is nothing yet: First
	slot   int          // of floor
	newest *raft.SnapshotMeta
	log    *scan
	ballot ballot
}

func (f *found) snapshot() Position {
	if f.newest == nil {
		return Position{}
	}
	return Position{Term: f.newest.Term, Index: f.newest.Index}
}

// configuration is the group's members as the log, or else the newest snapshot, has them; none when neither
// has any.
func (f *found) configuration() (c raft.Configuration, err error) {
	if f.newest != nil {
		c = f.newest.Configuration
	}
	if l := f.log.configuration; l != nil && (f.newest == nil || l.Index > f.newest.ConfigurationIndex) {
		err = survive(func() error { // Raft panics on what it cannot decode
			c = raft.DecodeConfiguration(l.Data)
			return nil
		})
	}
	return c, err
}

// verify reads everything that a group keeps, and changes nothing.
func verify(c Config) (*found, error) {
	parts, err := c.Disk.Parts()
	if err != nil {
		return nil, err
	}
	f := &found{}
	if err := f.readFloor(c, parts); err != nil {
		return nil, err
	}
	if f.floor != nil {
		for _, p := range []Part{PartLog, PartStable} {
			if !slices.Contains(parts, p) {
				return nil, damaged(fmt.Errorf("%s is missing", c.Disk.Name(p)))
			}
		}
	}
	if f.newest, err = c.Disk.CheckSnapshots(); err != nil {
		return nil, damaged(err)
	}
	if f.log, err = f.verifyLog(c, parts); err != nil {
		return nil, err
	}
	if f.ballot, err = f.verifyStable(c, parts); err != nil {
		return nil, err
	}
	if f.floor == nil {
		if f.newest != nil || f.log.last != 0 || f.ballot != (ballot{}) {
			return nil, damaged(fmt.Errorf("%s is missing or damaged, but there is data beside it",
				c.Disk.Name(PartFloor)))
		}
		return f, nil
	}
	if err := f.compareLog(c); err != nil {
		return nil, err
	}
	if err := f.compareVotes(c, f.ballot); err != nil {
		return nil, err
	}
	return f, nil
}

// readFloor reads the floor, nil if this is the first time and there is none.
func (f *found) readFloor(c Config, parts []Part) error {
	name := c.Disk.Name(PartFloor)
	if !slices.Contains(parts, PartFloor) {
		switch {
		case c.First:
			return nil
		case len(parts) == 0:
			return damaged(fmt.Errorf("%s is empty, but this node has acknowledged entries from it",
				c.Disk.Name(PartLog)))
		default:
			return damaged(fmt.Errorf("%s is missing", name))
		}
	}
	file, err := c.Disk.Floor(true)
	if err != nil {
		return damaged(fmt.Errorf("open %s: %w", name, err))
	}
	f.floor, f.slot, err = readFloor(file)
	_ = file.Close() // only read
	switch {
	case err != nil && c.First:
		f.floor = nil // cut short before anything was acknowledged, if nothing else is there
		return nil
	case err != nil:
		return damaged(fmt.Errorf("%s cannot be read: %w", name, err))
	case f.floor.partition != c.Partition:
		return damaged(fmt.Errorf("%s is that of partition %q", name, f.floor.partition))
	case f.floor.condemned != "":
		return damaged(fmt.Errorf("%s says that these stores are not to be used again: %s", name, f.floor.condemned))
	}
	return nil
}

func (f *found) verifyLog(c Config, parts []Part) (*scan, error) {
	name := c.Disk.Name(PartLog)
	if !slices.Contains(parts, PartLog) {
		return &scan{ledger: &ledger{}}, nil
	}
	var backend LogBackend
	err := survive(func() (err error) {
		backend, err = c.Disk.Log(true)
		return err
	})
	if errors.Is(err, fs.ErrNotExist) && f.floor == nil {
		return &scan{ledger: &ledger{}}, nil // its folder is there, and nothing in it
	}
	if err != nil {
		return nil, damaged(fmt.Errorf("%s cannot be read: %w", name, err))
	}
	wanted := uint64(0)
	if f.floor != nil {
		wanted = f.floor.at.Index
	}
	sc, err := scanLog(backend, name, wanted, f.snapshot().Index)
	if faulted(err) {
		return nil, err
	}
	closeErr := backend.Close()
	if err == nil {
		err = closeErr
	}
	return sc, err
}

// compareLog compares log and newest snapshot with each other and with the floor.
func (f *found) compareLog(c Config) error {
	name, sc, end, floor := c.Disk.Name(PartLog), f.log, f.snapshot().Index, f.floor
	if sc.last != 0 && sc.first > end+1 {
		return damaged(fmt.Errorf("%s begins at entry %d, but the newest snapshot ends at %d: "+
			"what is between is gone", name, sc.first, end))
	}
	if !guard.On(guard.DurableFloor) {
		return nil
	}
	at := floor.at.Index
	if max(sc.last, end) < at {
		return damaged(fmt.Errorf("%s ends at entry %d and the newest snapshot at %d, but this node has "+
			"acknowledged entries up to %d", name, sc.last, end, at))
	}
	inLog := sc.last != 0 && sc.first <= at && at <= sc.last
	if inLog && floor.chain != (chainHash{}) && guard.On(guard.ChainHash) &&
		(sc.chain != floor.chain || sc.term != floor.at.Term) {
		return damaged(fmt.Errorf("%s holds another entry %d (term %d) than the one that this node has "+
			"acknowledged (term %d)", name, at, sc.term, floor.at.Term))
	}
	return nil
}

// ballot is term and vote as they are in the stable table.
type ballot struct {
	term, voteTerm uint64
	candidate      string
}

func (r *floorRecord) ballot() ballot { return ballot{r.term, r.voteTerm, r.candidate} }

func (f *found) verifyStable(c Config, parts []Part) (b ballot, err error) {
	if !slices.Contains(parts, PartStable) {
		return b, nil
	}
	name := c.Disk.Name(PartStable)
	err = survive(func() error {
		table, err := c.Disk.Stable(true)
		if err != nil {
			return err
		}
		b, err = readBallot(table, name)
		_ = table.Close() // only read
		return err
	})
	if err != nil {
		return b, damaged(fmt.Errorf("%s cannot be read: %w", name, err))
	}
	return b, nil
}

func readBallot(t Table, file string) (b ballot, err error) {
	s := &stable{table: t, file: file}
	if b.term, err = s.GetUint64(keyTerm); err != nil {
		return b, err
	}
	if b.voteTerm, err = s.GetUint64(keyVoteTerm); err != nil {
		return b, err
	}
	candidate, err := s.Get(keyVoteCandidate)
	b.candidate = string(candidate)
	return b, err
}

// compareVotes compares the stable table with the floor: a table that has gone back in time would let
// this node vote a second time in one term.
func (f *found) compareVotes(c Config, b ballot) error {
	if !guard.On(guard.DurableFloor) {
		return nil
	}
	name, floor := c.Disk.Name(PartStable), f.floor
	switch {
	case b.voteTerm != 0 && b.candidate == "" && guard.On(guard.VoteInOneWrite):
		return damaged(fmt.Errorf("%s says that this node voted in term %d, but not for whom", name, b.voteTerm))
	case b.term < floor.term:
		return damaged(fmt.Errorf("%s is at term %d, but this node has been at term %d", name, b.term, floor.term))
	case b.voteTerm < floor.voteTerm, b.voteTerm == floor.voteTerm && b.candidate != floor.candidate:
		return damaged(fmt.Errorf("%s says that this node voted for %q in term %d, but it voted for %q in term %d",
			name, b.candidate, b.voteTerm, floor.candidate, floor.voteTerm))
	}
	return nil
}
