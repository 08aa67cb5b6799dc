package node

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/quorate/quorate/partition/group"
	"github.com/quorate/quorate/partition/storage"
)

const (
	memoryFolder = "peers"
	// memoryVersion is that of the file's format.
	memoryVersion = 1
	// memoryInterval is how often the file is written at most, and how often it is looked who leads.
	memoryInterval = 2 * time.Second
	// maxMemoryBytes bounds what is read of a file that may be anything.
	maxMemoryBytes = 1 << 20
	// maxRemembered bounds the replicas that are remembered.
	maxRemembered = 1024
)

// memory is what this node saw the other replicas of a group have on their disks, kept in its data directory so
// that it outlives this process. By it an older copy of another node's directory is found out.
type memory struct {
	path    string
	groupID string
	writing sync.Mutex // held while the file is written or removed

	mu      sync.Mutex // guards the fields below
	had     map[string]group.Position
	changed bool
	removed bool // the file, for good
}

// memoryRecord is the format of the file.
type memoryRecord struct {
	Version int                       `json:"version"`
	Group   string                    `json:"group"`
	Had     map[string]positionAnswer `json:"had"` // by node@instance
	Sum     uint32                    `json:"crc32c"`
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// encode is the record with its checksum, the one way to write it.
func (r memoryRecord) encode() ([]byte, error) {
	r.Sum = 0
	body, err := json.Marshal(r)
	if err != nil {
		return nil, err
	}
	r.Sum = crc32.Checksum(body, castagnoli)
	body, err = json.Marshal(r)
	return append(body, '\n'), err
}

// loadMemory reads what an earlier process wrote; nothing when none did.
func loadMemory(dir, groupID string) (*memory, error) {
	path := filepath.Join(dir, memoryFolder, groupID+".json")
	m := &memory{path: path, groupID: groupID, had: map[string]group.Position{}}
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return m, nil
	}
	if err == nil && info.Size() > maxMemoryBytes {
		err = fmt.Errorf("it has %d bytes, expected at most %d", info.Size(), maxMemoryBytes)
	}
	var data []byte
	if err == nil {
		data, err = os.ReadFile(path)
	}
	if err == nil {
		err = m.decode(data)
	}
	if err != nil {
		return nil, fmt.Errorf("%s cannot be read (%w): it says how far other nodes' data went; the disk may be damaged. "+
			"If this node's other files are sound, remove it and start again: it is written anew", path, err)
	}
	return m, nil
}

func (m *memory) decode(data []byte) error {
	var r memoryRecord
	if err := decodeVersion(data, memoryVersion, &r); err != nil {
		return err
	}
	want, err := r.encode()
	if err != nil {
		return err
	}
	if !bytes.Equal(data, want) {
		return errors.New("it is damaged: its checksum is wrong")
	}
	if r.Group != m.groupID {
		return fmt.Errorf("it is about group %s, not %s", r.Group, m.groupID)
	}
	for id, p := range r.Had {
		m.had[id] = group.Position(p)
	}
	return nil
}

// replicaKey names a replica by node and data directory.
func replicaKey(m group.Member) string { return m.ID + "@" + m.Instance }

// of is how far a replica is remembered to have had the log; the zero position when it is not.
func (m *memory) of(r group.Member) group.Position {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.had[replicaKey(r)]
}

// note remembers a position, if it is further than the one that is remembered.
func (m *memory) note(r group.Member, p group.Position) {
	m.mu.Lock()
	defer m.mu.Unlock()
	key := replicaKey(r)
	known, there := m.had[key]
	if !known.Before(p) || !there && len(m.had) >= maxRemembered {
		return
	}
	m.had[key], m.changed = p, true
}

// keepOnly forgets the replicas that are no members any more.
func (m *memory) keepOnly(members []group.Member) {
	present := map[string]bool{}
	for _, r := range members {
		present[replicaKey(r)] = true
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for key := range m.had {
		if !present[key] {
			delete(m.had, key)
			m.changed = true
		}
	}
}

// save writes the file, whole or not at all, if something has changed.
func (m *memory) save() (err error) {
	m.writing.Lock()
	defer m.writing.Unlock()
	m.mu.Lock()
	r := memoryRecord{Version: memoryVersion, Group: m.groupID, Had: map[string]positionAnswer{}}
	for key, p := range m.had {
		r.Had[key] = positionAnswer(p)
	}
	changed := m.changed && !m.removed
	m.changed = false
	m.mu.Unlock()
	if !changed {
		return nil
	}
	defer func() {
		if err != nil {
			m.mu.Lock()
			m.changed = true
			m.mu.Unlock()
		}
	}()
	data, err := r.encode()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(m.path), 0o750); err != nil {
		return err
	}
	return storage.ReplaceFile(m.path, data)
}

// remove removes the file for good.
func (m *memory) remove() error {
	m.writing.Lock()
	defer m.writing.Unlock()
	m.mu.Lock()
	m.removed = true
	m.mu.Unlock()
	return storage.Remove(m.path)
}

// remember keeps the memories of all replicas until ctx ends. What followers acknowledge is known exactly. A
// leader has every entry of its term that this node has: it writes an entry to its own disk before it sends it.
func (n *Node) remember(ctx context.Context) {
	tick := time.NewTicker(memoryInterval)
	defer tick.Stop()
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-tick.C:
		}
		for _, r := range n.hosted.all() {
			r.remember()
		}
	}
}

func (r *replica) remember() {
	g := r.group.Load()
	if g == nil {
		return
	}
	members := g.Members()
	for _, m := range members {
		if m.ID != r.node.cfg.ID {
			r.memory.note(m, g.Acknowledged(m))
		}
	}
	term := g.Status().Term
	last, err := g.Last()
	leader, ok := g.Leader()
	if err == nil && ok && leader.ID != r.node.cfg.ID && last.Term == term && g.Status().Term == term {
		r.memory.note(leader, last)
	}
	if len(members) > 0 {
		r.memory.keepOnly(members)
	}
	if err := r.memory.save(); err != nil {
		r.node.logger.Warn("what is known of other nodes' data could not be written", "group", r.id, "error", err)
	}
}
