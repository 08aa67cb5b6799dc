package node

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/quorate/quorate/partition/group"
)

func mustMemory(t *testing.T, dir string) *memory {
	t.Helper()
	m, err := loadMemory(dir, "p0")
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// Shows that the furthest position of each replica is remembered through a restart, by term first, apart
// for each data directory; that removed replicas are forgotten; that a damaged file, or one of another
// group, is refused; and that one which is removed stays so.
func TestMemory(t *testing.T) {
	dir := t.TempDir()
	m := mustMemory(t, dir)
	old, young := group.Member{ID: "n1", Instance: "old"}, group.Member{ID: "n1", Instance: "young"}
	for _, p := range []group.Position{{Term: 2, Index: 9}, {Term: 3, Index: 5}, {Term: 2, Index: 99}} {
		m.note(old, p)
	}
	m.note(young, group.Position{Term: 1, Index: 1})
	if err := m.save(); err != nil {
		t.Fatal(err)
	}
	m = mustMemory(t, dir)
	if got, want := m.of(old), (group.Position{Term: 3, Index: 5}); got != want {
		t.Errorf("remembered %+v, want %+v", got, want)
	}
	m.keepOnly([]group.Member{young})
	if err := m.save(); err != nil {
		t.Fatal(err)
	}
	m = mustMemory(t, dir)
	if got := (m.of(old)); got != (group.Position{}) || m.of(young).Index != 1 {
		t.Errorf("a removed one: %+v; the present one: %+v", got, m.of(young))
	}
	removed := mustMemory(t, dir)
	path := filepath.Join(dir, memoryFolder, "p0.json")
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	mustWriteFile(t, filepath.Join(dir, memoryFolder, "p1.json"), whole)
	if _, err := loadMemory(dir, "p1"); err == nil {
		t.Error("another group's is taken")
	}
	for i := range whole {
		whole[i] ^= 1
		mustWriteFile(t, path, whole)
		if _, err := loadMemory(dir, "p0"); err == nil {
			t.Errorf("a flipped bit in byte %d is not seen", i)
		}
		whole[i] ^= 1
	}
	mustWriteFile(t, path, whole[:len(whole)/2])
	if _, err := loadMemory(dir, "p0"); err == nil {
		t.Error("a cut file is taken")
	}
	for range 2 {
		if err := removed.remove(); err != nil {
			t.Fatal(err)
		}
		removed.note(young, group.Position{Term: 9, Index: 9})
		if err := removed.save(); err != nil || exists(path) {
			t.Errorf("it is removed, and written again: %v", err)
		}
	}
}
