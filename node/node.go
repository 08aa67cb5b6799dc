package node

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/oklog/run"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/quorate/quorate/clock"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/internal/identity"
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
	cfg      *Config
	logger   *slog.Logger
	held     *holdback // behind logger
	version  string
	fatal    func(error)
	source   clock.Source
	claim    *storage.Claimed
	memory   *memory
	identity *identity.Source // nil: plaintext
	listener *group.Listener
	server   *rpc.Server
	doors    []net.Listener
	wall     *clock.WallWatch
	reports  chan partition.Ahead

	neighbours neighbours
	has        atomic.Bool // the group's stores are in the data directory
	empty      atomic.Bool // they are, and nothing was ever stored in them
	diskLow    atomic.Bool
	waiting    atomic.Pointer[string] // what for, before there is a replica
	group      atomic.Pointer[group.RaftGroup]
	partition  atomic.Pointer[partition.Partition] // after group
}

// Start claims the node's data directory and opens its ports; Run lets it take part. fatal is called with
// why the process must end at once: a write or sync has failed, the disk hangs, or the log is beyond this
// program.
func Start(ctx context.Context, cfg *Config, version string, logger *slog.Logger, fatal func(error)) (*Node, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	held := newHoldback(logger.Handler())
	n := &Node{
		cfg: cfg, logger: slog.New(held).With("node", cfg.ID), held: held, version: version, fatal: fatal,
		reports: make(chan partition.Ahead, 1),
	}
	n.wait("starting")
	if err := n.open(ctx); err != nil {
		return nil, errors.Join(err, n.close())
	}
	return n, nil
}

func (n *Node) open(ctx context.Context) (err error) {
	if n.source, err = clock.System(); err != nil {
		return err
	}
	n.wall = clock.NewWallWatch(n.source, n.logger)
	if err := n.openIdentity(); err != nil {
		return err
	}
	if err := n.claimDir(); err != nil {
		return err
	}
	self, _ := n.cfg.self()
	if n.listener, err = n.listenRaft(ctx, self.Raft); err != nil {
		return err
	}
	grpc, err := rpc.Listen(ctx, self.GRPC, n.identity != nil)
	if err != nil {
		return err
	}
	n.doors = append(n.doors, grpc)
	http, err := rpc.Listen(ctx, self.HTTP, n.identity != nil)
	if err != nil {
		return err
	}
	n.doors = append(n.doors, http)
	n.server, err = rpc.New(rpc.Config{
		Node: n.cfg.ID, ClusterID: n.cfg.ClusterID, Version: n.version, Backend: (*backend)(n),
		GRPC: grpc, HTTP: http, TLS: n.identity, Logger: n.logger, Ready: n.ready, LegacyHeaders: n.cfg.HTTP.LegacyHeaders,
	})
	if err != nil {
		return err
	}
	n.server.Registry().MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{
		Name: "quorate_wall_clock_jumps_total", Help: "Jumps of the wall clock. No decision depends on it.",
	}, func() float64 { return float64(n.wall.Jumps()) }))
	n.measureIdentity()
	return nil
}

func (n *Node) claimDir() (err error) {
	owner := storage.Identity{Cluster: n.cfg.ClusterID, Node: n.cfg.ID}
	if n.claim, err = storage.Claim(n.cfg.DataDir, owner); err != nil {
		return err
	}
	n.has.Store(n.claim.Has(n.cfg.Partition.ID))
	n.memory, err = loadMemory(n.cfg.DataDir, n.cfg.Partition.ID)
	return err
}

// wait notes what the node waits for before it has a replica.
func (n *Node) wait(what string) { n.waiting.Store(&what) }

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

// Run lets the node take part and serves until ctx ends or a part fails, then stops: it takes no new
// requests, lets the old ones end, and closes its files. Its doors are open while it still finds out
// whether it may take part; what it then returns is why it must not.
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
	background := func(f func(context.Context) error) {
		ctx, cancel := context.WithCancel(context.Background())
		g.Add(func() error {
			if err := f(ctx); err != nil && ctx.Err() == nil {
				return err
			}
			<-ctx.Done()
			return nil
		}, func(error) { cancel() })
	}
	for _, watch := range []func(context.Context){
		n.wall.Run, n.sendReports, n.watchDisk, n.watchNeighbours, n.watchIdentity,
	} {
		background(func(ctx context.Context) error {
			watch(ctx)
			return nil
		})
	}
	background(n.takePart)
	err := g.Run()
	return errors.Join(err, n.close())
}

// takePart opens the replica and looks after it until ctx ends.
func (n *Node) takePart(ctx context.Context) error {
	if err := n.join(ctx); err != nil {
		return errors.Join(err, n.claim.Disown())
	}
	var loops sync.WaitGroup
	loops.Go(func() { n.keepMembers(ctx) })
	loops.Go(func() { n.remember(ctx) })
	loops.Wait()
	return nil
}

// close closes what is open: the doors that Run has not closed, then what is behind them.
func (n *Node) close() error {
	var errs []error
	for _, door := range n.doors {
		if err := door.Close(); !errors.Is(err, net.ErrClosed) {
			errs = append(errs, err)
		}
	}
	if p := n.partition.Load(); p != nil {
		errs = append(errs, p.Close())
	}
	if n.listener != nil {
		errs = append(errs, n.listener.Close())
	}
	if n.claim != nil {
		errs = append(errs, n.claim.Release())
	}
	return errors.Join(errs...)
}
