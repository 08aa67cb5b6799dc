package partition

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"

	"github.com/quorate/quorate/clock"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/internal/chaos"
	"github.com/quorate/quorate/partition/group"
	"github.com/quorate/quorate/policy"
)

// Replica is one node's copy of a partition's state: the adapter between the log and the state
// machine. It tells the clock about every entry that has been applied, as rule T3 asks.
type Replica struct {
	replicaConfig
	mu      sync.Mutex // guards the fields below
	machine *fsm.Machine
	index   uint64 // of the last applied entry
	history digestRing
	stopped error // why no more entries are applied
	named   named // since the last snapshot

	revision atomic.Uint64 // in force
	awaits   atomic.Uint64 // the revision that the next entry names and that was not found yet; 0 none
}

// named counts the policies that entries have put in force, and the bytes of their bodies.
type named struct {
	policies int
	numBytes int64
}

// A log that names more is compacted, so that bodies which nothing counts by any more need not be kept for
// it.
const (
	mostNamed      = 32
	mostNamedBytes = 2 << 30
)

func (n named) many() bool { return n.policies >= mostNamed || n.numBytes >= mostNamedBytes }

// replicaConfig is what a Replica needs. All fields but the tap are required; the functions but policy must not block.
type replicaConfig struct {
	timeline *clock.Timeline
	level    fsm.Level // the highest that this program knows
	// observe is told of each entry that carried time: when, of which leadership, and whether it was
	// applied as soon as it was committed.
	observe  func(at fsm.Time, term uint64, live bool)
	restored func()             // told that a snapshot took the place of the state
	differs  func(index uint64) // told that an entry's proposer had another state at an index
	fatal    func(error)        // told why no more entries can be applied
	// policy finds the policy that an entry names, and waits for it until closing is true.
	policy  func(ref fsm.PolicyRef) (*policy.Policy, error)
	closing func() bool
	crowded func() // told that the log names too many policies
	tap     chaos.Tap
}

var _ group.Applier = (*Replica)(nil)

func newReplica(c replicaConfig) *Replica { return &Replica{replicaConfig: c, machine: fsm.New()} }

// Apply applies one committed entry. One that this program cannot read or does not know stops the
// replica: to skip it would make its state another than that of the others. It waits for the policies that
// the entry names.
func (r *Replica) Apply(index, term uint64, data []byte, live bool) any {
	e, err := fsm.DecodeEntry(data)
	if err == nil && e.Kind == fsm.KindRaise && e.Level > r.level {
		err = tooNew(e.Level, r.level)
	}
	if err == nil {
		var found bool
		if found, err = r.resolve(term, e); found {
			live = false // finding it may have taken long
		}
	}
	r.mu.Lock()
	if r.stopped == nil && err != nil {
		r.stopped = fmt.Errorf("log index %d: %w", index, err)
		if !errors.Is(err, errClosing) {
			defer r.fatal(r.stopped)
		}
	}
	if r.stopped != nil {
		r.mu.Unlock()
		return nil
	}
	differs := r.differing(e.Basis)
	answers, crowded := r.step(index, term, e)
	r.tap.Applied(index, term, data, e, answers, r.machine)
	r.mu.Unlock()
	if differs {
		r.differs(e.Basis.Index)
	}
	if crowded {
		r.crowded()
	}
	if answers.Refused == fsm.ReasonStaleTerm || answers.Refused == fsm.ReasonUnborn {
		return answers
	}
	r.timeline.Applied(int64(answers.Time), e.Term, e.WallBound)
	r.observe(answers.Time, e.Term, live)
	return answers
}

// step applies an entry whose policies were found. crowded says that the log names too many. It needs mu.
func (r *Replica) step(index, term uint64, e *fsm.Entry) (answers *fsm.Answers, crowded bool) {
	for _, needed := range r.machine.Needs(term, e) {
		r.named.policies++
		r.named.numBytes += needed.Bytes
		crowded = r.named.many()
	}
	answers = r.machine.Step(term, e)
	r.index = index
	r.history.add(index, r.machine.Digest())
	r.revision.Store(uint64(r.machine.Revision()))
	return answers, crowded
}

var errClosing = errors.New("the replica is closing")

