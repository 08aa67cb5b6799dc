package node

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"github.com/quorate/quorate/clock"
	"github.com/quorate/quorate/partition"
	"github.com/quorate/quorate/partition/group"
	"github.com/quorate/quorate/partition/storage"
	"github.com/quorate/quorate/rpc"
)

// listenRaft opens the node's Raft socket. Without TLS it must be loopback, like the other doors.
func (n *Node) listenRaft(ctx context.Context, addr string) (*group.Listener, error) {
	config := group.ListenerConfig{Cluster: n.cfg.ClusterID, Node: n.cfg.ID, Answer: n.answer, Logger: n.logger}
	if n.identity != nil {
		config.Secure = &secure{n.identity, n.cfg}
		return group.Listen(addr, config)
	}
	addr, err := rpc.LoopbackAddr(ctx, addr)
	if err != nil {
		return nil, err
	}
	return group.Listen(addr, config)
}

// groupDir is where the partition's Raft group has its files.
func (n *Node) groupDir() string {
	return filepath.Join(n.cfg.DataDir, "groups", n.cfg.Partition.ID)
}

// errBlank: the group's stores are there, but nothing was ever stored.
var errBlank = errors.New("the log is empty")

// join opens this node's replica of the partition, once it is clear that it may.
func (n *Node) join(ctx context.Context) error {
	if n.has.Load() {
		err := n.openPartition(ctx, nil, false)
		if !errors.Is(err, errBlank) {
			return err
		}
		n.empty.Store(true)
		// A start was cut short before anything was stored: that is no more than a new directory.
	}
	first, err := n.form(ctx)
	if err != nil {
		return err
	}
	return n.openPartition(ctx, first, true)
}

// openPartition opens the replica. formed says that the other nodes were asked what an empty log means.
func (n *Node) openPartition(ctx context.Context, first []group.Member, formed bool) error {
	if len(first) > 0 {
		n.logger.Info("all nodes are there and none has the partition: making it", "members", len(first))
	}
	p, err := partition.Open(partition.Config{
		ID: n.cfg.Partition.ID, NodeID: n.cfg.ID, Birth: n.birth, Source: n.source,
		MaxDriftPPM: n.cfg.Clock.MaxDriftPPM, TrustWall: clock.TrustWall(n.cfg.Clock.TrustWall),
		Ahead: n.ahead, Consult: n.consult, PeerLevels: n.peerLevels, WithRoom: n.withRoom,
		Fatal:   n.fatal,
		Metrics: n.server.Registry(), Logger: n.logger,
		Open: func(a group.Applier) (group.Group, error) { return n.openGroup(ctx, a, first, formed) },
	})
	if err != nil {
		return err
	}
	p.SetDiskLow(n.diskLow.Load())
	n.partition.Store(p)
	n.waiting.Store(nil)
	n.held.letGo()
	return nil
}

// openGroup opens the Raft group of the partition.
func (n *Node) openGroup(
	ctx context.Context, a group.Applier, first []group.Member, formed bool,
) (group.Group, error) {
	logBytes := uint64(n.cfg.Raft.SnapshotLogMiB) << 20
	self, _ := n.cfg.self()
	g, err := group.Open(group.Config{
		Group: n.cfg.Partition.ID, Disk: storage.NewFiles(n.groupDir(), storage.Backend(n.cfg.Raft.Log), n.logger),
		Network: n.listener, Applier: a,
		Self:  group.Member{ID: n.cfg.ID, Addr: self.Raft, Instance: n.claim.Instance()},
		First: !n.has.Load(), Bootstrap: first,
		Admit: func(last group.Position, members []group.Member) error {
			return n.admit(ctx, last, members, formed)
		},
		BeforeStart: n.record,
		Compaction:  group.Compaction{LogBytes: logBytes, TrailingBytes: logBytes / 4},
		Fatal:       n.fatal, Logger: n.logger,
	})
	if err != nil {
		return nil, err
	}
	n.group.Store(g)
	return g, nil
}

// mustMatch refuses a configuration that contradicts the members as this node's log has them: nodes and
// addresses are fixed at birth, and with others the node would look for replicas where none are.
func (n *Node) mustMatch(members []group.Member) error {
	for _, m := range members {
		p, ok := n.cfg.peer(m.ID)
		switch {
		case !ok:
			return fmt.Errorf("nodes: node %s is a member of partition %s and is not configured here: "+
				"write the same nodes on all, those of the cluster's birth", m.ID, n.cfg.Partition.ID)
		case p.Raft != m.Addr:
			return fmt.Errorf("nodes: the raft address of node %s is %s here, and %s in partition %s: "+
				"set it back, addresses are fixed at birth", m.ID, p.Raft, m.Addr, n.cfg.Partition.ID)
		}
	}
	return nil
}

// admit judges stores that are whole, before anything is changed in them.
func (n *Node) admit(ctx context.Context, last group.Position, members []group.Member, formed bool) error {
	if last.Index == 0 && !formed {
		return errBlank
	}
	if err := n.mustMatch(members); err != nil {
		return err
	}
	if err := n.mustBeNewest(ctx, last); err != nil {
		return err
	}
	return ctx.Err()
}

// record notes that the stores are there, before anything is acknowledged from them.
func (n *Node) record() error {
	if err := n.claim.Record(n.cfg.Partition.ID); err != nil {
		return err
	}
	n.has.Store(true)
	return nil
}
