package storage

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/hashicorp/raft"
	"github.com/hashicorp/raft-wal/metadb"
)

// Shows that a log whose newest segment had been filled when the process ended takes appends again, with every
// entry that had been acknowledged; and the same when the filling append was written in part only.
func TestSegmentEnd(t *testing.T) {
	for cut := -1; cut < 400; cut += 7 {
		t.Run(fmt.Sprint("cut ", cut), func(t *testing.T) {
			dir := t.TempDir()
			open := func() LogBackend {
				files := NewFiles(dir, WAL, nil)
				files.segmentBytes = 16 << 10
				l, err := files.Log(false)
				if err != nil {
					t.Fatal(err)
				}
				return l
			}
			batch := func(first, n uint64) (logs []*raft.Log) {
				for i := range n {
					logs = append(logs, &raft.Log{Index: first + i, Term: 1, Data: bytes.Repeat([]byte{byte(first + i)}, 1000)})
				}
				return logs
			}
			l := open()
			must(t, l.StoreLogs(batch(1, 5)))
			list := filepath.Join(dir, walFolder, metadb.FileName)
			before, err := os.ReadFile(list)
			must(t, err)
			must(t, l.StoreLogs(batch(6, 15))) // fills the segment
			must(t, l.Close())
			// The turn to the next segment may have come through already, or not: here it has not.
			must(t, os.WriteFile(list, before, 0o600))
			want := uint64(20)
			if cut >= 0 {
				want = 5
				tear(t, filepath.Join(dir, walFolder, "00000000000000000001-0000000000000000.wal"), int64(cut))
			}
			l = open()
			if last, err := l.LastIndex(); err != nil || last != want {
				t.Fatalf("the log ends at %d, expected %d: %v", last, want, err)
			}
			for i := uint64(0); i < 40; i += 2 { // beyond a further end
				if err := l.StoreLogs(batch(want+1+i, 2)); err != nil {
					t.Fatal(err)
				}
			}
			if err := l.Close(); err != nil {
				t.Fatal(err)
			}
			l = open()
			for i := uint64(1); i <= want+40; i++ {
				var e raft.Log
				if err := l.GetLog(i, &e); err != nil || !bytes.Equal(e.Data, bytes.Repeat([]byte{byte(i)}, 1000)) {
					t.Fatalf("entry %d: %v", i, err)
				}
			}
			if err := l.Close(); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// tear zeroes what a file ends with, its zeros aside: at least its last byte.
func tear(t *testing.T, file string, n int64) {
	t.Helper()
	f, err := os.OpenFile(file, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	b, err := io.ReadAll(f)
	if err != nil {
		t.Fatal(err)
	}
	end := int64(len(bytes.TrimRight(b, "\x00")))
	from := max(0, end-1-n)
	if _, err := f.WriteAt(make([]byte, end-from), from); err != nil {
		t.Fatal(err)
	}
}
