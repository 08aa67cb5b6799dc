package sim

import (
	"bytes"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"slices"
	"time"

	"github.com/hashicorp/raft"
)

// retained is how many snapshots stay.
const retained = 2

var errSum = errors.New("checksum mismatch")

// image is a snapshot.
type image struct {
	meta raft.SnapshotMeta
	data []byte
	sum  uint32
}

// CheckSnapshots reads all snapshots whole.
func (s *session) CheckSnapshots() (*raft.SnapshotMeta, error) {
	s.life.breathe()
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.snaps) == 0 {
		return nil, nil
	}
	if i := s.snaps[0]; crc32.ChecksumIEEE(i.data) != i.sum {
		return nil, fmt.Errorf("snapshot %s cannot be read: %w; data was lost: replace this replica", i.meta.ID, errSum)
	}
	meta := s.snaps[0].meta
	return &meta, nil
}

// Snapshots opens the snapshots.
func (s *session) Snapshots() (raft.SnapshotStore, error) {
	s.life.breathe()
	return &snapshots{s}, nil
}

type snapshots struct{ s *session }

func (n *snapshots) Create(version raft.SnapshotVersion, index, term uint64, c raft.Configuration,
	configurationIndex uint64, _ raft.Transport,
) (raft.SnapshotSink, error) {
	n.s.life.breathe()
	id := fmt.Sprintf("%d-%d-%d", term, index, time.Now().UnixMilli())
	return &sink{s: n.s, meta: raft.SnapshotMeta{
		Version: version, ID: id, Index: index, Term: term, Configuration: c.Clone(),
		ConfigurationIndex: configurationIndex,
	}}, nil
}

func (n *snapshots) List() ([]*raft.SnapshotMeta, error) {
	n.s.life.breathe()
	n.s.mu.Lock()
	defer n.s.mu.Unlock()
	var out []*raft.SnapshotMeta
	for _, i := range n.s.snaps {
		meta := i.meta
		out = append(out, &meta)
	}
	return out, nil
}

func (n *snapshots) Open(id string) (*raft.SnapshotMeta, io.ReadCloser, error) {
	n.s.life.breathe()
	n.s.mu.Lock()
	defer n.s.mu.Unlock()
	for _, i := range n.s.snaps {
		if i.meta.ID != id {
			continue
		}
		if crc32.ChecksumIEEE(i.data) != i.sum {
			return nil, nil, errSum
		}
		meta := i.meta
		return &meta, io.NopCloser(bytes.NewReader(slices.Clone(i.data))), nil
	}
	return nil, nil, fmt.Errorf("snapshot %s is not there", id)
}

// sink is a snapshot that is being written.
type sink struct {
	s    *session
	meta raft.SnapshotMeta
	data []byte
	done bool
}

func (k *sink) ID() string { return k.meta.ID }

func (k *sink) Write(p []byte) (int, error) {
	k.s.life.breathe()
	k.data = append(k.data, p...)
	return len(p), nil
}

// Close makes the snapshot durable, whole or not at all.
func (k *sink) Close() error {
	if k.done {
		return nil
	}
	k.done = true
	if err := k.s.settle(); err != nil {
		return err
	}
	k.s.mu.Lock()
	defer k.s.mu.Unlock()
	k.meta.Size = int64(len(k.data))
	snaps := append([]*image{{meta: k.meta, data: k.data, sum: crc32.ChecksumIEEE(k.data)}}, k.s.snaps...)
	slices.SortStableFunc(snaps, func(a, b *image) int { return int(int64(b.meta.Index) - int64(a.meta.Index)) })
	k.s.snaps = snaps[:min(len(snaps), retained)]
	return nil
}

func (k *sink) Cancel() error {
	k.done = true
	return nil
}
