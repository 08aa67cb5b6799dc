package cluster

import (
	"fmt"
	"os"

	"github.com/quorate/quorate/jepsen/process"
)

// Node is a node's place, and the process that runs it while it is up. It is not safe for concurrent use.
type Node struct{ process.Node }

// SetAside takes the data directory of a node that is down away, to be put back.
func (n *Node) SetAside() error {
	if n.Up() {
		return fmt.Errorf("node %s runs, and its data cannot be taken away", n.ID)
	}
	return os.Rename(n.DataDir, n.aside())
}

// PutBack gives the node the data directory again that was set aside. It must have no other.
func (n *Node) PutBack() error { return os.Rename(n.aside(), n.DataDir) }

func (n *Node) aside() string { return n.DataDir + ".aside" }

// LoseData removes the data directory of a node that is down.
func (n *Node) LoseData() error {
	if n.Up() {
		return fmt.Errorf("node %s runs, and its data cannot be taken away", n.ID)
	}
	return os.RemoveAll(n.DataDir)
}
