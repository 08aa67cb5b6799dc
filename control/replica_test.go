package control

import (
	"bytes"
	"path/filepath"
	"strings"
	"testing"

	"github.com/quorate/quorate/control/audit"
	"github.com/quorate/quorate/control/state"
)

// alone is a replica without a group.
type alone struct {
	*Replica
	fatal   error
	differs []uint64
}

func newAlone(t *testing.T) *alone {
	t.Helper()
	trail, err := audit.Open(filepath.Join(t.TempDir(), "audit.db"), 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { trail.Close() })
	a := &alone{}
	a.Replica = &Replica{
		trail: trail, level: state.MaxLevel, machine: state.New(), changed: func(*state.State) {}, swept: func(*state.State) {},
		differs: func(i uint64) { a.differs = append(a.differs, i) }, fatal: func(err error) { a.fatal = err },
	}
	return a
}

func (a *alone) apply(t *testing.T, index uint64, c *state.Command) *Applied {
	t.Helper()
	out, _ := a.Apply(index, 1, state.AppendCommand(nil, c), true).(*Applied)
	return out
}

func initCommand() *state.Command {
	return &state.Command{Kind: state.KindInit, Init: &state.Init{Cluster: "c", Incarnation: 1, Seed: [16]byte{1}}}
}

// Shows that an entry which is damaged, of another version or beyond the program's level
// stops the replica with a message, for good.
func TestUnknownEntriesStop(t *testing.T) {
	good := state.AppendCommand(nil, initCommand())
	flipped := bytes.Clone(good)
	flipped[9] ^= 1
	for name, c := range map[string]struct {
		data []byte
		want string
	}{
		"damaged": {flipped, "checksum"},
		"version": {append([]byte{9}, good[1:]...), "version 9"},
		"known":   {state.AppendCommand(nil, &state.Command{Kind: state.KindConfirm}), ""},
		"level":   {state.AppendCommand(nil, &state.Command{Kind: state.KindRaise, Level: state.MaxLevel + 1}), "newer program"},
	} {
		a := newAlone(t)
		out := a.Apply(7, 1, c.data, true)
		if c.want == "" {
			if a.fatal != nil || out == nil {
				t.Errorf("%s: %v", name, a.fatal)
			}
			continue
		}
		if a.fatal == nil || !strings.Contains(a.fatal.Error(), c.want) || !strings.Contains(a.fatal.Error(), "index 7") {
			t.Errorf("%s: %v", name, a.fatal)
		}
		if a.Apply(8, 1, good, true) != nil {
			t.Errorf("%s: it goes on", name)
		}
		if _, err := a.Snapshot(); err == nil {
			t.Errorf("%s: it takes snapshots", name)
		}
	}
}

// Shows that a proposer's other state at a known index is noticed, and an equal or unknown one is not.
func TestDifferentStatesAreNoticed(t *testing.T) {
	a := newAlone(t)
	a.apply(t, 5, initCommand())
	own := a.basis()
	for _, b := range []state.Basis{own, {Index: 4, Digest: [16]byte{1}}, {Index: 5, Digest: [16]byte{1}}} {
		a.apply(t, 6, &state.Command{Kind: state.KindConfirm, Basis: b})
	}
	if len(a.differs) != 1 || a.differs[0] != 5 {
		t.Fatalf("noticed %v", a.differs)
	}
}

// Shows that a snapshot carries state and audit trail to another replica whole, and that one with anything
// after its end is refused.
func TestSnapshotHasAll(t *testing.T) {
	a := newAlone(t)
	a.apply(t, 5, initCommand())
	a.apply(t, 6, &state.Command{Kind: state.KindAttempt, Attempt: &state.Attempt{Action: "x", Reason: "denied"}})
	s, err := a.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	defer s.Release()
	a.apply(t, 7, initCommand()) // after the capture
	var b bytes.Buffer
	if n, err := s.WriteTo(&b); err != nil || n != int64(b.Len()) {
		t.Fatalf("%d of %d bytes: %v", n, b.Len(), err)
	}
	other := newAlone(t)
	if err := other.Restore(bytes.NewReader(append(bytes.Clone(b.Bytes()), 0))); err == nil {
		t.Error("one that goes on was taken")
	}
	if err := other.Restore(&b); err != nil {
		t.Fatal(err)
	}
	want, _ := a.DigestAt(6)
	if got, known := other.DigestAt(6); !known || got != want {
		t.Error("the digest is another")
	}
	if last, _ := other.trail.End(); last != 6 {
		t.Errorf("the trail ends at %d", last)
	}
	other.apply(t, 7, initCommand())
	if other.basis() != a.basis() || other.fatal != nil {
		t.Errorf("its future is another: %v", other.fatal)
	}
}
