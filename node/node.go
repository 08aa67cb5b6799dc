package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/oklog/run"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"github.com/quorate/quorate/clock"
	"github.com/quorate/quorate/internal/chaos"
	"github.com/quorate/quorate/internal/guard"
	"github.com/quorate/quorate/internal/identity"
	"github.com/quorate/quorate/node/admin"
	"github.com/quorate/quorate/node/gossip"
	"github.com/quorate/quorate/partition"
	"github.com/quorate/quorate/partition/group"
	"github.com/quorate/quorate/partition/storage"
	"github.com/quorate/quorate/router"
	"github.com/quorate/quorate/rpc"
)

// drainTimeout bounds how long a stopping node lets what it serves end.
const drainTimeout = 5 * time.Second

// Node is one node: its replicas, its doors, and what watches over them.
type Node struct {
	cfg      *Config
	logger   *slog.Logger
	held     *holdback // behind logger
	version  string
	fatal    func(error)
	source   clock.Source
	started  time.Time
	claim    *storage.Claimed
	identity *identity.Source // nil: plaintext
	listener *group.Listener
	gossip   *gossip.Gossip
	server   *rpc.Server
	admin    rpc.Admin
	doors    []net.Listener
	wall     *clock.WallWatch
	reports  chan paceReport

	life           context.Context // ends when the node stops
	end            context.CancelFunc
	hosted         hosted
	openingControl sync.Mutex
	joined         chan struct{} // closed when the control group's replica is open
	blank          atomic.Bool   // the control group's stores are empty
	forming        atomic.Bool   // this node is about to make the cluster
	announced      announced
	backups        backups     // that plans are to make partitions of
	saving         atomic.Bool // a backup is being made
	plans          *plans      // that this node drives
	neighbours     neighbours
	lease          lease
	installed      chan struct{} // holds a signal when the cluster is to be told of an installed policy
	routes         router.Table
	viewing        sync.Mutex // one change of view at a time
	view           atomic.Pointer[view]
	fetching       chan struct{} // holds one while a body is fetched
	starting       starting
	pushes         sync.WaitGroup
	snapshotSlots  chan struct{}
	inFlight       *partition.InFlight
	balanced       time.Time // when leadership was last moved for balance; of plan's goroutine only
	diskLow        atomic.Bool
	waiting        atomic.Pointer[string] // what for, before it has its part in a cluster
}

