package cluster

import (
	"context"
	"net"
	"time"

	"github.com/quorate/quorate/jepsen/netns"
	"github.com/quorate/quorate/jepsen/process"
)

// namespaceBase is where the ports of nodes in namespaces begin, of which each has all for its own.
const namespaceBase = 7000

// Network is between the nodes, and can be broken: a process.Network, of relays, or a netns.Fabric, of namespaces.
type Network interface {
	// Cut takes a node off the network of the nodes, and Heal puts it back.
	Cut(n *process.Node)
	Heal(n *process.Node)
	IsCut(n *process.Node) bool
	// Set says how one direction between two nodes, or one and process.Outside, carries what is sent.
	Set(from, to string, c process.Condition)
	// Clear has all carry as at first, but for nodes that are cut off.
	Clear()
	// Slow has what a node answers callers from outside arrive so much later.
	Slow(n *process.Node, late time.Duration)
	// Stopped is how often something was stopped, or late, from one to another since the beginning.
	Stopped(from, to string) int
	Close() error
}

var (
	_ Network = (*process.Network)(nil)
	_ Network = (*netns.Fabric)(nil)
)

// onLoopback places the nodes there, with relays between them if they can be cut off.
func (c *Cluster) onLoopback() (nodes []*Node, err error) {
	base, err := process.FreePorts(c.options.Nodes)
	if err != nil {
		return nil, err
	}
	var relays *process.Network
	if c.options.Cuts {
		relays = process.NewNetwork()
		c.Network = relays
	}
	for k := range c.options.Nodes {
		n := &Node{process.NewNode(c.options.Binary, c.dir, k, base)}
		nodes = append(nodes, n)
		if relays == nil {
			n.Dialled = process.Addresses{GRPC: n.GRPC, Raft: n.Raft, Gossip: n.Gossip}
		} else if err := relays.Carry(&n.Node); err != nil {
			return nil, err
		}
	}
	return nodes, nil
}

// inNamespaces places the nodes each in one of its own, and commands and clients in another.
func (c *Cluster) inNamespaces() (nodes []*Node, err error) {
	var ids []string
	for k := range c.options.Nodes {
		ids = append(ids, process.NodeID(k))
	}
	fabric, err := netns.New(ids...)
	if err != nil {
		return nil, err
	}
	c.Network, c.outside, c.dial = fabric, fabric.Place(process.Outside), fabric.DialContext
	for k, id := range ids {
		n := &Node{process.NewNodeAt(fabric.Addr(id), c.options.Binary, c.dir, k, namespaceBase)}
		n.Place = fabric.Place(id)
		n.Dialled = process.Addresses{GRPC: n.GRPC, Raft: n.Raft, Gossip: n.Gossip}
		nodes = append(nodes, n)
	}
	return nodes, nil
}

// DialContext opens a connection to a node from where clients are.
func (c *Cluster) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	return c.dial(ctx, network, address)
}
