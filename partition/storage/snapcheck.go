package storage

import (
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc64"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/dchest/siphash"
	"github.com/hashicorp/raft"
)

// A snapshot's state begins with a header, since Raft keeps a checksum of the state, but none of what it
// says about it: index, term, members.
//
//	0   8  magic and format version
//	8   16 hash of id, index, term and members
const (
	snapshotMagic  = "quosnap1"
	snapshotHeader = 24
)

// sealSnapshot is the header for a snapshot with this meta data.
func sealSnapshot(m *raft.SnapshotMeta) ([]byte, error) {
	about := *m
	about.Size, about.Peers = 0, nil // not known yet; not used in this version of snapshots
	b, err := json.Marshal(about)
	if err != nil {
		return nil, err
	}
	h := siphash.New128(chainKey)
	_, _ = h.Write(b) // a hash does not fail
	return h.Sum([]byte(snapshotMagic)), nil
}

// checkSnapshotHeader compares the beginning of a state with its meta data.
func checkSnapshotHeader(m *raft.SnapshotMeta, header []byte) error {
	want, err := sealSnapshot(m)
	if err != nil {
		return err
	}
	if string(header[:len(snapshotMagic)]) != snapshotMagic {
		return fmt.Errorf("its state begins with %q and not with %q: if a newer program version ran here, "+
			"start the program version that wrote it", header[:len(snapshotMagic)], snapshotMagic)
	}
	if string(header) != string(want) {
		return errors.New("its meta data and its state do not belong together")
	}
	return nil
}

// CheckSnapshots reads all snapshots whole. Raft only warns of one whose meta data cannot be read, and
// would start from an older state.
func (f *Files) CheckSnapshots() (*raft.SnapshotMeta, error) {
	dir := f.Name(PartSnapshots)
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list snapshots in %s: %w", dir, err)
	}
	var newest *raft.SnapshotMeta
	var broken error
	var brokenAt Position
	for _, e := range entries {
		if !e.IsDir() || strings.HasSuffix(e.Name(), ".tmp") {
			continue // Raft ignores them as well
		}
		m, err := checkSnapshot(filepath.Join(dir, e.Name()))
		if err == nil {
			if newest == nil || newest.Term < m.Term || newest.Term == m.Term && newest.Index <= m.Index {
				newest = m
			}
			continue
		}
		at := positionInName(e.Name())
		if m != nil && at.Before(Position{Term: m.Term, Index: m.Index}) {
			at = Position{Term: m.Term, Index: m.Index} // Raft would take it for that
		}
		if broken == nil || brokenAt.Before(at) {
			broken, brokenAt = fmt.Errorf("snapshot %s cannot be believed: %w", filepath.Join(dir, e.Name()), err), at
		}
	}
	if broken != nil && (newest == nil || !brokenAt.Before(Position{Term: newest.Term, Index: newest.Index})) {
		return nil, broken
	}
	return newest, nil
}

// positionInName is where a snapshot ends, by the name of its folder; when it cannot be told, beyond all.
func positionInName(name string) Position {
	var p Position
	var millis uint64
	if n, _ := fmt.Sscanf(name, "%d-%d-%d", &p.Term, &p.Index, &millis); n != 3 {
		return Position{Term: ^uint64(0), Index: ^uint64(0)}
	}
	return p
}

// checkSnapshot reads a snapshot whole. Its meta data may be there with an error as well.
func checkSnapshot(dir string) (*raft.SnapshotMeta, error) {
	raw, err := os.ReadFile(filepath.Join(dir, "meta.json"))
	if err != nil {
		return nil, err
	}
	var meta struct {
		raft.SnapshotMeta
		CRC []byte
	}
	if err := json.Unmarshal(raw, &meta); err != nil {
		return nil, fmt.Errorf("its meta data: %w", err)
	}
	if meta.ID != filepath.Base(dir) {
		return &meta.SnapshotMeta, fmt.Errorf("its meta data is that of %s", meta.ID)
	}
	state, err := os.Open(filepath.Join(dir, "state.bin"))
	if err != nil {
		return &meta.SnapshotMeta, err
	}
	defer func() { _ = state.Close() }() // only read
	header := make([]byte, snapshotHeader)
	if _, err := io.ReadFull(state, header); err != nil {
		return &meta.SnapshotMeta, fmt.Errorf("its state: %w", err)
	}
	if err := checkSnapshotHeader(&meta.SnapshotMeta, header); err != nil {
		return &meta.SnapshotMeta, err
	}
	sum := crc64.New(crc64.MakeTable(crc64.ECMA))
	_, _ = sum.Write(header) // a hash does not fail
	n, err := io.Copy(sum, state)
	if err != nil {
		return &meta.SnapshotMeta, fmt.Errorf("its state: %w", err)
	}
	if n+snapshotHeader != meta.Size || string(sum.Sum(nil)) != string(meta.CRC) {
		return &meta.SnapshotMeta, errors.New("the checksum of its state is wrong")
	}
	return &meta.SnapshotMeta, nil
}