// maxSnapshots bounds the snapshots that are written at one time.
const maxSnapshots = 2

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
		started: time.Now(), reports: make(chan paceReport, 1), joined: make(chan struct{}),
		installed: make(chan struct{}, 1), fetching: make(chan struct{}, 1), snapshotSlots: make(chan struct{}, maxSnapshots),
		hosted: hosted{replicas: map[string]*replica{}}, announced: announced{nodes: map[string]announcement{}},
		plans: newPlans(), inFlight: partition.NewInFlight(),
	}
	n.life, n.end = context.WithCancel(context.WithoutCancel(ctx))
	n.view.Store(&view{changed: make(chan struct{})})
	n.admin = admin.New((*cluster)(n), n.logger)
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
	n.source = chaos.Clock(n.source)
	if !guard.On(guard.OwnReadings) {
		if err := clock.KeepReadings(n.cfg.DataDir); err != nil {
			return err
		}
	}
	n.wall = clock.NewWallWatch(n.source, n.logger)
	if err := n.openIdentity(); err != nil {
		return err
	}
	if err := n.claimDir(); err != nil {
		return err
	}
	if n.listener, err = n.listenRaft(ctx, n.cfg.Raft); err != nil {
		return err
	}
	if err := n.openGossip(ctx); err != nil {
		return err
	}
	grpc, err := rpc.Listen(ctx, n.cfg.GRPC, n.identity != nil)
	if err != nil {
		return err
	}
	n.doors = append(n.doors, grpc)
	http, err := rpc.Listen(ctx, n.cfg.HTTP, n.identity != nil)
	if err != nil {
		return err
	}
	n.doors = append(n.doors, http)
	n.server, err = rpc.New(rpc.Config{
		Node: n.cfg.ID, ClusterID: n.cfg.ClusterID, Version: n.version, Backend: (*backend)(n),
		GRPC: grpc, HTTP: http, TLS: n.identity, Logger: n.logger, Ready: n.ready,
		LegacyHeaders: n.cfg.HTTPAnswers.LegacyHeaders,
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
	// What is remembered of the others' replicas counts before the own are open.
	for _, id := range n.claim.Groups() {
		if _, err := n.have(id); err != nil {
			return err
		}
	}
	return nil
}

// listenRaft opens the node's Raft socket. Without TLS it must be loopback, like the other doors.
func (n *Node) listenRaft(ctx context.Context, addr string) (*group.Listener, error) {
	config := group.ListenerConfig{
		Cluster: n.cfg.ClusterID, Node: n.cfg.ID, Answer: n.answer, Locate: n.locate, Logger: n.logger,
	}
	if n.identity != nil {
		config.Secure = n.identity
		return group.Listen(addr, config)
	}
	addr, err := rpc.LoopbackAddr(ctx, addr)
	if err != nil {
		return nil, err
	}
	return group.Listen(addr, config)
}

// openGossip begins to gossip: by it nodes find each other's addresses.
func (n *Node) openGossip(ctx context.Context) (err error) {
	bind := n.cfg.Gossip
	if n.identity == nil {
		if bind, err = rpc.LoopbackAddr(ctx, bind); err != nil {
			return err
		}
	}
	var key []byte
	if n.cfg.GossipKeyFile != "" {
		if key, err = readGossipKey(n.cfg.GossipKeyFile); err != nil {
			return fmt.Errorf("gossip_key_file: %w", err)
		}
	}
	self := n.self()
	n.gossip, err = gossip.Open(gossip.Config{
		Cluster: n.cfg.ClusterID, Node: n.cfg.ID, Bind: bind, Advertise: n.cfg.Advertise.Gossip, Key: key,
		Seeds: n.gossipSeeds, Self: gossip.Meta(self), Logger: n.logger,
	})
	return err
}

// gossipSeeds are where other nodes gossip, as far as they have told.
func (n *Node) gossipSeeds() (out []string) {
	n.neighbours.mu.Lock()
	defer n.neighbours.mu.Unlock()
	for _, h := range n.neighbours.newest {
		if addr := h.self.Gossip; addr != "" {
			out = append(out, addr)
		}
	}
	return out
}

// controlDir is where the audit trail and the policies' bodies are.
func (n *Node) controlDir() string { return filepath.Join(n.cfg.DataDir, controlID) }

// wait notes what the node waits for before it has a replica.
func (n *Node) wait(what string) { n.waiting.Store(&what) }

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
		n.wall.Run, n.sendReports, n.watchDisk, n.watchNeighbours, n.watchIdentity, n.remember,
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

// takePart finds this node's way into its cluster, and does there what is its part until ctx ends. An error is why
// it must not.
func (n *Node) takePart(ctx context.Context) error {
	err := n.join(ctx)
	if errors.Is(err, errLost) { // the cluster does not count on this directory, and nobody else knows it
		err = errors.Join(err, n.claim.Disown())
	}
	if err != nil {
		return err
	}
	part, ctx := errgroup.WithContext(ctx)
	part.Go(func() error { return n.host(ctx) })
	part.Go(func() error { return n.stay(ctx) })
	for _, loop := range []func(context.Context){
		n.keepMembers, n.plan, n.drivePlans, n.keepLease, n.install, n.followMap, n.followPolicy,
	} {
		part.Go(func() error {
			loop(ctx)
			return nil
		})
	}
	return part.Wait()
}

// close closes what is open: the doors that Run has not closed, then what is behind them.
func (n *Node) close() error {
	n.end()
	var errs []error
	for _, door := range n.doors {
		if err := door.Close(); !errors.Is(err, net.ErrClosed) {
			errs = append(errs, err)
		}
	}
	n.pushes.Wait()
	for _, r := range slices.Backward(n.hosted.all()) { // the control group last: the others ask it for policies
		errs = append(errs, r.close())
	}
	if n.gossip != nil {
		errs = append(errs, n.gossip.Close())
	}
	if n.listener != nil {
		errs = append(errs, n.listener.Close())
	}
	if n.claim != nil {
		errs = append(errs, n.claim.Release())
	}
	return errors.Join(errs...)
}
