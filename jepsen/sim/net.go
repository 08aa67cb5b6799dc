package sim

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/partition/group"
)

var (
	errCut     = errors.New("i/o timeout")
	errRefused = errors.New("connection refused")
)

// network carries Raft's requests between the nodes' processes. Each request of a connection is decoded into
// memory of the receiver, as from a socket.
type network struct {
	mu    sync.Mutex // guards the fields below
	rng   *rand.Rand
	at    map[string]*transport // by address, the process that listens there
	links map[[2]string]*link   // by node ids, from and to
	// tap, if set, sees each request before it leaves, and may say how it fares.
	tap  func(*packet)
	seen func(*packet) // each request, for the checker
	// answered sees each request that was served, with its answer.
	answered func(*packet, any)
	done     chan struct{}
	flights  sync.WaitGroup
}

// link is one direction between two nodes.
type link struct {
	cut           bool
	loss, repeats float64 // of requests: how many are lost, and how many come twice
	answerLoss    float64
	slow          time.Duration // added to each delay, up to
	held          time.Duration // how long answers to requests on this link are held
}

// packet is a request on its way.
type packet struct {
	from, to *transport // to is nil when nobody listens
	command  any
	snapshot []byte

	delay, answerDelay time.Duration
	lost, answerLost   bool
	again              time.Duration // when it comes a second time; 0 never
}

func newNetwork(rng *rand.Rand) *network {
	return &network{
		rng: rng, at: map[string]*transport{}, links: map[[2]string]*link{}, done: make(chan struct{}),
	}
}

// close ends everything that is on its way.
func (n *network) close() {
	close(n.done)
	n.flights.Wait()
}

// change changes a link.
func (n *network) change(from, to string, f func(*link)) {
	n.mu.Lock()
	defer n.mu.Unlock()
	f(n.link(from, to))
}

// link needs mu.
func (n *network) link(from, to string) *link {
	l := n.links[[2]string{from, to}]
	if l == nil {
		l = &link{}
		n.links[[2]string{from, to}] = l
	}
	return l
}

// heal mends all links.
func (n *network) heal() {
	n.mu.Lock()
	defer n.mu.Unlock()
	clear(n.links)
	n.tap = nil
}

// reaches reports whether two nodes hear each other.
func (n *network) reaches(a, b string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return !n.link(a, b).cut && !n.link(b, a).cut
}

func (n *network) setTap(f func(*packet)) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.tap = f
}

// host is a process on the network.
type host struct {
	*network
	life *life
}

var _ group.Network = host{}

// Transport opens a replica's share of the network.
func (h host) Transport(_ string, self group.Member, request time.Duration, _ hclog.Logger,
) (group.Transport, error) {
	h.life.breathe()
	t := &transport{
		network: h.network, life: h.life, self: self, timeout: request,
		requests: make(chan raft.RPC), closed: make(chan struct{}), hangups: make(chan raft.ServerID, 8),
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.at[self.Addr] = t
	return t, nil
}

// end is what others see of the end of a process: its machine closes its connections, unless it has no power.
func (n *network) end(m group.Member, dark bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if t := n.at[m.Addr]; t != nil && t.self == m {
		t.dark = dark
	}
	if dark {
		return
	}
	for _, to := range n.at {
		l := n.link(m.ID, to.self.ID)
		wait := n.takes(l)
		if l.cut || to.life.over() {
			continue
		}
		n.flights.Go(func() {
			if !n.pass(wait) {
				return
			}
			select {
			case to.hangups <- raft.ServerID(m.ID + "@" + m.Instance):
			default:
			}
		})
	}
}

// pass lets time pass; it is false when the network was closed meanwhile.
func (n *network) pass(d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-n.done:
		return false
	}
}

// takes needs mu.
func (n *network) takes(l *link) time.Duration {
	d := time.Duration(100+n.rng.IntN(1900)) * time.Microsecond
	if l.slow > 0 {
		d += time.Duration(n.rng.Int64N(int64(l.slow)))
	}
	return d
}

// isHeartbeat is the test of Raft's own network transport, for senders that give their address in the header.
func isHeartbeat(command any) bool {
	q, ok := command.(*raft.AppendEntriesRequest)
	if !ok {
		return false
	}
	return q.Term != 0 && q.Addr != nil && q.PrevLogEntry == 0 && q.PrevLogTerm == 0 &&
		len(q.Entries) == 0 && q.LeaderCommitIndex == 0
}

// copied is a request without memory of its sender.
func copied(command any) any {
	switch q := command.(type) {
	case *raft.AppendEntriesRequest:
		c := *q
		c.Entries = make([]*raft.Log, len(q.Entries))
		for i, e := range q.Entries {
			entry := *e
			entry.Data, entry.Extensions = slices.Clone(e.Data), slices.Clone(e.Extensions)
			c.Entries[i] = &entry
		}
		return &c
	case *raft.RequestVoteRequest:
		c := *q
		return &c
	case *raft.RequestPreVoteRequest:
		c := *q
		return &c
	case *raft.InstallSnapshotRequest:
		c := *q
		c.Configuration, c.Peers = slices.Clone(q.Configuration), slices.Clone(q.Peers)
		return &c
	case *raft.TimeoutNowRequest:
		c := *q
		return &c
	}
	panic(fmt.Sprintf("request of type %T", command))
}
