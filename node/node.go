package node

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/oklog/run"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/quorate/quorate/clock"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/partition"
	"github.com/quorate/quorate/partition/group"
	"github.com/quorate/quorate/partition/storage"
	"github.com/quorate/quorate/policy"
	"github.com/quorate/quorate/rpc"
)

// drainTimeout bounds how long a stopping node lets what it serves end.
const drainTimeout = 5 * time.Second

// Node is one node: its replica, its doors, and what watches over them.
type Node struct {
	cfg       *Config
	logger    *slog.Logger
	claim     *storage.Claimed
	listener  *group.Listener
	partition *partition.Partition
	server    *rpc.Server
	doors     []net.Listener
	wall      *clock.WallWatch
	reports   chan partition.Ahead
}

// Start opens the node's files and ports and begins to take part. fatal is called with why the
// process must end at once: a write or sync has failed, or the disk hangs.
func Start(ctx context.Context, cfg *Config, version string, logger *slog.Logger, fatal func(error)) (*Node, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	n := &Node{cfg: cfg, logger: logger.With("node", cfg.ID), reports: make(chan partition.Ahead, 1)}
	if err := n.open(ctx, version, fatal); err != nil {
		return nil, errors.Join(err, n.close())
	}
	return n, nil
}

func (n *Node) open(ctx context.Context, version string, fatal func(error)) error {
	source, err := clock.System()
	if err != nil {
		return err
	}
	if _, err := os.Stat(n.groupDir()); errors.Is(err, fs.ErrNotExist) {
		// It may be this node that makes the partition; better to say now what it could not be made with.
		if _, err := n.policy(); err != nil {
			return err
		}
	}
	n.wall = clock.NewWallWatch(source, n.logger)
	self, _ := n.cfg.self()
	owner := storage.Identity{Cluster: n.cfg.ClusterID, Node: n.cfg.ID}
	if n.claim, err = storage.Claim(n.cfg.DataDir, owner); err != nil {
		return err
	}
	if n.listener, err = n.listenRaft(ctx, self.Raft); err != nil {
		return err
	}
	grpc, err := rpc.ListenPlaintext(ctx, self.GRPC)
	if err != nil {
		return err
	}
	n.doors = append(n.doors, grpc)
	http, err := rpc.ListenPlaintext(ctx, self.HTTP)
	if err != nil {
		return err
	}
	n.doors = append(n.doors, http)
	n.server, err = rpc.New(rpc.Config{
		Node: n.cfg.ID, ClusterID: n.cfg.ClusterID, Version: version, Backend: (*backend)(n),
		GRPC: grpc, HTTP: http, Logger: n.logger, Ready: n.ready, LegacyHeaders: n.cfg.HTTP.LegacyHeaders,
	})
	if err != nil {
		return err
	}
	registry := n.server.Registry()
	registry.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{
		Name: "quorate_wall_clock_jumps_total", Help: "Jumps of the wall clock. No decision depends on it.",
	}, func() float64 { return float64(n.wall.Jumps()) }))
	n.partition, err = partition.Open(partition.Config{
		ID: n.cfg.Partition.ID, NodeID: n.cfg.ID, Birth: n.birth, Source: source,
		MaxDriftPPM: n.cfg.Clock.MaxDriftPPM, TrustWall: clock.TrustWall(n.cfg.Clock.TrustWall),
		Ahead: n.ahead, Metrics: registry, Logger: n.logger,
		Open: func(a group.Applier) (group.Group, error) { return n.openGroup(a, fatal) },
	})
	return err
}

// birth makes the partition's first entry: a seed of its own, all slots, and the configured policy.
func (n *Node) birth() (*fsm.Birth, error) {
	p, err := n.policy()
	if err != nil {
		return nil, err
	}
	b := &fsm.Birth{
		Cluster: n.cfg.ClusterID, Partition: n.cfg.Partition.ID, Revision: 1, Policy: p,
		Owned: []fsm.OwnedRange{{
			SlotRange: fsm.SlotRange{First: 0, Last: fsm.NumSlots - 1}, Epoch: fsm.NewEpoch(1, 1),
		}},
		Bounds: fsm.Bounds{MaxKeys: n.cfg.Partition.MaxKeys, MaxReplayRecords: n.cfg.Partition.MaxReplayRecords},
	}
	if _, err := rand.Read(b.Seed[:]); err != nil {
		return nil, err
	}
	return b, nil
}

// maxBirthPolicyBytes bounds the encoding of the policy of the birth, which is one log entry: it must be
// sent within one request, and the log cannot read an entry above 64 MiB back.
const maxBirthPolicyBytes = 16 << 20

// policy reads the policy of the cluster's birth.
func (n *Node) policy() (*policy.Policy, error) {
	if n.cfg.PolicyFile == "" {
		return nil, errors.New("policy_file is not set: the cluster has no policy yet, name one")
	}
	src, err := os.ReadFile(n.cfg.PolicyFile)
	if err != nil {
		return nil, fmt.Errorf("policy_file: %w", err)
	}
	p, err := policy.Parse(filepath.Base(n.cfg.PolicyFile), src)
	if err != nil {
		return nil, err
	}
	if size := len(p.AppendBinary(nil)); size > maxBirthPolicyBytes {
		return nil, fmt.Errorf("policy_file: it takes %d bytes encoded, at most %d can be born with: name fewer overrides",
			size, maxBirthPolicyBytes)
	}
	return p, nil
}

// Run serves until ctx ends or a part fails, then stops: it takes no new requests, lets the old ones end,
// and closes its files.
func (n *Node) Run(ctx context.Context) error {
	var g run.Group
	stopped, stop := context.WithCancel(ctx)
	defer stop()
	g.Add(func() error {
		<-stopped.Done()
		return nil
	}, func(error) { stop() })
	g.Add(n.server.Serve, func(error) {
		drain, cancel := context.WithTimeout(context.Background(), drainTimeout)
		defer cancel()
		n.server.Shutdown(drain)
	})
	background := func(f func(context.Context)) {
		ctx, cancel := context.WithCancel(context.Background())
		g.Add(func() error {
			f(ctx)
			<-ctx.Done()
			return nil
		}, func(error) { cancel() })
	}
	background(n.wall.Run)
	background(n.sendReports)
	err := g.Run()
	return errors.Join(err, n.close())
}

// close closes what is open: the doors that Run has not closed, then what is behind them.
func (n *Node) close() error {
	var errs []error
	for _, door := range n.doors {
		if err := door.Close(); !errors.Is(err, net.ErrClosed) {
			errs = append(errs, err)
		}
	}
	if n.partition != nil {
		errs = append(errs, n.partition.Close())
	}
	if n.listener != nil {
		errs = append(errs, n.listener.Close())
	}
	if n.claim != nil {
		errs = append(errs, n.claim.Release())
	}
	return errors.Join(errs...)
}
