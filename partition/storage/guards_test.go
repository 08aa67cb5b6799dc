//go:build chaos

package storage

import (
	"testing"

	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/internal/guard"
)

// Without SyncedWrite no file of the product is synced; with it, all are.
func TestSyncedWriteOff(t *testing.T) {
	defer guard.Switch("")
	for _, off := range []bool{false, true} {
		guard.Switch("")
		if off {
			guard.Switch(guard.SyncedWrite)
		}
		f := NewFiles(t.TempDir(), WAL, nil)
		floor, err := f.Floor(false)
		must(t, err)
		if _, unsynced := floor.(unsyncedFile); unsynced != off {
			t.Errorf("off %v: the floor is a %T", off, floor)
		}
		segment, err := newWALFiles(false, &segmentTurn{}).Create(t.TempDir(), "x.wal", 0)
		must(t, err)
		if _, unsynced := segment.(unsyncedFile); unsynced != off {
			t.Errorf("off %v: a segment is a %T", off, segment)
		}
		if boltOptions(false).NoSync != off {
			t.Errorf("off %v: bbolt's option is not %v", off, off)
		}
		must(t, segment.Close())
		must(t, floor.Close())
	}
}

// Each guard of this package, switched off alone, lets the damage through that it is there for.
func TestGuardsNeeded(t *testing.T) {
	defer guard.Switch("")
	t.Run(string(guard.EntryChecksum), func(t *testing.T) {
		guard.Switch(guard.EntryChecksum)
		l, s, _ := sealedLog(t)
		stored := mustStored(t, s, 5)
		stored.Data[0] ^= 1
		l.LogBackend = &replaced{LogBackend: l.LogBackend, index: 5, entry: *stored}
		must(t, l.GetLog(5, new(raft.Log)))
	})
	t.Run(string(guard.ChainHash), func(t *testing.T) {
		guard.Switch(guard.ChainHash)
		l, _, _ := sealedLog(t)
		sealed, _ := newSealer().seal(entries(5, 5, 9), chainHash{1})
		_, err := scanLog(&replaced{LogBackend: l.LogBackend, index: 5, entry: *sealed[0]}, "wal", 0, 0)
		must(t, err)
	})
	t.Run(string(guard.DurableFloor), func(t *testing.T) {
		guard.Switch(guard.DurableFloor)
		c := files(t.TempDir(), WAL)
		mustStores(t, c)
		f := c.Disk.(*Files)
		file, err := f.Floor(false)
		must(t, err)
		r := floorRecord{number: 99, at: Position{Term: 3, Index: 1044}, term: 9, partition: "p7"}
		_, err = file.WriteAt(r.encode(), 0)
		must(t, err)
		must(t, file.Close())
		must(t, mustOpen(t, c).Close())
	})
}
