package partition

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/quorate/quorate/clock"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/partition/group"
)

// Replica is one node's copy of a partition's state: the adapter between the log and the state
// machine. It tells the clock about every entry that has been applied, as rule T3 asks.
type Replica struct {
	timeline *clock.Timeline
	// observer is told of each entry that carried time: when, of which leadership, and whether it was
	// applied as soon as it was committed.
	observer func(at fsm.Time, term uint64, live bool)
	restored func() // told that a snapshot took the place of the state

	mu      sync.Mutex // guards the fields below
	machine *fsm.Machine
	index   uint64 // of the last applied entry
	history digestRing
}

var _ group.Applier = (*Replica)(nil)

func newReplica(
	timeline *clock.Timeline, observer func(at fsm.Time, term uint64, live bool), restored func(),
) *Replica {
	return &Replica{timeline: timeline, observer: observer, restored: restored, machine: fsm.New()}
}

// Apply applies one committed entry. An entry that cannot be decoded stops the process: to skip it
// would make this replica's state another than that of the others.
func (r *Replica) Apply(index, term uint64, data []byte, live bool) any {
	e, err := fsm.DecodeEntry(data)
	if err != nil {
		panic(fmt.Sprintf("partition: log index %d: %v", index, err))
	}
	r.mu.Lock()
	answers := r.machine.Step(term, e)
	r.index = index
	r.history.add(index, r.machine.Digest())
	r.mu.Unlock()
	if answers.Refused == fsm.ReasonStaleTerm || answers.Refused == fsm.ReasonUnborn {
		return answers
	}
	r.timeline.Applied(int64(answers.Time), e.Term, e.WallBound)
	r.observer(answers.Time, e.Term, live)
	return answers
}

// view calls f with the machine, which f must not change or keep.
func (r *Replica) view(f func(m *fsm.Machine, index uint64)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f(r.machine, r.index)
}

// DigestAt is the digest of the state as of a recent log index; ok is false when it is not known.
func (r *Replica) DigestAt(index uint64) (digest [16]byte, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.history.at(index)
}

// Snapshot captures the state.
func (r *Replica) Snapshot() (group.Snapshot, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := &snapshot{replica: r, index: r.index}
	if r.machine.Born() {
		s.state = r.machine.BeginSnapshot()
	}
	return s, nil
}

// snapshotHeadBytes is the log index that a snapshot begins with, and whether a state follows.
const snapshotHeadBytes = 9

// snapshot is a captured state on its way to a file.
type snapshot struct {
	replica *Replica
	index   uint64
	state   *fsm.Snapshot // nil before the birth
}

// WriteTo writes the snapshot piece by piece, and lets entries be applied between the pieces.
func (s *snapshot) WriteTo(w io.Writer) (int64, error) {
	piece := binary.LittleEndian.AppendUint64(nil, s.index)
	if s.state == nil {
		n, err := w.Write(append(piece, 0))
		return int64(n), err
	}
	piece = append(piece, 1)
	var written int64
	for more := true; ; {
		n, err := w.Write(piece)
		written += int64(n)
		if err != nil || !more {
			return written, err
		}
		s.replica.mu.Lock()
		piece, more = s.state.Next(piece[:0])
		s.replica.mu.Unlock()
	}
}

// Release ends the snapshot.
func (s *snapshot) Release() {
	if s.state == nil {
		return
	}
	s.replica.mu.Lock()
	defer s.replica.mu.Unlock()
	s.state.Release()
}

// Restore replaces the state by one that WriteTo wrote, and anchors the clock anew.
func (r *Replica) Restore(from io.Reader) error {
	var head [snapshotHeadBytes]byte
	if _, err := io.ReadFull(from, head[:]); err != nil {
		return fmt.Errorf("snapshot: %w", err)
	}
	machine := fsm.New()
	switch head[8] {
	case 0:
	case 1:
		var err error
		if machine, err = fsm.Restore(from); err != nil {
			return err
		}
	default:
		return errors.New("snapshot: its head is damaged")
	}
	r.mu.Lock()
	r.machine, r.index = machine, binary.LittleEndian.Uint64(head[:8])
	r.history = digestRing{}
	r.history.add(r.index, machine.Digest())
	r.mu.Unlock()
	r.timeline.Restored(int64(machine.Now()), machine.WallBound())
	r.restored()
	return nil
}

// digestRing remembers the digests of the last entries.
type digestRing struct {
	entries [1024]struct {
		index  uint64
		digest [16]byte
	}
}

func (d *digestRing) add(index uint64, digest [16]byte) {
	e := &d.entries[index%uint64(len(d.entries))]
	e.index, e.digest = index, digest
}

func (d *digestRing) at(index uint64) (digest [16]byte, ok bool) {
	e := &d.entries[index%uint64(len(d.entries))]
	return e.digest, index != 0 && e.index == index
}
