package storage

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/hashicorp/raft-wal/types"
)

// countedFile counts the full syncs of a file.
type countedFile struct {
	*os.File
	syncs int
}

func (f *countedFile) Sync() error {
	f.syncs++
	return f.File.Sync()
}

// Shows that a segment's first sync is a full one and the later ones are of the data only, on a file that offers it,
// and that an error of either comes back.
func TestSegmentSync(t *testing.T) {
	file, err := os.Create(filepath.Join(t.TempDir(), "segment"))
	must(t, err)
	counted := &countedFile{File: file}
	f := &segmentFile{WritableFile: counted}
	for range 3 {
		if _, err := f.WriteAt([]byte("entry"), 0); err != nil {
			t.Fatal(err)
		}
		must(t, f.Sync())
	}
	if counted.syncs != 1 && syncsData {
		t.Errorf("%d full syncs, want 1", counted.syncs)
	}
	must(t, file.Close())
	if err := f.Sync(); err == nil {
		t.Error("a later sync of a closed file is no error")
	}
	first := &segmentFile{WritableFile: file}
	if err := first.Sync(); !errors.Is(err, os.ErrClosed) {
		t.Errorf("the first sync of a closed file: %v", err)
	}
	if first.synced {
		t.Error("a sync that failed counts as done")
	}
	broken := &segmentFile{WritableFile: brokenSync{}, synced: true}
	if err := broken.Sync(); !errors.Is(err, errBrokenSync) {
		t.Errorf("a sync of a file that has no descriptor: %v", err)
	}
}

var errBrokenSync = errors.New("broken")

type brokenSync struct{ types.WritableFile }

func (brokenSync) Sync() error { return errBrokenSync }
