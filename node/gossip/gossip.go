package gossip

import (
	"context"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"sync"
	"time"

	"github.com/hashicorp/memberlist"
)

const (
	// maxLabelBytes bounds the cluster id.
	maxLabelBytes = memberlist.LabelMaxSize
	// leaveTimeout is how long Close takes at most to say that this node leaves.
	leaveTimeout = 500 * time.Millisecond
)

// Config says who this node is and how others are found.
type Config struct {
	Cluster string // the cluster's id, at most 255 bytes; nodes of others are never seen
	Node    string // this node's id, which is Self.ID
	// Bind is where to listen for packets and streams, host:port; port 0 picks one.
	Bind string
	// Advertise is what others are told, host:port; empty means Bind. A name is looked up once, in Open.
	Advertise string
	// Key is the cluster's, 32 bytes. It may be nil only if Bind and Advertise are loopback addresses.
	Key []byte
	// Seeds are gossip addresses of other nodes, host:port, to begin with and to find the way back after a
	// partition; this node's own may be among them. It is called now and then, from one goroutine, and must not
	// block. nil means none: this node waits to be asked.
	Seeds func() []string
	// Self is what this node tells about itself. An empty Gossip is filled in.
	Self   Meta
	Logger *slog.Logger // nil discards
}

// Gossip is this node's part in it. Its methods are safe for concurrent use.
type Gossip struct {
	node      string
	bind      string
	seeds     func() []string
	logger    *slog.Logger
	pace      pace
	table     *table
	lines     *lines
	transport *transport
	list      *memberlist.Memberlist
	cancel    context.CancelFunc
	searching sync.WaitGroup
	ending    sync.Once
	ended     error

	updating sync.Mutex // one Update at a time, and none while Close says good-bye
	mu       sync.Mutex // guards the fields below
	closed   bool
	self     Meta
	encoded  []byte // self, as it is told
}

// pace is how often things are done; tests hurry.
type pace struct {
	probe, probeTimeout, gossip, exchange time.Duration // memberlist's
	reclaim                               time.Duration // before another may have the name of one that is gone
	alone, missing, settled               time.Duration // the search for other nodes
}

// usual probes one node every two seconds; one that does not answer has eight more to say that it is there. It is
// generous, since a busy machine that is taken for dead is more trouble than a dead one that is noticed late.
var usual = pace{
	probe: 2 * time.Second, probeTimeout: time.Second,
	gossip: 200 * time.Millisecond, exchange: 30 * time.Second, reclaim: 30 * time.Second,
	alone: 2 * time.Second, missing: 15 * time.Second, settled: 15 * time.Second,
}

// Open listens and begins to look for other nodes. It does not wait for any.
func Open(c Config) (*Gossip, error) {
	g, err := open(c, usual)
	if err != nil {
		return nil, fmt.Errorf("gossip: %w", err)
	}
	return g, nil
}

func open(c Config, p pace) (*Gossip, error) {
	if c.Cluster == "" || len(c.Cluster) > maxLabelBytes {
		return nil, fmt.Errorf("cluster id %.80q: give one of 1 to %d bytes", c.Cluster, maxLabelBytes)
	}
	bind, advertise, err := addresses(c.Bind, c.Advertise)
	if err != nil {
		return nil, err
	}
	if c.Key == nil && (!bind.Addr().IsLoopback() || !advertise.Addr().IsLoopback()) {
		return nil, fmt.Errorf("%s, advertised as %s, is not on loopback: give a gossip key", c.Bind, advertise)
	}
	s, err := newSeal(c.Cluster, c.Key)
	if err != nil {
		return nil, err
	}
	logger := discard(c.Logger).With("logger", "gossip")
	g := &Gossip{
		node: c.Node, bind: c.Bind, seeds: c.Seeds, logger: logger, pace: p, table: newTable(c.Node, logger),
		lines: &lines{to: logger},
	}
	if g.seeds == nil {
		g.seeds = func() []string { return nil }
	}
	// Checked before anything is opened; the port that is told in it may still be 0.
	self := c.Self
	if self.Gossip == "" {
		self.Gossip = "255.255.255.255:65535"
	}
	if err := g.describeSelf(self); err != nil {
		return nil, err
	}
	t, err := listen(bind, advertise, s, c.Key == nil, &refusals{to: logger})
	if err != nil {
		return nil, err
	}
	g.transport = t
	if err := g.describeSelf(c.Self); err != nil {
		return nil, errors.Join(err, t.Shutdown())
	}
	if g.list, err = memberlist.Create(g.configuration(s)); err != nil {
		return nil, errors.Join(err, t.Shutdown())
	}
	ctx, cancel := context.WithCancel(context.Background())
	g.cancel = cancel
	g.searching.Go(func() { g.search(ctx) })
	return g, nil
}

