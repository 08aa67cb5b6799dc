package sdk

import (
	"fmt"
	"maps"
	"sync"
	"sync/atomic"

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

	// links are what holds now, for who only looks: exchanged whole, with mu held.
	links atomic.Pointer[links]

	mu     sync.Mutex // guards changes
	closed bool
}

// links are the links by node. They do not change.
type links map[router.Node]*link.Node

func newNodes(t *transport, now func() int64, s *settings) *nodes {
	ns := &nodes{transport: t, now: now, settings: s}
	ns.links.Store(&links{})
	return ns
}

// to is the link to a node.
func (ns *nodes) to(n *router.Node) (*link.Node, error) {
	if l := (*ns.links.Load())[*n]; l != nil {
		return l, nil
	}
	return ns.make(*n)
}

func (ns *nodes) make(n router.Node) (*link.Node, error) {
	ns.mu.Lock()
	defer ns.mu.Unlock()
	if ns.closed {
		return nil, ErrClosed
	}
	all := *ns.links.Load()
	if l := all[n]; l != nil {
		return l, nil
	}
	if len(all) >= 2*router.MaxNodes {
		return nil, fmt.Errorf("too many nodes are connected: %d", len(all))
	}
	conn, err := ns.transport.dial(n)
	if err != nil {
		return nil, err
	}
	l := link.New(conn, ns.now, budget.New(ns.now(), ns.settings.retryRatio, ns.settings.retryMin), &ns.counters)
	more := maps.Clone(all)
	more[n] = l
	ns.links.Store(&more)
	return l, nil
}

// suspect reports whether a node is known not to answer.
func (ns *nodes) suspect(n *router.Node) bool {
	l := (*ns.links.Load())[*n]
	return l != nil && l.Suspect()
}

// retain closes the links to nodes that a map no longer has.
func (ns *nodes) retain(m *router.Map) {
	ns.mu.Lock()
	var gone []*link.Node
	stay := links{}
	for n, l := range *ns.links.Load() {
		if now, ok := m.Node(n.ID); ok && now == n {
			stay[n] = l
		} else {
			gone = append(gone, l)
		}
	}
	ns.links.Store(&stay)
	ns.mu.Unlock()
	for _, l := range gone {
		l.Close()
	}
}

func (ns *nodes) count() int { return len(*ns.links.Load()) }

func (ns *nodes) close() {
	ns.mu.Lock()
	ns.closed = true
	all := *ns.links.Swap(&links{})
	ns.mu.Unlock()
	for _, l := range all {
		l.Close()
	}
}
