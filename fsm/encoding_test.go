package fsm_test

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/quorate/quorate/fsm"
)

func sampleEntries(t testing.TB) []*fsm.Entry {
	t.Helper()
	p := mustParse(t)
	switched, err := p.With("s2", []fsm.Switch{{Class: "a", Disabled: true}, {Class: "default"}})
	if err != nil {
		t.Fatal(err)
	}
	install := fsm.NewInstall(2, switched)
	owned := []fsm.OwnedRange{
		{SlotRange: fsm.SlotRange{First: 0, Last: 99}, Epoch: fsm.NewEpoch(1, 1)},
		{SlotRange: fsm.SlotRange{First: 100, Last: fsm.NumSlots - 1}, Epoch: fsm.NewEpoch(2, 7), FrozenBy: 3},
	}
	return []*fsm.Entry{
		{Kind: fsm.KindBirth, Term: 1, Stamp: 5, Birth: &fsm.Birth{
			Cluster: "c", Partition: "p0", Seed: [16]byte{9, 8}, Owned: owned,
			Bounds: fsm.DefaultBounds(), Install: fsm.NewInstall(1, p),
		}},
		{Kind: fsm.KindBatch, Term: 2, Stamp: 6, WallBound: 7, Checks: []fsm.Check{
			{Principal: "p", Gateway: "g", DecisionID: "d", Charge: fsm.Charge{Class: "a", Tier: "t", Cost: 4}},
			{
				Principal: "q", Gateway: "g", DecisionID: "e", Charge: fsm.Charge{Class: "b", Cost: 1},
				Also:           []fsm.Charge{{Class: "c", Cost: 2}, {Class: "d", Tier: "u", Cost: 3}},
				PolicyRevision: 9, RouteEpoch: fsm.NewEpoch(1, 1),
			},
		}, Peeks: []fsm.Peek{{Principal: "p", Class: "a", Tier: "t", RouteEpoch: 3}}},
		{Kind: fsm.KindBatch, Term: 2, Stamp: 7, Basis: fsm.Basis{Index: 300, Digest: [16]byte{1, 15: 2}}},
		{Kind: fsm.KindInstall, Term: 3, Stamp: 8, Install: &install},
		{Kind: fsm.KindFreeze, Term: 3, Stamp: 9, Plan: 4, Ranges: []fsm.SlotRange{{First: 1, Last: 2}}, Revision: 6},
		{Kind: fsm.KindStage, Term: 3, Stamp: 9, Plan: 4, Pieces: []fsm.Piece{
			{Slot: 7}, {Slot: fsm.HistorySlot, Digest: [16]byte{1, 15: 2}, Size: 900, Offset: 300, Data: []byte("data")},
		}},
		{
			Kind: fsm.KindOpen, Term: 3, Stamp: 9, Plan: 4, Ranges: []fsm.SlotRange{{First: 1, Last: 2}, {First: 4, Last: 4}},
			Manifest: fsm.Manifest{FrozenAt: 8, Revision: 7, Digest: [16]byte{3, 15: 4}},
		},
		{Kind: fsm.KindSeal, Term: 3, Stamp: 9, Plan: 4, Policies: []fsm.Install{install, fsm.NewInstall(3, p)}},
		{Kind: fsm.KindActivate, Term: 3, Stamp: 9, Plan: 4, Epoch: fsm.NewEpoch(1, 2), Lost: true},
		{Kind: fsm.KindRelease, Term: 3, Stamp: 9, Plan: 4},
		{Kind: fsm.KindAbort, Term: 3, Stamp: 9, Plan: 4},
		{Kind: fsm.KindRaise, Term: 3, Stamp: 9, Level: 2},
		{Kind: fsm.KindForgive, Term: 3, Stamp: 9, Forgive: &fsm.Forgive{Principal: "p", Class: "a", RouteEpoch: 7}},
		{Kind: fsm.KindForgive, Term: 3, Stamp: 9, Forgive: &fsm.Forgive{Principal: "p", RouteEpoch: 7}},
	}
}