func (g *Gossip) configuration(s *seal) *memberlist.Config {
	m := memberlist.DefaultLANConfig()
	m.Name, m.Label, m.Transport = g.node, s.label, g.transport
	m.BindPort = int(g.transport.advertise.Port()) // what a port of 0 in a message stands for
	m.SecretKey, m.GossipVerifyIncoming, m.GossipVerifyOutgoing = s.key, true, true
	m.EnableCompression = false
	m.Delegate, m.Events, m.Alive, m.Conflict = &delegate{g}, g.table, g.table, g.table
	m.Logger = log.New(g.lines, "", 0)
	m.ProbeInterval, m.ProbeTimeout = g.pace.probe, g.pace.probeTimeout
	m.GossipInterval, m.PushPullInterval = g.pace.gossip, g.pace.exchange
	m.TCPTimeout = streamTimeout
	m.AwarenessMaxMultiplier = 4
	m.DeadNodeReclaimTime = g.pace.reclaim
	return m
}

// Addr is the gossip address that others are told, with its port.
func (g *Gossip) Addr() string { return g.transport.advertise.String() }

// Nodes are the other nodes that have been seen, by id; this one is not among them.
func (g *Gossip) Nodes() []Seen { return g.table.nodes() }

// Refused counts the packets and streams that were not let in.
func (g *Gossip) Refused() uint64 { return g.transport.refused.total() }

// Changed yields when Nodes may have changed since it last yielded; several changes may come as one. It is for one
// reader. It is not closed by Close.
func (g *Gossip) Changed() <-chan struct{} { return g.table.changed }

// Update replaces what this node tells about itself. An empty Gossip is filled in. It does not move the sockets.
// Others learn it within seconds.
func (g *Gossip) Update(self Meta) error {
	g.updating.Lock()
	defer g.updating.Unlock()
	g.mu.Lock()
	before, closed := string(g.encoded), g.closed
	g.mu.Unlock()
	if closed {
		return fmt.Errorf("gossip: %w", errClosed)
	}
	if err := g.describeSelf(self); err != nil {
		return fmt.Errorf("gossip: %w", err)
	}
	g.mu.Lock()
	same := before == string(g.encoded)
	g.mu.Unlock()
	if !same {
		// Its only error is that it was not sent yet.
		_ = g.list.UpdateNode(time.Nanosecond)
	}
	return nil
}

// describeSelf takes over what this node tells about itself.
func (g *Gossip) describeSelf(self Meta) error {
	if self.ID != g.node {
		return fmt.Errorf("node %q describes itself as %q: give the node's id", g.node, self.ID)
	}
	if self.Gossip == "" {
		self.Gossip = g.transport.advertise.String()
	}
	encoded, err := self.encode()
	if err != nil {
		return err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.self, g.encoded = self, encoded
	return nil
}

// Close tells the others that this node leaves, and ends its part. It is safe to call again.
func (g *Gossip) Close() error {
	g.ending.Do(func() {
		g.cancel()
		g.updating.Lock()
		defer g.updating.Unlock()
		g.mu.Lock()
		g.closed = true
		g.mu.Unlock()
		// Its only error is that nobody took it in time: they will notice.
		_ = g.list.Leave(leaveTimeout)
		g.table.close()
		g.lines.end()
		g.ended = errors.Join(g.transport.Shutdown(), g.list.Shutdown())
		g.searching.Wait()
	})
	return g.ended
}

// delegate is what memberlist asks this node for.
type delegate struct{ g *Gossip }

var _ memberlist.Delegate = (*delegate)(nil)

// NodeMeta is what this node tells about itself; it was checked against the limit.
func (d *delegate) NodeMeta(int) []byte {
	d.g.mu.Lock()
	defer d.g.mu.Unlock()
	return d.g.encoded
}

// NotifyMsg is for messages that Quorate does not use.
func (d *delegate) NotifyMsg([]byte) {}

// GetBroadcasts has none.
func (d *delegate) GetBroadcasts(int, int) [][]byte { return nil }

// LocalState has none.
func (d *delegate) LocalState(bool) []byte { return nil }

// MergeRemoteState takes none.
func (d *delegate) MergeRemoteState([]byte, bool) {}
