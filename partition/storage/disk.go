package storage

import (
	"io"

	"github.com/hashicorp/raft"
)

// Part is one of the things that a group keeps.
type Part string

// The parts.
const (
	PartLog       Part = "log"
	PartStable    Part = "stable"
	PartFloor     Part = "floor"
	PartSnapshots Part = "snapshots"
)

// Disk is where the stores of one group are kept: Files in the product, memory in a simulation. What it
// holds may be damaged in any way; it need not notice. Log, Stable and Floor are opened once at a time
// each, first with readOnly, to be checked, then closed and opened to be used.
type Disk interface {
	// Name is what messages call a part: the path of its file or folder.
	Name(Part) string
	// Parts are those that are there, in the order above.
	Parts() ([]Part, error)
	// Log opens the log. With readOnly nothing is made or changed, and a missing log is fs.ErrNotExist.
	// Without, a missing one is made, durably. The same for Stable and Floor.
	Log(readOnly bool) (LogBackend, error)
	Stable(readOnly bool) (Table, error)
	Floor(readOnly bool) (File, error)
	// CheckSnapshots reads all snapshots whole, changes nothing, and returns the newest, nil when there is
	// none. It fails when one that is newer than the newest that can be read was there.
	CheckSnapshots() (newest *raft.SnapshotMeta, err error)
	// Snapshots opens the snapshots, making their folder if it is missing.
	Snapshots() (raft.SnapshotStore, error)
}

// LogBackend is a log whose StoreLogs and DeleteRange return when their effect is durable.
type LogBackend interface {
	raft.LogStore
	io.Closer
}

// Table is a small durable map.
type Table interface {
	// Get is a copy of the value of a key, nil when it has none.
	Get(key []byte) ([]byte, error)
	// Put sets all pairs in one durable write.
	Put(pairs ...Pair) error
	io.Closer
}

// Pair is a key and its value.
type Pair struct{ Key, Value []byte }

// File is a small file that is written in place. WriteAt survives the end of the process, but the loss
// of power only after Sync.
type File interface {
	io.ReaderAt
	io.WriterAt
	io.Closer
	Sync() error
}