// unresolved is e as a decoder returns it: with the policy named, and not there.
func unresolved(e *fsm.Entry) *fsm.Entry {
	out := *e
	if e.Birth != nil {
		birth := *e.Birth
		birth.Policy, out.Birth = nil, &birth
	}
	if e.Install != nil {
		install := *e.Install
		install.Policy, out.Install = nil, &install
	}
	out.Policies = slices.Clone(e.Policies)
	for i := range out.Policies {
		out.Policies[i].Policy = nil
	}
	return &out
}

// Shows that each kind of entry is read back exactly, and that no cut or lengthened entry is.
func TestEntriesAreReadBackExactly(t *testing.T) {
	for _, e := range sampleEntries(t) {
		b := fsm.AppendEntry(nil, e)
		got, err := fsm.DecodeEntry(b)
		if err != nil {
			t.Fatalf("kind %d: %v", e.Kind, err)
		}
		if again := fsm.AppendEntry(nil, got); !bytes.Equal(again, b) {
			t.Errorf("kind %d: read back as another entry", e.Kind)
		}
		if diff := cmp.Diff(unresolved(e), got); diff != "" {
			t.Errorf("kind %d: %s", e.Kind, diff)
		}
		for n := range len(b) {
			if _, err := fsm.DecodeEntry(b[:n]); err == nil {
				t.Fatalf("kind %d: cut to %d of %d bytes it is still read", e.Kind, n, len(b))
			}
		}
		if _, err := fsm.DecodeEntry(append(b, 0)); err == nil {
			t.Errorf("kind %d: a byte too many goes unnoticed", e.Kind)
		}
	}
}

// Shows that a flipped bit anywhere in an entry is noticed.
func TestDamagedEntryIsRefused(t *testing.T) {
	for _, e := range sampleEntries(t) {
		b := fsm.AppendEntry(nil, e)
		for i := range 8 * len(b) {
			b[i/8] ^= 1 << (i % 8)
			if _, err := fsm.DecodeEntry(b); err == nil {
				t.Fatalf("kind %d: bit %d of %d", e.Kind, i, 8*len(b))
			}
			b[i/8] ^= 1 << (i % 8)
		}
	}
}

// Shows that an entry of a later version is refused with its number.
func TestUnknownVersionIsNamed(t *testing.T) {
	b := fsm.AppendEntry(nil, &fsm.Entry{Kind: fsm.KindBatch, Term: 1})
	b[0] = 200
	if _, err := fsm.DecodeEntry(b); err == nil || !bytes.Contains([]byte(err.Error()), []byte("200")) {
		t.Fatalf("error %v, want one that names version 200", err)
	}
}

// FuzzDecodeEntry shows that no bytes make the decoder panic, and that what it accepts means what it
// is encoded as again.
func FuzzDecodeEntry(f *testing.F) {
	for _, e := range sampleEntries(f) {
		b := fsm.AppendEntry(nil, e)
		f.Add(b[:len(b)-4])
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		// With the right checksum, or nothing would get beyond it.
		sum := crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli))
		e, err := fsm.DecodeEntry(binary.LittleEndian.AppendUint32(b[:len(b):len(b)], sum))
		if err != nil {
			return
		}
		again, err := fsm.DecodeEntry(fsm.AppendEntry(nil, e))
		if err != nil {
			t.Fatalf("what was read cannot be read again: %v", err)
		}
		if diff := cmp.Diff(e, again); diff != "" {
			t.Fatal(diff)
		}
	})
}

// FuzzRestore shows that no bytes make the reader of snapshots panic, and that whatever it accepts is a
// machine with the digest that the snapshot names.
func FuzzRestore(f *testing.F) {
	m := fsm.New()
	for _, e := range sampleEntries(f)[:2] {
		m.Step(e.Term, e)
	}
	b := snapshotOf(m)
	f.Add(b)
	f.Add(b[:len(b)/2])
	f.Add(b[:9])
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := fsm.Restore(bytes.NewReader(b))
		if err != nil {
			return
		}
		m.Step(99, &fsm.Entry{Kind: fsm.KindBatch, Term: 99, Stamp: m.Now(), Checks: []fsm.Check{{
			Principal: "p", Gateway: "g", DecisionID: "new", Charge: fsm.Charge{Class: "a", Cost: 1},
		}}})
	})
}
