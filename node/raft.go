package node

import (
	"context"
	"path/filepath"

	"github.com/quorate/quorate/partition/group"
	"github.com/quorate/quorate/partition/storage"
	"github.com/quorate/quorate/rpc"
)

// listenRaft opens the node's Raft socket. Without TLS it must be loopback, like the other doors.
func (n *Node) listenRaft(ctx context.Context, addr string) (*group.Listener, error) {
	addr, err := rpc.LoopbackAddr(ctx, addr)
	if err != nil {
		return nil, err
	}
	return group.Listen(addr, group.ListenerConfig{Cluster: n.cfg.ClusterID, Node: n.cfg.ID, Logger: n.logger})
}

// groupDir is where the partition's Raft group has its files.
func (n *Node) groupDir() string {
	return filepath.Join(n.cfg.DataDir, "groups", n.cfg.Partition.ID)
}

// openGroup opens the Raft group of the partition. Its first members are the configured nodes.
func (n *Node) openGroup(a group.Applier, fatal func(error)) (group.Group, error) {
	logBytes := uint64(n.cfg.Raft.SnapshotLogMiB) << 20
	cfg := group.Config{
		Group: n.cfg.Partition.ID, Dir: n.groupDir(),
		Listener: n.listener, Applier: a, Backend: storage.Backend(n.cfg.Raft.Log),
		Compaction: group.Compaction{LogBytes: logBytes, TrailingBytes: logBytes / 4},
		Fatal:      fatal, Logger: n.logger,
	}
	for _, p := range n.cfg.Nodes {
		m := group.Member{ID: p.ID, Addr: p.Raft}
		cfg.Bootstrap = append(cfg.Bootstrap, m)
		if p.ID == n.cfg.ID {
			cfg.Self = m
		}
	}
	return group.Open(cfg)
}
