package watch

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/status"

	quoratev1 "github.com/quorate/quorate/proto/quorate/v1"
	"github.com/quorate/quorate/router"
	"github.com/quorate/quorate/sdk/internal/class"
)

const (
	// LiveFor is how long a message confirms the configuration.
	LiveFor = 5 * time.Second
	// SilentAfter is how long a node may say nothing.
	SilentAfter = 5 * time.Second
	// BehindFor is how long a node may be behind what was seen elsewhere.
	BehindFor = 5 * time.Second
	// firstWithin is how long a node may take to say something at all.
	firstWithin = 2 * time.Second
	// pauseLeast and pauseMost bound the wait after a node broke off, or none could be watched.
	pauseLeast = 50 * time.Millisecond
	pauseMost  = 500 * time.Millisecond
	// nextAfter is how long a node may say nothing before another one is tried beside it, most at a time maxOpen.
	nextAfter = 250 * time.Millisecond
	maxOpen   = 3
	// maxReasons bounds the reasons that are remembered.
	maxReasons = 32
	// steady is how long a node must be watched for the next wait to be short again.
	steady = time.Second
	// restoredMapShift is where a map version has the incarnation of the cluster.
	restoredMapShift = 28
)

// Sink is told what is new.
type Sink interface {
	// Map is a map that may be new.
	Map(*router.Map)
	// Settings is a set of a newer revision; of any, the first time after the cluster was restored.
	Settings(set *class.Set, restored bool)
	// Broken says that the watch is no longer live.
	Broken()
}

// Target is a node to watch.
type Target struct{ ID, Addr string }

// Watcher watches.
type Watcher struct {
	// Targets are the nodes to choose from, Dial connects to one.
	Targets func() []Target
	Dial    func(Target) (*grpc.ClientConn, error)
	Sink    Sink
	Log     *slog.Logger
	// Seen is what answers have told since: the newest policy revision, and whether owners have newer epochs than the
	// map. nil: nothing.
	Seen func() (revision uint64, mapBehind bool)
	// Now reads a monotonic clock, in nanoseconds, above 0.
	Now func() int64

	connected atomic.Bool
	isReady   atomic.Bool
	lastNanos atomic.Int64 // of the last message; 0 before the first
	lastError atomic.Pointer[string]

	ready, tried         chan struct{}
	readyOnce, triedOnce sync.Once

	// What follows is for Run's goroutine.
	cluster     string
	incarnation uint64
	mapVersion  uint64 // the newest
	revision    uint64
	restored    bool // and no settings have come since
	haveMap     bool
	haveClasses bool
	known       bool // that is, ready
	left        Target
	reason      string           // of the last failure that was logged
	logged      map[string]int64 // when each reason was
}

// New completes a watcher.
func New(w *Watcher) *Watcher {
	w.ready, w.tried = make(chan struct{}), make(chan struct{})
	return w
}

// Ready is closed when the configuration is known.
func (w *Watcher) Ready() <-chan struct{} { return w.ready }

// Known reports whether Ready is closed: the same, and cheaper.
func (w *Watcher) Known() bool { return w.isReady.Load() }

// Tried is closed when every node was tried once, and none has said anything.
func (w *Watcher) Tried() <-chan struct{} { return w.tried }

// Live reports whether the configuration was confirmed a moment ago.
func (w *Watcher) Live(nowNanos int64) bool {
	return w.connected.Load() && nowNanos-w.lastNanos.Load() < int64(LiveFor)
}

// LastNanos is when the configuration was confirmed last; 0 if it never was.
func (w *Watcher) LastNanos() int64 { return w.lastNanos.Load() }

// Run watches until ctx is done.
func (w *Watcher) Run(ctx context.Context) {
	pause := pauseLeast
	for ctx.Err() == nil {
		began := w.Now()
		w.round(ctx)
		if w.lastNanos.Load() == 0 {
			w.triedOnce.Do(func() { close(w.tried) })
		}
		if w.lastNanos.Load()-began > int64(steady) {
			pause = pauseLeast
		}
		sleep(ctx, pause/2+rand.N(pause/2))
		pause = min(2*pause, pauseMost)
	}
}

