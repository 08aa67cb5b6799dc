package sdk

import (
	"fmt"
	"sync"

	"github.com/quorate/quorate/router"
	"github.com/quorate/quorate/sdk/internal/budget"
	"github.com/quorate/quorate/sdk/internal/link"
)

// nodes holds one link per node, made at first use. The address is part of the key: another node at the same address is
// another end.
type nodes struct {
	transport *transport
	now       func() int64
	settings  *settings
	counters  link.Counters

	mu     sync.RWMutex // guards the rest
	links  map[router.Node]*link.Node
	closed bool
}

func newNodes(t *transport, now func() int64, s *settings) *nodes {
	return &nodes{transport: t, now: now, settings: s, links: map[router.Node]*link.Node{}}
}

// to is the link to a node.
func (ns *nodes) to(n router.Node) (*link.Node, error) {
	ns.mu.RLock()
	l, closed := ns.links[n], ns.closed
	ns.mu.RUnlock()
	switch {
	case closed:
		return nil, ErrClosed
	case l != nil:
		return l, nil
	}
	return ns.make(n)
}

func (ns *nodes) make(n router.Node) (*link.Node, error) {
	ns.mu.Lock()
	defer ns.mu.Unlock()
	if ns.closed {
		return nil, ErrClosed
	}
	if l := ns.links[n]; l != nil {
		return l, nil
	}
	if len(ns.links) >= 2*router.MaxNodes {
		return nil, fmt.Errorf("too many nodes are connected: %d", len(ns.links))
	}
	conn, err := ns.transport.dial(n)
	if err != nil {
		return nil, err
	}
	l := link.New(conn, ns.now, budget.New(ns.now(), ns.settings.retryRatio, ns.settings.retryMin), &ns.counters)
	ns.links[n] = l
	return l, nil
}

// suspect reports whether a node is known not to answer.
func (ns *nodes) suspect(n router.Node) bool {
	ns.mu.RLock()
	l := ns.links[n]
	ns.mu.RUnlock()
	return l != nil && l.Suspect()
}

// retain closes the links to nodes that a map no longer has.
func (ns *nodes) retain(m *router.Map) {
	ns.mu.Lock()
	var gone []*link.Node
	for n, l := range ns.links {
		if now, ok := m.Node(n.ID); !ok || now != n {
			gone = append(gone, l)
			delete(ns.links, n)
		}
	}
	ns.mu.Unlock()
	for _, l := range gone {
		l.Close()
	}
}

func (ns *nodes) count() int {
	ns.mu.RLock()
	defer ns.mu.RUnlock()
	return len(ns.links)
}

func (ns *nodes) close() {
	ns.mu.Lock()
	ns.closed = true
	all := ns.links
	ns.links = map[router.Node]*link.Node{}
	ns.mu.Unlock()
	for _, l := range all {
		l.Close()
	}
}
