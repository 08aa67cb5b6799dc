package node

import (
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"github.com/quorate/quorate/backup"
	"github.com/quorate/quorate/control/state"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/partition"
	"github.com/quorate/quorate/partition/storage"
	"github.com/quorate/quorate/quotaerr"
)

// spool is a file of this node's that has no name: what is on its way in a backup, or out of one, lies in it, and goes
// with it however the process ends.
type spool struct {
	*os.File
	node    *Node
	size    int64
	unasked int64 // bytes that were written since the room was asked for
}

const (
	spoolPattern = "backup-*.tmp"
	// roomInterval is after how many bytes the disk's room is asked for.
	roomInterval = int64(16) << 20
)

// newSpool makes one in the data directory, whose disk is the one that the node watches. Those whose process ended
// before they had lost their names go first.
func (n *Node) newSpool() (*spool, error) {
	left, err := filepath.Glob(filepath.Join(n.cfg.DataDir, spoolPattern))
	if err != nil {
		return nil, spoolError(err)
	}
	for _, name := range left {
		if err := unname(name); err != nil {
			return nil, spoolError(err)
		}
	}
	f, err := os.CreateTemp(n.cfg.DataDir, spoolPattern)
	if err != nil {
		return nil, spoolError(err)
	}
	if err := unname(f.Name()); err != nil {
		return nil, spoolError(errors.Join(err, f.Close()))
	}
	return &spool{File: f, node: n, unasked: roomInterval}, nil
}

// unname takes a file's name away, if it still has it.
func unname(name string) error {
	if err := os.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

func spoolError(err error) error {
	return quotaerr.Wrap(quotaerr.Internal, err, "the backup cannot be kept in this node's data directory; see its log")
}

// Write writes on, as long as the disk has room for what the node itself may need.
func (s *spool) Write(b []byte) (int, error) {
	if s.unasked >= roomInterval {
		if err := s.mustHaveRoom(); err != nil {
			return 0, err
		}
		s.unasked = 0
	}
	n, err := s.File.Write(b)
	s.size += int64(n)
	s.unasked += int64(n)
	if err != nil {
		err = spoolError(err)
	}
	return n, err
}

// mustHaveRoom refuses when what may be written before it is asked again could make the node run out of room. The
// bound is above the one from which on the node refuses checks.
func (s *spool) mustHaveRoom() error {
	free, err := storage.FreeBytes(s.node.cfg.DataDir)
	if err != nil {
		return spoolError(err)
	}
	least := uint64(*s.node.cfg.Storage.MinFreeMiB) << 20 // validated
	if free < least+least/4+2*uint64(roomInterval) {
		return quotaerr.New(quotaerr.Capacity, "node %s has %d MiB left on its disk, too little for the backup, which is "+
			"kept there while it is on its way: make room, or ask another node", s.node.cfg.ID, free>>20)
	}
	return nil
}

// empty forgets what was written.
func (s *spool) empty() error {
	s.size = 0
	err := s.Truncate(0)
	if err == nil {
		_, err = s.Seek(0, io.SeekStart)
	}
	if err != nil {
		return spoolError(err)
	}
	return nil
}

// again is what was written, from its beginning.
func (s *spool) again() io.Reader { return io.NewSectionReader(s.File, 0, s.size) }

// savedState is a partition's state as of one log index, out of a backup or on its way into one.
type savedState struct {
	mu      sync.Mutex // guards machine
	machine *fsm.Machine
	index   uint64
}

var _ partition.Source = (*savedState)(nil)

// View shows the state.
func (s *savedState) View(f func(*fsm.Machine)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f(s.machine)
}

// loadState reads what a replica's snapshot holds. All of from must be that.
func loadState(from io.Reader) (*savedState, error) {
	m, index, err := partition.ReadSnapshot(from)
	if err != nil {
		return nil, err
	}
	if !m.Born() {
		return nil, errors.New("it was saved before it was born")
	}
	n, err := io.Copy(io.Discard, from)
	switch {
	case err != nil:
		return nil, err
	case n > 0:
		return nil, fmt.Errorf("%d bytes follow the state", n)
	}
	return &savedState{machine: m, index: index}, nil
}

// describe is what a manifest says of the state.
func (s *savedState) describe() backup.Partition {
	st := s.machine.Status()
	out := backup.Partition{
		ID: st.Partition, Keys: st.Keys, Records: st.Allows + st.Denials, Index: s.index,
		Digest: hex.EncodeToString(st.Digest[:]), TimeNanos: int64(st.Time),
	}
	for _, o := range st.Owned {
		out.Ranges = append(out.Ranges, backup.Range{First: uint16(o.First), Last: uint16(o.Last), Epoch: uint64(o.Epoch)})
	}
	return out
}

// owns are the epochs of all slots, 0 where a slot is not owned.
type owns [fsm.NumSlots]fsm.Epoch

// ownedBy are the slots that a state owns and serves.
func (s *savedState) ownedBy() (out owns) {
	for _, o := range s.machine.Status().Owned {
		if o.FrozenBy == 0 {
			out.add(o.SlotRange, o.Epoch)
		}
	}
	return out
}

func ownedIn(ranges []state.Range) (out owns) {
	for _, r := range ranges {
		out.add(r.SlotRange, r.Epoch)
	}
	return out
}

func (o *owns) add(r fsm.SlotRange, e fsm.Epoch) {
	for slot := int(r.First); slot <= int(r.Last) && slot < len(o); slot++ {
		o[slot] = e
	}
}
