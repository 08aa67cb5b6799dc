package node

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/quorate/quorate/clock"
	"github.com/quorate/quorate/control/state"
	"github.com/quorate/quorate/partition"
	"github.com/quorate/quorate/partition/group"
	"github.com/quorate/quorate/partition/storage"
)

// hostInterval is between two looks at which replicas this node is to have, beside those that follow a change of the
// cluster's state.
const hostInterval = 500 * time.Millisecond

// hosted are a node's replicas.
type hosted struct {
	mu       sync.Mutex // guards replicas
	replicas map[string]*replica
}

// of is the replica of a group; nil when this node has none.
func (h *hosted) of(id string) *replica {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.replicas[id]
}

// all are the replicas, by id.
func (h *hosted) all() []*replica {
	h.mu.Lock()
	defer h.mu.Unlock()
	out := make([]*replica, 0, len(h.replicas))
	for _, r := range h.replicas {
		out = append(out, r)
	}
	slices.SortFunc(out, func(a, b *replica) int { return cmp.Compare(a.id, b.id) })
	return out
}

// partitions are the open replicas of partitions.
func (h *hosted) partitions() (out []*partition.Partition) {
	for _, r := range h.all() {
		if p := r.partition.Load(); p != nil {
			out = append(out, p)
		}
	}
	return out
}

// have is the replica of a group, made if it is not there.
func (n *Node) have(id string) (*replica, error) {
	n.hosted.mu.Lock()
	defer n.hosted.mu.Unlock()
	if r := n.hosted.replicas[id]; r != nil {
		return r, nil
	}
	r, err := n.newReplica(id)
	if err != nil {
		return nil, err
	}
	n.hosted.replicas[id] = r
	return r, nil
}

// host opens the replicas that the cluster's state gives to this node, closes those that it no longer does, and removes
// what is left of partitions that have ended, until ctx ends. An error is that a replica must not be opened.
func (n *Node) host(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	var working sync.WaitGroup
	defer func() {
		cancel()
		working.Wait()
	}()
	failed := make(chan error, 1)
	busy, done := map[string]bool{}, make(chan string)
	begin := func(id string, work func() error) {
		busy[id] = true
		working.Go(func() {
			if err := work(); err != nil {
				select {
				case failed <- err:
				default:
				}
			}
			select {
			case done <- id:
			case <-ctx.Done():
			}
		})
	}
	var swept sweep
	tick := time.NewTicker(hostInterval)
	defer tick.Stop()
	for {
		s, changed := n.control().Changed()
		for _, p := range s.Partitions {
			id := p.ID.String()
			wanted := slices.Contains(p.Replicas, n.cfg.ID) && n.isSelf(s)
			r := n.hosted.of(id)
			switch {
			case busy[id]:
			case wanted && (r == nil || r.partition.Load() == nil) && n.mayOpen(s, id):
				begin(id, func() error { return n.openWanted(ctx, p) })
			case !wanted && r != nil && r.partition.Load() != nil && n.movedAway(r):
				n.logger.Info("the replica was moved away", "partition", id)
				if err := r.close(); err != nil {
					n.logger.Warn("closing a replica that was moved away", "partition", id, "error", err)
				}
			}
		}
		for _, r := range n.hosted.all() {
			if hasEnded(s, r.id) && !busy[r.id] {
				begin(r.id, func() error { return n.retire(r) })
			}
		}
		n.sweepEnded(s, &swept)
		select {
		case <-ctx.Done():
			return nil
		case err := <-failed:
			return err
		case id := <-done:
			delete(busy, id)
		case <-changed:
		case <-tick.C:
		}
	}
}

// mayOpen reports that a replica may be opened: one whose files are here, and a new one by a state that is no old one.
// While a start applies what it had already, the state is one in which partitions are that have ended since.
func (n *Node) mayOpen(s *state.State, id string) bool {
	return n.claim.Has(id) || n.lease.covers(n.source.Read(), s.Version)
}

// isSelf reports that the cluster's state has this node with this data directory.
func (n *Node) isSelf(s *state.State) bool {
	known, ok := s.Node(n.cfg.ID)
	return ok && known.Instance == n.claim.Instance() && known.State != state.NodeRemoved
}

// movedAway reports that the partition's leader does not count this replica any more.
func (n *Node) movedAway(r *replica) bool {
	g := n.neighbours.leading(r.id, time.Now())
	if g == nil {
		return false
	}
	_, listed := g.lists(n.cfg.ID)
	return !listed
}

// openWanted opens the replica of a partition that the cluster's state gives to this node.
func (n *Node) openWanted(ctx context.Context, p *state.Partition) error {
	r, err := n.have(p.ID.String())
	if err != nil {
		return err
	}
	var founders []group.Member
	if self := n.member(); p.Founder == replicaKey(self) {
		founders = []group.Member{self} // unused when the log is there
	}
	return n.openPartition(ctx, r, founders)
}

// openPartition opens this node's replica of a partition.
func (n *Node) openPartition(ctx context.Context, r *replica, founders []group.Member) error {
	metrics := &registrations{Registerer: n.server.Registry()}
	opened, err := partition.Open(partition.Config{
		ID: r.id, NodeID: n.cfg.ID, Birth: r.birth, Source: n.source,
		MaxDriftPPM: n.cfg.Clock.MaxDriftPPM, TrustWall: clock.TrustWall(n.cfg.Clock.TrustWall),
		Ahead: func(a partition.Ahead) { n.ahead(r.id, a) }, Consult: n.consult(r.id),
		PeerLevels: r.peerLevels, WithRoom: r.withRoom, Policy: n.findPolicy, InFlight: n.inFlight,
		Lease: func() partition.PolicyLease { return n.leaseOf(r.id) },
		Fatal: n.fatal, Metrics: metrics, Logger: n.logger,
		Open: func(a group.Applier) (group.Group, error) {
			return r.openGroup(ctx, a, storage.Backend(n.cfg.LogStore.Backend), founders)
		},
	})
	if err != nil {
		metrics.unregister()
		if ctx.Err() != nil {
			return nil //nolint:nilerr // the node is stopping
		}
		return err
	}
	opened.SetDiskLow(n.diskLow.Load())
	r.metrics = metrics
	r.partition.Store(opened)
	n.logger.Info("the replica is open", "partition", r.id)
	return nil
}

// registrations is a registerer whose collectors can be taken back all together.
type registrations struct {
	prometheus.Registerer
	list []prometheus.Collector
}

// MustRegister registers collectors.
func (r *registrations) MustRegister(cs ...prometheus.Collector) {
	r.Registerer.MustRegister(cs...)
	r.list = append(r.list, cs...)
}

func (r *registrations) unregister() {
	if r == nil {
		return
	}
	for _, c := range r.list {
		r.Unregister(c)
	}
	r.list = nil
}