func sleep(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

// round watches the nodes, until the one that was followed has broken off, or all were tried and none can be.
func (w *Watcher) round(ctx context.Context) {
	targets := w.Targets()
	rand.Shuffle(len(targets), func(i, j int) { targets[i], targets[j] = targets[j], targets[i] })
	if i := slices.Index(targets, w.left); i >= 0 { // the one that was left comes last
		targets = append(slices.Delete(targets, i, i+1), w.left)
	}
	ctx, cancel := context.WithCancel(ctx)
	c := &contest{w: w, targets: targets, heard: make(chan event)}
	defer c.over.Wait()
	defer cancel()
	c.run(ctx)
	if w.connected.Swap(false) {
		w.Sink.Broken()
	}
}

// failed notes why a node is not watched. It is logged when the reason is another one than the last, but each at most
// once a minute: errors of several nodes may take turns.
func (w *Watcher) failed(t Target, err error) {
	reason, now := reasonOf(err), w.Now()
	text := fmt.Sprintf("node %s: %v", t.Addr, err)
	w.lastError.Store(&text)
	at, logged := w.logged[reason]
	if reason == w.reason || logged && now-at < int64(time.Minute) {
		return
	}
	if w.logged == nil || len(w.logged) >= maxReasons {
		w.logged = map[string]int64{}
	}
	w.reason, w.logged[reason] = reason, now
	w.Log.Warn("the configuration is not watched: the last one stays, and other nodes are tried", "node", t.Addr,
		"error", err)
}

// reasonOf is an error without what differs from time to time, as ports do.
func reasonOf(err error) string {
	if s, ok := status.FromError(err); ok {
		return s.Code().String()
	}
	return err.Error()
}

// LastError is why the configuration could last not be watched; empty while it is.
func (w *Watcher) LastError() string {
	if text := w.lastError.Load(); text != nil {
		return *text
	}
	return ""
}

// following notes that the configuration is watched, and complete.
func (w *Watcher) following(t Target) {
	w.lastError.Store(nil)
	w.reason, w.logged = "", nil
	w.readyOnce.Do(func() {
		w.isReady.Store(true)
		close(w.ready)
	})
	w.Log.Info("the configuration is watched", "node", t.Addr, "cluster", w.cluster, "policy_revision", w.revision)
}

// assembly is what one node has told: the messages of one revision, and the newest map and whole policy.
type assembly struct {
	revision uint64
	classes  []*quoratev1.ClassSettings

	toldMap, toldRevision uint64 // 0: none yet
}

// behind reports whether a node is behind what was seen; and whether what it has told is outdated, a map or a policy of
// which there is a newer one. That an owner's epoch is newer than the map's says only that another node may know more.
func (w *Watcher) behind(parts *assembly) (behind, outdated bool) {
	revision := w.revision
	if w.Seen != nil {
		var seen uint64
		seen, behind = w.Seen()
		revision = max(revision, seen)
	}
	outdated = parts.toldMap != 0 && parts.toldMap < w.mapVersion ||
		parts.toldRevision != 0 && parts.toldRevision < revision
	return behind || outdated, outdated
}

// take takes what is new in a message.
func (w *Watcher) take(m *quoratev1.WatchConfigResponse, parts *assembly) error {
	switch {
	case m.GetClusterId() == "":
		return errors.New("it names no cluster")
	case w.cluster != "" && m.GetClusterId() != w.cluster:
		return fmt.Errorf("it is of cluster %q, and not of %q: this client stays with "+
			"the cluster that it has met, so check the address, or make a new client for a new cluster",
			m.GetClusterId(), w.cluster)
	}
	if in := m.GetMap(); in != nil {
		routes, err := mapOf(m.GetClusterId(), in)
		if err != nil {
			return err
		}
		if incarnation := routes.Version() >> restoredMapShift; incarnation > w.incarnation {
			w.incarnation, w.restored = incarnation, true // revisions may begin earlier
		}
		w.haveMap, parts.toldMap = true, routes.Version()
		w.mapVersion = max(w.mapVersion, routes.Version())
		w.Sink.Map(routes)
	}
	w.cluster = m.GetClusterId()
	return w.takePolicy(m.GetPolicy(), parts)
}

func (w *Watcher) takePolicy(p *quoratev1.PolicySettings, parts *assembly) error {
	if p == nil {
		return nil
	}
	if parts.revision != p.GetRevision() {
		parts.revision, parts.classes = p.GetRevision(), nil
	}
	if parts.classes = append(parts.classes, p.GetClasses()...); len(parts.classes) > class.MaxClasses {
		return fmt.Errorf("policy revision %d has more classes than %d", p.GetRevision(), class.MaxClasses)
	}
	if p.GetMore() {
		return nil
	}
	set := class.FromProto(p.GetRevision(), p.GetVersion(), parts.classes)
	parts.revision, parts.classes, parts.toldRevision = 0, nil, set.Revision
	w.haveClasses = true
	if set.Revision < w.revision && !w.restored {
		return nil // this node is behind, and will say so again when it is not
	}
	w.Sink.Settings(set, w.restored)
	w.revision, w.restored = set.Revision, false
	return nil
}

// mapOf is a partition map as the router has it.
func mapOf(cluster string, in *quoratev1.RoutingMap) (*router.Map, error) {
	p := router.Parts{Cluster: cluster, Version: in.GetVersion()}
	if copy(p.Seed[:], in.GetSeed()) != len(p.Seed) || len(in.GetSeed()) != len(p.Seed) {
		return nil, fmt.Errorf("the map's seed has %d bytes, and not %d", len(in.GetSeed()), len(p.Seed))
	}
	for _, n := range in.GetNodes() {
		p.Nodes = append(p.Nodes, router.Node{ID: n.GetId(), GRPC: n.GetGrpc()})
	}
	for _, part := range in.GetPartitions() {
		p.Partitions = append(p.Partitions, router.Partition{
			ID: part.GetId(), Replicas: part.GetReplicas(), Leader: part.GetLeader(),
		})
	}
	for _, r := range in.GetRanges() {
		s := r.GetSlots()
		if s.GetFirstSlot() >= router.NumSlots || s.GetLastSlot() >= router.NumSlots {
			return nil, fmt.Errorf("slots %d to %d are beyond the last", s.GetFirstSlot(), s.GetLastSlot())
		}
		p.Ranges = append(p.Ranges, router.Range{
			First: uint16(s.GetFirstSlot()), Last: uint16(s.GetLastSlot()), Epoch: s.GetEpoch(),
			Partition: r.GetPartition(),
		})
	}
	return router.NewMap(p)
}
