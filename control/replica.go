package control

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/quorate/quorate/control/audit"
	"github.com/quorate/quorate/control/state"
	"github.com/quorate/quorate/partition/group"
)

// Replica is one node's copy of the control group's state: the adapter between the log, the state machine
// and the audit trail.
type Replica struct {
	trail   *audit.Trail
	level   state.Level
	changed func(*state.State)   // told of each new state
	swept   func(s *state.State) // told that a body epoch began
	differs func(index uint64)   // told that an entry's proposer had another state at an index
	fatal   func(error)

	mu      sync.Mutex // guards the fields below
	machine *state.Machine
	index   uint64 // of the last applied entry
	history digestRing
	stopped error // why no more entries are applied
}

var _ group.Applier = (*Replica)(nil)

// Applied is what Apply returns: the result and the state right after the entry.
type Applied struct {
	Result state.Result
	State  *state.State
}

// Apply applies one committed entry. One that this program cannot read or does not know, and one whose
// audit record cannot be kept, stops the replica: to skip it would make its state another than that of the
// others.
func (r *Replica) Apply(index, _ uint64, data []byte, _ bool) any {
	c, err := state.DecodeCommand(data)
	if err == nil && c.Kind == state.KindRaise && c.Level > r.level {
		err = tooNew(c.Level, r.level)
	}
	r.mu.Lock()
	if r.stopped != nil {
		r.mu.Unlock()
		return nil
	}
	var differs bool
	before := r.machine.State()
	var out *Applied
	if err == nil {
		own, known := r.history.at(c.Basis.Index)
		differs = known && own != c.Basis.Digest
		out, err = r.apply(index, c)
	}
	if err != nil {
		r.stopped = fmt.Errorf("control group: log index %d: %w", index, err)
		r.mu.Unlock()
		r.fatal(r.stopped)
		return nil
	}
	r.mu.Unlock()
	if differs {
		r.differs(c.Basis.Index)
	}
	if out.State != before {
		r.changed(out.State)
	}
	if out.State.BodyEpoch != before.BodyEpoch {
		r.swept(out.State)
	}
	return out
}

// apply steps the machine and keeps the record. It needs mu.
func (r *Replica) apply(index uint64, c *state.Command) (*Applied, error) {
	result, record := r.machine.Apply(index, c)
	now := r.machine.State()
	if record != nil {
		if err := r.trail.Append(record, now.AuditHash); err != nil {
			return nil, err
		}
	}
	r.index = index
	r.history.add(index, now.Digest())
	return &Applied{Result: result, State: now}, nil
}

func tooNew(level, known state.Level) error {
	return fmt.Errorf("feature level %d, this program knows up to %d: start the newer program on this node",
		level, known)
}

// basis is the present state, for a command to carry.
func (r *Replica) basis() state.Basis {
	r.mu.Lock()
	defer r.mu.Unlock()
	return state.Basis{Index: r.index, Digest: r.machine.State().Digest()}
}

// DigestAt is the digest of the state as of a recent log index; known is false when it is too long ago, or to
// come.
func (r *Replica) DigestAt(index uint64) (digest [16]byte, known bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.history.at(index)
}

// Snapshot captures the state and the audit trail.
func (r *Replica) Snapshot() (group.Snapshot, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.stopped != nil {
		return nil, r.stopped
	}
	return &snapshot{index: r.index, state: r.machine.State(), cut: r.trail.Cut()}, nil
}

// snapshot is a captured state on its way to a file: the log index, the state, the audit trail.
type snapshot struct {
	index uint64
	state *state.State
	cut   *audit.Cut
}

// WriteTo writes the snapshot. It runs beside Apply.
func (s *snapshot) WriteTo(w io.Writer) (int64, error) {
	out := bufio.NewWriterSize(w, 256<<10)
	_, err := out.Write(binary.LittleEndian.AppendUint64(nil, s.index))
	written := int64(8)
	for _, part := range []io.WriterTo{s.state, s.cut} {
		if err != nil {
			return written, err
		}
		var n int64
		n, err = part.WriteTo(out)
		written += n
	}
	if err == nil {
		err = out.Flush()
	}
	return written, err
}

// Release ends the snapshot.
func (s *snapshot) Release() { s.cut.Release() }

// Restore replaces state and trail by what WriteTo wrote.
func (r *Replica) Restore(from io.Reader) error {
	in := bufio.NewReaderSize(from, 256<<10)
	var head [8]byte
	if _, err := io.ReadFull(in, head[:]); err != nil {
		return fmt.Errorf("snapshot: %w", err)
	}
	machine, err := state.Restore(in)
	if err != nil {
		return err
	}
	s := machine.State()
	if s.Level > r.level {
		return tooNew(s.Level, r.level)
	}
	if err := r.trail.Restore(in, s.AuditHash); err != nil {
		return err
	}
	if _, err := in.ReadByte(); err == nil {
		return errors.New("snapshot: it goes on after its end")
	} else if !errors.Is(err, io.EOF) {
		return fmt.Errorf("snapshot: %w", err)
	}
	r.mu.Lock()
	r.machine, r.index = machine, binary.LittleEndian.Uint64(head[:])
	r.history = digestRing{}
	r.history.add(r.index, s.Digest())
	r.mu.Unlock()
	r.changed(s)
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

func (d *digestRing) at(index uint64) (digest [16]byte, known bool) {
	e := &d.entries[index%uint64(len(d.entries))]
	return e.digest, index != 0 && e.index == index
}
