package node

import (
	"context"
	"time"

	"github.com/quorate/quorate/partition/storage"
)

// diskInterval is between two looks at the disk's room.
const diskInterval = time.Second

// watchDisk keeps an eye on the room in the data directory's file system until ctx ends. A write that fails
// ends the process, so checks are refused, and leadership is handed over, while there is still room for
// what is under way.
func (n *Node) watchDisk(ctx context.Context) {
	if *n.cfg.Storage.MinFreeMiB == 0 {
		return
	}
	tick := time.NewTicker(diskInterval)
	defer tick.Stop()
	for {
		n.lookAtDisk()
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

func (n *Node) lookAtDisk() {
	free, err := storage.FreeBytes(n.cfg.DataDir)
	if err != nil {
		n.logger.Warn("the disk's room cannot be told", "error", err)
		return
	}
	least := uint64(*n.cfg.Storage.MinFreeMiB) << 20 // validated
	was := n.diskLow.Load()
	if low := diskIsLow(was, free, least); low != was {
		n.diskLow.Store(low)
		n.logger.Warn("the disk's room has crossed its bound", "low", low, "free_mib", free>>20,
			"min_free_mib", least>>20, "data_dir", n.cfg.DataDir)
	}
	for _, p := range n.hosted.partitions() {
		p.SetDiskLow(n.diskLow.Load())
	}
}

// diskIsLow has a little play, so that a disk at its bound does not go to and fro.
func diskIsLow(was bool, free, least uint64) bool {
	if was {
		return free < least+least/4
	}
	return free < least
}
