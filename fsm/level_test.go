package fsm_test

import (
	"testing"

	"github.com/quorate/quorate/fsm"
)

// Shows that the feature level begins at the first, only rises, is part of the digest and survives a
// snapshot; and that an entry's basis, which replicas only compare, changes nothing.
func TestLevel(t *testing.T) {
	m := mustBirth(t)
	raise := func(to fsm.Level, basis fsm.Basis) {
		m.Step(1, &fsm.Entry{Kind: fsm.KindRaise, Term: 1, Level: to, Basis: basis})
	}
	if m.Level() != fsm.BirthLevel {
		t.Errorf("born at level %d", m.Level())
	}
	before := m.Digest()
	raise(7, fsm.Basis{})
	seven := m.Digest()
	raise(3, fsm.Basis{Index: 9, Digest: [16]byte{1}})
	if m.Level() != 7 || seven == before || m.Digest() != seven {
		t.Errorf("level %d; digests %x, %x, %x", m.Level(), before, seven, m.Digest())
	}
	if again := mustRestore(t, m); again.Level() != 7 || again.Status().Level != 7 {
		t.Errorf("restored at level %d", again.Level())
	}
}