// resolve finds the policies that an entry names, as far as the step will need them. Nobody else applies entries, so
// the answer holds although others may look at the state meanwhile.
func (r *Replica) resolve(term uint64, e *fsm.Entry) (found bool, _ error) {
	for _, needed := range r.needs(term, e) {
		r.awaits.Store(uint64(needed.Revision))
		p, err := r.policy(needed.PolicyRef)
		if err == nil {
			err = needed.Check(p)
		}
		if err != nil && r.closing() {
			return false, errClosing
		}
		if err != nil {
			return false, err
		}
		r.awaits.Store(0)
		needed.Policy, found = p, true
	}
	return found, nil
}

// needs are the installs of an entry whose policies its step will use; none when it is not to come.
func (r *Replica) needs(term uint64, e *fsm.Entry) []*fsm.Install {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.stopped != nil {
		return nil
	}
	return r.machine.Needs(term, e)
}

// Revision is the policy revision in force; 0 before the birth.
func (r *Replica) Revision() fsm.Revision { return fsm.Revision(r.revision.Load()) }

// Awaits is the policy revision that the next entry names and that was not found yet; 0 without.
func (r *Replica) Awaits() fsm.Revision { return fsm.Revision(r.awaits.Load()) }

// Index is the log index of the last applied entry.
func (r *Replica) Index() (index uint64) {
	r.view(func(_ *fsm.Machine, applied uint64) { index = applied })
	return index
}

func tooNew(level, known fsm.Level) error {
	return fmt.Errorf("feature level %d, this program knows up to %d: start the newer program on this node", level, known)
}

// differing reports that the state at b.Index is known and is not b's. It needs mu.
func (r *Replica) differing(b fsm.Basis) bool {
	own, known := r.history.at(b.Index)
	return known && own != b.Digest
}

// basis is the present state, for an entry to carry.
func (r *Replica) basis() fsm.Basis {
	r.mu.Lock()
	defer r.mu.Unlock()
	return fsm.Basis{Index: r.index, Digest: r.machine.Digest()}
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
	if r.stopped != nil {
		return nil, r.stopped
	}
	s := &snapshot{replica: r, index: r.index, named: r.named}
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
	named   named         // by the log up to the snapshot
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
		if err != nil {
			return written, err
		}
		if !more {
			s.covered()
			return written, nil
		}
		s.replica.mu.Lock()
		piece, more = s.state.Next(piece[:0])
		s.replica.mu.Unlock()
	}
}

// covered notes that what the log names up to the snapshot is in a file of its own.
func (s *snapshot) covered() {
	s.replica.mu.Lock()
	defer s.replica.mu.Unlock()
	n := &s.replica.named // begun anew when another snapshot took the place of the state
	n.policies = max(0, n.policies-s.named.policies)
	n.numBytes = max(0, n.numBytes-s.named.numBytes)
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

// ReadSnapshot reads a replica's snapshot: the state, unborn if it was, and the log index of the last entry in it. It
// takes any bytes.
func ReadSnapshot(from io.Reader) (m *fsm.Machine, index uint64, err error) {
	var head [snapshotHeadBytes]byte
	if _, err := io.ReadFull(from, head[:]); err != nil {
		return nil, 0, fmt.Errorf("snapshot: %w", err)
	}
	m = fsm.New()
	switch head[8] {
	case 0:
	case 1:
		if m, err = fsm.Restore(from); err != nil {
			return nil, 0, err
		}
	default:
		return nil, 0, errors.New("snapshot: its head is damaged")
	}
	return m, binary.LittleEndian.Uint64(head[:8]), nil
}

// Restore replaces the state by one that WriteTo wrote, and anchors the clock anew.
func (r *Replica) Restore(from io.Reader) error {
	machine, index, err := ReadSnapshot(from)
	if err != nil {
		return err
	}
	if machine.Level() > r.level {
		return tooNew(machine.Level(), r.level)
	}
	r.mu.Lock()
	r.machine, r.index = machine, index
	r.history, r.named = digestRing{}, named{}
	r.history.add(r.index, machine.Digest())
	r.revision.Store(uint64(machine.Revision()))
	r.tap.Restored(index, machine)
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
