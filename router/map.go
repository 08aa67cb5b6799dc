package router

import (
	"errors"
	"fmt"
	"slices"
)

// The bounds of a map.
const (
	MaxPartitions = 4096
	MaxNodes      = 1024
	// none marks a slot that nobody owns; it is above any index of a range.
	none = NumSlots
)

// Node is where a node serves.
type Node struct {
	ID   string
	GRPC string // host:port
}

// Range is the slots First to Last, both included, that a partition owns under an epoch.
type Range struct {
	First, Last uint16
	Epoch       uint64
	Partition   string
}

// Partition is one partition of the map.
type Partition struct {
	ID       string
	Replicas []string // node ids
	Leader   string   // node id, as the sender of the map knew it; a hint, empty when not known
}

// Parts are what a map is made of.
type Parts struct {
	Cluster    string
	Version    uint64 // grows
	Seed       [16]byte
	Nodes      []Node
	Partitions []Partition
	Ranges     []Range
}

// Map says which partition owns which slots, and where its replicas are. It is immutable.
type Map struct {
	parts      Parts
	slots      [NumSlots]uint16 // index of the range; none
	nodes      map[string]Node
	partitions map[string]*Partition
	places     []place // of each range
}

// place is where the partition of a range is.
type place struct {
	leader   Node // as the map knows it; empty when it does not
	replicas []Node
}

// NewMap makes a map of parts, which it copies. All that is wrong with them is in the error.
func NewMap(parts Parts) (*Map, error) {
	m := &Map{parts: parts, nodes: map[string]Node{}, partitions: map[string]*Partition{}}
	m.parts.Nodes, m.parts.Ranges = slices.Clone(parts.Nodes), slices.Clone(parts.Ranges)
	m.parts.Partitions = slices.Clone(parts.Partitions)
	if err := m.build(); err != nil {
		return nil, fmt.Errorf("partition map of version %d: %w", parts.Version, err)
	}
	return m, nil
}

func (m *Map) build() error {
	p := &m.parts
	var errs []error
	problem := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if p.Cluster == "" || p.Version == 0 {
		problem("it names no cluster, or no version")
	}
	if len(p.Partitions) > MaxPartitions || len(p.Nodes) > MaxNodes || len(p.Ranges) > NumSlots {
		return errors.New("it has more nodes, partitions or ranges than a cluster can have")
	}
	for _, n := range p.Nodes {
		if _, twice := m.nodes[n.ID]; twice || n.ID == "" || n.GRPC == "" {
			problem("node %q is named twice, or has no address", n.ID)
		}
		m.nodes[n.ID] = n
	}
	for i := range p.Partitions {
		part := &p.Partitions[i]
		part.Replicas = slices.Clone(part.Replicas)
		if _, twice := m.partitions[part.ID]; twice || part.ID == "" {
			problem("partition %q is named twice, or not named", part.ID)
		}
		if len(part.Replicas) == 0 {
			problem("partition %s has no replicas", part.ID)
		}
		m.partitions[part.ID] = part
		for _, id := range part.Replicas {
			if _, ok := m.nodes[id]; !ok {
				problem("partition %s has a replica on node %q, which is not there", part.ID, id)
			}
		}
	}
	for i := range m.slots {
		m.slots[i] = none
	}
	for i, r := range p.Ranges {
		if r.First > r.Last || r.Last >= NumSlots || r.Epoch == 0 {
			problem("slots %d to %d under epoch %d are no range", r.First, r.Last, r.Epoch)
			continue
		}
		if _, ok := m.partitions[r.Partition]; !ok {
			problem("slots %d to %d are of partition %q, which is not there", r.First, r.Last, r.Partition)
		}
		for slot := int(r.First); slot <= int(r.Last); slot++ {
			if m.slots[slot] != none {
				problem("slots %d to %d overlap another range", r.First, r.Last)
				break
			}
			m.slots[slot] = uint16(i)
		}
	}
	if len(errs) > 0 {
		return errors.Join(errs...)
	}
	m.locate()
	return nil
}

// locate finds out once where the partitions are, for each that asks. Ranges of one partition share the replicas.
func (m *Map) locate() {
	of := make(map[string]place, len(m.partitions))
	for id, p := range m.partitions {
		at := place{leader: m.nodes[p.Leader], replicas: make([]Node, len(p.Replicas))}
		for i, replica := range p.Replicas {
			at.replicas[i] = m.nodes[replica]
		}
		of[id] = at
	}
	m.places = make([]place, len(m.parts.Ranges))
	for i, r := range m.parts.Ranges {
		m.places[i] = of[r.Partition]
	}
}

// Version is the map's.
func (m *Map) Version() uint64 { return m.parts.Version }

// Cluster is the id of the cluster.
func (m *Map) Cluster() string { return m.parts.Cluster }

// SlotOf is the slot of a principal.
func (m *Map) SlotOf(principal string) uint16 { return SlotOf(m.parts.Seed, principal) }

// Node is the node with this id.
func (m *Map) Node(id string) (Node, bool) {
	n, ok := m.nodes[id]
	return n, ok
}

// owner is the range that a slot is in.
func (m *Map) owner(slot uint16) (*Range, bool) {
	if i := m.slots[slot]; i != none {
		return &m.parts.Ranges[i], true
	}
	return nil, false
}

// placeOf is where a slot is, which has an owner.
func (m *Map) placeOf(slot uint16) *place { return &m.places[m.slots[slot]] }

// Nodes are all nodes, in the order of the parts.
func (m *Map) Nodes() []Node { return slices.Clone(m.parts.Nodes) }
