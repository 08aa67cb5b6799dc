package node

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/quorate/quorate/control/state"
	"github.com/quorate/quorate/internal/guard"
	"github.com/quorate/quorate/partition/storage"
)

// hasEnded reports that a group was a partition and is none any more: the state's log has made it, and has taken it
// out again. That is for ever, however old this node's copy of the state is. That a state lacks a partition says
// nothing: it may not be made yet.
func hasEnded(s *state.State, id string) bool {
	number, ok := partitionNumber(id)
	if !ok || (!s.Born || number >= s.NextPartition) && guard.On(guard.EndedByLog) {
		return false
	}
	_, there := s.Partition(number)
	return !there
}

// retire closes this node's replica of a partition that has ended, and removes all that is left of it. The claim on
// the files goes first: a start must not miss them, nor open some of them.
func (n *Node) retire(r *replica) error {
	if err := r.close(); err != nil {
		n.logger.Warn("closing a replica of a partition that has ended", "partition", r.id, "error", err)
	}
	err := n.claim.Forget(r.id)
	if err == nil {
		n.hosted.drop(r)
		err = errors.Join(storage.Remove(r.dir()), r.memory.remove())
	}
	if err != nil {
		return fmt.Errorf("partition %s has ended, and its files cannot be removed: %w", r.id, err)
	}
	n.logger.Info("the partition has ended: its files were removed", "partition", r.id)
	return nil
}

// drop forgets a replica.
func (h *hosted) drop(r *replica) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.replicas, r.id)
}

// sweep says for which state the files of partitions that have ended were looked for.
type sweep struct {
	next  state.PartitionID
	count int
}

// sweepEnded removes files of partitions that have ended and that this node does not claim any more: a retirement was
// cut short.
func (n *Node) sweepEnded(s *state.State, last *sweep) {
	if now := (sweep{s.NextPartition, len(s.Partitions)}); now != *last {
		*last = now
	} else {
		return
	}
	for _, folder := range []struct{ name, suffix string }{{groupsFolder, ""}, {memoryFolder, ".json"}} {
		path := filepath.Join(n.cfg.DataDir, folder.name)
		entries, err := os.ReadDir(path)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			n.logger.Warn("files of partitions that have ended cannot be looked for", "folder", path, "error", err)
		}
		for _, e := range entries {
			id, ok := strings.CutSuffix(e.Name(), folder.suffix)
			if !ok || !hasEnded(s, id) || n.claim.Has(id) || n.hosted.of(id) != nil {
				continue
			}
			if err := storage.Remove(filepath.Join(path, e.Name())); err != nil {
				n.logger.Warn("what is left of a partition that has ended cannot be removed", "partition", id, "error", err)
			}
		}
	}
}
