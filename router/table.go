package router

import (
	"slices"
	"sync"
	"sync/atomic"
)

// Route is where a principal's checks go.
type Route struct {
	Slot       uint16
	Partition  string // empty when nobody owns the slot
	Epoch      uint64 // that the check is to carry
	Node       Node   // to ask first; its ID is empty when no node is known
	Replicas   []Node // all of the partition's, Node among them unless it was learned; not to be changed
	MapVersion uint64
	// Behind: an owner was seen to have a newer epoch than this map gives, so that a refresh is due.
	Behind bool
}

// hint is a leader that an error named.
type hint struct {
	node  Node
	epoch uint64 // of the slot that was asked for
}

// routes is a map with what was learned since: immutable, exchanged whole.
type routes struct {
	m     *Map
	hints map[string]hint   // by partition
	newer map[uint16]uint64 // by slot: an epoch seen that the map does not have yet
}

// maxNewer bounds the slots whose newer epochs are remembered; to forget one costs a round trip.
const maxNewer = 1024

// Table is the routes as they are now. It is for concurrent use; the zero Table has no map.
type Table struct {
	now atomic.Pointer[routes]

	mu sync.Mutex // guards changes of now
}

// Update takes a map if it is newer than the one at hand and of the same cluster, and reports whether it did.
// A leader that was learned stays while its partition has the same epochs.
func (t *Table) Update(m *Map) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	old := t.now.Load()
	next := &routes{m: m, hints: map[string]hint{}, newer: map[uint16]uint64{}}
	if old != nil {
		if m.Version() <= old.m.Version() || m.Cluster() != old.m.Cluster() || m.parts.Seed != old.m.parts.Seed {
			return false
		}
		for id, h := range old.hints {
			if p, ok := m.partitions[id]; ok && p.Leader == "" && m.hasEpoch(id, h.epoch) {
				next.hints[id] = h
			}
		}
		for slot, epoch := range old.newer {
			if r, ok := m.owner(slot); !ok || r.Epoch < epoch {
				next.newer[slot] = epoch
			}
		}
	}
	t.now.Store(next)
	return true
}

func (m *Map) hasEpoch(partition string, epoch uint64) bool {
	return slices.ContainsFunc(m.parts.Ranges, func(r Range) bool { return r.Partition == partition && r.Epoch == epoch })
}

// Map is the newest map; nil before the first.
func (t *Table) Map() *Map {
	if r := t.now.Load(); r != nil {
		return r.m
	}
	return nil
}

// Behind reports whether an owner was seen to have a newer epoch than the map gives.
func (t *Table) Behind() bool {
	r := t.now.Load()
	return r != nil && len(r.newer) > 0
}

// Lookup is where a principal's checks go; false before the first map.
func (t *Table) Lookup(principal string) (Route, bool) {
	r := t.now.Load()
	if r == nil {
		return Route{}, false
	}
	return r.route(r.m.SlotOf(principal)), true
}

// PartitionOf is the Partition of Lookup; empty while it is not known.
func (t *Table) PartitionOf(principal string) string {
	r := t.now.Load()
	if r == nil {
		return ""
	}
	owned, _ := r.m.owner(r.m.SlotOf(principal))
	return owned.Partition
}

func (r *routes) route(slot uint16) Route {
	out := Route{Slot: slot, MapVersion: r.m.Version()}
	owned, ok := r.m.owner(slot)
	newer := r.newer[slot]
	if !ok {
		out.Behind = true
		return out
	}
	out.Partition, out.Epoch, out.Behind = owned.Partition, owned.Epoch, newer > owned.Epoch
	at := r.m.placeOf(slot)
	out.Replicas, out.Node = at.replicas, at.leader
	if len(r.hints) > 0 {
		if h, known := r.hints[owned.Partition]; known {
			out.Node = h.node
		}
	}
	if out.Node.ID == "" && len(out.Replicas) > 0 {
		out.Node = out.Replicas[0]
	}
	return out
}

// Learn takes what a not_leader or wrong_epoch says, in answer to a check that was sent to asked by route; and
// that there was no answer: then another replica is asked first. A leader counts only for the epoch that the
// map gives now, and only if the node that was asked is still the one to ask: of two answers that come late,
// the second changes nothing. An epoch counts only if it is newer.
func (t *Table) Learn(route Route, asked string, f Failure) {
	t.mu.Lock()
	defer t.mu.Unlock()
	old := t.now.Load()
	if old == nil || route.Partition == "" {
		return
	}
	now := old.route(route.Slot)
	switch f.Reason {
	case ReasonNotLeader, "":
		to, ok := old.leader(f)
		if f.Reason == "" {
			to, ok = after(now.Replicas, asked)
		}
		if !ok || now.Partition != route.Partition || now.Epoch != route.Epoch || now.Node.ID != asked ||
			now.Node == to {
			return
		}
		next := old.clone()
		next.hints[now.Partition] = hint{node: to, epoch: now.Epoch}
		t.now.Store(next)
	case ReasonWrongEpoch:
		if f.Epoch <= now.Epoch || f.Epoch <= old.newer[route.Slot] || len(old.newer) >= maxNewer {
			return
		}
		next := old.clone()
		next.newer[route.Slot] = f.Epoch
		t.now.Store(next)
	}
}

// after is the replica that follows the one on a node.
func after(replicas []Node, id string) (Node, bool) {
	if len(replicas) == 0 {
		return Node{}, false
	}
	i := slices.IndexFunc(replicas, func(n Node) bool { return n.ID == id })
	return replicas[(i+1)%len(replicas)], true
}

// leader is the node that an error names, with its address.
func (r *routes) leader(f Failure) (Node, bool) {
	if n, ok := r.m.nodes[f.Leader]; ok {
		return n, true
	}
	return Node{ID: f.Leader, GRPC: f.LeaderAddr}, f.Leader != "" && f.LeaderAddr != ""
}

func (r *routes) clone() *routes {
	next := &routes{m: r.m, hints: make(map[string]hint, len(r.hints)+1), newer: make(map[uint16]uint64, len(r.newer)+1)}
	for k, v := range r.hints {
		next.hints[k] = v
	}
	for k, v := range r.newer {
		next.newer[k] = v
	}
	return next
}
